"""The game a config describes, its errors, and its drawing."""

import sys
import textwrap
from io import StringIO

import pytest
from rich.console import Console

from builders import config_of
from marft.config import parse_config
from marft.environments.relay import Relay
from marft.game import Agent, Debate, FlexMG, Graph, Orchestrated, Static, build_game, chain, draw, graph
from marft.types import MarftError


def config(dependency="chain", agents=None, **team):
    agents = agents or [{"name": "planner", "profile": "Plan."}, {"name": "solver", "sees_task": False}]
    return parse_config(
        {"team": {"agents": agents, "dependency": dependency, **team}, "environment": {"name": "relay"}}
    )


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module `mine` in the current folder, as a user would."""

    def write(text):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
        monkeypatch.delitem(sys.modules, "mine", raising=False)

    yield write
    sys.modules.pop("mine", None)


def test_agents_carry_what_the_config_says():
    game = build_game(
        config(
            agents=[
                {"name": "planner", "profile": "Plan.", "adapter": "shared", "sampling": {"max_tokens": 5}},
                {"name": "solver", "sees_task": False, "trainable": False},
            ],
            turns=3,
        )
    )
    planner, solver = game.agents
    assert (planner.name, planner.profile, planner.adapter, planner.sees_task) == ("planner", "Plan.", "shared", True)
    assert (planner.sampling.max_tokens, solver.sampling.max_tokens) == (5, 64)  # 64: the team's default
    assert (solver.adapter, solver.sees_task, solver.trainable) == ("solver", False, False)
    assert (game.turns, game.names, game.environment.name) == (3, ("planner", "solver"), "relay")


def test_an_agent_by_name():
    game = build_game(config())
    assert game.agent("solver") is game.agents[1]
    with pytest.raises(MarftError, match=r"no agent 'solvr' in the team; did you mean 'solver'\?"):
        game.agent("solvr")


@pytest.mark.parametrize(
    ("dependency", "edges"),
    [
        ("chain", {("planner", "solver")}),
        ("parallel", set()),
        ({"edges": [["solver", "planner"]]}, {("solver", "planner")}),
    ],
)
def test_static_d(dependency, edges):
    assert build_game(config(dependency)).graph_at(None, 0).edges == edges


def test_recall_from_a_config():
    assert build_game(config({"recall": [["solver", "planner"]]})).graph_at(None, 1).recalled("planner") == ("solver",)


@pytest.mark.parametrize(
    ("dependency", "says"),
    [
        (
            {"edges": [["planner", "solver"], ["solver", "planner"]]},
            "a.yaml: team.dependency.edges: the agents wait for each other in a circle: planner -> solver -> planner",
        ),
        ({"edges": [["planner", "solvr"]]}, "a.yaml: team.dependency.edges: edge planner -> solvr: no agent 'solvr'"),
        ({"recall": [["planr", "solver"]]}, "a.yaml: team.dependency.recall: recall planr -> solver: no agent 'planr'"),
        ({"function": "no_such_module:d"}, "a.yaml: team.dependency.function: .* there is no module 'no_such_module'"),
        ({"function": "marft.game:chian"}, r"a.yaml: team.dependency.function: .*did you mean 'chain'\?"),
        ({"function": "marft.game"}, "a.yaml: team.dependency.function: .*write it as module:name"),
        ({"function": "marft.types:Split.nothing"}, "holds no 'Split.nothing'"),
        ({"function": "marft:__version__"}, "is a str, not a dependency function"),
    ],
)
def test_mistakes_name_the_file_and_the_key(dependency, says):
    with pytest.raises(MarftError, match=says):
        build_game(config(dependency), "a.yaml")


def test_an_environment_s_mistake_names_the_file_and_the_key():
    wrong = parse_config({"team": {"agents": [{"name": "a"}]}, "environment": {"name": "relay", "symbol": ["x", "y"]}})
    with pytest.raises(MarftError, match=r"a.yaml: unknown key 'environment.symbol'; did you mean 'symbols'\?"):
        build_game(wrong, "a.yaml")


def test_d_as_a_function_of_the_turn(module):
    module("""
        from marft.game import Graph
        def alternate(state, turn):
            return Graph(frozenset(), acting=("planner",) if turn % 2 == 0 else ("solver",))
    """)
    game = build_game(config({"function": "mine:alternate"}))
    assert [game.graph_at(None, turn).order(game.names) for turn in range(3)] == [
        ("planner",),
        ("solver",),
        ("planner",),
    ]


def test_d_may_be_an_object_and_a_fixed_one_is_checked_at_once(module):
    module("""
        from marft.game import graph
        good = graph([("planner", "solver")])
        bad = graph([("planner", "nobody")])
    """)
    assert isinstance(build_game(config({"function": "mine:good"})).dependency, Static)
    with pytest.raises(MarftError, match=r"team.dependency.function: edge planner -> nobody"):
        build_game(config({"function": "mine:bad"}))


def test_a_function_d_is_checked_when_it_is_played(module):
    module("""
        from marft.game import Graph
        def circle(state, turn):
            return Graph(frozenset({("planner", "solver"), ("solver", "planner")}) if turn else frozenset())
        def wrong(state, turn):
            return [("planner", "solver")]
    """)
    game = build_game(config({"function": "mine:circle"}))
    assert game.graph_at(None, 0) == Graph(frozenset())
    with pytest.raises(MarftError, match=r"turn 1: .* planner -> solver -> planner"):
        game.graph_at(None, 1)
    with pytest.raises(MarftError, match="turn 0: the dependency function gave a list, not a Graph"):
        build_game(config({"function": "mine:wrong"})).graph_at(None, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import not_installed_here", "mine needs the missing module 'not_installed_here'"),
        ("1/0", "importing mine failed"),
    ],
)
def test_a_module_that_cannot_be_imported(module, text, says):
    module(text)
    with pytest.raises(MarftError, match=f"team.dependency.function: dependency function 'mine:d': .*{says}"):
        build_game(config({"function": "mine:d"}))


def test_a_game_made_in_python_is_checked_too():
    def agent(name):
        return Agent(name, "", True, True, name, config().rollout.sampling)

    with pytest.raises(MarftError, match="different names"):
        FlexMG((agent("a"), agent("a")), chain(("a",)), Relay(), 1)
    with pytest.raises(MarftError, match="no agent 'c'"):
        FlexMG((agent("a"), agent("b")), graph([("a", "c")]), Relay(), 1)
    with pytest.raises(MarftError, match="at least 1 turn"):
        FlexMG((agent("a"),), chain(("a",)), Relay(), 0)


def drawn(game, width=100):
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(draw(game))
    return console.file.getvalue()


def test_the_drawing_shows_levels_and_who_reads_whom():
    agents = [
        {"name": "judge", "sees_task": False, "trainable": False},
        {"name": "planner"},
        {"name": "checker", "adapter": "shared"},
    ]
    dependency = {"edges": [["planner", "judge"], ["checker", "judge"]], "recall": [["judge", "planner"]]}
    lines = drawn(build_game(config(dependency, agents, turns=2))).splitlines()
    row = {
        name: next(i for i, line in enumerate(lines) if f" {name} " in line and "─" in line)
        for name in ("judge", "planner", "checker")
    }
    assert row["planner"] == row["checker"] < row["judge"]
    text = "\n".join(lines)
    assert text.count("↓") == 1
    assert "reads: planner, checker" in text
    assert text.count("reads: no agent") == 2
    assert text.count("recalls: judge") == 1
    assert "adapter shared" in text
    assert "adapter judge (not trained)" in text
    assert (text.count("✓ sees the task"), text.count("✗ sees the task")) == (2, 1)
    assert "relay" in text
    assert "turns 2" in text


def test_the_drawing_of_a_changing_d_says_so(module):
    module("""
        def d(state, turn):
            raise RuntimeError("must not be called before play")
    """)
    assert "changes during play" in drawn(build_game(config({"function": "mine:d"})))


def test_names_that_look_like_markup_are_drawn_as_they_are():
    agents = tuple(Agent(name, "", True, True, "[red]x", config().rollout.sampling) for name in ("[b]a", "c"))
    text = drawn(FlexMG(agents, chain(("[b]a", "c")), Relay(), 1))
    assert "adapter [red]x" in text
    assert " [b]a " in text


def test_attempts_need_as_many_turns():
    world = {"name": "reasoning", "dataset": "chain_sum", "attempts": 3, "heldout_size": 4}
    build_game(config_of("ann", environment=world, team={"turns": 3}))
    with pytest.raises(MarftError, match=r"team\.turns: environment\.attempts 3 needs as many turns; set turns to 3"):
        build_game(config_of("ann", environment=world, team={"turns": 2}))


def test_an_organisation_is_built_and_its_faults_are_named():
    names = ("lead", "ann", "bob")
    team = build_game(config_of(*names, team={"dependency": {"orchestrator": "lead", "calls": 2, "stop": "done"}}))
    assert team.dependency == Orchestrated("lead", ("ann", "bob"), 2, "done", "stop")
    assert build_game(config_of(*names, team={"dependency": {"debate": 2}})).dependency == Debate(names, 2, None)
    edge = {"speaker": "ann", "reader": "bob", "when": "go|run"}
    graph = build_game(config_of(*names, team={"dependency": {"edges": [["lead", "ann"], edge]}})).dependency.graph
    assert graph.conditions == {("ann", "bob", "go|run")}
    for dependency, fault in (
        ({"orchestrator": "boss"}, r"team\.dependency: orchestrator: no agent 'boss'"),
        ({"debate": 2, "judge": "boss"}, r"team\.dependency: judge: no agent 'boss'"),
        ({"edges": [{"speaker": "ann", "reader": "boss", "when": "x"}]}, r"team\.dependency\.edges: .*no agent 'boss'"),
    ):
        with pytest.raises(MarftError, match=fault):
            build_game(config_of(*names, team={"dependency": dependency}))
    with pytest.raises(MarftError, match="is not a regular expression"):
        config_of(*names, team={"dependency": {"edges": [{**edge, "when": "("}]}})


@pytest.mark.parametrize(
    ("preset", "shown"),
    [
        ("checked", ("checker (if /\\bwrong\\b/)",)),
        ("debate", ("2 rounds, in each of which all speak at once", "reads: the last round")),
        (
            "orchestrator",
            ("it calls one after another, at most 4 a turn, and ends with 'stop'", "reads: whom it called"),
        ),
    ],
)
def test_every_organisation_is_drawn(preset, shown):
    console = Console(file=StringIO(), width=160)
    console.print(draw(build_game(parse_config({"team": {"preset": preset}, "environment": {"name": "relay"}}))))
    for each in shown:
        assert each in console.file.getvalue()
