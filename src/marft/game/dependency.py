"""The dependency function D of Flex-MG: which agent acts after which other one, and reads what it said.

D maps (state, turn) to a `Graph`. A D that is the same in every turn is `Static`, so it can be checked before play.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

from marft.types import MarftError
from marft.validation import suggestion

Pair = tuple[str, str]


@dataclass(frozen=True)
class Graph:
    """D as it holds in one turn; a pair is (speaker, reader).

    `edges`: the reader acts after the speaker in this turn and reads its message. `recall`: the reader reads the
    speaker's message of the previous turn (an agent may recall itself). `acting`: who may act; None means all.
    `conditions`: (speaker, reader, pattern) makes that edge conditional: it holds when the speaker's message matches
    the regular expression (without regard to case). An agent that conditional edges lead to acts only if one of them
    holds.
    """

    edges: frozenset[Pair]
    recall: frozenset[Pair] = frozenset()
    acting: tuple[str, ...] | None = None
    conditions: frozenset[tuple[str, str, str]] = frozenset()

    def __post_init__(self) -> None:
        # A user's own D may hand over lists; what is stored is always hashable
        object.__setattr__(self, "edges", _pairs(self.edges, "edges"))
        object.__setattr__(self, "recall", _pairs(self.recall, "recall"))
        object.__setattr__(self, "conditions", frozenset(tuple(each) for each in self.conditions))
        if self.acting is not None:
            object.__setattr__(self, "acting", tuple(self.acting))
        for speaker, reader, pattern in self.conditions:
            if (speaker, reader) not in self.edges:
                raise MarftError(f"condition on {speaker} -> {reader}: there is no such edge")
            try:
                re.compile(pattern)
            except re.error as error:
                raise MarftError(f"condition on {speaker} -> {reader}: {pattern!r} is no pattern: {error}") from None

    def order(self, agents: tuple[str, ...]) -> tuple[str, ...]:
        """The acting agents, every reader after its speakers; among agents that could go next, the first declared.

        Raises `MarftError` for a cycle (naming it), an unknown agent, or an edge of an agent that does not act.
        """
        sorter = self._sorter(agents)
        place = {agent: index for index, agent in enumerate(agents)}
        ready: list[str] = []
        order: list[str] = []
        while sorter.is_active():
            ready += sorter.get_ready()
            following = min(ready, key=place.__getitem__)
            ready.remove(following)
            order.append(following)
            sorter.done(following)
        return tuple(order)

    def levels(self, agents: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """The acting agents in groups that may act at once, each in declared order; raises as `order` does."""
        sorter = self._sorter(agents)
        place = {agent: index for index, agent in enumerate(agents)}
        levels: list[tuple[str, ...]] = []
        while sorter.is_active():
            level = tuple(sorted(sorter.get_ready(), key=place.__getitem__))
            levels.append(level)
            sorter.done(*level)
        return tuple(levels)

    def parents(self, agent: str, agents: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Whose messages of this turn the agent reads: in execution order where the team is given, else by name."""
        speakers = {speaker for speaker, reader in self.edges if reader == agent}
        return tuple(each for each in self.order(agents) if each in speakers) if agents else tuple(sorted(speakers))

    def recalled(self, agent: str, agents: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Whose messages of the previous turn the agent reads: in declared order if the team is given, else by name."""
        speakers = {speaker for speaker, reader in self.recall if reader == agent}
        return tuple(each for each in agents or sorted(speakers) if each in speakers)

    def live_parents(self, agent: str, said: Mapping[str, str]) -> tuple[str, ...] | None:
        """Whose messages of this turn the agent reads, given what others `said` in it (those who rest: absent).

        In the order of `said`; None when every condition on an edge to the agent fails, so that it rests itself.
        """
        mine = [(speaker, pattern) for speaker, reader, pattern in self.conditions if reader == agent]
        conditional = {speaker for speaker, _ in mine}
        holding = {each for each, pattern in mine if each in said and re.search(pattern, said[each], re.IGNORECASE)}
        if conditional and not holding:
            return None
        speakers = set(self.parents(agent)) - (conditional - holding)
        return tuple(each for each in said if each in speakers)

    def _sorter(self, agents: tuple[str, ...]) -> TopologicalSorter[str]:
        self._check_names(agents)
        acting = [agent for agent in agents if self.acting is None or agent in self.acting]
        # Sorted, because a frozenset of strings has another order in every process, and errors should not
        sorter = TopologicalSorter({each: sorted(self.parents(each), key=agents.index) for each in acting})
        try:
            sorter.prepare()
        except CycleError as error:
            raise MarftError(f"the agents wait for each other in a circle: {_circle(error.args[1], agents)}") from None
        return sorter

    def _check_names(self, agents: tuple[str, ...]) -> None:
        acting = agents if self.acting is None else self.acting
        if not acting:
            raise MarftError("D lets no agent act")
        if len(set(acting)) < len(acting):
            raise MarftError(f"D lists an acting agent twice: {', '.join(acting)}")
        for kind, pairs in (("edge", self.edges), ("recall", self.recall), ("acting", {(each,) for each in acting})):
            for pair in sorted(pairs):
                for name in pair:
                    if name not in agents:
                        raise MarftError(f"{kind} {' -> '.join(pair)}: no agent '{name}'{suggestion(name, agents)}")
        for pair in sorted(self.edges):
            for name in pair:
                if name not in acting:
                    raise MarftError(f"edge {' -> '.join(pair)}: '{name}' does not act in this turn")


Dependency = Callable[[Any, int], Graph]
"""D: (state, turn) -> Graph; turns count from 0."""


@dataclass(frozen=True)
class Static:
    """A D that is the same graph in every state and turn."""

    graph: Graph

    def __call__(self, state: Any, turn: int) -> Graph:
        """The graph, whatever the state and turn."""
        return self.graph


def chain(agents: Iterable[str]) -> Static:
    """The paper's chain: agent m acts after agents 1 … m-1 and reads them all."""
    return Static(Graph(frozenset(combinations(agents, 2))))


def parallel() -> Static:
    """D = 0: all act at once and read nothing of each other in this turn."""
    return Static(Graph(frozenset()))


def graph(
    edges: Iterable[Pair], recall: Iterable[Pair] = (), conditions: Iterable[tuple[str, str, str]] = ()
) -> Static:
    """A fixed D from (speaker, reader) pairs; checked against a team by `Graph.order`."""
    return Static(Graph(_pairs(edges, "edges"), _pairs(recall, "recall"), conditions=frozenset(conditions)))


def _pairs(pairs: Iterable[Any], key: str) -> frozenset[Pair]:
    fixed = []
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise MarftError(f"{key}: {pair!r} is not a (speaker, reader) pair of names")
        fixed.append((pair[0], pair[1]))
    return frozenset(fixed)


def _circle(cycle: list[str], agents: tuple[str, ...]) -> str:
    """`a -> b -> a`, starting at the agent declared first; graphlib's list already ends where it starts."""
    ring = cycle[:-1]
    start = ring.index(min(ring, key=agents.index))
    return " -> ".join([*ring[start:], *ring[:start], ring[start]])
