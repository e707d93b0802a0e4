"""reasoning: what is held out, purity, grading, and every mistake in one sentence."""

import asyncio
import os
import pickle
import random
import time
from math import prod

import numpy as np
import pytest

from marft.environments import reasoning
from marft.environments.check import check_environment
from marft.environments.generator import QuestionStream
from marft.environments.reasoning import Reasoning
from marft.grading.bounded import GraderFailed
from marft.types import MarftError

DIGITS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SUMS = {"dataset": "chain_sum", "parameters": {**DIGITS, "allow_negation": False}}


def texts(world, split, indices):
    return [world.task(split, index).prompt for index in indices]


def held(world):
    return texts(world, "heldout", range(world.size("heldout")))


def play(world, replies, task=None, agents=("planner", "solver")):
    state = world.reset(task or world.task("train", 0), agents, seed=0)
    outcomes = []
    for reply in replies:
        outcomes.append(asyncio.run(world.step(state, {"planner": "a plan", "solver": reply})))
        state = outcomes[-1].state
    return outcomes


def gold(task):
    return task.data["entry"]["answer"]


def test_held_out_questions_are_distinct_and_never_trained_on():
    world = Reasoning(**SUMS, heldout_size=20)
    assert world.size("train") is None
    assert len(set(held(world))) == len(held(world)) == 20
    assert not set(held(world)) & set(texts(world, "train", range(1500)))


def test_overlapping_seeds_do_not_leak_questions_into_training():
    # In reasoning-gym the question at (seed 0, index 5) is the one at (seed 5, index 0)
    assert QuestionStream("gcd", {}, 0).draw(5).text == QuestionStream("gcd", {}, 5).draw(0).text
    world = Reasoning(dataset="gcd", train_seed=0, heldout_seed=5, heldout_size=30)
    assert not set(held(world)) & set(texts(world, "train", range(100)))


def test_a_small_generator_keeps_at_least_half_of_its_questions_for_training():
    # one-digit a + b or a - b: at most 10 * 10 * 2 = 200 questions
    world = Reasoning(**SUMS, heldout_size=256)
    train = set(texts(world, "train", range(3000)))
    assert 60 <= len(held(world)) <= 100
    assert len(train) >= len(held(world))
    assert not train & set(held(world))


def test_a_generator_of_one_question_is_refused():
    world = Reasoning(dataset="prime_factorization", parameters={"min_value": 8, "max_value": 8})
    with pytest.raises(MarftError, match="prime_factorization: fewer than 2 distinct questions"):
        world.size("heldout")


def test_of_two_questions_one_is_held_out_and_the_other_trained_on():
    world = Reasoning(dataset="prime_factorization", parameters={"min_value": 8, "max_value": 9})
    assert world.size("heldout") == 1
    assert len(set(texts(world, "train", range(50)))) == 1
    assert not set(held(world)) & set(texts(world, "train", range(50)))


def test_a_task_depends_on_its_index_alone():
    one, two = Reasoning(**SUMS), Reasoning(**SUMS)
    forwards = texts(one, "train", range(60))
    assert texts(two, "train", reversed(range(60)))[::-1] == forwards
    assert texts(pickle.loads(pickle.dumps(one)), "train", range(60)) == forwards
    assert held(one) == held(two)
    assert texts(Reasoning(**SUMS, train_seed=7), "train", range(60)) != forwards


@pytest.mark.parametrize("dataset", ["list_functions", "codeio", "pool_matrix"])  # these use the global generators
def test_drawing_neither_reads_nor_moves_the_process_s_randomness(dataset):
    stream = QuestionStream(dataset, {}, 3)
    random.seed(1)
    np.random.seed(1)
    first = [stream.draw(index).text for index in range(10)]
    python, numpy = random.random(), np.random.random()
    assert [QuestionStream(dataset, {}, 3).draw(index).text for index in range(10)] == first
    random.seed(1)
    np.random.seed(1)
    assert (random.random(), np.random.random()) == (python, numpy)


@pytest.mark.parametrize("dataset", ["list_functions", "gsm_symbolic"])  # these list their questions when made
def test_indices_beyond_a_generator_object_s_size(dataset):
    stream = QuestionStream(dataset, {}, 0)
    assert len({stream.draw(index).text for index in (0, 1999, 2000, 4001, 10**7)}) == 5


def test_a_mix_holds_out_by_weight_and_its_first_tasks_are_a_fair_sample():
    mix = [{"dataset": "chain_sum", "weight": 3}, {"dataset": "gcd"}]
    world = Reasoning(datasets=mix, heldout_size=40)
    kinds = [world.task("heldout", index).kind for index in range(40)]
    assert (kinds.count("chain_sum"), kinds.count("gcd")) == (30, 10)
    assert [kinds[:8].count("chain_sum"), kinds[8:16].count("chain_sum")] == [6, 6]
    train = [world.task("train", index).kind for index in range(400)]
    assert (
        abs(train.count("chain_sum") - 300) < 45
    )  # five standard deviations of a binomial: sqrt(400 * 3/4 * 1/4) = 8.7


def test_one_question_of_two_generators_is_held_out_once_and_trained_on_by_neither():
    twice = [
        {"dataset": "chain_sum", "parameters": DIGITS},
        {"dataset": "chain_sum", "parameters": {**DIGITS, "allow_negation": False}},
    ]
    world = Reasoning(datasets=twice, heldout_size=30)
    assert len(set(held(world))) == len(held(world))
    assert not set(held(world)) & set(texts(world, "train", range(600)))


def test_a_right_answer_earns_one_and_a_wrong_one_ends_the_only_attempt():
    world = Reasoning(**SUMS, reward="success")
    task = world.task("train", 3)
    [won] = play(world, [gold(task)], task)
    assert (won.rewards, won.terminated, won.truncated, won.metrics["success"]) == (1.0, True, False, 1.0)
    [lost] = play(world, [str(int(gold(task)) + 1)], task)
    assert (lost.rewards, lost.terminated, lost.truncated, lost.metrics["success"]) == (0.0, True, False, 0.0)


@pytest.mark.parametrize(
    ("answer", "template", "right"),
    [
        ("whole", "  {}\n", True),
        ("whole", "The answer is {}.", False),
        ("last_number", "First 9999, then {}.", True),
        ("last_number", "{} or 9999", False),
        ("last_line", "thinking\n{}", True),
        ("tag", "<answer>{}</answer>", True),
        ("tag", "{}", False),
    ],
)
def test_how_the_answer_is_read(answer, template, right):
    world = Reasoning(**SUMS, answer=answer)
    task = world.task("heldout", 0)
    [outcome] = play(world, [template.format(gold(task))], task)
    assert outcome.metrics["success"] == float(right)


def test_no_answer_is_counted_as_such():
    [outcome] = play(Reasoning(**SUMS, answer="tag"), ["5"])
    assert outcome.rewards == 0.0
    zeros = dict.fromkeys(("success", "score", "answered", "unscorable", "first_attempt"), 0.0)
    assert (outcome.metrics, outcome.answer) == (zeros, "")


FACTORS = {"dataset": "prime_factorization", "parameters": {"min_value": 8, "max_value": 200}, "heldout_size": 10}


def half_right(task):
    """The number itself and 1: their product is right, but 1 is no prime. The scorer's credit for that is 0.5."""
    return f"1 × {prod(int(factor) for factor in gold(task).split(' × '))}"


@pytest.mark.parametrize(
    ("success_at", "reward", "paid", "success"),
    [(1.0, "score", 0.5, 0.0), (0.5, "score", 0.5, 1.0), (1.0, "success", 0.0, 0.0), (0.5, "success", 1.0, 1.0)],
)
def test_partial_credit_and_the_threshold_of_success(success_at, reward, paid, success):
    world = Reasoning(**FACTORS, success_at=success_at, reward=reward)
    task = world.task("train", 0)
    [outcome] = play(world, [half_right(task)], task)
    assert (outcome.rewards, outcome.metrics["success"], outcome.metrics["score"]) == (paid, success, 0.5)


def test_a_scorer_that_breaks_on_a_reply_is_recorded():
    world = Reasoning(dataset="prime_factorization", heldout_size=10)
    [outcome] = play(world, ["no number here"])
    assert (outcome.rewards, outcome.metrics["unscorable"], outcome.metrics["answered"]) == (0.0, 1.0, 1.0)


def test_a_scorer_that_hangs_or_dies_fails_the_episode_and_costs_nothing_else(monkeypatch):
    world = Reasoning(**SUMS, deadline=2.0)
    monkeypatch.setattr(reasoning, "_score", _hang)
    with pytest.raises(GraderFailed, match="_hang: gave no result within its deadline of 2 s"):
        play(world, ["5"])
    monkeypatch.setattr(reasoning, "_score", _die)
    with pytest.raises(GraderFailed, match="_die: its process ended itself with exit code 9"):
        play(world, ["5"])
    monkeypatch.undo()
    assert play(world, [gold(world.task("train", 0))])[0].rewards == 1.0


def _hang(*_):
    time.sleep(60)


def _die(*_):
    os._exit(9)


def test_with_a_verdict_attempts_pay_only_what_is_better_than_before():
    world = Reasoning(**FACTORS, attempts=4, feedback="verdict")
    task = world.task("train", 0)
    outcomes = play(world, [half_right(task), "", half_right(task), gold(task)], task)
    assert [each.rewards for each in outcomes] == [0.5, 0.0, 0.0, 0.5]
    assert [each.terminated for each in outcomes] == [False, False, False, True]
    assert [each.metrics["success"] for each in outcomes] == [0.0, 0.0, 0.0, 1.0]
    assert [each.metrics["first_attempt"] for each in outcomes] == [0.0, 0.0, 0.0, 0.0]
    spent = play(world, ["", "", "", ""], task)
    assert [each.terminated for each in spent] == [False, False, False, True]


def test_a_right_answer_ends_the_episode_with_attempts_left():
    world = Reasoning(**SUMS, attempts=3, feedback="verdict")
    [outcome] = play(world, [gold(world.task("train", 0))])
    assert (outcome.rewards, outcome.terminated, outcome.metrics["first_attempt"]) == (1.0, True, 1.0)


def test_without_a_verdict_all_attempts_are_played_and_the_last_one_pays():
    world = Reasoning(**FACTORS, attempts=3)
    task = world.task("train", 0)
    lost = play(world, [gold(task), gold(task), half_right(task)], task)
    assert [each.rewards for each in lost] == [0.0, 0.0, 0.5]
    assert [each.terminated for each in lost] == [False, False, True]
    assert [world.observe(each.state, "solver") for each in lost] == ["", "", ""]
    assert (lost[-1].metrics["success"], lost[-1].metrics["first_attempt"]) == (0.0, 1.0)
    assert [each.rewards for each in play(world, ["", "", gold(task)], task)] == [0.0, 0.0, 1.0]


def test_the_same_tasks_without_the_verdict():
    world = Reasoning(**SUMS, attempts=2, feedback="verdict", heldout_size=5)
    silent = world.without_verdict()
    assert held(silent) == held(world)
    outcomes = play(silent, [gold(world.task("train", 0)), "1"])
    assert [(each.rewards, each.terminated) for each in outcomes] == [(0.0, False), (0.0, True)]
    assert silent.observe(outcomes[0].state, "solver") == ""
    assert world.observe(play(world, ["777777"])[0].state, "solver") != ""
    assert silent.without_verdict() is silent


def test_a_vote_is_the_answer_that_most_gave():
    world = Reasoning(**SUMS, decide="vote", answer="last_number")
    task = world.task("train", 0)
    right, wrong = gold(task), str(int(gold(task)) + 1)

    def success(*replies):
        said = dict(enumerate(replies))
        outcome = asyncio.run(world.step(world.reset(task, ("a", "b"), seed=0), said))
        return outcome.metrics["success"], outcome.answer

    assert success(wrong, f"it is {right}", right) == (1.0, right)
    assert success(wrong, right) == (0.0, wrong)  # a tie goes to the earliest
    assert success("no idea", "none", right) == (1.0, right)  # who gives no answer has no vote


def test_the_verdict_says_nothing_of_the_answer():
    world = Reasoning(**SUMS, attempts=2, feedback="verdict")
    start = world.reset(world.task("train", 0), ("planner", "solver"), seed=0)
    assert world.observe(start, "solver") == ""
    [first, _] = play(world, ["777777", "888888"])
    said = world.observe(first.state, "planner")
    assert said == world.observe(first.state, "solver") != ""
    assert "777777" not in said
    assert gold(world.task("train", 0)) not in said


def test_a_named_answerer_and_turns_in_which_it_does_not_act():
    world = Reasoning(**SUMS, answerer="planner")
    task = world.task("train", 0)
    state = world.reset(task, ("planner", "solver"), seed=0)
    assert asyncio.run(world.step(state, {"planner": gold(task), "solver": "?"})).rewards == 1.0
    waits = asyncio.run(world.step(state, {"solver": gold(task)}))
    assert (waits.rewards, waits.terminated, waits.state) == (0.0, False, state)
    with pytest.raises(MarftError, match="answerer: no agent 'planner'"):
        world.reset(task, ("a", "b"), seed=0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "environment.dataset: give either"),
        ({"dataset": "gcd", "datasets": [{"dataset": "lcm"}]}, "environment.dataset: give either"),
        (
            {"datasets": [{"dataset": "lcm"}], "parameters": {"min_numbers": 2}},
            "environment.parameters: with `datasets`",
        ),
        ({"dataset": "chain_summ"}, r"dataset: reasoning-gym has no 'chain_summ'; did you mean 'chain_sum'\?"),
        ({"dataset": "qqqqqq"}, "reasoning-gym has no 'qqqqqq'; it has 1"),
        ({"dataset": "composite"}, "spelt `datasets` here"),
        ({"dataset": "gcd", "parameters": {"min_number": 2}}, r"gcd has no 'min_number'; did you mean 'min_numbers'\?"),
        ({"dataset": "gcd", "parameters": {"seed": 2}}, "parameters: 'seed' is set by train_seed"),
        ({"dataset": "gcd", "parameters": {"size": 2}}, "parameters: 'size' is set by"),
        ({"dataset": "gcd", "parameters": {"min_numbers": 0}}, "gcd: parameters: min_numbers must be at least 2"),
        ({"dataset": "gcd", "parameters": {"min_numbers": "x"}}, "gcd: parameters: "),
        ({"dataset": "gcd", "heldout_seed": 0}, "environment.heldout_seed: must differ from train_seed"),
        ({"datasets": [{"dataset": "lcm", "weight": 0}]}, "weight"),
        ({"dataset": "gcd", "decide": "vote", "answerer": "a"}, "environment.answerer: with `decide: vote`"),
    ],
)
def test_mistakes(keys, says):
    with pytest.raises(MarftError, match=says):
        Reasoning(**keys)


def test_generators_that_differ_between_processes_need_a_fixed_hash_seed(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(MarftError, match="'ransom_note' draws other questions in every process; set PYTHONHASHSEED=0"):
        Reasoning(dataset="ransom_note")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert Reasoning(dataset="ransom_note").task("train", 0).kind == "ransom_note"


def test_it_keeps_the_rules_of_environments():
    world = Reasoning(**SUMS, heldout_size=20)
    check_environment(world, messages=[gold(world.task("train", 0))])
    mix = [{"dataset": name} for name in ("prime_factorization", "list_functions", "letter_counting", "pool_matrix")]
    check_environment(Reasoning(datasets=mix, heldout_size=16, attempts=3, feedback="verdict", answer="last_line"))
