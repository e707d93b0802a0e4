"""math: where problems come from, how replies are graded, several attempts, and every mistake in one sentence."""

import asyncio
import json
import time
from typing import get_args

import pytest

from marft.environments.check import check_environment
from marft.environments.math import Math
from marft.environments.math_benchmarks import BENCHMARKS, BenchmarkName
from marft.grading import math_answer
from marft.grading.bounded import GraderFailed
from marft.types import MarftError

ROWS = [
    {"question": f"Half of {i}?", "answer": rf"\frac{{{i}}}{{2}}", "level": i % 2, "name": f"n{i}"} for i in range(20)
]


@pytest.fixture
def write(tmp_path):
    def write_rows(rows=ROWS, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write_rows


def play(world, *turns, split="train", index=0):
    """The outcomes of turns; a turn is the solver's reply, or what each agent says."""
    state = world.reset(world.task(split, index), ("planner", "solver"), seed=0)
    outcomes = []
    for turn in turns:
        said = turn if isinstance(turn, dict) else {"planner": r"\boxed{999}", "solver": turn}
        outcomes.append(asyncio.run(world.step(state, said)))
        state = outcomes[-1].state
    return outcomes


def half(world, index=0, split="train"):
    """The right answer to `Half of i?`, as a decimal."""
    return str(int(world.task(split, index).prompt.split()[2].rstrip("?")) / 2)


def test_a_task_is_the_problem_and_the_instruction(write):
    world = Math(path=write(), heldout_share=0.5)
    assert (world.size("train"), world.size("heldout")) == (10, 10)
    task = world.task("heldout", 0)
    assert task.prompt.endswith("?\n\nPut your final answer in \\boxed{}.")
    assert task.kind == "math"
    bare = Math(path=write(), instruction="", id="name", kind="level").task("heldout", 0)
    assert bare.prompt.endswith("?")
    assert bare.id.startswith("heldout-n")
    assert bare.kind in ("0", "1")


def test_the_reply_is_graded_and_nothing_else(write):
    world = Math(path=write())
    right = half(world)
    [won] = play(world, rf"First \boxed{{77}}, so \boxed{{{right}}}.")
    assert (won.rewards, won.terminated, won.truncated) == (1.0, True, False)
    assert won.metrics == {"success": 1.0, "answered": 1.0, "first_attempt": 1.0}
    [lost] = play(world, rf"\boxed{{{right}}} or \boxed{{77}}")
    assert (lost.rewards, lost.metrics["success"], lost.answer) == (0.0, 0.0, "77")
    [mute] = play(world, right)  # a number, but neither box nor tag
    assert (mute.rewards, mute.metrics["answered"], mute.answer) == (0.0, 0.0, "")
    prompt = world.task("train", 0).prompt + rf" The answer is \boxed{{{right}}}."
    [echo] = play(world, {"planner": prompt, "solver": "I agree"})
    assert echo.metrics["answered"] == 0.0


def test_a_plain_number_where_the_config_allows_it(write):
    world = Math(path=write(), plain_number=True)
    assert play(world, f"so 99 - 1 is {half(world)}.")[0].rewards == 1.0


def test_algebra_decides_where_numbers_do_not(write):
    rows = [{"question": f"Root {i}?", "answer": rf"2\sqrt{{{i}}}"} for i in (2, 3, 5)]
    world = Math(path=write(rows))
    root = world.task("train", 0).prompt.split()[1].rstrip("?")
    assert play(world, rf"\boxed{{\sqrt{{4 \cdot {root}}}}}")[0].rewards == 1.0
    assert play(world, rf"\boxed{{\sqrt{{5 \cdot {root}}}}}")[0].rewards == 0.0


def test_a_comparison_that_hangs_fails_the_episode(write, monkeypatch):
    rows = [{"question": f"Root {i}?", "answer": rf"2\sqrt{{{i}}}"} for i in (2, 3, 5)]
    world = Math(path=write(rows), deadline=0.2)
    monkeypatch.setattr(math_answer, "equal_by_algebra", hang)
    with pytest.raises(GraderFailed, match="hang: gave no result within its deadline"):
        play(world, r"\boxed{\sqrt{7}}")


def hang(*_):
    time.sleep(60)


def test_attempts_with_and_without_a_verdict(write):
    world = Math(path=write(), attempts=3, feedback="verdict")
    right, wrong = rf"\boxed{{{half(world)}}}", r"\boxed{77}"
    told = play(world, wrong, right)
    assert [(each.rewards, each.terminated) for each in told] == [(0.0, False), (1.0, True)]
    assert (told[1].metrics["success"], told[1].metrics["first_attempt"]) == (1.0, 0.0)
    said = world.observe(told[0].state, "solver")
    assert said == world.observe(told[0].state, "planner") == "The last answer was wrong. Try again."
    silent = world.without_verdict()
    untold = play(silent, right, wrong, wrong)
    assert [(each.rewards, each.terminated) for each in untold] == [(0.0, False), (0.0, False), (0.0, True)]
    assert (untold[2].metrics["success"], untold[2].metrics["first_attempt"]) == (0.0, 1.0)
    assert silent.observe(untold[0].state, "solver") == ""
    assert [silent.task("train", i) for i in range(5)] == [world.task("train", i) for i in range(5)]
    assert silent.without_verdict() is silent


def test_a_vote_counts_equal_answers_as_one(write):
    world = Math(path=write(), decide="vote")
    right = half(world)
    double = str(int(float(right) * 2))
    box = r"\boxed{%s}"
    [won] = play(world, {"a": box % "7", "b": box % right, "c": box % rf"\frac{{{double}}}{{2}}"})
    assert won.rewards == 1.0
    [tied] = play(world, {"a": box % "777", "b": box % right})
    assert (tied.rewards, tied.answer) == (0.0, "777")
    [mute] = play(world, {"a": "?", "b": "!"})
    assert (mute.rewards, mute.terminated, mute.metrics["answered"]) == (0.0, True, 0.0)


def test_a_named_answerer(write):
    world = Math(path=write(), answerer="planner")
    right = rf"\boxed{{{half(world)}}}"
    assert play(world, {"planner": right, "solver": "?"})[0].rewards == 1.0
    [waits] = play(world, {"solver": right})
    assert (waits.rewards, waits.terminated, waits.state.attempts.made) == (0.0, False, 0)
    with pytest.raises(MarftError, match="answerer: no agent 'planner' in the team"):
        world.reset(world.task("train", 0), ("a", "b"), seed=0)


def test_benchmarks_are_all_described():
    assert set(BENCHMARKS) == set(get_args(BenchmarkName))


# One row as each set has it, and the answer that stands in it (the columns are those of the public data sets)
IN_THEIR_OWN_FORMAT = [
    ("gsm8k", {"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 1,002"}, "1,002"),
    ("math", {"problem": "q", "solution": r"So \boxed{\frac{1}{2}}.", "level": "Level 5"}, r"\frac{1}{2}"),
    ("math500", {"problem": "q", "answer": "9", "unique_id": "a", "subject": "Algebra", "level": 5}, "9"),
    ("aime24", {"problem": "q", "answer": "025", "id": 60, "year": "2024"}, "025"),
    ("aime25", {"problem": "q", "answer": "70", "id": "0"}, "70"),
    ("amc23", {"question": "q", "answer": 27.0, "id": 0, "url": "u"}, "27.0"),
    ("cmath", {"question": "q", "golden": "2", "grade": 1, "reasoning_step": 1, "num_digits": 1}, "2"),
    ("minerva", {"question": "q", "answer": "2.7778"}, "2.7778"),
    ("olympiad", {"question": "q", "final_answer": ["$2$", "$5$"], "id": 1, "subfield": "Algebra"}, "$2$, $5$"),
    ("deepscaler", {"problem": "q", "answer": "-2", "solution": "s"}, "-2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "answer"), IN_THEIR_OWN_FORMAT)
def test_a_benchmark_reads_local_files_in_its_own_format(write, name, row, answer):
    world = Math(benchmark=name, heldout_path=write([row]))
    task = world.task("heldout", 0)
    assert task.prompt.startswith("q\n\n")
    assert task.data == {"answer": answer}


def test_a_benchmark_s_columns_can_be_mapped(write):
    world = Math(
        benchmark="aime24", heldout_path=write([{"problem": "q", "final_answer": "25", "id": 1}]), answer="final_answer"
    )
    assert world.task("heldout", 0).data == {"answer": "25"}


def test_a_set_without_training_problems_is_for_evaluation_only(write):
    world = Math(benchmark="math500", heldout_path=write([IN_THEIR_OWN_FORMAT[2][1]]))
    assert world.size("heldout") == 1
    for ask in (lambda: world.size("train"), lambda: world.task("train", 0)):
        with pytest.raises(MarftError, match="is for evaluation only: it has no tasks to train on; name a `path`"):
            ask()


def test_a_problem_that_is_held_out_is_not_trained_on(write):
    world = Math(path=write(ROWS[:10]), heldout_path=write(ROWS[8:14], "held.jsonl"))
    assert (world.size("train"), world.size("heldout"), world.dropped) == (8, 6, 2)


@pytest.mark.parametrize(
    ("rows", "keys", "says"),
    [
        ([{"problem": "q"}], {}, "rows.jsonl, line 1: has no column 'question'"),
        ([*ROWS[:2], "{broken\n"], {}, "rows.jsonl, line 3: is not JSON"),
        ([ROWS[0], ROWS[0]], {"id": "name"}, "line 2: the name 'n0' is also that of .*rows.jsonl, line 1"),
        (
            [{"question": "q", "answer": "5"}],
            {"final_answer": "boxed"},
            r"line 1: 'answer' has no closed `\\boxed{…}` in '5'",
        ),
        ([{"question": "q", "answer": "5"}], {"final_answer": "after_hashes"}, "line 1: 'answer' has no `####`"),
        ([{"question": "q", "answer": " "}], {}, "line 1: 'answer' has an empty answer"),
        ([{"question": "q", "answer": "1"}], {}, "leaves 0 training tasks and 1 held-out ones"),
        (["\n"], {}, "rows.jsonl: holds no rows"),
    ],
)
def test_rows_that_cannot_be_used(write, rows, keys, says):
    with pytest.raises(MarftError, match=says):
        Math(path=write(rows), **keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "environment.path: give either `benchmark`, `path`"),
        ({"path": "x", "hub": "y"}, "environment.path: give either"),
        ({"benchmark": "gsm8k", "hub": "y"}, "environment.path: give either"),
        ({"benchmark": "gsm9k"}, "benchmark.*'gsm8k'"),
        ({"path": "x", "split_heldout": "test"}, "environment.subset, environment.split_…: go with `hub`"),
        ({"hub": "x", "split_train": None}, "environment.split_train: without it, name a `split_heldout`"),
        ({"path": "x", "decide": "vote", "answerer": "a"}, "environment.answerer: with `decide: vote`"),
        ({"path": "no/such.jsonl"}, "no/such.jsonl: there is no such file"),
        ({"path": "x", "deadline": 0}, "deadline"),
    ],
)
def test_mistakes(keys, says):
    with pytest.raises(MarftError, match=says):
        Math(**keys)


def test_a_folder_saved_by_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS[:12]), "test": datasets.Dataset.from_list(ROWS[12:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    hub = str(tmp_path / "saved")
    world = Math(hub=hub, split_heldout="test")
    assert (world.size("train"), world.size("heldout")) == (12, 8)
    evaluated = Math(hub=hub, split_train=None, split_heldout="test")
    assert evaluated.size("heldout") == 8
    with pytest.raises(MarftError, match="for evaluation only"):
        evaluated.size("train")


def test_it_keeps_the_rules_of_environments(write):
    check_environment(Math(path=write()), messages=[r"\boxed{1}", r"\boxed{\sqrt{2}}", "5^{5^{5^{5^5}}}"])
    check_environment(Math(path=write(), attempts=3, feedback="verdict", decide="vote", plain_number=True))
