"""A team as a plain function: it calls the agents, and parents are what it hands on."""

import asyncio
import contextlib

import pytest
import yaml

from builders import World, agent, stage_of, tiny_base
from marft.config import dump_config, parse_config
from marft.game import FlexMG, build_game, parallel
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.rollout import Plan, play
from marft.types import Failure, MarftError, Task

CHAT = tiny_base(PRINTABLE).chat


def run(workflow, world=None, names=("ann", "bob")):
    agents = tuple(agent(name, max_tokens=40) for name in names)
    game = FlexMG(agents, parallel(), world or World(lambda said: 1.0), 1, workflow)
    scene = stage_of(game, CHAT, Scripted(CHAT, lambda asked: f"from {asked.adapter}"))
    return asyncio.run(play(scene, Plan(Task("t", "TASK"), 0, (0, 0, 0), 0)))


def test_what_is_handed_on_is_read_and_recorded_as_a_parent():
    async def team(task, agents):
        first = await agents["bob"](task.prompt)
        second = await agents["ann"]("Look:", first)
        await agents["bob"](second, first)

    episode = run(team)
    assert [(each.agent, each.turn, each.step, each.parents) for each in episode.actions] == [
        ("bob", 0, 0, ()),
        ("ann", 0, 0, (0,)),
        ("bob", 0, 1, (1, 0)),
    ]
    asked = [CHAT.show(each.prompt_ids) for each in episode.actions]
    assert "TASK" in asked[0]
    assert "TASK" not in asked[1]
    assert "Look:\n\nbob: from bob" in asked[1]
    assert "ann: from ann\n\nbob: from bob" in asked[2]
    assert episode.terminated
    assert episode.error is None


def test_agents_may_speak_at_once_and_the_last_message_of_each_counts():
    heard = []

    async def team(task, agents):
        both = await asyncio.gather(agents["ann"]("one"), agents["bob"]("two"))
        await agents["ann"](*both)

    episode = run(team, World(lambda said: heard.append(said[-1]) or {"ann": 2.0, "bob": 0.5}))
    assert [each.parents for each in episode.actions] == [(), (), (0, 1)]
    assert heard == [{"bob": "from bob", "ann": "from ann"}]
    # Each agent's reward stands on its last message, once
    assert [each.reward for each in episode.actions] == [0.0, 0.5, 2.0]


def test_the_critic_reads_everything_said_before():
    async def team(task, agents):
        await agents["ann"]("x")
        await agents["bob"]("y")

    episode = run(team)
    assert CHAT.show(episode.actions[0].joint_ids) == "TASK\nann:"
    assert CHAT.show(episode.actions[1].joint_ids) == "TASK\nann: from ann\nbob:"


def test_a_workflow_that_fails_or_is_silent_fails_the_episode_by_name():
    async def broken(task, agents):
        await agents["ann"]("x")
        raise ValueError("no idea")

    async def silent(task, agents):
        return None

    failed = run(broken)
    assert failed.error is not None
    assert failed.error.who == "team"
    assert "ValueError: no idea" in failed.error.reason
    assert run(silent).error == Failure("team", "the workflow let no agent speak")


async def example(task, agents):
    await agents["a"](task.prompt)


def test_a_config_names_it_by_import_path():
    team = {"agents": [{"name": "a"}], "workflow": f"{__name__}:example"}
    config = parse_config({"team": team, "environment": {"name": "matrix", "symbols": ["x", "y"], "payoff": [1, 0]}})
    assert build_game(config).workflow is example
    assert parse_config(yaml.safe_load(dump_config(config))) == config  # a run's own config must load again


@pytest.mark.parametrize("extra", [{"turns": 2}, {"dependency": "parallel"}])
def test_a_workflow_and_a_graph_exclude_each_other(extra):
    team = {"agents": [{"name": "a"}], "workflow": f"{__name__}:example", **extra}
    with pytest.raises(MarftError, match="workflow"):
        parse_config({"team": team, "environment": {"name": "relay"}})


def test_an_agents_failure_stands_also_where_the_function_caught_it():
    async def careless(task, agents):
        with contextlib.suppress(Exception):
            await agents["ann"]("x")
        await agents["bob"]("y")

    def answer(asked):
        if asked.adapter == "ann":
            raise RuntimeError("engine is gone")
        return "fine"

    agents = tuple(agent(name, max_tokens=40) for name in ("ann", "bob"))
    game = FlexMG(agents, parallel(), World(lambda said: 1.0), 1, careless)
    episode = asyncio.run(play(stage_of(game, CHAT, Scripted(CHAT, answer)), Plan(Task("t", "TASK"), 0, (0, 0, 0), 0)))
    assert episode.error is not None
    assert episode.error.who == "ann"
    assert "engine is gone" in episode.error.reason
