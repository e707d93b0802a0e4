"""Organisations in which agents speak several times a turn: a debate, and an orchestrator that says who speaks next.

They take the place of a graph D: what D was is decided during the turn, and recorded in every action's `parents`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from marft.types import MarftError
from marft.validation import suggestion


@dataclass(frozen=True)
class Debate:
    """In the first round all debaters answer at once; in each later one every debater reads the others' last words.

    Then the `judge`, if there is one, reads the last round and speaks.
    """

    debaters: tuple[str, ...]
    rounds: int
    judge: str | None = None


@dataclass(frozen=True)
class Orchestrated:
    """One agent is asked again and again who speaks next; its choices are actions and are trained like any other.

    The `orchestrator` reads what each member it called has said. A member reads the call and everything that members
    said in this turn since it last spoke. The turn ends when the orchestrator says `stop` or `calls` are used up; the
    world then gets the orchestrator's last message and those of the members it called, who spoke last as the last.
    """

    orchestrator: str
    members: tuple[str, ...]
    calls: int = 4
    stop: str = "stop"
    unreadable: Literal["stop", "first", "fail"] = "stop"

    def choice(self, reply: str) -> str | None:
        """The member that `reply` names, or None for the end of the turn.

        The first word that is a member's name or the stop word decides, without regard to case. A reply without one
        means what `unreadable` says: the end (`stop`), the first member (`first`), or (`fail`) a `MarftError`.
        """
        known = {name.casefold(): name for name in self.members} | {self.stop.casefold(): None}
        # Longest first, so that `agent-10` is not read as `agent-1`
        names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
        found = re.search(rf"(?<![\w-])({names})(?![\w-])", reply.casefold())
        if found:
            return known[found.group(1)]
        if self.unreadable == "fail":
            raise MarftError("its reply names nobody to speak next, and dependency.unreadable is 'fail'")
        return self.members[0] if self.unreadable == "first" else None


Organisation = Debate | Orchestrated


def debate(agents: tuple[str, ...], rounds: int, judge: str | None = None) -> Debate:
    """A debate of all `agents` but the judge; raises `MarftError` when that leaves fewer than two."""
    _check_member(judge, agents, "judge")
    debaters = tuple(name for name in agents if name != judge)
    if len(debaters) < 2:
        raise MarftError(f"a debate needs at least two debaters; it has: {', '.join(debaters) or 'none'}")
    return Debate(debaters, rounds, judge)


def orchestrated(
    agents: tuple[str, ...],
    orchestrator: str,
    calls: int = 4,
    stop: str = "stop",
    unreadable: Literal["stop", "first", "fail"] = "stop",
) -> Orchestrated:
    """An orchestrator over all other `agents`; raises `MarftError` for an unknown one, or one named like `stop`."""
    _check_member(orchestrator, agents, "orchestrator")
    members = tuple(name for name in agents if name != orchestrator)
    if not members:
        raise MarftError(f"the orchestrator '{orchestrator}' has nobody to call; add agents")
    spelt = [name.casefold() for name in members]
    if len(set(spelt)) < len(spelt):
        raise MarftError("two members' names differ in capitals alone, which an orchestrator's reply may too")
    if not stop.strip():
        raise MarftError("stop: must be a word")
    if stop.casefold() in spelt:
        raise MarftError(f"stop: '{stop}' is also an agent's name; choose another word")
    return Orchestrated(orchestrator, members, calls, stop, unreadable)


def _check_member(name: str | None, agents: tuple[str, ...], role: str) -> None:
    if name is not None and name not in agents:
        raise MarftError(f"{role}: no agent '{name}' in the team{suggestion(name, agents)}")
