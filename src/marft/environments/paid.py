"""A user's reward function in the place of an environment's own rewards; all else stays the environment's."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from marft.environments.base import Environment, Outcome
from marft.types import MarftError, Split, Task

Pay = float | Mapping[str, float]

Reward = Callable[[Task, Mapping[str, str], Outcome], Pay | Awaitable[Pay]]
"""reward(task, messages, outcome), called after each turn: the team's reward, or agent -> reward.

`messages` holds what each agent that acted said in this turn, `outcome` what the environment made of it (its own
rewards, metrics and answer). A coroutine function is awaited.
"""


class RewardFault(MarftError):
    """A reward function that cannot be called, failed, or gave something that is no reward."""


@dataclass(frozen=True)
class PaidState:
    """An environment's own state, and what a reward function needs besides.

    `own` is what the environment itself has paid so far.
    """

    state: Any
    task: Task
    agents: tuple[str, ...]
    acted: frozenset[str] = frozenset()
    own: float = 0.0


def own_state(state: Any) -> Any:
    """The state as the environment made it, for what reads it besides the environment (D)."""
    return state.state if isinstance(state, PaidState) else state


class Paid:
    """An environment that pays what `reward`, called `path` in errors, says; success and metrics are its own.

    Whatever else the environment has (attempts, tools, sides, …) is passed on. `step` raises `RewardFault`, which fails
    the episode. Raises `RewardFault` when the function cannot be called with task, messages and outcome.
    """

    def __init__(self, environment: Environment, reward: Reward, path: str) -> None:
        self._environment, self._reward, self._path = environment, reward, path
        try:
            inspect.signature(reward).bind(None, None, None)
        except TypeError as error:
            raise RewardFault(f"'{path}' cannot be called as reward(task, messages, outcome): {error}") from None
        except ValueError:  # written in C: it has no signature to be read
            pass
        self.name = environment.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy in the making has nothing yet
            raise AttributeError(name)
        found = getattr(self._environment, name)
        if name == "sides":
            return lambda state: found(own_state(state))
        if name == "without_verdict":
            return lambda: self._in(found())
        return found

    def size(self, split: Split) -> int | None:
        """The environment's."""
        return self._environment.size(split)

    def task(self, split: Split, index: int) -> Task:
        """The environment's."""
        return self._environment.task(split, index)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> PaidState:
        """The environment's first state, with the task and the team."""
        return PaidState(self._environment.reset(task, agents, seed), task, agents)

    def observe(self, state: PaidState, agent: str) -> str:
        """The environment's."""
        return self._environment.observe(state.state, agent)

    async def step(self, state: PaidState, messages: Mapping[str, str]) -> Outcome:
        """The environment's turn, paid by the function."""
        outcome = self._environment.step(state.state, messages)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        after = replace(
            state,
            state=outcome.state,
            acted=state.acted | messages.keys(),
            own=state.own + _total(outcome.rewards),
        )
        metrics = dict(outcome.metrics)
        metrics.setdefault("success", float(after.own > 0))  # as it would have been without the function
        # Copies: what the function does to what it is shown is of no account
        shown = replace(outcome, metrics=dict(outcome.metrics))
        paid = self._checked(await self._pay(state.task, dict(messages), shown), after)
        return replace(outcome, state=after, rewards=paid, metrics=metrics)

    async def _pay(self, task: Task, messages: Mapping[str, str], outcome: Outcome) -> Any:
        try:
            paid = self._reward(task, messages, outcome)
            return await paid if inspect.isawaitable(paid) else paid
        except Exception as error:  # the function is the user's own
            at = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise self._fault(f"failed with {what} ({at.name}, line {at.lineno})") from error

    def _checked(self, paid: Any, state: PaidState) -> Pay:
        if not isinstance(paid, Mapping):
            return self._number(paid, "the team")
        for agent in paid:
            if agent not in state.agents:
                raise self._fault(f"pays {agent!r}, who is not in the team ({', '.join(state.agents)})")
            if agent not in state.acted:
                raise self._fault(f"pays '{agent}', who has not spoken yet")
        return {agent: self._number(each, f"'{agent}'") for agent, each in paid.items()}

    def _number(self, paid: Any, whom: str) -> float:
        if not isinstance(paid, Real):
            what = "nothing (None)" if paid is None else f"a {type(paid).__name__}"
            raise self._fault(f"gives {whom} {what}; it must return a number or a mapping of agents to numbers")
        if not math.isfinite(paid):
            raise self._fault(f"gives {whom} {float(paid)}, which is not a finite number")
        return float(paid)

    def _fault(self, what: str) -> RewardFault:
        return RewardFault(f"the reward function '{self._path}' {what}")

    def _in(self, environment: Environment) -> Paid:
        return self if environment is self._environment else Paid(environment, self._reward, self._path)


def _total(rewards: Mapping[str, float] | float) -> float:
    return sum(rewards.values()) if isinstance(rewards, Mapping) else rewards
