"""Turns that are not a plain graph: conditional edges, debates, orchestrators, and D as it was really played."""

import asyncio
from dataclasses import replace

from builders import World, agent, stage_of, tiny_base
from marft.environments.base import Outcome
from marft.game import FlexMG, Graph, chain, debate, graph, orchestrated
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.rollout import Plan, play
from marft.types import Failure, Task

CHAT = tiny_base(PRINTABLE).chat


class Played:
    """One episode in which every agent says the next of its lines (the last again and again)."""

    def __init__(self, dependency, lines, world=None, turns=1, sees_task=True):
        self.lines = {name: list(each) for name, each in lines.items()}
        self.requests = []
        agents = tuple(agent(name, max_tokens=60, sees_task=sees_task) for name in lines)
        game = FlexMG(agents, dependency, world or World(lambda said: 1.0, turns), turns)
        stage = stage_of(game, CHAT, Scripted(CHAT, self.answer))
        self.episode = asyncio.run(play(stage, Plan(Task("t", "TASK"), 0, (0, 0, 0), 0)))

    def answer(self, asked):
        self.requests.append(asked)
        lines = self.lines[asked.adapter]
        return lines.pop(0) if len(lines) > 1 else lines[0]

    @property
    def trace(self):
        """D as it was played: (agent, turn, step, whose messages it read)."""
        actions = self.episode.actions
        return [
            (each.agent, each.turn, each.step, tuple(actions[parent].agent for parent in each.parents))
            for each in actions
        ]

    def heard(self, place):
        """The last thing the agent of an action was told."""
        return CHAT.show(self.episode.actions[place].prompt_ids).split("<|start|>user\n")[-1].split("<|end|>")[0]


# ---- conditional edges


CHECKED = graph(
    [("solver", "checker"), ("solver", "reviser"), ("checker", "reviser")],
    conditions=[("checker", "reviser", r"\bwrong\b")],
)


def test_a_conditional_edge_holds_when_the_message_matches():
    said = []
    world = World(lambda turns: said.append(turns[-1]) or 1.0)
    played = Played(CHECKED, {"solver": ["4"], "checker": ["Wrong!"], "reviser": ["5"]}, world)
    assert played.trace == [
        ("solver", 0, 0, ()),
        ("checker", 0, 0, ("solver",)),
        ("reviser", 0, 0, ("solver", "checker")),
    ]
    assert said == [{"solver": "4", "checker": "Wrong!", "reviser": "5"}]
    assert [each.reward for each in played.episode.actions] == [0, 0, 1]


def test_an_agent_whose_conditions_fail_rests_and_the_team_is_paid_without_it():
    said = []
    world = World(lambda turns: said.append(turns[-1]) or 1.0)
    played = Played(CHECKED, {"solver": ["4"], "checker": ["nothing wrongful"], "reviser": ["5"]}, world)
    assert played.trace == [("solver", 0, 0, ()), ("checker", 0, 0, ("solver",))]
    assert said == [{"solver": "4", "checker": "nothing wrongful"}]
    assert [each.reward for each in played.episode.actions] == [0, 1]


def test_one_of_several_conditions_is_enough_and_only_that_one_is_read():
    either = graph(
        [("ann", "cy"), ("bob", "cy"), ("cy", "dee")],
        conditions=[("ann", "cy", "yes"), ("bob", "cy", "yes"), ("cy", "dee", "go")],
    )
    played = Played(either, {"ann": ["no"], "bob": ["YES"], "cy": ["on"], "dee": ["?"]})
    assert played.trace == [("ann", 0, 0, ()), ("bob", 0, 0, ()), ("cy", 0, 0, ("bob",))]
    # An agent that rests says nothing, so nothing it might have said can match
    rests = Played(either, {"ann": ["no"], "bob": ["no"], "cy": ["go"], "dee": ["?"]})
    assert [each[0] for each in rests.trace] == ["ann", "bob"]


# ---- debate


def test_in_a_debate_all_answer_then_read_the_others_and_the_judge_reads_the_last_round():
    said = []
    world = World(lambda turns: said.append(turns[-1]) or 1.0)
    names = ("ann", "bob", "judge")
    lines = {"ann": ["a1", "a2"], "bob": ["b1", "b2"], "judge": ["a"]}
    played = Played(debate(names, 2, "judge"), lines, world)
    assert played.trace == [
        ("ann", 0, 0, ()),
        ("bob", 0, 0, ()),
        ("ann", 0, 1, ("bob",)),
        ("bob", 0, 1, ("ann",)),
        ("judge", 0, 0, ("ann", "bob")),
    ]
    assert [each.parents for each in played.episode.actions] == [(), (), (1,), (0,), (2, 3)]
    assert played.heard(0) == "TASK"
    assert played.heard(2) == "bob: b1"  # the task and its own words are in the conversation already
    assert "a1<|end|>" in CHAT.show(played.episode.actions[2].prompt_ids)
    assert played.heard(4) == "TASK\n\nann: a2\n\nbob: b2"
    assert list(said[0].items()) == [("ann", "a2"), ("bob", "b2"), ("judge", "a")]
    assert [each.reward for each in played.episode.actions] == [0, 0, 0, 0, 1]


def test_debaters_of_a_round_draw_differently_and_wait_in_the_order_of_play():
    played = Played(debate(("ann", "bob"), 3), {"ann": ["a"], "bob": ["b"]})
    assert len({each.seed for each in played.requests}) == 6
    assert [each.order for each in played.requests] == [(0, place) for place in range(6)]


# ---- orchestrator


def test_an_orchestrator_calls_one_after_another_until_it_stops():
    said = []
    world = World(lambda turns: said.append(turns[-1]) or 1.0)
    lines = {"lead": ["ask bob", "ann", "bob", "stop"], "ann": ["a1"], "bob": ["b1", "b2"]}
    played = Played(orchestrated(tuple(lines), "lead"), lines, world)
    assert played.trace == [
        ("lead", 0, 0, ()),
        ("bob", 0, 0, ("lead",)),
        ("lead", 0, 1, ("bob",)),
        ("ann", 0, 0, ("bob", "lead")),
        ("lead", 0, 2, ("ann",)),
        ("bob", 0, 1, ("ann", "lead")),
        ("lead", 0, 3, ("bob",)),
    ]
    assert played.heard(3) == "TASK\n\nbob: b1\n\nlead: ann"
    assert played.heard(4) == "ann: a1"
    # The lead's last message, then those of all that were called; who spoke last stands last
    assert list(said[0].items()) == [("lead", "stop"), ("ann", "a1"), ("bob", "b2")]
    # The team's reward stands at the end of the chain, so that every choice, the last `stop` too, shares in it
    assert [each.reward for each in played.episode.actions] == [0, 0, 0, 0, 0, 0, 1]


def test_calls_are_bounded_and_the_last_one_called_ends_the_turn():
    lines = {"lead": ["ann"], "ann": ["a"], "bob": ["b"]}
    played = Played(orchestrated(tuple(lines), "lead", calls=2), lines)
    assert [each[0] for each in played.trace] == ["lead", "ann", "lead", "ann"]
    assert played.heard(3) == "lead: ann"  # its own words are no news to it
    assert played.episode.error is None


def test_an_orchestrator_that_calls_nobody_speaks_to_the_world_itself():
    said = []
    world = World(lambda turns: said.append(turns[-1]) or 1.0)
    lines = {"lead": ["stop, it is 4"], "ann": ["a"]}
    played = Played(orchestrated(tuple(lines), "lead"), lines, world)
    assert said == [{"lead": "stop, it is 4"}]
    assert [each.reward for each in played.episode.actions] == [1]


def test_an_unreadable_choice_can_fail_the_episode_under_the_orchestrators_name():
    lines = {"lead": ["hm"], "ann": ["a"]}
    episode = Played(orchestrated(tuple(lines), "lead", unreadable="fail"), lines).episode
    assert episode.error == Failure("lead", "its reply names nobody to speak next, and dependency.unreadable is 'fail'")


def test_every_turn_of_the_world_is_orchestrated_anew():
    lines = {"lead": ["ann", "stop"] * 2, "ann": ["a1", "a2"]}
    world = World(lambda said: 1.0, turns=2, observe=lambda said, name: f"turn {len(said)}" if name == "ann" else "")
    played = Played(orchestrated(tuple(lines), "lead"), lines, world, turns=2)
    assert [each[:3] for each in played.trace] == [
        ("lead", 0, 0), ("ann", 0, 0), ("lead", 0, 1), ("lead", 1, 0), ("ann", 1, 0), ("lead", 1, 1)
    ]  # fmt: skip
    assert played.heard(1) == "TASK\n\nturn 0\n\nlead: ann"
    assert played.heard(4) == "turn 1\n\nlead: ann"
    assert [each.reward for each in played.episode.actions] == [0, 0, 1, 0, 0, 1]


# ---- rewards and sides


class Duel(World):
    """Two agents who play against each other: what one wins, the other loses, whoever spoke last."""

    def __init__(self):
        super().__init__(over=lambda said: len(said) == 2)

    def sides(self, state):
        return {"ann": "white", "bob": "black"}

    def step(self, state, messages):
        said = [*state, dict(messages)]
        over = len(said) == 2
        return Outcome(said, {"ann": 1.0, "bob": -1.0} if over else 0.0, terminated=over)


def test_a_reward_reaches_an_agent_that_did_not_act_this_turn_and_sides_are_kept():
    def by_turns(state, turn):
        return Graph(frozenset(), acting=("ann",) if turn == 0 else ("bob",))

    played = Played(by_turns, {"ann": ["x"], "bob": ["y"]}, Duel(), turns=2)
    assert [(each.agent, each.reward, each.side) for each in played.episode.actions] == [
        ("ann", 1.0, "white"),
        ("bob", -1.0, "black"),
    ]


def test_a_reward_for_one_who_never_acted_fails_the_episode():
    def only_ann(state, turn):
        return Graph(frozenset(), acting=("ann",))

    played = Played(only_ann, {"ann": ["x"], "bob": ["y"]}, World(lambda said: {"bob": 1.0}))
    assert played.episode.error == Failure("environment", "it rewarded 'bob', who has not acted")


def test_the_answer_and_the_metrics_of_the_last_turn_are_the_episodes():
    class Answering(World):
        def step(self, state, messages):
            return Outcome(state, 1.0, metrics={"success": 1.0}, answer=messages["bob"].upper())

    episode = Played(chain(("ann", "bob")), {"ann": ["x"], "bob": ["y"]}, Answering()).episode
    assert (episode.answer, dict(episode.metrics)) == ("Y", {"success": 1.0})


# ---- what the world shows


def test_one_who_rests_reads_later_what_the_world_showed_it():
    """And the critic hears of it when the agent does, once."""
    lines = {"lead": ["bob", "ann"], "ann": ["a"], "bob": ["b"]}
    shown = World(lambda said: 1.0, turns=2, observe=lambda said, name: "HINT" if name == "ann" and not said else "")
    played = Played(orchestrated(tuple(lines), "lead", calls=1), lines, shown, turns=2)
    assert [each[0] for each in played.trace] == ["lead", "bob", "lead", "ann"]
    assert played.heard(3).startswith("TASK\n\nHINT\n\n")
    views = [CHAT.show(each.joint_ids).count("environment to ann: HINT") for each in played.episode.actions]
    assert views == [0, 0, 0, 1]


# ---- contexts


def test_the_critics_view_keeps_the_newest_that_fits_its_own_model():
    agents = (agent("ann", max_tokens=50), agent("bob", max_tokens=4))
    game = FlexMG(agents, chain(("ann", "bob")), World(lambda said: 1.0), 1)
    stage = stage_of(game, CHAT, Scripted(CHAT, ["x" * 49, "y"]))
    small = replace(stage.seats["bob"], view=30)
    stage = replace(stage, seats={**stage.seats, "bob": small})
    episode = asyncio.run(play(stage, Plan(Task("t", "TASK"), 0, (0, 0), 0)))
    first, second = (CHAT.show(each.joint_ids) for each in episode.actions)
    assert first == "TASK\nann:"  # whatever the others may say
    assert second == ("TASK\nann: " + "x" * 49 + "\nbob:")[-30:]
