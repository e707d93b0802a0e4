"""Who speaks in an episode, how long what they read grows, and how many tokens an iteration's passes then compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from marft.game import FlexMG
from marft.game.dependency import Static
from marft.game.organisation import Debate, Orchestrated
from marft.plan.shapes import Reading

FRAME = 8  # tokens of the chat format, or of a speaker's name, around one message
CHARACTERS = 4  # of a profile per token

Line = tuple[str, tuple[str, ...]]  # who speaks, and whose latest messages it reads for the first time


@dataclass(frozen=True)
class Lengths:
    """In tokens: what a task takes, and what an agent's reply takes."""

    task: float
    replies: dict[str, float]


@dataclass(frozen=True)
class Speech:
    """One reply of an episode. `fresh`: tokens of the prompt that its speaker has not read before; `shared`: tokens at
    its beginning that all samples of a task have in common; `view`: what a critic of the whole team reads before it."""

    agent: str
    prompt: float
    fresh: float
    shared: float
    view: float
    reply: float

    @property
    def end(self) -> float:
        """Prompt and reply."""
        return self.prompt + self.reply


def turn_of(game: FlexMG) -> tuple[list[Line], int]:
    """The lines of one turn in order, and how many of them at least must wait for each other.

    Every conditional edge holds, and an orchestrator calls as often as it may, one member after another. What code
    decides (a D that is a function, a workflow) is taken as a chain of all agents.
    """
    d, names = game.dependency, game.names
    if game.workflow is None and isinstance(d, Debate):
        lines: list[Line] = []
        for number in range(d.rounds):
            lines += [(name, tuple(each for each in d.debaters if number and each != name)) for name in d.debaters]
        return ([*lines, (d.judge, d.debaters)], d.rounds + 1) if d.judge else (lines, d.rounds)
    if game.workflow is None and isinstance(d, Orchestrated):
        lines, said = [], ""
        for call in range(d.calls):
            member = d.members[call % len(d.members)]
            lines += [(d.orchestrator, (said,) if said else ()), (member, (d.orchestrator,))]
            said = member
        return lines, len(lines)
    if game.workflow is None and isinstance(d, Static):
        return [(name, d.graph.parents(name, names)) for name in d.graph.order(names)], len(d.graph.levels(names))
    return [(name, names[:place]) for place, name in enumerate(names)], len(names)


def episode(game: FlexMG, lengths: Lengths, context: dict[str, int]) -> list[Speech]:
    """All replies of one episode that uses all turns, in order; no prompt and reply is longer than its `context`.

    An agent reads its profile, the task once, and what it hears; it keeps what it read and said in earlier turns.
    """
    lines, _ = turn_of(game)
    recalled = game.dependency.graph if isinstance(game.dependency, Static) else None
    start = {agent.name: ceil(len(agent.profile) / CHARACTERS) + FRAME for agent in game.agents}
    kept: dict[str, float] = {}
    view, found = lengths.task + FRAME, []
    for turn in range(game.turns):
        for name, heard in lines:
            again = recalled.recalled(name, game.names) if recalled is not None and turn else ()
            first = name not in kept
            task = lengths.task if first and game.agent(name).sees_task else 0.0
            shared = start[name] + (lengths.task if game.agent(name).sees_task else 0.0)
            fresh = task + sum(lengths.replies[each] + FRAME for each in (*again, *heard))
            reply = lengths.replies[name]
            prompt = min(kept.get(name, start[name]) + fresh, max(1.0, context[name] - reply))
            known = kept.get(name, 0.0)
            found.append(Speech(name, prompt, max(0.0, prompt - known), min(shared, prompt), view, reply))
            kept[name] = prompt + reply
            view = min(view + reply + FRAME, context[name])
    return found


def rows_read(speeches: Sequence[Speech], tasks: int, samples: int, budget: int) -> Reading:
    """One learner's pass over all rows of one agent: T tasks of S samples, packs of at most `budget` tokens.

    A pack holds G rows of a task, each with o = end - shared tokens of its own: T S / G times the shared prefix, T S
    times o. Pairs: half the square of a row's length, of its shared prefix once per pack.
    """
    if not speeches:
        return Reading(0.0, 0.0, 0.0)
    last = speeches[-1]
    return _packed(last.shared, last.end, sum(each.reply for each in speeches), tasks, samples, budget)


def views_read(speeches: Sequence[Speech], tasks: int, samples: int, budget: int, tokens: bool) -> Reading:
    """The central critic's pass: the last view of an episode holds all earlier ones. `tokens`: values of each token."""
    last = speeches[-1]
    return _packed(speeches[0].view, last.view + (last.reply if tokens else 0.0), 0.0, tasks, samples, budget)


def prompts_read(speeches: Sequence[Speech], tasks: int, samples: int) -> Reading:
    """Play's passes over prompts: what all samples share once a task, whatever else is new once an episode.

    Nothing that is kept (`rollout.prefix_tokens`) is forgotten while it may still be needed.
    """
    episodes, tokens, pairs = tasks * samples, 0.0, 0.0
    seen: set[str] = set()
    for each in speeches:
        shared = each.shared if each.agent not in seen else 0.0
        seen.add(each.agent)
        own = max(0.0, each.fresh - shared)
        tokens += tasks * shared + episodes * own
        pairs += tasks * shared**2 / 2 + episodes * own * (each.prompt - own / 2)
    return Reading(tokens, float(episodes * len(speeches)), pairs)


def replies_drawn(speeches: Sequence[Speech], tasks: int, samples: int) -> Reading:
    """Play's steps: every token of a reply attends to its prompt and what is drawn of the reply."""
    drawn = tasks * samples * sum(each.reply for each in speeches)
    pairs = tasks * samples * sum(each.reply * (each.prompt + each.reply / 2) for each in speeches)
    return Reading(drawn, drawn, pairs)


def masked_pairs(speeches: Sequence[Speech], samples: int, budget: int) -> float:
    """Queries times keys of a full pack of one agent's rows; 0 where every row stands alone, and needs no mask.

    Rows share at least their agent's profile, so that those in one pack see each other's places through a mask.
    """
    if not speeches:
        return 0.0
    last = speeches[-1]
    own = max(1.0, last.end - (last.shared if samples > 1 else 0.0))
    rows = int(budget // own)
    return rows * own * last.end if rows > 1 else 0.0


def together(readings: Sequence[Reading]) -> Reading:
    """The sum of passes."""
    return Reading(
        sum(each.tokens for each in readings),
        sum(each.projected for each in readings),
        sum(each.pairs for each in readings),
        max((each.copies for each in readings), default=1.0),
    )


def _packed(shared: float, end: float, projected: float, tasks: int, samples: int, budget: int) -> Reading:
    own = max(1.0, end - shared)
    rows = min(samples, max(1, int((budget - shared) // own)))
    packs = tasks * ceil(samples / rows)
    return Reading(
        packs * shared + tasks * samples * own,
        tasks * samples * projected,
        packs * shared**2 / 2 + tasks * samples * (end**2 - shared**2) / 2,
        rows * end / (shared + rows * own),
    )
