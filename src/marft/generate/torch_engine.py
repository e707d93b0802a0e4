"""Continuous batching in plain PyTorch: one forward pass for the requests of all episodes and all agents.

A request waits until a slot is free, its prompt is computed together with the other new ones (shared prefixes once),
and from then on every step draws one token for every running reply, whatever its length, position or adapter.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marft.generate.base import Reply, Request, Usage
from marft.generate.sampling import choose
from marft.generate.slots import Prefill, Slots
from marft.models.pack import pack
from marft.models.policy import Policy
from marft.types import MarftError

PREFILL_BUDGET = 2048  # packed prompt tokens per forward pass


@dataclass
class Running:
    """A request being answered: what was drawn so far, and its own uniform draws."""

    request: Request
    future: asyncio.Future[Reply]
    version: int
    draws: np.ndarray = field(init=False)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.request.seed)
        self.draws = generator.random(self.request.sampling.max_tokens, dtype=np.float32)

    @property
    def length(self) -> int:
        """Prompt plus reply so far, in tokens."""
        return len(self.request.prompt_ids) + len(self.tokens)


class TorchEngine:
    """A `Generator` on the learner's own weights: adapters are seen the moment they change."""

    def __init__(self, policy: Policy, slots: int = 64) -> None:
        self.policy = policy
        self._limit = slots
        self._version = 0
        self._usage = Usage()
        self._waiting: list[Running] = []
        self._running: list[Running] = []
        self._slots = Slots(slots)
        self._driver: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The adapters' version, stamped on a request when it is dispatched."""
        return self._version

    @property
    def usage(self) -> Usage:
        """Totals since the engine was made."""
        return self._usage

    def load(self, version: int) -> None:
        """The adapters now hold `version`. Keys and values of running replies would be stale, so none may run."""
        self._drop_cancelled()
        if self._running or self._waiting:
            raise RuntimeError("adapters changed while replies were being generated")
        self._version = version

    async def generate(self, request: Request) -> Reply:
        """Queue a request and wait for its reply. Raises `MarftError` when it cannot fit the context."""
        longest = len(request.prompt_ids) + request.sampling.max_tokens
        if longest > self.policy.base.context:
            raise MarftError(
                f"a prompt of {len(request.prompt_ids)} tokens and a reply of {request.sampling.max_tokens} exceed the "
                f"context of {self.policy.base.context}; shorten the task, lower max_tokens, or set "
                f"rollout.context_policy: truncate_history"
            )
        if not request.prompt_ids:
            raise MarftError("the prompt is empty; check the chat template")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(Running(request, future, self._version))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await future

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                await self._settle()
                started = time.perf_counter()
                self._drop_cancelled()
                self._admit()
                if self._running:
                    self._step()
                self._usage = replace(self._usage, seconds=self._usage.seconds + time.perf_counter() - started)
        except BaseException as error:
            # Whoever waits for a reply must hear of it: a silent engine would hang every episode
            for each in [*self._waiting, *self._running]:
                if not each.future.done():
                    each.future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            self._waiting, self._running = [], []
            self._slots = Slots(self._limit)
            if not isinstance(error, Exception):
                raise

    async def _settle(self) -> None:
        """Let every coroutine that can go on do so, until no more requests arrive: batches do not depend on timing."""
        quiet, seen = 0, len(self._waiting)
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)

    def _drop_cancelled(self) -> None:
        self._waiting = [each for each in self._waiting if not each.future.done()]
        for place in reversed(range(len(self._running))):
            if self._running[place].future.done():
                self._release(place)

    @torch.no_grad()
    def _admit(self) -> None:
        free = self._limit - len(self._running)
        if not free or not self._waiting:
            return
        self._waiting.sort(key=lambda each: each.request.order)
        admitted = self._waiting[:free]
        for adapter in dict.fromkeys(each.request.adapter for each in admitted):
            group = [each for each in admitted if each.request.adapter == adapter]
            for packed in pack([each.request.prompt_ids for each in group], PREFILL_BUDGET):
                members = [group[row] for row in packed.rows]
                base = self.policy.base
                prefill = Prefill()
                with self.policy.acting_as(adapter) as backbone:
                    inputs = packed.inputs(base.device, base.model.dtype, base.window)
                    states = backbone(**inputs, use_cache=False, keys_values=prefill).last_hidden_state[0]
                room = max(each.length + each.request.sampling.max_tokens for each in [*members, *self._running])
                self._slots.fill(prefill, packed.paths, len(self._running), room)
                self._running += members
                last = torch.tensor([int(path[-1]) for path in packed.paths], device=base.device)
                self._usage = replace(
                    self._usage,
                    prompt_tokens=self._usage.prompt_tokens + sum(len(path) for path in packed.paths),
                    prompt_tokens_computed=self._usage.prompt_tokens_computed + len(packed.tokens),
                )
                self._draw(members, self.policy.head(adapter)(states[last]))
        self._waiting = self._waiting[free:]  # only now: until they run, an error finds them in the queue
        self._finish()

    @torch.no_grad()
    def _step(self) -> None:
        """One token for every running reply: in one forward pass, or in one per adapter where rows cannot mix."""
        adapters = [each.request.adapter for each in self._running]
        shares = self.policy.routed.shares(adapters)
        if len(shares) == 1:
            logits = self._advance(None)
        else:
            parts = torch.cat([self._advance(rows) for rows in shares])
            logits = torch.empty_like(parts)
            logits[[row for rows in shares for row in rows]] = parts
        self._draw(self._running, logits)
        self._finish()

    def _advance(self, rows: list[int] | None) -> Tensor:
        """Take the newest token of these rows (None: of all) in; returns the logits [n, V] of their next."""
        base = self.policy.base
        running = self._running if rows is None else [self._running[row] for row in rows]
        adapters = [each.request.adapter for each in running]
        newest = torch.tensor([[each.tokens[-1]] for each in running], device=base.device)
        at = torch.tensor([each.length - 1 for each in running], device=base.device)
        masks = self._slots.advance(at, base.model.dtype, base.window, rows)
        states = self.policy.routed.hidden(
            adapters, input_ids=newest, position_ids=at[:, None], keys_values=self._slots, **masks
        )
        return self.policy.head(adapters[0])(states[:, 0])

    def _draw(self, members: list[Running], logits: Tensor) -> None:
        draws = torch.tensor([float(each.draws[len(each.tokens)]) for each in members], device=logits.device)
        tokens, logprobs = choose(
            logits, draws, [each.request.sampling for each in members], [each.request.greedy for each in members]
        )
        for each, token, logprob in zip(members, tokens, logprobs, strict=True):
            each.tokens.append(token)
            each.logprobs.append(logprob)
            if each.request.on_token:
                each.request.on_token(token)
        self._usage = replace(self._usage, sampled_tokens=self._usage.sampled_tokens + len(members))

    def _finish(self) -> None:
        stops = self.policy.base.chat.stop_ids
        for place in reversed(range(len(self._running))):
            each = self._running[place]
            stopped = each.tokens[-1] in stops
            if stopped or len(each.tokens) == each.request.sampling.max_tokens:
                stop: Literal["stop", "length"] = "stop" if stopped else "length"
                if not each.future.done():
                    reply = Reply(tuple(each.tokens), tuple(each.logprobs), stop, each.version)
                    each.future.set_result(reply)
                self._release(place)

    def _release(self, place: int) -> None:
        """Free a slot: the last row moves into it, so that the running rows stay side by side."""
        last = len(self._running) - 1
        if place != last:
            self._slots.move(last, place)
            self._running[place] = self._running[last]
        self._running.pop()
