"""The report: one file, whole in itself, that replaces only its like; and which episodes it holds."""

import base64
import gzip
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from view_runs import action, episode, write_run

from marft.types import MarftError
from marft.view.library import Library
from marft.view.policy import PAGE, fingerprint
from marft.view.report import MARKER, choose, gather, write_report

HOSTILE = "</script><script>alert(1)</script><!-- \u2028"


class Tags(html.parser.HTMLParser):
    """Every tag of a page with its attributes, and the texts of its scripts and styles, as a browser would cut them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and self.texts:
            tag, text = self.texts[-1]
            self.texts[-1] = (tag, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(
        tmp_path / "run",
        rows=[{"iteration": 0, "reward": 1.0, "failures": {HOSTILE: 1}}],
        evaluations={0: {"tasks": 1, "influence": {"planner": {"drop": 0.5}}}},
        episodes={
            "train-000000": [episode(HOSTILE, 1.0, actions=[action("planner", HOSTILE)], group="g")],
            "evaluation-000000": [episode("a"), episode("a", 1.0)],
        },
        learnt={0: [{"group": "g", "sample": 0, "action": 0, "advantage": 1.5, "ratio": None}]},
    )


def data(text: str) -> Any:
    (packed,) = re.findall(r'<script type="application/octet-stream" id="marft-data">([A-Za-z0-9+/=]+)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_report_asks_for_nothing_from_anywhere(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert write_report(Library([run]), target) == target.stat().st_size
    page = Tags(target.read_text(encoding="utf8"))
    addresses = [value for _, tag in page.tags for key, value in tag.items() if key in ("src", "href")]
    assert all(address is not None and address.startswith("data:") for address in addresses)
    assert not [text for tag, text in page.texts if tag == "style" and ("url(" in text or "@import" in text)]
    (imports,) = [text for tag, text in page.texts if tag == "script" and '"imports"' in text]
    modules = json.loads(imports)["imports"]
    served = json.loads(re.findall(r'importmap">(.*?)</script>', (PAGE / "index.html").read_text(), re.DOTALL)[0])
    assert list(modules) == list(served["imports"])
    for name, file in served["imports"].items():
        kind, code = modules[name].split(",", 1)
        assert kind == "data:text/javascript;charset=utf-8;base64"
        assert base64.b64decode(code) == (PAGE / file).read_bytes()
        # what a module imports must be in the map: a path means nothing in a data: URL
        imported = re.findall(rb'^(?:import|export)\b[^;]*?\bfrom\s*"([^"]+)"', base64.b64decode(code), re.MULTILINE)
        assert {each.decode() for each in imported} <= set(modules)


def test_a_browser_may_run_what_the_report_brought_and_connect_to_nothing(run: Path, tmp_path: Path) -> None:
    write_report(Library([run]), tmp_path / "report.html")
    page = Tags((tmp_path / "report.html").read_text(encoding="utf8"))
    (policy,) = [tag["content"] for _, tag in page.tags if tag.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    code = [text for tag, text in page.texts if tag == "script" and not re.fullmatch("[A-Za-z0-9+/=]+", text)]
    assert rules["script-src"].split() == ["data:", *map(fingerprint, code)]
    assert rules["style-src"].split() == [fingerprint(text) for tag, text in page.texts if tag == "style"]


def test_text_of_models_cannot_become_markup(run: Path, tmp_path: Path) -> None:
    write_report(Library([run]), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf8")
    assert "alert(1)" not in text
    page, empty = Tags(text), Tags((PAGE / "index.html").read_text())
    count = [sum(name == "script" for name, _ in each.tags) for each in (page, empty)]
    assert count[0] == count[1] + 1  # the data
    assert page.comments == [MARKER.removeprefix("<!--").removesuffix("-->"), *empty.comments]
    found = data(text)
    assert found["episodes"]["0"]["records"]["train-000000:0"]["actions"][0]["text"] == HOSTILE


def test_a_report_holds_what_the_server_would_answer(run: Path, tmp_path: Path) -> None:
    library = Library([run])
    write_report(library, tmp_path / "report.html")
    found, view = data((tmp_path / "report.html").read_text(encoding="utf8")), library.run("0")
    assert found["runs"]["report"] is True
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", found["runs"]["made"])
    assert found["metrics"] == {"0": view.metrics()}
    assert found["evaluations"] == {"0": view.evaluations()}
    assert found["health"] == {"0": view.health()}
    assert found["glossary"] == library.glossary()
    assert found["team"]["0"]["whole"] == view.team()
    assert found["team"]["0"]["iterations"]["0"]["edges"] == view.team(0)["edges"]
    held = found["episodes"]["0"]
    assert held["items"] == view.items()
    assert held["records"] == {item["id"]: view.episode(item["id"]) for item in view.items()}
    assert held["records"]["train-000000:0"]["actions"][0]["advantage"] == 1.5


def test_a_report_says_how_many_episodes_it_holds(run: Path, tmp_path: Path) -> None:
    write_report(Library([run]), tmp_path / "report.html", episodes=2)
    found = data((tmp_path / "report.html").read_text(encoding="utf8"))
    about = found["runs"]["runs"][0]
    assert (about["episodes_held"], about["episodes_all"]) == (2, 3)
    assert list(found["episodes"]["0"]["records"]) == ["evaluation-000000:0", "evaluation-000000:1"]


def items(*counts: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [
        {"id": f"{split}{iteration}:{line}", "split": split, "iteration": iteration}
        for split, iteration, count in counts
        for line in range(count)
    ]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, ""),
        (1, "greedy0:0"),
        (3, "greedy0:0 greedy0:1 greedy8:0"),  # the oldest, then the newest
        (5, "greedy0:0 greedy0:1 greedy4:0 greedy8:0 greedy8:1"),
        (8, "greedy0:0 greedy0:1 train0:0 greedy4:0 greedy4:1 train4:0 greedy8:0 greedy8:1"),
        (10, "greedy0:0 greedy0:1 train0:0 train0:2 greedy4:0 greedy4:1 train4:0 train4:2 greedy8:0 greedy8:1"),
    ],
)
def test_evaluations_come_first_and_training_play_is_spread(most: int, expected: str) -> None:
    played = items(("greedy", 0, 2), ("train", 0, 4), ("greedy", 4, 2), ("train", 4, 4), ("greedy", 8, 2))
    assert " ".join(each["id"] for each in choose(played, most)) == expected


def test_a_run_that_fits_is_held_whole() -> None:
    played = items(("train", 0, 3), ("sampled", 1, 2))
    assert choose(played, 5) == played


def test_a_report_takes_the_place_of_a_report_alone(run: Path, tmp_path: Path) -> None:
    target, thesis = tmp_path / "report.html", tmp_path / "thesis.html"
    write_report(Library([run]), target, episodes=0)
    smaller = target.stat().st_size
    write_report(Library([run]), target)
    assert target.stat().st_size > smaller
    thesis.write_text("<html>years of work</html>")
    with pytest.raises(MarftError, match=r"thesis\.html: is there already and is no report of marft's"):
        write_report(Library([run]), thesis)
    assert thesis.read_text() == "<html>years of work</html>"
    assert not list(tmp_path.glob(".*"))  # nothing half-written


def test_a_target_that_cannot_be_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(MarftError, match="is a folder"):
        write_report(Library([run]), tmp_path)
    with pytest.raises(MarftError, match="there is no folder"):
        write_report(Library([run]), tmp_path / "no" / "report.html")


def test_a_damaged_run_makes_no_report(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text("{\n{}\n")
    with pytest.raises(MarftError, match="line 1 is not valid JSON"):
        write_report(Library([run]), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_file_of_episodes_is_left_out_of_a_report_which_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=[{"iteration": 0}], episodes={"train-000000": [episode("a"), episode("b")]})
    damaged = run / "episodes" / "train-000001.jsonl"
    damaged.write_text("[]\n")
    data = gather(Library([run]), 10)
    (about,) = data["runs"]["runs"]
    assert about["damaged"] == [f"{damaged}: line 1 is not an episode; the file is damaged"]
    assert (about["episodes_held"], about["episodes_all"]) == (2, 2)
    assert len(data["episodes"]["0"]["records"]) == 2
