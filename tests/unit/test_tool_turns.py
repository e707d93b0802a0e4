"""Turns in which an agent calls tools: each reply is an action, results are context, what was sampled is trained."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from builders import World, agent, stage_of, team_of, tiny_base
from marft.game import FlexMG, chain
from marft.generate.scripted import Scripted
from marft.learn.collate import Layout, collate
from marft.models.tiny import PRINTABLE
from marft.rollout import Plan, play
from marft.tools import ToolError, ToolSpec
from marft.types import MarftError, Task

CHAT = tiny_base(PRINTABLE).chat
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": %d}}\n</tool_call>'


@dataclass
class Double:
    """A tool that doubles, and remembers what it was asked."""

    asked: list
    spec = ToolSpec(
        "double",
        "Doubles a number.",
        {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    )

    async def call(self, arguments):
        await asyncio.sleep(0)
        self.asked.append(arguments["number"])
        if arguments["number"] < 0:
            raise ToolError("cannot double a negative number")
        return str(2 * arguments["number"])


class Played:
    """One episode of ann, who may call `double` twice, and bob, who reads her."""

    def __init__(self, *lines, tool_calls=2, turns=1, scripted=None):
        self.tool = Double([])
        self.lines = list(lines)
        team = (
            agent("ann", max_tokens=250, tools=("double",), tool_calls=tool_calls),
            agent("bob", max_tokens=99, sees_task=False),
        )
        game = FlexMG(team, chain(("ann", "bob")), World(lambda said: 1.0, turns=turns), turns)
        stage = stage_of(game, CHAT, Scripted(CHAT, self.answer), context=4000)
        ann = replace(stage.seats["ann"], tools={"double": self.tool})
        stage = replace(stage, seats={**stage.seats, "ann": ann})
        plan = Plan(Task("t", "TASK"), 0, (0, 0, 0), 0, scripted=scripted or {})
        self.episode = asyncio.run(play(stage, plan))
        self.actions = self.episode.actions

    def answer(self, asked):
        return self.lines.pop(0) if asked.speaker == "ann" else "fine"

    def asked(self, place):
        return CHAT.show(self.actions[place].prompt_ids)


def test_a_call_is_answered_and_the_agent_speaks_again():
    played = Played(CALL % 21, "It is 42.")
    assert played.episode.error is None
    assert played.tool.asked == [21]
    first, second, bob = played.actions
    assert [(each.agent, each.turn, each.step, each.parents) for each in played.actions] == [
        ("ann", 0, 0, ()),
        ("ann", 0, 1, (0,)),
        ("bob", 0, 0, (1,)),
    ]
    assert (first.tool_results, second.tool_results) == (("42",), ())
    # What was read, what was sampled, then the result as context: no id of it is anyone's action
    before = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(before)] == before
    assert "42" in CHAT.show(second.prompt_ids[len(before) :])
    assert "It is 42." not in played.asked(1)
    # The others read the message alone
    assert "ann: It is 42." in played.asked(2)
    assert "tool_call" not in played.asked(2)
    assert bob.reward == 1.0


def test_the_agent_is_told_what_it_may_call_and_others_are_not():
    played = Played("no need")
    assert "Doubles a number." in played.asked(0)
    assert "Doubles a number." not in played.asked(1)


def test_several_calls_in_one_reply_are_answered_in_order():
    played = Played(f"{CALL % 1}\n{CALL % 2}", "2 and 4")
    assert played.actions[0].tool_results == ("2", "4")
    told = played.asked(1)
    assert told.index("2", told.rindex("tool_call")) < told.rindex("4")


def test_what_is_no_call_gets_an_error_message_and_the_episode_goes_on():
    for broken, reason in (
        ('<tool_call>\n{"name": "double"}\n</tool_call>', "arguments"),  # verifiers#1763
        ("<tool_call>\n{}\n</tool_call>", "name"),
        ("<tool_call>\n{nonsense\n</tool_call>", "JSON"),
        (CALL.replace("double", "treble") % 1, "no tool 'treble'"),
        ((CALL % 1).replace("number", "nubmer"), "number"),
        (CALL % -1, "cannot double a negative number"),
    ):
        played = Played(broken, "sorry")
        assert played.episode.error is None
        assert played.actions[0].tool_results[0].startswith("error: ")
        assert reason in played.actions[0].tool_results[0]
        assert reason in played.asked(1)
        assert played.actions[1].text == "sorry"


def test_calls_are_bounded_and_the_last_reply_stands_as_it_is():
    played = Played(CALL % 1, CALL % 2, CALL % 3)
    assert played.tool.asked == [1, 2]
    assert [each.agent for each in played.actions] == ["ann", "ann", "ann", "bob"]
    assert played.actions[2].tool_results == ()
    assert Played(CALL % 1, tool_calls=0).tool.asked == []


def test_calls_stay_in_the_agents_conversation_and_in_the_joint_view():
    played = Played(CALL % 1, "so 2", "again 2", turns=2)
    later = [each for each in played.actions if each.agent == "ann" and each.turn == 1]
    assert [each.step for each in later] == [0]
    earlier = played.actions[1]
    before = (*earlier.prompt_ids, *earlier.token_ids)
    assert later[0].prompt_ids[: len(before)] == before
    view = CHAT.show(played.actions[2].joint_ids)
    assert view.endswith("\ntool to ann: 2\nann: so 2\nbob:")


def test_every_reply_draws_its_own_numbers_and_words_in_the_mouth_call_nothing():
    seeds = []

    class Noted(Played):
        def answer(self, asked):
            seeds.append(asked.seed)
            return super().answer(asked)

    Noted(CALL % 1, "2")
    assert len(set(seeds)) == 3
    played = Played(scripted={"ann": [CALL % 1]})
    assert played.tool.asked == []
    assert [each.agent for each in played.actions] == ["ann", "bob"]


def test_rows_train_the_replies_and_never_a_result():
    played = Played(CALL % 21, "It is 42.")
    batch = collate([played.episode], ("ann", "bob"), Layout()).batch
    for row, action in enumerate(played.actions):
        trained = batch.tokens[row][batch.action_mask[row]]
        assert tuple(trained.tolist()) == action.token_ids
    # First and second reply have different prompts, so they share no baseline
    assert len(set(batch.groups.tolist())) == 3
    assert batch.turn.tolist() == [0, 0, 0]


def test_a_team_finds_the_tools_of_the_config_and_of_the_environment():
    team = team_of(
        {"name": "ann", "tools": ["calculator", "search"]},
        {"name": "bob", "tools": ["mine"], "tool_calls": 1},
        "cy",
        tools={"mine": {"kind": "calculator"}},
        environment={"name": "tools"},
    )
    assert {name: list(seat.tools) for name, seat in team.seats.items()} == {
        "ann": ["calculator", "search"],  # the environment's own search
        "bob": ["mine"],
        "cy": [],
    }
    assert [each.tool_calls for each in team.game.agents] == [4, 1, 0]


def test_an_unknown_tool_is_named_with_its_agent():
    with pytest.raises(MarftError, match=r"team\.agents\.ann\.tools: there is no tool 'calculater'; did you mean"):
        team_of({"name": "ann", "tools": ["calculater"]})
