"""Who plays in `benchmarks.rollout`, and what: the same prompts and lengths for `marft`'s engine and for its peers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.peers import LockStep
from benchmarks.roofline import Work
from benchmarks.workload import profile, question
from marft.config import SamplingConfig
from marft.generate.base import Reply, Request, Usage
from marft.models.chat import Chat, Exchange
from marft.team import Team

PLANNER, SOLVER = "agent0", "agent1"


@dataclass(frozen=True)
class Play:
    """What is played: `lengths[episode]` are the planner's and the solver's; `rules` characters of the long rules."""

    lengths: Sequence[Sequence[int]]
    rules: int = 0

    @property
    def tokens(self) -> int:
        """All reply tokens: the useful ones."""
        return sum(map(sum, self.lengths))

    def planner_prompt(self, chat: Chat, episode: int) -> tuple[int, ...]:
        """The planner reads the question."""
        return chat.prompt(profile("planner", self.rules), [Exchange(question(episode))])

    def solver_prompt(self, chat: Chat, episode: int, plan: Sequence[int]) -> tuple[int, ...]:
        """The solver reads the question and what the planner wrote."""
        heard = f"{question(episode)}\n\nplanner: {chat.decode(plan)}"
        return chat.prompt(profile("solver", self.rules), [Exchange(heard)])


@dataclass
class Spent:
    """What a competitor's latest play took: `passes` through the model, and the least work that it computed."""

    seconds: float = 0.0
    passes: int = 0
    flops: float = 0.0
    bytes: float = 0.0


class Engine:
    """`marft`'s engine, asked directly; each play by one coroutine per episode."""

    def __init__(self, team: Team, work: Work) -> None:
        self.team, self.work = team, work
        self.generator = team.backends[0].generator
        self.chat = team.backends[0].base.chat
        self.spent = Spent()
        self._version = 0

    def fresh(self) -> None:
        """As after an update: whatever the engine keeps of earlier prompts is stale."""
        self._version += 1
        self.team.load(self._version)

    def play(self, play: Play) -> float:
        """Useful tokens a second."""

        async def episode(number: int) -> tuple[Reply, Reply]:
            planned, solved = play.lengths[number]
            prompt = play.planner_prompt(self.chat, number)
            plan = await self.ask(prompt, PLANNER, planned, (number, 0))
            prompt = play.solver_prompt(self.chat, number, plan.token_ids)
            return plan, await self.ask(prompt, SOLVER, solved, (number, 1))

        self.run([episode(number) for number in range(len(play.lengths))])
        return play.tokens / self.spent.seconds

    async def ask(self, prompt: Sequence[int], adapter: str, tokens: int, place: tuple[int, ...]) -> Reply:
        """One reply of exactly `tokens` tokens."""
        sampling = SamplingConfig(max_tokens=tokens)
        request = Request(tuple(prompt), adapter, sampling, (self._version, *place), place)
        reply = await self.generator.generate(request)
        assert len(reply.token_ids) == tokens, "the engine ended a reply early"
        self._cached += tokens * len(prompt) + tokens * (tokens + 1) // 2
        return reply

    def run(self, episodes: Sequence[Any]) -> list[Any]:
        """Await all, on new weights; `spent` says what it took."""

        async def together() -> list[Any]:
            return list(await asyncio.gather(*episodes))

        self.fresh()
        self._cached = 0
        before = self.generator.usage
        with counted(self.team.backends[0].base.backbone) as passes:
            started = time.perf_counter()
            found = asyncio.run(together())
            seconds = time.perf_counter() - started
        used = since(before, self.generator.usage)
        flops = self.work.forward(
            used.sampled_tokens + used.prompt_tokens_computed, used.sampled_tokens, pairs=self._cached
        )
        self.spent = Spent(seconds, passes[0], flops, self.work.decode(passes[0], self._cached))
        return found


class Peer:
    """`LockStep` at the same play."""

    def __init__(self, peer: LockStep, chat: Chat, work: Work) -> None:
        self.peer, self.chat, self.work = peer, chat, work
        self.spent = Spent()

    def play(self, play: Play) -> float:
        """Useful tokens a second."""
        started = time.perf_counter()
        episodes = range(len(play.lengths))
        first = [play.planner_prompt(self.chat, number) for number in episodes]
        plans, steps = self.peer.replies(PLANNER, first, [lengths[0] for lengths in play.lengths])
        second = [play.solver_prompt(self.chat, number, plans[number]) for number in episodes]
        _, more = self.peer.replies(SOLVER, second, [lengths[1] for lengths in play.lengths])
        seconds = time.perf_counter() - started
        pairs = zip([*first, *second], [row[agent] for agent in (0, 1) for row in play.lengths], strict=True)
        cached = sum(tokens * len(prompt) + tokens * (tokens + 1) // 2 for prompt, tokens in pairs)
        read = sum(map(len, first)) + sum(map(len, second))
        flops = self.work.forward(play.tokens + read, play.tokens, pairs=cached)
        self.spent = Spent(seconds, steps + more, flops, self.work.decode(steps + more, cached))
        return play.tokens / seconds


@contextmanager
def counted(module: torch.nn.Module) -> Iterator[list[int]]:
    """Count the calls of a module."""
    calls = [0]

    def called(*_: Any) -> None:
        calls[0] += 1

    handle = module.register_forward_pre_hook(called)
    try:
        yield calls
    finally:
        handle.remove()


def since(before: Usage, after: Usage) -> Usage:
    """What was used in between."""
    return Usage(
        after.prompt_tokens - before.prompt_tokens,
        after.prompt_tokens_computed - before.prompt_tokens_computed,
        after.sampled_tokens - before.sampled_tokens,
        after.seconds - before.seconds,
    )
