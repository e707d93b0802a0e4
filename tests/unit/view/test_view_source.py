"""The rules of filters are written twice, in SQL and in `page/source.js`: both give the same answers."""

import base64
import gzip
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from view_runs import action, episode, write_run

from marft.run.directory import to_json
from marft.view.episodes import Query
from marft.view.library import Library
from marft.view.policy import PAGE
from marft.view.report import gather

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

NODE = """
let text = "";
for await (const part of process.stdin) text += part;
const { code, data, questions } = JSON.parse(text);
const module = await import(`data:text/javascript;base64,${code}`);
const source = module.reportSource(module.open(data));
const answers = [];
for (const [name, ...words] of questions) {
  try {
    answers.push(await source[name](...words));
  } catch (error) {
    answers.push({ error: error.message });
  }
}
console.log(JSON.stringify(answers));
"""
QUERIES: list[dict[str, str]] = [
    {},
    *({"sort": sort} for sort in ("newest", "oldest", "best", "worst", "risen", "fallen", "longest", "unlikely")),
    *({"outcome": outcome, "sort": "best"} for outcome in ("won", "lost", "failed")),
    *({"change": change, "sort": "longest"} for change in ("up", "down", "same", "new")),
    {"change": "up", "split": "train", "outcome": "lost"},
    *({"split": split, "sort": "risen"} for split in ("train", "greedy", "sampled")),
    {"iteration": "0"},
    {"iteration": "2", "split": "sampled"},
    {"iteration": "99"},
    {"agent": "judge", "sort": "unlikely"},
    {"agent": "jud"},
    {"task": "task 3", "sort": "fallen"},
    {"task": "nothing"},
    {"search": "Straße"},
    {"search": "ΟΔΟΣ"},
    {"search": "İ"},
    {"search": "tool said"},
    {"search": "DEADLINE"},
    {"search": "answer 7", "outcome": "won"},
    {"search": "%_"},
    {"search": "\u2028"},
    {"search": "", "outcome": "", "split": ""},
    {"size": "7", "page": "3", "sort": "longest"},
    {"size": "500", "page": "9"},
    {"sort": "odd"},
    {"outcome": "odd"},
    {"change": "odd"},
]


def ask(library: Library, questions: list[list[Any]]) -> list[Any]:
    """What the page's own code answers from what a report carries."""
    packed = base64.b64encode(gzip.compress(to_json(gather(library, 10_000)).encode())).decode()
    code = base64.b64encode((PAGE / "source.js").read_bytes()).decode()
    given = json.dumps({"code": code, "data": packed, "questions": questions})
    command = ["node", "--input-type=module", "--eval", NODE]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A few hundred episodes, with everything that a filter or an order looks at drawn from a few values, so that ties
    are many."""
    draw = random.Random(0)
    words = ["Straße", "οδος ΟΔΟΣ", "İstanbul", "100%_", "line\u2028break", "</script>"]

    def one(number: int) -> dict[str, Any]:
        actions = [
            action(
                name, draw.choice(words), tokens=draw.choice([0, 4, 9]), mean_logprob=draw.choice([None, -1.0, -0.1])
            )
            for name in draw.sample(["planner", "solver", "judge"], draw.randint(0, 3))
        ]
        for each in actions:
            if draw.random() < 0.2:
                each["tool_results"] = ["the tool said 4"]
        error = {"who": "solver", "reason": "Deadline"} if draw.random() < 0.1 else None
        reward, success = draw.choice([-0.5, 0.0, 0.3, 1.0]), draw.choice([0.0, 0.25, 0.5, 1.0])
        more = {"success": success, "error": error, "answer": f"answer {number % 10}", "actions": actions}
        return episode(f"task {draw.randint(0, 5)}", reward, **more)

    names = ["train-000000", "evaluation-000000", "train-000001", "train-000002", "evaluation-000002", "train-000010"]
    run = write_run(
        tmp_path_factory.mktemp("runs") / "run",
        rows=[{"iteration": 0, "reward": 1.0}],
        evaluations={0: {"tasks": 6}, 2: {"tasks": 5, "influence": {"planner": {"drop": 0.25}}}},
        episodes={name: [one(number) for number in range(40)] for name in names},
    )
    return Library([run])


def test_filters_orders_and_pages_agree(library: Library) -> None:
    answers = ask(library, [["episodes", "0", query] for query in QUERIES])
    seen = 0
    for query, answer in zip(QUERIES, answers, strict=True):
        if "odd" in query.values():
            assert answer["error"].startswith(f"{next(iter(query))}: there is no 'odd'; choose from")
            continue
        expected = library.run("0").episodes(Query.of(query))
        assert [item["id"] for item in answer["items"]] == [item["id"] for item in expected["items"]], query
        assert answer == json.loads(json.dumps(expected)), query
        seen += bool(answer["items"])
    assert seen > 25  # most queries find something


def test_everything_else_agrees(library: Library) -> None:
    view = library.run("0")
    identity = view.items()[17]["id"]
    questions: list[tuple[list[Any], Any]] = [
        (["metrics", "0"], view.metrics()),
        (["evaluations", "0"], view.evaluations()),
        (["health", "0"], view.health()),
        (["glossary"], library.glossary()),
        (["team", "0"], view.team()),
        *((["team", "0", iteration], view.team(iteration)) for iteration in (0, 1, 2, 5, 10)),
        (["episode", "0", identity], view.episode(identity)),
        (["task", "0", "task 3"], view.task("task 3")),
        (["task", "0", "none"], {"error": "task: there is no episode of 'none' in this report"}),
        (["episode", "0", "constructor"], {"error": "id: there is no episode 'constructor' in this report"}),
        (["metrics", "7"], {"error": "run: there is no run '7' in this report"}),
    ]
    answers = ask(library, [question for question, _ in questions])
    for (question, expected), answer in zip(questions, answers, strict=True):
        assert answer == json.loads(json.dumps(expected)), question


def test_the_module_needs_nothing_but_itself() -> None:
    text = (PAGE / "source.js").read_text(encoding="utf8")
    assert "import " not in text
    assert "innerHTML" not in text
    assert Path(PAGE / "source.js").stat().st_size < 20_000
