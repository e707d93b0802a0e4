"""Matrix: a cooperative matrix game. Every agent says one of k words; the words together name the team's payoff."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, model_validator

from marft.environments.base import Outcome
from marft.section import Positive, Section
from marft.types import MarftError, Split, Task
from marft.validation import validate


class Parameters(Section):
    """What the config's `environment` may say."""

    symbols: Annotated[list[str], Field(min_length=2, description="the words that may be played")]
    payoff: list[Any] = Field(description="nested lists, one level per agent, one entry per symbol")
    illegal: FiniteFloat = Field(0.0, description="the team's reward when a message is not one of the symbols")
    prompt: str = Field("Choose one word: {symbols}", description="{symbols} stands for the words")
    turns: Positive = Field(1, description="how often the game is played in one episode")

    @model_validator(mode="after")
    def _payoff_fits(self) -> Parameters:
        stripped = [each.strip() for each in self.symbols]
        if len(set(stripped)) < len(stripped) or "" in stripped:
            raise ValueError("environment.symbols: must differ, and none may be empty")
        depth = _depth(self.payoff)
        entries = [_entry(self.payoff, cell, len(self.symbols)) for cell in product(range(len(stripped)), repeat=depth)]
        if self.illegal >= max(entries):
            raise ValueError(
                f"environment.illegal: must be below the best payoff {max(entries)}, or nonsense would be optimal"
            )
        return self


@dataclass(frozen=True)
class State:
    """One episode: the team in declared order, turns played, and how many of them were optimal."""

    agents: tuple[str, ...]
    turn: int = 0
    optimal: int = 0


class Matrix:
    """Each turn pays the team the entry its words name; success is the share of turns that paid the optimum."""

    name = "matrix"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "matrix")
        self._symbols = [each.strip() for each in self.parameters.symbols]
        self._players = _depth(self.parameters.payoff)

    @property
    def optimum(self) -> float:
        """The best payoff of one turn."""
        cells = product(range(len(self._symbols)), repeat=self._players)
        return max(_entry(self.parameters.payoff, cell, len(self._symbols)) for cell in cells)

    def size(self, split: Split) -> int | None:
        """Endless, and always the same game."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """The game; only the id differs."""
        return Task(f"{split}-{index}", self.parameters.prompt.replace("{symbols}", " ".join(self._symbols)), "matrix")

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the payoff is for another number of agents."""
        if len(agents) != self._players:
            raise MarftError(f"matrix: the payoff is for {self._players} agents; the team has {len(agents)}")
        return State(agents)

    def observe(self, state: State, agent: str) -> str:
        """Nothing: the prompt says all."""
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Raises `MarftError` when an agent did not act: the payoff needs all of them."""
        silent = [agent for agent in state.agents if agent not in messages]
        if silent:
            raise MarftError(f"matrix: every agent must act in every turn; '{silent[0]}' did not")
        said = [messages[agent].strip() for agent in state.agents]
        payoff = self.parameters.illegal
        if all(word in self._symbols for word in said):
            cell = tuple(self._symbols.index(word) for word in said)
            payoff = _entry(self.parameters.payoff, cell, len(self._symbols))
        after = State(state.agents, state.turn + 1, state.optimal + (payoff == self.optimum))
        metrics = {"success": after.optimal / after.turn, "payoff": payoff}
        return Outcome(after, payoff, terminated=after.turn >= self.parameters.turns, metrics=metrics)


def _depth(payoff: Any) -> int:
    return 1 + _depth(payoff[0]) if isinstance(payoff, list) and payoff else 0


def _entry(payoff: Any, cell: tuple[int, ...], width: int) -> float:
    """The payoff at a cell; a ValueError says where the nested lists are not `width` wide, or hold no number."""
    found = payoff
    for step in cell:
        if not isinstance(found, list) or len(found) != width:
            raise ValueError(
                f"environment.payoff: every level must hold {width} entries, one per symbol; got {found!r}"
            )
        found = found[step]
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise ValueError(f"environment.payoff: {found!r} is not a finite number")
    return float(found)
