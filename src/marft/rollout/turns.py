"""How a turn is played: through the graph D, as a debate, under an orchestrator, or by the team's own function.

Each way lets agents speak at the `Table` and returns the messages the world gets, in the order in which they count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from marft.game.dependency import Graph
from marft.game.flexmg import Agent
from marft.game.organisation import Debate, Orchestrated
from marft.game.workflow import Spoken, Voice, Workflow
from marft.rollout.stage import PlayFailed, describe, run_together
from marft.rollout.table import Said, Table


async def play_turn(table: Table, state: Any, turn: int) -> dict[str, str]:
    """Play one turn; returns what each agent said to the world, the last to count last. Raises `PlayFailed`."""
    game = table.stage.game
    if game.workflow is not None:
        return await _workflow(table, game.workflow)
    if isinstance(game.dependency, Debate):
        table.observe(state, game.names)
        return await _debate(table, game.dependency, turn)
    if isinstance(game.dependency, Orchestrated):
        table.observe(state, game.names)
        return await _orchestrated(table, game.dependency, turn)
    graph = table.world(lambda: game.graph_at(state, turn))
    table.observe(state, graph.order(game.names))
    return await _graph(table, graph, turn)


async def _graph(table: Table, graph: Graph, turn: int) -> dict[str, str]:
    """Agents that do not wait for each other speak at once; those whose conditional edges all fail rest."""
    names = table.stage.game.names
    order = graph.order(names)
    first = len(table.actions)
    said: dict[str, Said] = {}
    heard: dict[str, tuple[str, ...]] = {}

    async def act(name: str, parents: Sequence[str]) -> Said:
        recalled = [table.actions[index] for index in _recalled(table, graph, name, turn)]
        messages = [(each.agent, each.text) for each in recalled] + [(each, said[each].text) for each in parents]
        return await table.speak(name, turn, messages, first + order.index(name))

    for level in graph.levels(names):
        texts = {name: said[name].text for name in order if name in said}
        reads = {name: graph.live_parents(name, texts) for name in level}
        acting = [(name, parents) for name, parents in reads.items() if parents is not None]
        for name, parents in acting:
            heard[name] = parents
        for each in await run_together([act(name, parents) for name, parents in acting]):
            said[each.agent] = each
    place: dict[str, int] = {}
    acted = [name for name in order if name in said]
    for name in acted:
        recalled = _recalled(table, graph, name, turn)
        place[name] = table.record(said[name], (*recalled, *(place[each] for each in heard[name])))
    return {name: said[name].text for name in acted}


def _recalled(table: Table, graph: Graph, name: str, turn: int) -> list[int]:
    """The actions of the previous turn that D lets the agent read."""
    found = [table.last_of(each, turn - 1) for each in graph.recalled(name, table.stage.game.names)]
    return [index for index in found if index is not None]


async def _debate(table: Table, debate: Debate, turn: int) -> dict[str, str]:
    last: dict[str, int] = {}
    for _ in range(debate.rounds):
        first = len(table.actions)
        reads = {
            name: [last[each] for each in debate.debaters if each in last and each != name] for name in debate.debaters
        }
        replies = await run_together(
            [_answer(table, name, turn, reads[name], first + place) for place, name in enumerate(debate.debaters)]
        )
        last = {each.agent: table.record(each, reads[each.agent]) for each in replies}
    if debate.judge is not None:
        heard = list(last.values())
        reply = await _answer(table, debate.judge, turn, heard, len(table.actions))
        last[debate.judge] = table.record(reply, heard)
    return {name: table.actions[index].text for name, index in last.items()}


async def _orchestrated(table: Table, team: Orchestrated, turn: int) -> dict[str, str]:
    lead = team.orchestrator
    words: list[int] = []  # what members said this turn, as places in table.actions
    seen: dict[str, int] = dict.fromkeys((lead, *team.members), 0)  # how many of `words` each has read
    last: dict[str, int] = {}
    for _ in range(team.calls):
        reads = words[seen[lead] :]
        seen[lead] = len(words)
        reply = await _answer(table, lead, turn, reads, len(table.actions))
        asked = table.record(reply, reads)
        name = table.blame(lead, partial(team.choice, reply.text))
        if name is None:
            break
        reads = [index for index in words[seen[name] :] if table.actions[index].agent != name] + [asked]
        answer = await _answer(table, name, turn, reads, len(table.actions))
        last.pop(name, None)  # so that whoever spoke last stands last
        last[name] = table.record(answer, reads)
        words.append(last[name])
        seen[name] = len(words)
    return {name: table.actions[index].text for name, index in {lead: asked, **last}.items()}


async def _answer(table: Table, name: str, turn: int, reads: Sequence[int], position: int) -> Said:
    messages = [(table.actions[index].agent, table.actions[index].text) for index in reads]
    return await table.speak(name, turn, messages, position)


async def _workflow(table: Table, workflow: Workflow) -> dict[str, str]:
    """Let the team's own function call the agents; then the last message of each goes to the world."""
    asked = 0  # the number of calls so far fixes the place in the queue, whoever answers first
    last: dict[str, int] = {}

    def voice(agent: Agent) -> Voice:
        async def speak(*parts: str | Spoken) -> Spoken:
            nonlocal asked
            asked += 1
            texts = [table.quote(each.agent, each.text) if isinstance(each, Spoken) else each for each in parts]
            parents = tuple(each.index for each in parts if isinstance(each, Spoken))
            said = await table.say(agent, 0, "\n\n".join(texts), asked, remember=False)
            last.pop(agent.name, None)
            last[agent.name] = table.record(said, parents)
            return Spoken(agent.name, said.text, last[agent.name])

        return speak

    voices: Mapping[str, Voice] = {agent.name: voice(agent) for agent in table.stage.game.agents}
    try:
        await workflow(table.plan.task, voices)
    except (asyncio.CancelledError, PlayFailed):
        raise
    except Exception as error:  # the team's function is the user's own
        raise PlayFailed("team", describe(error)) from error
    if table.failed is not None:  # the function caught it; the episode is broken all the same
        raise table.failed
    if not last:
        raise PlayFailed("team", "the workflow let no agent speak")
    return {name: table.actions[index].text for name, index in last.items()}
