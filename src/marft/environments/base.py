"""The Environment protocol: a world in which a team plays.

An environment holds no game in itself: `reset` makes a state, `step` turns a state into the next one, so thousands of
episodes run side by side and every one can be replayed from its task and seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from marft.types import Split, Task


@dataclass(frozen=True)
class Outcome:
    """What one turn led to.

    `rewards` is a mapping agent -> reward, which sits on that agent's latest message, or one number: the team's reward,
    which sits on the episode's last action so far. `terminated`: the game is over; `truncated`: it was cut off (never
    both). `metrics` of the episode's last outcome go to the record; `success` in [0, 1] is the one reports are about.
    `answer` is the team's answer in a form by which several samples of one task can vote: equal texts, equal answers.
    """

    state: Any
    rewards: Mapping[str, float] | float = 0.0
    terminated: bool = True
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    answer: str = ""


class Environment(Protocol):
    """A world. Methods must be deterministic in their arguments; any randomness comes from `seed`.

    An environment that tells the team whether an answer was right also has `without_verdict() -> Environment`: the same
    tasks without that oracle, which evaluation plays too. One with several attempts a task says so in `attempts`, the
    turns it needs. One that brings tools of its own has `tools`, a mapping of
    names to `marft.tools.Tool`. One in which agents play against each other has `sides(state) -> Mapping[str, str]`,
    agent -> the side it plays for: credit flows along each side's own actions, never from one side to another.
    """

    name: str

    def size(self, split: Split) -> int | None:
        """How many tasks the split has; None when a generator makes them without end."""
        ...

    def task(self, split: Split, index: int) -> Task:
        """Task number `index` (any index when `size` is None); no task stands in both splits."""
        ...

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> Any:
        """The first state of an episode with these agents. Raises `MarftError` when the team does not fit the game."""
        ...

    def observe(self, state: Any, agent: str) -> str:
        """What only this agent reads from the world now, besides the task (feedback, a private hand); may be empty."""
        ...

    def step(self, state: Any, messages: Mapping[str, str]) -> Outcome | Awaitable[Outcome]:
        """Play one turn; `messages` holds what each acting agent said, in execution order."""
        ...
