"""The index of episodes: filters, orders, pages and changes against answers worked out by hand."""

import json
import time
from pathlib import Path

import pytest
from view_runs import action, episode, lines, write, write_run

from marft.run.directory import RunDirectory
from marft.run.records import Episodes
from marft.types import MarftError
from marft.view.episodes import Query
from marft.view.library import RunView

FAILED = {"who": "solver", "reason": "deadline of 3 s"}


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    """Two iterations and an evaluation after the first: 9 episodes of tasks a, b and c."""
    long = [
        action("planner", "Élan vital", tokens=50, mean_logprob=-1.0),
        action("judge", tokens=50, mean_logprob=-3.0),
    ]
    run = write_run(
        tmp_path / "run",
        evaluations={1: {"tasks": 1}},
        episodes={
            "train-000000": [
                episode("a", 1.0),  # :0
                episode("a", 0.0),  # :1
                episode("b", 0.5, success=0.25, actions=long),  # :2
            ],
            "evaluation-000001": [episode("c", 1.0), episode("c", 0.0, answer="forty-two")],  # greedy, then sampled
            "train-000001": [
                episode("a", 1.0),  # :0, 0.5 above the mean of a before
                episode("b", 0.0, error=FAILED),  # :1
                episode("b", 0.25, success=0.5),  # :2, 0.25 below
                episode("c", 3.0, actions=[]),  # :3, played in training for the first time
            ],
        },
    )
    return RunView(RunDirectory.open(run))


def ids(view: RunView, **words: str) -> list[str]:
    found = view.episodes(Query.of(words))
    assert found["total"] == len(found["items"])
    return [each["id"].replace("evaluation-00000", "e").replace("train-00000", "t") for each in found["items"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, "t1:0 t1:1 t1:2 t1:3 e1:0 e1:1 t0:0 t0:1 t0:2"),
        ({"sort": "oldest"}, "t0:0 t0:1 t0:2 e1:0 e1:1 t1:0 t1:1 t1:2 t1:3"),
        ({"split": "train", "iteration": "0"}, "t0:0 t0:1 t0:2"),
        ({"split": "greedy"}, "e1:0"),
        ({"split": "sampled"}, "e1:1"),
        ({"iteration": "1"}, "t1:0 t1:1 t1:2 t1:3 e1:0 e1:1"),
        ({"iteration": "7"}, ""),
        ({"agent": "judge"}, "t0:2"),
        ({"agent": "plan"}, ""),  # a part of a name is no name
        ({"outcome": "won"}, "t1:0 t1:2 t1:3 e1:0 t0:0"),  # success of 0.5 is won
        ({"outcome": "lost"}, "e1:1 t0:1 t0:2"),
        ({"outcome": "failed"}, "t1:1"),
        ({"outcome": "lost", "split": "train"}, "t0:1 t0:2"),
        ({"change": "up"}, "t1:0"),
        ({"change": "down"}, "t1:2"),
        ({"change": "same"}, ""),
        ({"change": "new"}, "t1:3 e1:0 e1:1 t0:0 t0:1 t0:2"),  # what failed earned nothing: it is not among them
        ({"change": "new", "outcome": "won"}, "t1:3 e1:0 t0:0"),
        ({"task": "b"}, "t1:1 t1:2 t0:2"),
        ({"search": "ÉLAN"}, "t0:2"),  # without regard to case
        ({"search": "what is c?"}, "t1:3 e1:0 e1:1"),  # the task's prompt
        ({"search": "forty"}, "e1:1"),
        ({"search": "deadline"}, "t1:1"),
        ({"search": "%"}, ""),  # a sign like any other
        ({"sort": "best"}, "t1:3 t1:0 e1:0 t0:0 t0:2 t1:2 e1:1 t0:1 t1:1"),  # what failed earned nothing: last
        ({"sort": "worst"}, "e1:1 t0:1 t1:2 t0:2 t1:0 e1:0 t0:0 t1:3 t1:1"),
        ({"sort": "risen"}, "t1:0 t1:2 t1:1 t1:3 e1:0 e1:1 t0:0 t0:1 t0:2"),  # without a change: last
        ({"sort": "fallen"}, "t1:2 t1:0 t1:1 t1:3 e1:0 e1:1 t0:0 t0:1 t0:2"),
        ({"sort": "longest"}, "t0:2 t1:0 t1:1 t1:2 e1:0 e1:1 t0:0 t0:1 t1:3"),
        ({"sort": "unlikely"}, "t0:2 t1:0 t1:1 t1:2 e1:0 e1:1 t0:0 t0:1 t1:3"),
    ],
)
def test_a_query_finds_what_it_asks_for(view: RunView, words: dict[str, str], expected: str) -> None:
    assert " ".join(ids(view, **words)) == expected


def test_an_item_says_what_a_list_needs(view: RunView) -> None:
    (found,) = view.episodes(Query.of({"agent": "judge"}))["items"]
    assert found == {
        "id": "train-000000:2",
        "split": "train",
        "iteration": 0,
        "task": {"id": "b", "kind": "sums", "prompt": "What is b?"},
        "success": 0.25,
        "reward": 0.5,
        "change": None,
        "tokens": 100,
        "failed": False,
        "agents": ["planner", "judge"],
        "answer": "",
        "last": "words",
        "mean_logprob": -2.0,
    }


def test_a_change_is_beside_the_same_task_and_split_the_previous_time(view: RunView) -> None:
    found = {each["id"]: each["change"] for each in view.items() if each["change"] is not None}
    assert found == {"train-000001:0": 0.5, "train-000001:2": -0.25}


def test_a_change_leaps_over_iterations_without_the_task_and_over_failures(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        episodes={
            "train-000000": [episode("a", 1.0)],
            "train-000003": [episode("a", 9.0, error=FAILED), episode("b", 0.0)],
            "train-000007": [episode("a", 4.0)],
        },
    )
    assert [each["change"] for each in RunView(RunDirectory.open(run)).items()] == [None, None, None, 3.0]


def test_the_mean_of_equal_rewards_is_no_change(tmp_path: Path) -> None:
    assert (0.1 + 0.1 + 0.1) / 3 > 0.1  # in binary fractions, by the last digit
    played = [episode("a", 0.1)] * 3
    run = write_run(tmp_path / "run", episodes={"train-000000": played, "train-000001": played[:1]})
    view = RunView(RunDirectory.open(run))
    assert ids(view, change="same") == ["t1:0"]
    assert str(view.items()[-1]["change"]) == "0.0"


def test_pages_follow_each_other(view: RunView) -> None:
    pages = [view.episodes(Query.of({"size": "4", "page": str(page), "sort": "oldest"})) for page in range(4)]
    assert [len(each["items"]) for each in pages] == [4, 4, 1, 0]
    assert {each["total"] for each in pages} == {9}
    assert [item["id"] for each in pages for item in each["items"]] == [item["id"] for item in view.items()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"sort": "rising"}, "sort: there is no 'rising'"),
        ({"split": "test"}, "split: there is no 'test'; choose from train, greedy, sampled"),
        ({"outcome": "drawn"}, "outcome: there is no 'drawn'"),
        ({"change": "rose"}, "change: there is no 'rose'; choose from up, down, same, new"),
        ({"iteration": "-1"}, "iteration: '-1' is not a whole number"),
        ({"page": "1.5"}, "page: '1.5' is not a whole number"),
        ({"size": "0"}, "size: 0 is not between 1 and 500"),
        ({"size": "501"}, "size: 501 is not between 1 and 500"),
    ],
)
def test_a_word_that_asks_for_nothing_there_is_is_refused(words: dict[str, str], sentence: str) -> None:
    with pytest.raises(MarftError, match=sentence.replace("(", r"\(")):
        Query.of(words)


def test_without_a_report_an_evaluation_was_greedy_once_for_each_of_its_tasks(tmp_path: Path) -> None:
    played = [episode("a"), episode("b"), episode("a"), episode("a"), episode("b"), episode("b")]
    view = RunView(RunDirectory.open(write_run(tmp_path / "run", episodes={"evaluation-000000": played})))
    assert [each["split"] for each in view.items()] == ["greedy"] * 2 + ["sampled"] * 4
    write(tmp_path / "run" / "evaluations" / "000000.json", json.dumps({"tasks": 3}))  # it is written a moment later
    assert [each["split"] for each in view.items()] == ["greedy"] * 3 + ["sampled"] * 3


def test_a_whole_episode_is_read_from_its_place_on_the_disk(tmp_path: Path) -> None:
    words = "a line\u2028within\x85words 🦀 <script>alert(1)</script>"
    records = [episode("a"), episode("b", actions=[action("planner", words)]), episode("c")]
    view = RunView(RunDirectory.open(write_run(tmp_path / "run", episodes={"train-000000": records})))
    assert view.episode("train-000000:1") == {"id": "train-000000:1", "split": "train", "iteration": 0, **records[1]}
    assert view.episode("train-000000:2")["task"]["id"] == "c"
    assert ids(view, search="within\x85words 🦀 <SCRIPT>") == ["t0:1"]


def test_a_lone_surrogate_is_an_episode_like_any_other(tmp_path: Path) -> None:
    records = [episode("\ud800", actions=[action("planner", "half \udc00 a sign")])]
    run = write_run(tmp_path / "run")
    write(run / "episodes" / "train-000000.jsonl", json.dumps(records[0]) + "\n")
    view = RunView(RunDirectory.open(run))
    assert view.items()[0]["last"] == "half \\udc00 a sign"
    assert view.episode("train-000000:0")["actions"][0]["text"] == "half \udc00 a sign"


@pytest.mark.parametrize("identity", ["train-000000:9", "train-000005:0", "evaluation-000000:0"])
def test_an_episode_that_is_not_there_is_named(view: RunView, identity: str) -> None:
    with pytest.raises(MarftError, match=f"there is no episode '{identity}'"):
        view.episode(identity)


def test_the_episodes_of_a_task_oldest_first(view: RunView) -> None:
    assert view.task("c") == [
        {
            "id": "evaluation-000001:0",
            "split": "greedy",
            "iteration": 1,
            "success": 1.0,
            "reward": 1.0,
            "failed": False,
        },
        {
            "id": "evaluation-000001:1",
            "split": "sampled",
            "iteration": 1,
            "success": 0.0,
            "reward": 0.0,
            "failed": False,
        },
        {"id": "train-000001:3", "split": "train", "iteration": 1, "success": 1.0, "reward": 3.0, "failed": False},
    ]
    with pytest.raises(MarftError, match="there is no episode of 'd'"):
        view.task("d")


def test_files_that_appear_change_and_vanish_are_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", episodes={"train-000000": [episode("a", 1.0)]})
    view = RunView(RunDirectory.open(run))
    assert ids(view) == ["t0:0"]
    write(run / "episodes" / "train-000001.jsonl", lines([episode("a", 0.0)]))
    assert [each["change"] for each in view.items()] == [None, -1.0]
    write(
        run / "episodes" / "train-000000.jsonl", lines([episode("b", 1.0), episode("b", 1.0)])
    )  # resumed, played anew
    assert [(each["task"]["id"], each["change"]) for each in view.items()] == [("b", None), ("b", None), ("a", None)]
    (run / "episodes" / "train-000000.jsonl").unlink()
    (run / "episodes" / ".train-000002.jsonl.tmp-1").write_text("half of a fi")  # being written
    (run / "episodes" / "notes.jsonl").write_text("{}")  # not ours
    assert ids(view) == ["t1:0"]


@pytest.mark.parametrize("line", ['{"task": ', "[]", "{}", '{"task": {"id": 1}, "actions": 7}', '{"task": null}'])
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, line: str) -> None:
    rows = [{"iteration": each, "success": 1.0} for each in range(3)]
    good = {f"train-00000{each}": [episode("a", 1.0), episode("b", 1.0)] for each in (0, 2)}
    run = write_run(tmp_path / "run", rows=rows, episodes=good)
    damaged = run / "episodes" / "train-000001.jsonl"
    write(damaged, lines([episode("a")]) + line + "\n")
    view = RunView(RunDirectory.open(run))
    before = view.about()["stamp"]
    for _ in range(2):  # asking again does not make it whole
        assert ids(view, sort="oldest") == ["t0:0", "t0:1", "t2:0", "t2:1"]
        assert view.about()["damaged"] == [f"{damaged}: line 2 is not an episode; the file is damaged"]
    assert view.about()["stamp"] != before  # so a page that follows the run is told
    assert view.team()["episodes"] == 4
    metrics = view.metrics()
    assert metrics["series"]["success"] == [1.0, 1.0, 1.0]
    assert [each is None for each in metrics["intervals"]["success"]["low"]] == [False, True, False]
    with pytest.raises(MarftError, match=r"train-000001\.jsonl: line 2 is not an episode"):
        view.episode("train-000001:0")
    write(damaged, lines([episode("a")]))  # mended
    assert ids(view, iteration="1") == ["t1:0"]
    assert view.about()["damaged"] == []


def test_a_damaged_evaluation_does_not_hide_the_training_play(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=[{"iteration": 0}], episodes={"train-000000": [episode("a")]})
    write(run / "episodes" / "evaluation-000000.jsonl", "{bad\n")
    write(run / "evaluations" / "000000.json", "[")
    view = RunView(RunDirectory.open(run))
    assert ids(view) == ["t0:0"]
    assert view.metrics()["iterations"] == [0]
    assert [each.rpartition("/")[2][:30] for each in view.about()["damaged"]] == ["evaluation-000000.jsonl: line "]


@pytest.mark.parametrize("report", [None, "[", "{}", '{"tasks": 3}'])
def test_the_page_and_python_agree_which_episodes_are_greedy(tmp_path: Path, report: str | None) -> None:
    played = [episode(task) for task in ("a", "b", "a", "a", "b", "b")]
    run = write_run(tmp_path / "run", episodes={"evaluation-000002": played, "train-000002": played[:1]})
    write(run / "episodes" / "evaluation-000002.jsonl", lines(played[:3]) + "\n" + lines(played[3:]))  # an empty line
    if report is not None:
        write(run / "evaluations" / "000002.json", report)
    shown = [(each["id"], each["split"]) for each in RunView(RunDirectory.open(run)).items()]
    greedy = 3 if report == '{"tasks": 3}' else 2
    splits = ["greedy"] * greedy + ["sampled"] * (6 - greedy)
    assert shown[:6] == [(f"evaluation-000002:{line}", split) for line, split in enumerate(splits)]
    assert [(each["id"], each["split"]) for each in Episodes.of(RunDirectory.open(run))] == shown


def test_ten_thousand_episodes_stay_quick(tmp_path: Path) -> None:
    """Bounds for a slow, busy machine: alone, indexing took 1.2 s of one core, and a query under 40 ms."""
    words = "the quick brown fox jumps over a lazy dog " * 5
    tokens = {"tokens": 40, "pieces": [" word"] * 40, "logprobs": [-0.1234] * 40}
    replies = [action(f"agent{place}", words, range(place), **tokens) for place in range(3)]
    played = lines([episode(f"task-{place}", place % 2, actions=replies) for place in range(49)])
    run = write_run(tmp_path / "run")
    for iteration in range(200):
        needle = lines([episode("once", answer=f"needle {iteration}.")])
        write(run / "episodes" / f"train-{iteration:06d}.jsonl", played + needle)
    view = RunView(RunDirectory.open(run))
    started = time.perf_counter()
    assert view.episodes(Query())["total"] == 10_000
    assert view.metrics()["iterations"] == []
    assert len(view.team()["edges"]) == 4  # the three of the replies, and the usual one of the last
    assert time.perf_counter() - started < 60.0

    def seconds(**words: str) -> float:
        started = time.perf_counter()
        view.episodes(Query.of(words))
        return time.perf_counter() - started

    assert view.episodes(Query.of({"search": "needle 123."}))["total"] == 1
    assert seconds(search="no such words") < 2.0
    assert seconds(sort="risen", outcome="lost", page="99") < 2.0
