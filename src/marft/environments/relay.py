"""Relay: the first agent sees a symbol, the last must say it.

All tasks read the same, so the last agent's prompt says nothing about the symbol unless a message carries it: with a D
edge (or recall, over two turns) the game can be won, without it no policy beats 1/k over k symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from marft.environments.base import Outcome
from marft.section import Positive, Section
from marft.types import MarftError, Split, Task
from marft.validation import validate


class Parameters(Section):
    """What the config's `environment` may say."""

    symbols: Annotated[list[str], Field(min_length=2)] = Field(
        default_factory=lambda: ["red", "blue", "green", "gold"], description="one of them is the secret"
    )
    prompt: str = Field(
        "The first of you sees a secret word. The last of you must say exactly that word and nothing else.",
        description="what all read",
    )
    hint: str = Field("The secret word is {symbol}.", description="what the first agent reads in the first turn")
    turns: Positive = Field(1, description="the symbol is seen in the first turn and must be said in this one")

    @model_validator(mode="after")
    def _symbols_can_be_told_apart(self) -> Parameters:
        if len({each.strip() for each in self.symbols}) < len(self.symbols) or not all(map(str.strip, self.symbols)):
            raise ValueError("environment.symbols: must differ, and none may be empty")
        if "{symbol}" not in self.hint:
            raise ValueError("environment.hint: must contain {symbol}")
        return self


@dataclass(frozen=True)
class State:
    """One episode: who sees the symbol, who must say it, and the turn (from 0)."""

    symbol: str
    first: str
    last: str
    turn: int = 0


class Relay:
    """The first declared agent sees the symbol; reward 1 to the team when the last declared one says exactly it."""

    name = "relay"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "relay")

    def size(self, split: Split) -> int | None:
        """Endless."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """Symbols go round, so that every k tasks in a row hold each once and chance is exactly 1/k."""
        symbols = self.parameters.symbols
        return Task(
            f"{split}-{index}", self.parameters.prompt, "relay", {"symbol": symbols[index % len(symbols)].strip()}
        )

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` for a team of one, which has nobody to pass the symbol to."""
        if len(agents) < 2:
            raise MarftError(f"relay needs at least 2 agents; the team has {len(agents)}")
        return State(task.data["symbol"], agents[0], agents[-1])

    def observe(self, state: State, agent: str) -> str:
        """The hint, for the first agent, in the first turn."""
        if agent == state.first and state.turn == 0:
            return self.parameters.hint.replace("{symbol}", state.symbol)
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Reward 1 in the last turn when the last agent's stripped message is the symbol."""
        after = replace(state, turn=state.turn + 1)
        if after.turn < self.parameters.turns:
            return Outcome(after, 0.0, terminated=False, metrics={"success": 0.0})
        right = float(messages.get(state.last, "").strip() == state.symbol)
        return Outcome(after, right, terminated=True, metrics={"success": right})
