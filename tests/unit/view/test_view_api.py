"""The JSON API and what guards it, through the real application."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from view_runs import CONFIG, action, episode, lines, write, write_run

from marft.run.directory import RunDirectory
from marft.types import MarftError
from marft.view.app import application
from marft.view.library import MOST, Library, find_runs
from marft.view.policy import PAGE

HOSTILE = "</script><script>alert(1)</script>\u2028<img src=x onerror=alert(2)>"


def client(*paths: Path, page: Path = PAGE) -> TestClient:
    return TestClient(application(Library(paths), page), base_url="http://127.0.0.1")


def get(paths: tuple[Path, ...], question: str) -> Any:
    answer = client(*paths).get(f"/api/{question}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One iteration of four tasks, three of them won, and one episode that failed."""
    played = [episode("a", 1.0), episode("b", 1.0), episode("c", 1.0), episode("d", 0.0)]
    failed = episode("d", 9.0, error={"who": "solver", "reason": "deadline"})
    row = {"iteration": 0, "reward": 0.75, "success": 0.75, "update": {"planner": {"kl": 0.02, "loss": None}}}
    return write_run(
        tmp_path / "one",
        rows=[row, {**row, "iteration": 1, "success": 0.5, "failures": {"solver: deadline": 1}}],
        evaluations={0: {"tasks": 1, "sampled": {}}},
        episodes={"train-000000": [*played, failed]},
    )


def test_the_list_of_runs(run: Path) -> None:
    found = get((run,), "runs")
    (about,) = found["runs"]
    assert {key: about[key] for key in ("id", "name", "path", "live", "done", "iterations", "agents", "level")} == {
        "id": "0",
        "name": "one",
        "path": str(run),
        "live": False,
        "done": 2,
        "iterations": 4,
        "agents": ["planner", "solver"],
        "level": "action",
    }
    assert about["episodes_held"] == about["episodes_all"] == 5
    assert about["started"][4:5] + about["started"][10:11] == "-T"
    assert found["differences"] == []
    assert found["report"] is False


def test_metrics_are_series_with_holes_where_a_row_says_nothing(run: Path) -> None:
    found = get((run,), "metrics?run=0")
    assert found["iterations"] == [0, 1]
    assert found["series"] == {
        "reward": [0.75, 0.75],
        "success": [0.75, 0.5],
        "update/planner/kl": [0.02, 0.02],
        "failures/solver: deadline": [None, 1.0],
    }


def test_intervals_have_tasks_as_their_unit_and_leave_failures_out(run: Path) -> None:
    # 3 of 4: Wilson's interval [.3006, .9544]; Student's with 3 degrees of freedom: .75 ± 3.1824 · .25
    found = get((run,), "metrics?run=0")["intervals"]
    assert found["success"]["low"] == [pytest.approx(0.3006, abs=1e-4), None]
    assert found["success"]["high"] == [pytest.approx(0.9544, abs=1e-4), None]
    assert found["reward"]["low"] == [pytest.approx(0.75 - 3.1824 / 4, abs=1e-4), None]
    assert found["reward"]["high"] == [pytest.approx(0.75 + 3.1824 / 4, abs=1e-4), None]


def test_samples_of_one_task_are_no_evidence_about_others(tmp_path: Path) -> None:
    two = [episode("a", 1.0), episode("a", 0.0), episode("b", 1.0), episode("b", 1.0)]
    run = write_run(
        tmp_path / "run",
        rows=[{"iteration": 0, "success": 0.75}, {"iteration": 1, "success": 1.0}],
        episodes={"train-000000": two, "train-000001": [episode("a", 1.0), episode("a", 3.0)]},
    )
    found = get((run,), "metrics?run=0")["intervals"]["reward"]
    # Task means .5 and 1: standard error .25, Student's quantile 12.7062. Of one task alone nothing can be said
    assert found["low"] == [pytest.approx(0.75 - 12.7062 / 4, abs=1e-4), None]
    assert found["high"] == [pytest.approx(0.75 + 12.7062 / 4, abs=1e-4), None]


def test_evaluations_say_after_which_iteration_they_came(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", evaluations={16: {"tasks": 2}, 0: {"tasks": 1}})
    assert get((run,), "evaluations?run=0") == [{"iteration": 0, "tasks": 1}, {"iteration": 16, "tasks": 2}]


def test_a_run_that_was_just_made_has_nothing_to_say_yet(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert get((run,), "runs")["runs"][0]["done"] == 0
    nothing = {"low": [], "high": []}
    assert get((run,), "metrics?run=0") == {
        "iterations": [],
        "series": {},
        "intervals": {"success": nothing, "reward": nothing},
    }
    assert get((run,), "evaluations?run=0") == []
    assert get((run,), "episodes?run=0") == {"total": 0, "items": []}
    assert get((run,), "team?run=0")["edges"] == []
    assert get((run,), "health?run=0") == {"alarms": [], "rollbacks": [], "diverged": [], "failures": []}


def test_a_config_of_another_version_is_read_as_it_is(tmp_path: Path) -> None:
    config = {"name": "old", "iterations": 3, "no_such_key": {"of": "today"}, "team": {"agents": [{"name": "solo"}]}}
    about = get((write_run(tmp_path / "run", config),), "runs")["runs"][0]
    assert (about["agents"], about["iterations"], about["level"]) == (["solo"], 3, None)
    odd = write_run(tmp_path / "odd", {"name": "odd", "team": "trio"})
    assert get((odd,), "runs")["runs"][0]["agents"] == []


def test_text_of_models_arrives_as_it_was_said(tmp_path: Path) -> None:
    said = episode(HOSTILE, actions=[action("planner", HOSTILE)], answer=HOSTILE)
    run = write_run(tmp_path / "run", episodes={"train-000000": [said]})
    answer = client(run).get("/api/episode", params={"run": "0", "id": "train-000000:0"})
    assert answer.json()["actions"][0]["text"] == HOSTILE
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    found = client(run).get("/api/task", params={"run": "0", "task": HOSTILE}).json()
    assert [each["id"] for each in found] == ["train-000000:0"]


def test_a_run_is_followed_while_it_grows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=[{"iteration": 0, "success": 0.0}])
    asked = client(run)
    before = asked.get("/api/runs").json()["runs"][0]
    assert asked.get("/api/runs").json()["runs"][0]["stamp"] == before["stamp"]
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 1, "success": 0.5}\n{"iteration": 2, "succ')  # the last line is being written
    after = asked.get("/api/runs").json()["runs"][0]
    assert after["stamp"] != before["stamp"]
    assert (before["done"], after["done"]) == (1, 2)
    assert asked.get("/api/metrics?run=0").json()["series"]["success"] == [0.0, 0.5]
    write(run / "episodes" / "train-000000.jsonl", lines([episode("a", 1.0)]))
    assert asked.get("/api/episodes?run=0").json()["total"] == 1
    assert asked.get("/api/runs").json()["runs"][0]["stamp"] != after["stamp"]


def test_a_run_is_live_while_somebody_trains_it(run: Path) -> None:
    asked = client(run)

    def about() -> Any:
        return asked.get("/api/runs").json()["runs"][0]

    before = about()
    directory = RunDirectory.open(run)
    with directory.lock():
        during = about()
    assert (before["live"], during["live"], about()["live"]) == (False, True, False)
    assert during["stamp"] != before["stamp"]
    with directory.lock():  # looking left no lock behind
        pass


def test_a_damaged_file_is_one_sentence(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"iteration": 0}\n{"iteration": \n{"iteration": 2}\n')
    answer = client(run).get("/api/metrics?run=0")
    assert answer.status_code == 400
    assert answer.json() == {"error": f"{run}/metrics.jsonl: line 2 is not valid JSON; the file is damaged"}


@pytest.mark.parametrize(
    ("file", "text", "question"),
    [
        ("metrics.jsonl", "5\n", "health"),
        ("metrics.jsonl", '{"success": 1}\n', "metrics"),
        ("evaluations/000000.json", "[1", "evaluations"),
        ("evaluations/000000.json", "[1]", "team"),
        ("config.yaml", "a: [", "team"),
        ("config.yaml", "just words", "team"),
    ],
)
def test_whatever_is_damaged_is_named(run: Path, file: str, text: str, question: str) -> None:
    (run / file).write_text(text)
    answer = client(run).get(f"/api/{question}?run=0")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{run / file}: ")
    assert "\n" not in answer.json()["error"]


def test_a_damaged_run_does_not_hide_the_others(run: Path, tmp_path: Path) -> None:
    for name, file in (("rows", "metrics.jsonl"), ("keys", "config.yaml")):
        write_run(tmp_path / name, rows=[{"iteration": 0}])
        (tmp_path / name / file).write_text("[\n")
    found = get((tmp_path / "rows", run, tmp_path / "keys"), "runs")["runs"]
    assert [each["done"] for each in found] == [0, 2, 0]
    assert ["error" in each for each in found] == [True, False, True]


@pytest.mark.parametrize(
    ("question", "status", "sentence"),
    [
        ("metrics", 400, "run: is missing from the address"),
        ("metrics?run=7", 404, "run: there is no run '7'; there are 0 to 0"),
        ("episode?run=0", 400, "id: is missing from the address"),
        ("episode?run=0&id=train-000000:99", 404, "id: there is no episode 'train-000000:99' in this run"),
        ("task?run=0&task=z", 404, "task: there is no episode of 'z' in this run"),
        ("episodes?run=0&sort=odd", 400, "sort: there is no 'odd'; choose from newest, oldest, best, worst, "),
        ("team?run=0&iteration=x", 400, "iteration: 'x' is not a whole number"),
        ("nothing", 404, "/api/nothing: Not Found"),
    ],
)
def test_what_cannot_be_answered_says_why(run: Path, question: str, status: int, sentence: str) -> None:
    answer = client(run).get(f"/api/{question}")
    assert answer.status_code == status
    assert answer.json()["error"].startswith(sentence)


def test_what_the_configs_differ_in(tmp_path: Path) -> None:
    other = json.loads(json.dumps(CONFIG))
    other["seed"] = 1
    other["team"]["dependency"] = {"edges": [["planner", "solver"]]}
    other["team"]["agents"][0]["profile"] = "Think."
    other["update"]["kl_stop"] = 0.1
    found = get((write_run(tmp_path / "a"), write_run(tmp_path / "b", other)), "runs")["differences"]
    assert found == [
        {"key": "seed", "values": ["0", "1"]},
        {"key": "team.agents.planner.profile", "values": ["Plan.", "Think."]},
        {"key": "team.dependency", "values": ["chain", None]},
        {"key": "team.dependency.edges", "values": [None, '[["planner", "solver"]]']},
        {"key": "update.kl_stop", "values": [None, "0.1"]},
    ]


def test_runs_of_one_name_can_be_told_apart(tmp_path: Path) -> None:
    for place in ("x", "y"):
        write_run(tmp_path / place / "run")
    paths = (tmp_path / "x" / "run", tmp_path / "y" / "run", write_run(tmp_path / "z"), tmp_path / "x" / "run" / ".")
    assert [each["name"] for each in get(paths, "runs")["runs"]] == ["x/run", "y/run", "z"]  # the first once


def test_a_folder_stands_for_the_newest_runs_in_it(tmp_path: Path) -> None:
    for number in range(MOST + 2):
        run = write_run(tmp_path / "runs" / f"run-{number:02d}")
        os.utime(run / "config.yaml", (number, number))
    paths, notes = find_runs([tmp_path / "runs"])
    assert [path.name for path in paths] == [f"run-{number:02d}" for number in range(MOST + 1, 1, -1)]
    assert notes == [f"{tmp_path / 'runs'}: the newest 12 of 14 runs are shown; name others to see them"]
    assert find_runs([tmp_path / "runs" / "run-03"]) == ([tmp_path / "runs" / "run-03"], [])
    with pytest.raises(MarftError, match="there is no such run; did you mean"):
        find_runs([tmp_path / "runs" / "run-3"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(MarftError, match="is not a run"):
        find_runs([tmp_path / "empty"])
