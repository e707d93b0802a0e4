"""split: what can be won with and without each message, by counting, and every mistake in one sentence."""

from collections import Counter, defaultdict
from itertools import product

import pytest

from marft.environments.check import check_environment
from marft.environments.split import SplitInformation
from marft.types import MarftError, Task

COLOURS = ["red", "blue", "green"]
SIZES = ["big", "small"]


def start(world, index, agents, split="train"):
    return world.reset(world.task(split, index), agents, seed=0)


def best_success(world, tasks, agents, hidden):
    """The success of the best policy of an answerer that reads all observations but those of the agents in `hidden`.

    It can do no better than give, to all that reads the same to it, the one reply that wins most often.
    """
    replies = {"".join(each) for each in product(COLOURS, SIZES)} | set(COLOURS + SIZES)
    wins = defaultdict(Counter)
    for index in range(tasks):
        state = start(world, index, agents)
        read = tuple(world.observe(state, agent) for agent in agents if agent not in hidden)
        for reply in replies:
            wins[read][reply] += world.step(state, {agents[-1]: reply}).rewards
    return sum(max(each.values()) for each in wins.values()) / tasks


@pytest.mark.parametrize(
    ("hidden", "missing", "best"),
    [((), (), 1.0), (("a",), (0,), 1 / 3), (("b",), (1,), 1 / 2), (("a", "b"), (0, 1), 1 / 6)],
)
def test_combine_with_each_edge_missing(hidden, missing, best):
    world = SplitInformation(symbols=[COLOURS, SIZES])
    assert best_success(world, 6, ("a", "b", "c"), hidden) == pytest.approx(best)
    assert world.chance(missing) == pytest.approx(best)


@pytest.mark.parametrize(
    ("hidden", "missing", "best"),
    [
        ((), (), 1.0),
        (("b",), (1,), (1 + 1 / 2) / 2),
        (("a",), (0,), (1 + 1 / 3) / 2),
        (("a", "b"), (0, 1), (1 / 3 + 1 / 2) / 2),
    ],
)
def test_ask_with_each_knower_unheard(hidden, missing, best):
    world = SplitInformation(mode="ask", symbols=[COLOURS, SIZES])
    assert best_success(world, 12, ("boss", "a", "b"), hidden) == pytest.approx(best)
    assert world.chance(missing) == pytest.approx(best)


def test_ask_one_agent_always_and_pass_on_what_it_says():
    # k = 3 topics, 3 symbols: 1/3 + 2/3 * 1/3 = 5/9, whoever is asked
    world = SplitInformation(mode="ask", parts=3, symbols=COLOURS)
    agents = ("boss", "a", "b", "c")
    for agent in agents[1:]:
        won = 0
        for index in range(3 * 27):
            state = start(world, index, agents)
            [own] = [word for word in COLOURS if word in world.observe(state, agent)]
            won += world.step(state, {"boss": agent, agent: own}).rewards
        assert won == 45  # 5/9 of 81
    assert world.chance((0, 1)) == pytest.approx(5 / 9)


def test_combine_is_solved_by_saying_both_parts_in_order():
    world = SplitInformation(symbols=[COLOURS, SIZES], join=" ")
    state = start(world, 4, ("a", "b", "mid", "c"))
    [colour] = [word for word in COLOURS if word in world.observe(state, "a")]
    [size] = [word for word in SIZES if word in world.observe(state, "b")]
    assert world.observe(state, "mid") == world.observe(state, "c") == ""
    right = world.step(state, {"a": "", "b": "", "mid": "", "c": f" {colour} {size}\n"})
    assert (right.rewards, right.terminated, right.metrics, right.answer) == (
        1.0, True, {"success": 1.0}, f"{colour} {size}"
    )  # fmt: skip
    for wrong in (f"{size} {colour}", f"{colour}{size}", colour, f"{colour} {size}!", ""):
        assert world.step(state, {"a": "", "b": "", "mid": f"{colour} {size}", "c": wrong}).rewards == 0.0
    assert world.step(state, {"a": f"{colour} {size}"}).rewards == 0.0  # the answerer did not act


def test_only_the_asker_reads_the_question_and_only_its_knower_the_answer():
    world = SplitInformation(mode="ask", symbols=[COLOURS, SIZES], topics=["hue", "size"], question="{topic}?")
    asked = Counter()
    for index in range(12):
        state = start(world, index, ("boss", "a", "b"))
        question = world.observe(state, "boss")
        asked[question] += 1
        knower = {"hue?": "a", "size?": "b"}[question]
        answer = world.observe(state, knower).split()[-1].strip(".")
        assert world.step(state, {"boss": "x", knower: answer}).rewards == 1.0
        assert not any(word in question for word in COLOURS + SIZES)
    assert asked == {"hue?": 6, "size?": 6}


def test_asker_and_answerer_by_name():
    world = SplitInformation(mode="ask", symbols=COLOURS, asker="b", answerer="d", hint="{symbol}", question="{topic}")
    state = start(world, 0, ("a", "b", "c", "d"))  # topic 1 is the first knower's, here a's
    assert [world.observe(state, agent) for agent in "abcd"] == ["red", "1", "red", ""]
    state = start(world, 3, ("a", "b", "c", "d"))  # 3 = topic 2 of the next combination
    assert [world.observe(state, agent) for agent in "abcd"] == ["blue", "2", "red", ""]
    assert world.step(state, {"d": "red", "a": "blue"}).rewards == 1.0
    assert world.step(state, {"a": "red"}).rewards == 0.0


@pytest.mark.parametrize(("mode", "cycle"), [("combine", 6), ("ask", 12)])
def test_tasks_go_round_read_alike_and_differ_in_name(mode, cycle):
    world = SplitInformation(mode=mode, symbols=[COLOURS, SIZES])
    for first in (0, 5):
        tasks = [world.task("train", index) for index in range(first, first + cycle)]
        assert len({(*task.data["symbols"], task.data["topic"]) for task in tasks}) == cycle
        assert len({task.prompt for task in tasks}) == 1
        assert len({task.id for task in tasks}) == cycle


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"parts": 1}, "split: 'parts'"),
        ({"parts": 3, "symbols": [COLOURS, SIZES]}, "environment.symbols: 2 lists for 3 parts"),
        ({"symbols": ["a"]}, "environment.symbols: a part needs two or more"),
        ({"symbols": ["a", " a"]}, "environment.symbols: a part needs two or more, all different"),
        ({"symbols": ["a", ""]}, "environment.symbols: .* none empty"),
        ({"symbols": [str(n) for n in range(100)], "parts": 3}, "1000000 combinations, more than 100000"),
        ({"symbols": ["a", "aa"]}, "environment.join: two combinations read the same"),  # a + aa = aa + a
        ({"topics": ["x"]}, "environment.topics: needs 2 different names"),
        ({"topics": ["x", "x"]}, "environment.topics: needs 2 different names"),
        ({"hint": "look"}, "environment.hint: must contain {symbol}"),
        ({"question": "what?"}, "environment.question: must contain {topic}"),
        ({"asker": "a"}, "environment.asker: only `mode: ask`"),
        ({"mod": "ask"}, "unknown key 'mod'; did you mean 'mode'"),
    ],
)
def test_mistakes(keys, says):
    with pytest.raises(MarftError, match=says):
        SplitInformation(**keys)


def test_symbols_that_run_together_may_be_separated():
    assert SplitInformation(symbols=["a", "aa"], join=" ").chance((0, 1)) == 1 / 4
    assert SplitInformation(symbols=["a", "aa"], mode="ask").chance((0, 1)) == 1 / 2


@pytest.mark.parametrize(
    ("keys", "agents", "says"),
    [
        ({}, ("a", "b"), "2 agents, the first declared, hold a part, and another one answers; the team is a, b"),
        ({}, ("a",), "the team is a, the answerer a"),
        ({"answerer": "b"}, ("a", "b", "c"), "the answerer b"),
        ({"answerer": "d"}, ("a", "b", "c"), "answerer: no agent 'd'"),
        ({"mode": "ask"}, ("a", "b"), "2 parts need as many agents besides the asker .* the team has 1"),
        ({"mode": "ask", "answerer": "c"}, ("a", "b", "c"), "the team has 1"),
        ({"mode": "ask", "asker": "z"}, ("a", "b", "c"), "asker: no agent 'z'"),
    ],
)
def test_teams_that_do_not_fit(keys, agents, says):
    world = SplitInformation(**keys)
    with pytest.raises(MarftError, match=says):
        start(world, 0, agents)


def test_it_keeps_the_rules_of_environments():
    check_environment(SplitInformation(), ("a", "b", "c"), messages=["redblue"], one_prompt=True)
    check_environment(SplitInformation(mode="ask"), ("a", "b", "c"), messages=["red"], one_prompt=True)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("red cat", True),
        ("I think RED, and then a cat.", True),
        ("cat red", False),  # in another order
        ("red blue cat", False),  # naming all is no answer
        ("reddish cat", False),
        ("red", False),
        ("", False),
    ],
)
def test_symbols_may_stand_among_other_words(said, right):
    world = SplitInformation(symbols=[["red", "blue"], ["cat", "dog"]], join=" ", answer="symbols")
    state = world.reset(Task("t", "", data={"symbols": ["red", "cat"], "topic": 0}), ("ann", "bob", "cy"), 0)
    assert world.step(state, {"ann": "x", "bob": "y", "cy": said}).rewards == right


def test_in_ask_one_symbol_of_any_topic_is_the_answer():
    world = SplitInformation(mode="ask", symbols=[["red", "blue"], ["cat", "dog"]], answer="symbols")
    state = world.reset(Task("t", "", data={"symbols": ["red", "cat"], "topic": 1}), ("lead", "ann", "bob"), 0)
    found = {said: world.step(state, {"bob": said}) for said in ("The answer is: Cat.", "red or cat", "dog", "concat")}
    assert [each.rewards for each in found.values()] == [1, 0, 0, 0]
    assert found["The answer is: Cat."].answer == "cat"


def test_an_asker_that_calls_nobody_wins_nothing_by_guessing():
    world = SplitInformation(mode="ask", symbols=[["red", "blue"], ["cat", "dog"]])
    state = world.reset(Task("t", "", data={"symbols": ["red", "cat"], "topic": 0}), ("lead", "ann", "bob"), 0)
    assert world.step(state, {"lead": "red"}).rewards == 0
    assert world.step(state, {"lead": "ann", "ann": "red"}).rewards == 1
    assert world.step(state, {"ann": "red", "bob": "cat", "lead": "red"}).rewards == 1  # it heard them all
