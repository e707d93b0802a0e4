"""What play is given: the plan of an episode, the seats of the agents, and the rules they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from marft.game.flexmg import FlexMG
from marft.generate.base import Generator
from marft.models.chat import Chat
from marft.tools.base import Tool
from marft.types import Failure, MarftError, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """One episode to be played. `seed` and the place of a message in the episode decide every random draw.

    `scripted` puts words into agents' mouths: agent -> its messages in the order in which it is asked, the last one
    again and again (used to measure influence). `group` is the baseline's group; default: the task's id.
    """

    task: Task
    sample: int
    seed: tuple[int, ...]
    order: int
    greedy: bool = False
    scripted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True)
class Seat:
    """Where an agent sits: the chat format of its model, what generates for it, and its tools.

    `context` bounds its prompt and reply together, `view` what the critic reads before it acts; both in tokens.
    """

    chat: Chat
    generator: Generator
    context: int
    view: int
    tools: Mapping[str, Tool] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """What every episode of a rollout shares: the game, a seat for every agent, and the rules of play."""

    game: FlexMG
    seats: Mapping[str, Seat]
    context_policy: Literal["refuse", "truncate_history"] = "refuse"
    deadline: float = 1800.0


class PlayFailed(Exception):
    """An episode cannot go on: who failed, and why."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(f"{who}: {reason}")
        self.failure = Failure(who, reason)


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T] | Awaitable[T]]) -> list[T]:
    """Await all at once, results in order; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def describe(error: BaseException) -> str:
    """An exception in one line: a `MarftError` speaks for itself, another is named with the place it came from."""
    text = " ".join(str(error).split())
    if isinstance(error, MarftError):
        return text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_name}, line {trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {text}{where}"
