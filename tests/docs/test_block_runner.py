"""The runner of documentation blocks, on small made-up pages: what is wrong must fail, also where nothing is run."""

import time
from pathlib import Path

import pytest
from doc_blocks import BadBlock, Block, blocks
from doc_page import Report, run_page

from marft.cli.app import app


def _run(page: str, folder: Path) -> Report:
    return run_page(page.replace("~~~", "```"), "page.md", folder)


def _lives(pid: int) -> bool:
    """Whether it does anything: a zombie waits for its parent alone."""
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().split()[2] != "Z"
    except OSError:
        return False


def _failures(page: str, folder: Path) -> list[str]:
    return [why for _, why in _run(page, folder).failed]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("~~~sh\nfalse\n~~~", "status 1"),
        ("~~~sh\nfalse | cat\n~~~", "status 1"),
        ("~~~sh\nfalse\ntrue\n~~~", "status 1"),
        ("~~~sh\nmarft trian examples/quickstart.yaml || true\n~~~", "marft trian"),
        ("<!-- block: skip takes minutes -->\n~~~sh\nmarft trian examples/quickstart.yaml\n~~~", "marft trian"),
        ("<!-- block: skip needs a GPU -->\n~~~sh\nmarft train --rnu runs/x\n~~~", "--rnu"),
        ("<!-- block: skip needs a GPU -->\n~~~sh\nA=1 marft plan \\\n  x.yaml --gpus h100 > out\n~~~", "--gpus"),
        (
            "<!-- block: skip takes minutes -->\n~~~sh\nmarft train examples/quickstart.yaml update.lrr=1\n~~~",
            "'update.lrr'",
        ),
        ("<!-- block: fails -->\n~~~sh\ntrue\n~~~", "status 0"),
        ("~~~python\n1 / 0\n~~~", "ZeroDivisionError"),
        ("~~~python\nassert (\n~~~", "does not compile"),
        ("<!-- block: skip shows a pattern -->\n~~~python\nassert (\n~~~", "does not compile"),
        ("~~~python\n# file: a.py\nassert (\n~~~", "does not compile"),
        ("<!-- block: fails -->\n~~~python\nx = 1\n~~~", "did not"),
        ("~~~yaml\nupdate: {lrr: 0.1}\n~~~", "unknown key 'update.lrr'"),
        ("<!-- block: skip shows a pattern -->\n~~~yaml\nupdate: {lrr: 0.1}\n~~~", "unknown key 'update.lrr'"),
        ("~~~yaml\nenvironment: {name: relay, symbls: [a, b]}\n~~~", "symbls"),
        ("~~~yaml\nenvironment: {name: 'nowhere:World'}\n~~~", "nowhere"),
        ("~~~yaml\nteam:\n  agents: [{name: a}]\n  dependency: {edges: [[a, b]]}\n~~~", "b"),
        ("~~~yaml\n- {name: planner}\n~~~", "no top-level keys"),
        ("~~~yaml\na: [1\n~~~", "not YAML"),
        (
            "~~~yaml\n# file: x.yaml\nteam: {agents: [{name: a}]}\nenvironment: {name: relay}\nupdates: {}\n~~~",
            "updates",
        ),
        ("<!-- block: fails -->\n~~~yaml\nupdate: {lr: 0.1}\n~~~", "is not"),
    ],
)
def test_what_is_wrong_fails(page: str, said: str, tmp_path: Path) -> None:
    failures = _failures(page, tmp_path)
    assert len(failures) == 1
    assert said in failures[0]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("~~~\nplain\n~~~", "a block in ''"),
        ("~~~bash\ntrue\n~~~", "'bash'"),
        ("<!-- block: skip too slow -->\n~~~sh\ntrue\n~~~", "'too slow'"),
        ("<!-- block: skip -->\n~~~sh\ntrue\n~~~", "skip ''"),
        ("<!-- block: skp needs a GPU -->\n~~~sh\ntrue\n~~~", "'skp'"),
        ("<!-- block: skip needs a GPU -->\n\n~~~sh\ntrue\n~~~", "stands before no block"),
        ("<!-- block: skip needs a GPU -->\n~~~text\nwords\n~~~", "never run"),
        ("<!-- block: with iterations=1 -->\n~~~sh\ntrue\n~~~", "`marft train`"),
        ("<!-- block: with -->\n~~~sh\nmarft train x.yaml\n~~~", "`with` needs words"),
    ],
)
def test_what_keeps_to_no_convention_is_refused(page: str, said: str) -> None:
    with pytest.raises(BadBlock) as refused:
        blocks(page.replace("~~~", "```"))
    assert said in str(refused.value)


def test_every_fence_is_found_where_it_stands() -> None:
    page = (
        "# A\n\n~~~sh\ntrue\n~~~\n\n- item\n\n    <!-- block: skip needs a GPU -->\n    ~~~python\n    x = 1\n    ~~~\n"
    )
    page += "\n````text\n~~~sh\nfalse\n~~~\n<!-- block: skip nothing -->\n````\n"
    assert blocks(page.replace("~~~", "```")) == [
        Block(3, "sh", "true\n"),
        Block(10, "python", "x = 1\n", "skip", "needs a GPU"),
        Block(14, "text", "```sh\nfalse\n```\n<!-- block: skip nothing -->\n"),
    ]


def test_blocks_of_a_page_share_a_folder_and_a_namespace(tmp_path: Path) -> None:
    page = """
~~~python
# file: world_of_page.py
from marft.environments.relay import Relay as World
~~~

~~~yaml
# file: mine.yaml
team: {agents: [{name: ann}, {name: bob}]}
environment: {name: "world_of_page:World", symbols: [a, b]}
~~~

~~~python
from world_of_page import World

seen = World.__name__
~~~

~~~python
assert seen == "Relay"
open("seen.txt", "w").write(seen)
~~~

~~~sh
# a comment
test "$(cat seen.txt)" = Relay
test -f mine.yaml && test -f examples/quickstart.yaml
printenv HF_HUB_OFFLINE
~~~

<!-- block: skip takes minutes -->
~~~sh
rm mine.yaml
~~~

<!-- block: fails -->
~~~yaml
update: {lrr: 1}
~~~

~~~json
not even JSON
~~~
"""
    report = _run(page, tmp_path)
    assert report.failed == []
    assert [len(each) for each in (report.ran, report.skipped, report.shown)] == [6, 1, 1]
    assert (tmp_path / "mine.yaml").exists()
    with pytest.raises(ModuleNotFoundError):  # what a page wrote is not there for the next one
        __import__("world_of_page")


def test_with_appends_to_training_alone(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "marft"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "$@" >> calls.txt\n')
    script.chmod(0o755)
    page = f"""
<!-- block: with iterations=1 seed=2 -->
~~~sh
PATH={script.parent}:$PATH
marft train examples/quickstart.yaml  # words
marft check examples/quickstart.yaml
~~~
"""
    assert _failures(page, tmp_path) == []
    assert (tmp_path / "calls.txt").read_text().splitlines() == [
        "train examples/quickstart.yaml iterations=1 seed=2",
        "check examples/quickstart.yaml",
    ]


def test_a_command_that_must_fail_exits_with_2(tmp_path: Path) -> None:
    page = "<!-- block: fails -->\n~~~sh\nmarft check --no-weights examples/quickstart.yaml update.lrr=1\n~~~"
    assert _failures(page, tmp_path) == []


def test_what_is_left_running_is_ended(tmp_path: Path) -> None:
    assert _failures("~~~sh\nsleep 600 &\necho $! > pid\n~~~", tmp_path) == []
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):  # it was sent a signal, and may need a moment to obey
        if not _lives(pid):
            return
        time.sleep(0.1)
    pytest.fail("still running")


def test_examples_of_the_commands_are_commands(tmp_path: Path) -> None:
    texts = [each.epilog or "" for each in app.registered_commands]
    lines = [line[line.index("marft ") :] for text in texts for line in text.splitlines() if "marft " in line]
    assert len(lines) >= len(texts)
    page = "\n".join(f"<!-- block: skip shows a pattern -->\n~~~sh\n{line}\n~~~\n" for line in lines)
    assert _failures(page, tmp_path) == []


def test_a_command_that_goes_on_by_itself_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("import time\nprint('serving at 1', flush=True)\ntime.sleep(99)\n")
    page = "<!-- block: until serving at 1 -->\n```sh\npython serve.py\ntrap 'exit 0' INT; python serve.py\n```\n"
    report = run_page(page, "page", tmp_path)
    assert (len(report.ran), report.failed) == (1, [])


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo bye", "did not print 'serving at 1'"),
        ("echo serving at 1; trap 'exit 3' INT; sleep 99", "ended with status 3"),
    ],
)
def test_a_command_that_does_not_serve_or_does_not_end_well_fails(command: str, why: str, tmp_path: Path) -> None:
    report = run_page(f"<!-- block: until serving at 1 -->\n```sh\n{command}\n```\n", "page", tmp_path)
    assert [why in each for _, each in report.failed] == [True]
