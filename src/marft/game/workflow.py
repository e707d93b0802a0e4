"""A team as a plain function: `async def team(task, agents)` says itself who speaks when and who reads what.

    async def team(task, agents):
        plan = await agents["planner"](task.prompt)
        await agents["solver"](task.prompt, plan)

What an agent is handed is all it reads. Hand a message over as it came back and it is recorded as a parent; a text you
made yourself is just a text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from marft.types import Task


@dataclass(frozen=True)
class Spoken:
    """A message as an agent said it; `index` is its place in the episode's actions."""

    agent: str
    text: str
    index: int

    def __str__(self) -> str:
        return self.text


class Voice(Protocol):
    """An agent to be called: it reads the parts, one after another, and answers."""

    async def __call__(self, *parts: str | Spoken) -> Spoken:
        """The agent's reply; a `Spoken` part reads as `name: text` and becomes a parent of the reply."""
        ...


Workflow = Callable[[Task, Mapping[str, Voice]], Awaitable[Any]]
"""(task, agents by name) -> anything: what counts is what the agents said; the world gets the last message of each."""
