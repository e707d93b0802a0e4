"""relay and matrix: games whose best play is known by arithmetic."""

from collections import Counter
from itertools import product

import pytest

from marft.environments.check import check_environment
from marft.environments.matrix import Matrix
from marft.environments.relay import Relay
from marft.types import MarftError

CLIMBING = [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]


def test_relay_without_a_message_stays_at_chance_whatever_the_last_agent_says():
    symbols = ["A", "B", "C", "D"]
    world = Relay(symbols=symbols)
    tasks = [world.task("heldout", index) for index in range(40)]
    states = [world.reset(task, ("one", "two"), seed=index) for index, task in enumerate(tasks)]
    # Everything the last agent may base its reply on is the same in every task…
    assert len({(task.prompt, world.observe(state, "two")) for task, state in zip(tasks, states, strict=True)}) == 1
    # …so its policy is one distribution over replies, and each pure reply wins exactly 1/k
    for reply in symbols:
        won = [world.step(state, {"one": "hm", "two": reply}).rewards for state in states]
        assert sum(won) / len(won) == 1 / 4


def test_relay_is_solved_by_passing_the_symbol_on():
    world = Relay(symbols=["A", "B", "C"])
    for index in range(6):
        state = world.reset(world.task("train", index), ("one", "mid", "two"), seed=0)
        [symbol] = [each for each in "ABC" if each in world.observe(state, "one").replace("The", "")]
        assert world.observe(state, "mid") == world.observe(state, "two") == ""
        right = world.step(state, {"one": "x", "mid": "y", "two": f" {symbol}\n"})
        assert (right.rewards, right.terminated, right.truncated, right.metrics["success"]) == (1.0, True, False, 1.0)
        wrong = world.step(state, {"one": symbol, "mid": symbol, "two": f"{symbol}!"})
        assert (wrong.rewards, wrong.terminated, wrong.metrics["success"]) == (0.0, True, 0.0)


def test_relay_symbols_are_balanced_and_do_not_depend_on_the_seed():
    world = Relay(symbols=["A", "B", "C"])
    hidden = [world.reset(world.task("train", i), ("x", "y"), seed=i * 7).symbol for i in range(9)]
    assert Counter(hidden) == {"A": 3, "B": 3, "C": 3}
    again = [world.reset(world.task("train", i), ("x", "y"), seed=1).symbol for i in range(9)]
    assert hidden == again  # one group starts from one state


def test_relay_over_two_turns_shows_the_symbol_in_the_first_and_asks_in_the_second():
    world = Relay(turns=2, symbols=["A", "B"], hint="{symbol}")
    first = world.reset(world.task("train", 1), ("x", "y"), seed=0)
    assert world.observe(first, "x") == "B"
    early = world.step(first, {"x": "B", "y": "B"})
    assert (early.rewards, early.terminated) == (0.0, False)
    assert world.observe(early.state, "x") == ""
    late = world.step(early.state, {"x": "", "y": "B"})
    assert (late.rewards, late.terminated) == (1.0, True)


def test_relay_needs_two_agents():
    world = Relay()
    with pytest.raises(MarftError, match="relay needs at least 2 agents; the team has 1"):
        world.reset(world.task("train", 0), ("alone",), seed=0)


def test_matrix_pays_the_entry_that_the_words_name():
    world = Matrix(symbols=["A", "B", "C"], payoff=CLIMBING)
    assert world.optimum == 11
    state = world.reset(world.task("train", 0), ("row", "column"), seed=0)
    for (i, row), (j, column) in product(enumerate("ABC"), repeat=2):
        outcome = world.step(state, {"column": f" {column} ", "row": row})  # by name, not by who acted first
        assert outcome.rewards == CLIMBING[i][j]
        assert outcome.metrics["success"] == float(i == j == 0)
        assert outcome.terminated


def test_matrix_for_three_agents():
    world = Matrix(symbols=["0", "1"], payoff=[[[0, 1], [2, 3]], [[4, 5], [6, 9]]], illegal=-1)
    assert world.optimum == 9
    state = world.reset(world.task("train", 0), ("a", "b", "c"), seed=0)
    assert world.step(state, {"a": "1", "b": "0", "c": "1"}).rewards == 5
    assert world.step(state, {"a": "0", "b": "1", "c": "1"}).rewards == 3
    assert world.step(state, {"a": "0", "b": "1", "c": "two"}).rewards == -1
    assert world.step(state, {"a": "0", "b": "", "c": "1"}).rewards == -1


def test_matrix_repeated_counts_the_share_of_optimal_turns():
    world = Matrix(symbols=["A", "B"], payoff=[[1, 0], [0, 2]], turns=4)
    state = world.reset(world.task("heldout", 0), ("a", "b"), seed=0)
    outcomes = []
    for word in "BABA":
        outcomes.append(world.step(state, {"a": word, "b": word}))
        state = outcomes[-1].state
    assert [each.rewards for each in outcomes] == [2, 1, 2, 1]
    assert [each.terminated for each in outcomes] == [False, False, False, True]
    assert [each.metrics["success"] for each in outcomes] == [1, 1 / 2, 2 / 3, 2 / 4]


def test_matrix_must_fit_the_team():
    world = Matrix(symbols=["A", "B"], payoff=[[1, 0], [0, 1]])
    with pytest.raises(MarftError, match="the payoff is for 2 agents; the team has 3"):
        world.reset(world.task("train", 0), ("a", "b", "c"), seed=0)
    state = world.reset(world.task("train", 0), ("a", "b"), seed=0)
    with pytest.raises(MarftError, match="every agent must act in every turn; 'b' did not"):
        world.step(state, {"a": "A"})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"payoff": [[1, 0], [0]]}, r"environment.payoff: every level must hold 2 entries, one per symbol; got \[0\]"),
        ({"payoff": [[1, 0], [0, 1, 2]]}, "every level must hold 2"),
        ({"payoff": [[1, 0], 3]}, "every level must hold 2"),
        ({"payoff": [[1, 0], [[1, 2], 1]]}, "is not a finite number"),
        ({"payoff": [[1, 0], [0, float("inf")]]}, "inf is not a finite number"),
        ({"payoff": [[1, 0], ["1", 0]]}, "'1' is not a finite number"),
        ({"payoff": []}, "payoff"),
        ({"payoff": [[-1, -2], [-2, -3]]}, "environment.illegal: must be below the best payoff -1.0"),
        ({"symbols": ["A", "A"]}, "environment.symbols: must differ"),
    ],
)
def test_matrix_refuses_a_payoff_that_is_no_game(keys, says):
    with pytest.raises(MarftError, match=says):
        Matrix(**{"symbols": ["A", "B"], "payoff": [[1, 0], [0, 1]], **keys})


def test_both_keep_the_rules_of_environments():
    check_environment(Relay(), messages=["red", "blue"], one_prompt=True)
    check_environment(Relay(turns=3), agents=("a", "b", "c"), messages=["red"], one_prompt=True)
    check_environment(Matrix(symbols=["A", "B"], payoff=[[1, 0], [0, 2]]), messages=["A", "B"], one_prompt=True)
    check_environment(
        Matrix(symbols=["A", "B"], payoff=[1, 0], turns=3), agents=("a",), messages=["A"], one_prompt=True
    )
