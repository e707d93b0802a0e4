"""D: orders, levels, who reads whom, and the sentence for every mistake."""

import os
import random
import subprocess
import sys
from itertools import permutations

import pytest

from marft.game import Graph, chain, graph, parallel
from marft.types import MarftError

TEAM = ("planner", "solver", "judge")


def test_chain_lets_every_agent_read_all_earlier_ones():
    d = chain(TEAM)(None, 0)
    assert d.edges == {("planner", "solver"), ("planner", "judge"), ("solver", "judge")}
    assert [d.parents(agent) for agent in TEAM] == [(), ("planner",), ("planner", "solver")]
    assert d.levels(TEAM) == (("planner",), ("solver",), ("judge",))


def test_parallel_lets_nobody_read_anybody():
    d = parallel()(object(), 7)
    assert d.edges == frozenset()
    assert d.order(TEAM) == TEAM
    assert d.levels(TEAM) == (TEAM,)


def test_order_is_the_first_declared_of_those_that_can_go():
    d = graph([("judge", "planner")])(None, 0)
    assert d.order(TEAM) == ("solver", "judge", "planner")
    assert d.levels(TEAM) == (("solver", "judge"), ("planner",))


def test_order_against_every_permutation_of_small_teams():
    draw = random.Random(0)
    agents = ("a", "b", "c", "d", "e")
    for _ in range(60):
        shuffled = draw.sample(agents, 5)
        edges = {(shuffled[i], shuffled[j]) for i in range(5) for j in range(i + 1, 5) if draw.random() < 0.4}
        valid = [p for p in permutations(agents) if all(p.index(i) < p.index(j) for i, j in edges)]
        assert Graph(frozenset(edges)).order(agents) == min(valid)  # alphabetical = declared order here


def test_parents_and_recalled_come_in_the_team_s_order_when_it_is_given():
    agents = ("z", "m", "a", "end")
    d = graph([("a", "end"), ("z", "end"), ("a", "z")], recall=[("m", "end"), ("end", "end"), ("a", "end")])(None, 0)
    assert d.parents("end") == ("a", "z")
    assert d.parents("end", agents) == ("a", "z")  # a acts before z, although z is declared first
    assert d.recalled("end") == ("a", "end", "m")
    assert d.recalled("end", agents) == ("m", "a", "end")


def test_recall_may_go_in_circles_and_does_not_order_anyone():
    d = graph([], recall=[("solver", "planner"), ("planner", "solver"), ("judge", "judge")])(None, 1)
    assert d.levels(TEAM) == (TEAM,)


@pytest.mark.parametrize(
    ("edges", "named"),
    [
        ([("solver", "planner"), ("planner", "solver")], "planner -> solver -> planner"),
        ([("judge", "planner"), ("planner", "solver"), ("solver", "judge")], "planner -> solver -> judge -> planner"),
        ([("solver", "judge"), ("judge", "solver"), ("planner", "solver")], "solver -> judge -> solver"),
        ([("planner", "judge"), ("judge", "solver"), ("solver", "judge")], "solver -> judge -> solver"),
        ([("judge", "judge")], "judge -> judge"),
    ],
)
def test_a_cycle_is_named_from_its_first_declared_agent(edges, named):
    for ask in (graph(edges)(None, 0).order, graph(edges)(None, 0).levels):
        with pytest.raises(MarftError, match=f"circle: {named}$"):
            ask(TEAM)


def test_a_cycle_is_named_alike_in_every_process():
    program = (
        "from marft.game import graph\n"
        "try: graph([(i, j) for i in 'abcd' for j in 'abcd'])(None, 0).order(tuple('abcd'))\n"
        "except Exception as error: print(error)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert "circle" in said.pop()


@pytest.mark.parametrize(
    ("d", "says"),
    [
        (
            Graph(frozenset({("planer", "solver")})),
            r"edge planer -> solver: no agent 'planer'; did you mean 'planner'\?",
        ),
        (
            Graph(frozenset(), recall=frozenset({("solver", "x")})),
            "recall solver -> x: no agent 'x'; known here: planner,",
        ),
        (Graph(frozenset(), acting=("solvr",)), r"acting solvr: no agent 'solvr'; did you mean 'solver'\?"),
        (Graph(frozenset({("planner", "solver")}), acting=("solver",)), "'planner' does not act in this turn"),
        (Graph(frozenset({("planner", "solver")}), acting=("planner",)), "'solver' does not act in this turn"),
        (Graph(frozenset(), acting=()), "no agent act"),
        (Graph(frozenset(), acting=("solver", "solver")), "twice"),
    ],
)
def test_a_graph_that_does_not_fit_the_team(d, says):
    with pytest.raises(MarftError, match=says):
        d.order(TEAM)


def test_only_the_acting_agents_are_ordered():
    d = Graph(frozenset({("judge", "planner")}), acting=("judge", "planner"))
    assert d.order(TEAM) == ("judge", "planner")
    assert d.levels(TEAM) == (("judge",), ("planner",))


def test_a_users_lists_become_hashable_values():
    d = Graph([["planner", "solver"]], recall=[("solver", "solver")], acting=["planner", "solver"])
    assert d == Graph(frozenset({("planner", "solver")}), frozenset({("solver", "solver")}), ("planner", "solver"))
    assert hash(d)


@pytest.mark.parametrize("pairs", [["ab"], [("a", "b", "c")], [("a", 1)]])
def test_what_is_not_a_pair_is_refused(pairs):
    with pytest.raises(MarftError, match="is not a \\(speaker, reader\\) pair"):
        graph(pairs)


def test_a_condition_must_be_a_pattern_on_an_edge():
    with pytest.raises(MarftError, match="condition on a -> b: '\\(' is no pattern"):
        Graph(frozenset([("a", "b")]), conditions=frozenset([("a", "b", "(")]))
    with pytest.raises(MarftError, match="condition on b -> a: there is no such edge"):
        Graph(frozenset([("a", "b")]), conditions=frozenset([("b", "a", "x")]))
