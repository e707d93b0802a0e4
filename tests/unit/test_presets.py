"""Ready-made teams: each is a whole team, and what a config says itself goes over it."""

import pytest

from marft.config import dump_config, load_config, parse_config
from marft.game import Debate, Orchestrated, Static, build_game
from marft.presets import description, preset_names, preset_team
from marft.presets.learner import learner_description, learner_names, learner_sections
from marft.types import MarftError

WORLD = {"name": "relay", "symbols": ["a", "b"]}


def config(**team):
    return parse_config({"team": team, "environment": WORLD})


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_team_that_can_play(name):
    game = build_game(config(preset=name))
    assert len(game.agents) == len(preset_team(name)["agents"]) >= 2
    assert all(agent.profile for agent in game.agents)
    assert description(name)[0].islower()


def test_the_presets_are_organised_as_they_say():
    games = {name: build_game(config(preset=name)) for name in preset_names()}
    for name, size in (("duo", 2), ("trio", 3), ("quad", 4)):  # chains: each reads all before it
        graph = games[name].dependency.graph
        assert [len(graph.parents(agent)) for agent in games[name].names] == list(range(size))
    assert games["debate"].dependency == Debate(("ann", "bob", "cy"), 2, "judge")
    assert games["debate-vote"].dependency == Debate(("ann", "bob", "cy"), 2, None)
    assert games["orchestrator"].dependency == Orchestrated("lead", ("planner", "solver", "verifier"), 4)
    assert games["proposers"].dependency.graph.levels(games["proposers"].names) == (
        ("first", "second", "third"),
        ("aggregator",),
    )
    assert (games["coder-tester"].turns, games["coder-tester"].dependency.graph.recalled("coder")) == (3, ("tester",))
    checked = games["checked"].dependency.graph
    assert checked.live_parents("reviser", {"solver": "4", "checker": "right, 4"}) is None
    assert checked.live_parents("reviser", {"solver": "4", "checker": "Wrong: 5"}) == ("solver", "checker")


@pytest.mark.parametrize("name", [each for each in preset_names() if each != "orchestrator"])
def test_the_anonymous_version_has_no_role_in_any_name_or_prompt(name):
    named, plain = build_game(config(preset=name)), build_game(config(preset=name, anonymous=True))
    assert plain.names == tuple(f"agent-{place}" for place in range(1, len(named.names) + 1))
    assert not any(agent.profile for agent in plain.agents)
    # The same organisation under other names
    if isinstance(named.dependency, Static):
        number = dict(zip(named.names, plain.names, strict=True))
        renamed = {(number[one], number[other]) for one, other in named.dependency.graph.edges}
        assert renamed == set(plain.dependency.graph.edges)
    else:
        assert len(plain.dependency.debaters) == len(named.dependency.debaters)


def test_an_orchestrator_cannot_be_anonymous():
    with pytest.raises(MarftError, match=r"team\.anonymous: the team 'orchestrator' calls its members by name"):
        config(preset="orchestrator", anonymous=True)


def test_what_the_config_says_goes_over_the_preset():
    changed = config(preset="duo", turns=2, agents={"solver": {"sees_task": False, "profile": "Answer."}})
    assert changed.team.turns == 2
    planner, solver = changed.team.agents
    assert (planner.sees_task, solver.sees_task, solver.profile) == (True, False, "Answer.")
    assert planner.profile == preset_team("duo")["agents"][0]["profile"]
    assert [each.name for each in config(preset="duo", agents=[{"name": "ann"}]).team.agents] == ["ann"]


def test_overrides_reach_into_a_preset_and_may_choose_it(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("team: {preset: duo}\nenvironment: {name: relay}\n")
    found = load_config(file, ["team.agents.solver.sees_task=false", "team.preset=trio"])
    assert [each.name for each in found.team.agents] == ["planner", "solver", "verifier"]
    assert not found.team.agents[1].sees_task


@pytest.mark.parametrize(
    ("team", "fault"),
    [
        ({"preset": "dou"}, "team.preset: no team 'dou'; did you mean 'duo'?"),
        ({"preset": "duo", "agents": {"slover": {}}}, "the preset has no agent 'slover'; did you mean 'solver'?"),
        ({"preset": "duo", "agents": {"solver": 3}}, "team.agents.solver: must hold the keys that change, not 3"),
        ({"preset": "duo", "anonymous": "yes"}, "team.anonymous: must be true or false, not 'yes'"),
        ({"anonymous": True, "agents": [{"name": "a"}]}, "team.anonymous: goes with `preset`"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_key(team, fault):
    with pytest.raises(MarftError) as error:
        config(**team)
    assert fault in str(error.value)


# ---- learners


def learner(name, **sections):
    return parse_config({"learner": name, "team": {"preset": "duo"}, "environment": WORLD, **sections})


@pytest.mark.parametrize("name", learner_names())
def test_every_learner_is_a_whole_config(name):
    config = learner(name)
    for section, keys in learner_sections(name).items():
        for key, value in keys.items():
            assert getattr(getattr(config, section), key) == value
    assert learner_description(name)[0].islower()


def test_the_learners_are_what_their_names_say():
    independent = learner("ippo")
    assert (independent.credit.chain, independent.critic.kind, independent.update.schedule) == (
        "agent",
        "own",
        "simultaneous",
    )
    assert learner("marft-t").update.level == "token"
    assert learner("marft-a") == learner("marft-a", credit={"baseline": "critic"})
    assert learner("gspo").update.action_normalisation == "token"
    assert (learner("grpo").credit.group_scale, learner("rloo").credit.group_mean) == ("std", "others")
    assert learner("dapo").update.clip_high > learner("dapo").update.clip


def test_what_a_config_says_itself_goes_over_the_learner():
    config = learner("grpo", credit={"group_scale": "none"}, update={"lr": 1e-5})
    assert (config.credit.group_scale, config.credit.baseline) == ("none", "group")
    assert (config.update.lr, config.update.level) == (1e-5, "token")


def test_a_learner_chosen_on_the_command_line_goes_over_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    lines = ["team: {preset: duo}", "environment: {name: relay, symbols: [a, b]}"]
    grouped = ["credit: {baseline: group, gamma: 0.5}", "critic: {kind: none}"]
    for written in (lines, [*lines, *grouped], [*lines, "learner: marft-t"]):
        file.write_text("\n".join(written))
        config = load_config(file, ["update.level=token", "learner=ippo"])
        assert (config.credit.chain, config.credit.baseline, config.critic.kind) == ("agent", "critic", "own")
        assert config.update.level == "token"  # a key given there goes over both
        assert config.credit.gamma == (0.5 if written[-1] == grouped[-1] else 0.99)


@pytest.mark.parametrize("first", learner_names())
@pytest.mark.parametrize("second", learner_names())
def test_a_later_learner_leaves_nothing_of_an_earlier_one(tmp_path, first, second):
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(learner(first)))
    assert load_config(file, [f"learner={second}"]) == learner(second)


def test_no_learner_on_the_command_line_is_none_at_all(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("learner: grpo\nteam: {preset: duo}\nenvironment: {name: relay, symbols: [a, b]}\n")
    assert load_config(file, ["learner=null"]) == learner("marft-a")
    assert load_config(file).credit.baseline == "group"


def test_a_learner_there_is_not_is_refused_in_words():
    with pytest.raises(MarftError, match=r"config: learner: no learner 'ipo'; did you mean 'ippo'\?"):
        learner("ipo")
    with pytest.raises(MarftError, match="no learner '3'; known here: marft-a, "):
        learner(3)
