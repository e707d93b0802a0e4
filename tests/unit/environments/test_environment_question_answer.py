"""question_answer: where rows come from, what is held out, and what counts as right."""

import json
import sys

import pytest

from marft.environments.check import check_environment
from marft.environments.question_answer import QuestionAnswer, same_answer
from marft.types import MarftError

ROWS = [
    {"question": f"What is {i} + 1?", "answer": f"It is {i} + 1 = <<{i}+1={i + 1}>>.\n#### {i + 1}"} for i in range(20)
]


@pytest.fixture
def write(tmp_path):
    def write_rows(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write_rows


def prompts(world, split):
    return [world.task(split, index).prompt for index in range(world.size(split))]


def play(world, reply, split="train", index=0, agents=("planner", "solver"), **messages):
    state = world.reset(world.task(split, index), agents, seed=0)
    return world.step(state, messages or {"planner": "no", "solver": reply})


def test_a_reply_is_graded_by_its_last_number(write):
    world = QuestionAnswer(path=write(ROWS), final_answer="after_hashes", heldout_share=0.5)
    task = world.task("train", 0)
    right = int(task.prompt.split()[2]) + 1
    won = play(world, f"First 99, then {right}.")
    assert (won.rewards, won.terminated, won.truncated) == (1.0, True, False)
    assert won.metrics == {"success": 1.0, "answered": 1.0}
    lost = play(world, f"{right} or {right + 1}")
    assert (lost.rewards, lost.metrics) == (0.0, {"success": 0.0, "answered": 1.0})
    mute = play(world, "I do not know")
    assert (mute.rewards, mute.terminated, mute.metrics) == (0.0, True, {"success": 0.0, "answered": 0.0})


@pytest.mark.parametrize(
    ("given", "right", "equal"),
    [
        ("1,234", "1234.0", True),
        ("$5", "5.00", True),
        ("0.1", "0.10000000000000001", False),  # exact: as floats they would be equal
        ("12345678901234567890", "12345678901234567891", False),
        ("New  York", "new york", True),
        ("york", "new york", False),
        ("5", "five", False),
    ],
)
def test_answers_are_compared_exactly(given, right, equal):
    assert same_answer(given, right) is equal


@pytest.mark.parametrize(
    ("reply", "text", "reward"),
    [
        ("whole", " BLUE ", 1.0),
        ("whole", "it is blue", 0.0),
        ("tag", "so <answer>blue</answer>", 1.0),
        ("tag", "blue", 0.0),
        ("last_line", "because\nblue", 1.0),
        ("after_hashes", "because #### blue", 1.0),
    ],
)
def test_other_ways_to_read_a_reply(write, reply, text, reward):
    rows = [{"q": f"colour {i}?", "a": "blue"} for i in range(4)]
    world = QuestionAnswer(path=write(rows), question="q", answer="a", reply=reply)
    assert play(world, text).rewards == reward


def test_samples_vote_by_one_spelling_of_an_answer(write):
    numbers = QuestionAnswer(path=write(ROWS), final_answer="after_hashes")
    spellings = ["1,200.50", "so 1200.5", "$1200.500", "+1200.5"]
    assert {play(numbers, reply).answer for reply in spellings} == {"1200.5"}
    assert [play(numbers, reply).answer for reply in ("-0.0", "1200", "none")] == ["0", "1200", ""]
    words = QuestionAnswer(path=write([{"question": f"q{i}", "answer": "blue"} for i in range(3)]), reply="whole")
    assert play(words, " Dark \n BLUE").answer == "dark blue"


def test_a_team_that_votes(write):
    world = QuestionAnswer(path=write(ROWS), final_answer="after_hashes", decide="vote")
    right = int(world.task("train", 0).prompt.split()[2]) + 1
    assert play(world, "", a="99", b=f"{right}.0", c=f"= {right}").rewards == 1.0
    tied = play(world, "", a="99", b=str(right))
    assert (tied.rewards, tied.answer) == (0.0, "99")
    mute = play(world, "", a="?", b="!")
    assert (mute.terminated, mute.metrics["answered"]) == (True, 0.0)


def test_numbers_as_answers(write):
    world = QuestionAnswer(path=write([{"question": f"q{i}", "answer": 7} for i in range(3)]))
    assert play(world, "7.0").rewards == 1.0


def test_a_named_answerer(write):
    world = QuestionAnswer(path=write(ROWS), final_answer="after_hashes", answerer="planner")
    right = int(world.task("train", 0).prompt.split()[2]) + 1
    assert play(world, "", planner=str(right), solver="0").rewards == 1.0
    waits = play(world, "", solver=str(right))
    assert (waits.rewards, waits.terminated) == (0.0, False)
    with pytest.raises(MarftError, match="answerer: no agent 'planner' in the team"):
        play(world, "", agents=("a", "b"))


def test_a_share_is_held_out_by_question_the_same_whatever_the_order(write):
    keys = {"final_answer": "after_hashes", "heldout_share": 0.25}
    world = QuestionAnswer(path=write(ROWS), **keys)
    assert (world.size("train"), world.size("heldout")) == (15, 5)
    assert set(prompts(world, "train")) | set(prompts(world, "heldout")) == {row["question"] for row in ROWS}
    shuffled = QuestionAnswer(path=write(ROWS[::-1], "other.jsonl"), **keys)
    assert set(prompts(shuffled, "heldout")) == set(prompts(world, "heldout"))


def test_a_repeated_question_never_stands_in_both_splits(write):
    rows = [{"question": f"q{i % 5}", "answer": "1"} for i in range(20)]
    world = QuestionAnswer(path=write(rows), heldout_share=0.2)
    assert (world.size("train"), world.size("heldout")) == (16, 4)  # one of five questions, four times each
    assert not set(prompts(world, "train")) & set(prompts(world, "heldout"))


def test_a_heldout_file_wins_over_training(write):
    train, heldout = write(ROWS[:10]), write(ROWS[8:14], "held.jsonl")
    world = QuestionAnswer(path=train, heldout_path=heldout, final_answer="after_hashes")
    assert (world.size("train"), world.size("heldout"), world.dropped) == (8, 6, 2)
    assert [world.task("heldout", 0).id, world.task("train", 7).id] == ["heldout-1", "train-8"]


@pytest.mark.parametrize(
    ("rows", "keys", "says"),
    [
        (
            [{"problem": "1", "solution": "2"}],
            {},
            r"rows.jsonl, line 1: has no column 'question'; its columns are: problem, solution",
        ),
        ([ROWS[0], {"question": "q"}], {"final_answer": "after_hashes"}, "line 2: has no column 'answer'"),
        ([ROWS[0], "\n", "{not json\n"], {}, "rows.jsonl, line 3: is not JSON"),
        (["[1, 2]\n"], {}, "line 1: is not a mapping"),
        (["\n"], {}, "rows.jsonl: holds no rows"),
        ([{"question": " ", "answer": "1"}], {}, "line 1: the column 'question' must hold a text"),
        ([{"question": "q", "answer": None}], {}, "line 1: the column 'answer' must hold a text or a number"),
        ([{"question": "q", "answer": "4 apples"}], {}, "the answer '4 apples' is no number; see `final_answer`"),
        ([{"question": "q", "answer": "4"}], {"final_answer": "after_hashes"}, "'answer' has no `####`"),
        ([{"question": "q", "answer": " "}], {"reply": "whole"}, "'answer' has an empty answer"),
        ([{"question": "q", "answer": "1"}], {}, "leaves 0 training tasks and 1 held-out ones"),
    ],
)
def test_rows_that_cannot_be_used(write, rows, keys, says):
    with pytest.raises(MarftError, match=says):
        QuestionAnswer(path=write(rows), **keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "environment.path: give either `path`"),
        ({"path": "x", "hub": "y"}, "environment.path: give either `path`"),
        ({"hub": "y", "heldout_path": "x"}, "environment.heldout_path: goes with `path`"),
        ({"path": "x", "split_heldout": "test"}, "environment.split_heldout.* go with `hub`"),
        ({"path": "no/such.jsonl"}, r"no/such.jsonl: there is no such file \(looked in /"),
        ({"path": "x", "heldout_share": 1.5}, "heldout_share"),
        ({"path": "x", "decide": "vote", "answerer": "a"}, "environment.answerer: with `decide: vote`"),
    ],
)
def test_sources_that_cannot_be_used(keys, says):
    with pytest.raises(MarftError, match=says):
        QuestionAnswer(**keys)


def test_a_line_separator_inside_a_question_does_not_cut_the_row(write):
    line = json.dumps({"question": "a\u2028b", "answer": "1"}, ensure_ascii=False) + "\n"
    world = QuestionAnswer(path=write([line, {"question": "c", "answer": "2"}]))
    assert {*prompts(world, "train"), *prompts(world, "heldout")} == {"a\u2028b", "c"}


def test_a_folder_saved_by_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS[:12]), "test": datasets.Dataset.from_list(ROWS[12:])}
    )
    table.save_to_disk(str(tmp_path / "saved"))
    hub = str(tmp_path / "saved")
    world = QuestionAnswer(hub=hub, split_heldout="test", final_answer="after_hashes")
    assert (world.size("train"), world.size("heldout")) == (12, 8)
    with pytest.raises(MarftError, match=r"has no split 'tests'; did you mean 'test'\?"):
        QuestionAnswer(hub=hub, split_heldout="tests", final_answer="after_hashes")
    with pytest.raises(MarftError, match="train row 1: has no column 'solution'; its columns are: question, answer"):
        QuestionAnswer(hub=hub, answer="solution")


def test_a_folder_of_data_files(tmp_path, write, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "folder").mkdir()
    write(ROWS, "folder/train.jsonl")
    world = QuestionAnswer(hub=str(tmp_path / "folder"), final_answer="after_hashes")
    assert (world.size("train"), world.size("heldout")) == (18, 2)
    with pytest.raises(MarftError, match="cannot be loaded"):
        QuestionAnswer(hub=str(tmp_path / "folder"), split_train="nothing", final_answer="after_hashes")
    with pytest.raises(MarftError, match="cannot be loaded"):
        QuestionAnswer(hub=str(tmp_path / "nowhere"))


def test_without_the_datasets_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MarftError, match=r"hub: 'some/data' needs the `datasets` library; install marft\[datasets\]"):
        QuestionAnswer(hub="some/data")


def test_it_keeps_the_rules_of_environments(write):
    check_environment(QuestionAnswer(path=write(ROWS), final_answer="after_hashes"), messages=["7", "#### 3"])
