"""Continuous batching in plain PyTorch: one forward pass for the requests of all episodes and all agents.

Every step is one flat pass: the newest token of each running reply and the prompts of the requests that just came,
whatever their lengths, positions and adapters. What is known of a prompt (see `prefixes`) is not computed again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marft.generate.base import Reply, Request, Usage, check_fits
from marft.generate.prefixes import Claim, Prefixes
from marft.generate.sampling import choose, uniform
from marft.generate.slots import Slots, Step
from marft.models.blocks import Tail
from marft.models.policy import Policy
from marft.models.weights import Routes

PREFILL_BUDGET = 2048  # new prompt tokens per forward pass


def rounded(tokens: int) -> int:
    """The next of few lengths for a pass on a CPU: oneDNN prepares every product anew for each length it meets."""
    step = max(4, 1 << max(tokens.bit_length() - 3, 0))
    return -(-tokens // step) * step


def new_nodes(tails: Sequence[Tail]) -> list[int]:
    """The nodes of the prefix tree that a pass computes, in its order."""
    return [node for start, path in tails for node in path[start:].tolist()]


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
        self.draws = uniform(self.request.seed, self.request.sampling.max_tokens)

    @property
    def length(self) -> int:
        """Prompt plus reply so far, in tokens."""
        return len(self.request.prompt_ids) + len(self.tokens)


@dataclass(frozen=True)
class Admitted:
    """A request that gets a slot in the step under way, and where its prompt stands in the prefix tree."""

    running: Running
    claim: Claim

    @property
    def end(self) -> int:
        """The node of the prompt's last token."""
        return int(self.claim.path[-1])


class TorchEngine:
    """A `Generator` on the learner's own weights, as they are when the engine starts to work after being idle.

    At most `slots` replies grow at once; about `prefix_tokens` prompt and reply tokens are remembered.
    """

    def __init__(self, policy: Policy, slots: int = 64, prefix_tokens: int = 16384) -> None:
        self.policy = policy
        self._limit, self._remembered = slots, prefix_tokens
        self._version = 0
        self._usage = Usage()
        self._waiting: list[Running] = []
        self._running: list[Running] = []
        self._slots = Slots(slots)
        self._prefixes = Prefixes(prefix_tokens)
        self._routes: Routes | None = None  # made for the weights as they are, when the engine starts to work
        self._driver: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The adapters' version, stamped on a request when it is dispatched."""
        return self._version

    @property
    def usage(self) -> Usage:
        """Totals since the engine was made."""
        return self._usage

    @property
    def own_weights(self) -> bool:
        """No: they are the learner's."""
        return False

    def hold(self, adapters: Sequence[str]) -> None:
        """Raises RuntimeError: what the learner does is what is generated with."""
        raise RuntimeError("the torch engine generates with the learner's own weights")

    def load(self, version: int) -> None:
        """The adapters now hold `version`. Keys and values of running replies would be stale, so none may run."""
        self._drop_cancelled()
        if self._running or self._waiting:
            raise RuntimeError("adapters changed while replies were being generated")
        self._version = version
        self._forget()

    def rest(self) -> None:
        """Free all keys and values."""
        self._drop_cancelled()
        if self._running or self._waiting:
            raise RuntimeError("the engine cannot rest while replies are being generated")
        self._forget()

    def _forget(self) -> None:
        self._slots, self._prefixes, self._routes = Slots(self._limit), Prefixes(self._remembered), None

    async def generate(self, request: Request) -> Reply:
        """Queue a request and wait for its reply. Raises `MarftError` when it cannot fit the context."""
        check_fits(request, self.policy.base.context)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(Running(request, future, self._version))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await future

    async def _drive(self) -> None:
        try:
            self._routes = None
            while self._waiting or self._running:
                await self._settle()
                started = time.perf_counter()
                self._drop_cancelled()
                if self._routes is None:  # also after a `load` while nobody was left
                    self._routes = self.policy.weights.routes()
                self._step(self._routes)
                self._usage = replace(self._usage, seconds=self._usage.seconds + time.perf_counter() - started)
        except BaseException as error:
            # Whoever waits for a reply must hear of it: a silent engine would hang every episode
            for each in [*self._waiting, *self._running]:
                if not each.future.done():
                    each.future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            self._waiting, self._running = [], []
            self._forget()
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
    def _step(self, routes: Routes) -> None:
        """One token for every running reply, and the first one for everybody who is admitted."""
        admitted = self._admit()
        members = [*self._running, *(each.running for each in admitted)]
        if not members:
            return
        adapters = [each.request.adapter for each in members]
        shares = routes.shares(adapters)
        parts = [self._forward(routes, share, admitted) for share in shares]
        order = torch.tensor([row for share in shares for row in share]).argsort()
        self._seat(admitted)
        self._draw(members, parts[0] if len(parts) == 1 else torch.cat(parts)[order.to(parts[0].device)])
        self._finish()

    def _admit(self) -> list[Admitted]:
        """Take in who waits, in order, as long as slots are free and the pass is not too long."""
        self._prefixes.trim()
        self._waiting.sort(key=lambda each: each.request.order)
        admitted: list[Admitted] = []
        fresh = 0
        for each in self._waiting[: self._limit - len(self._running)]:
            claim = self._prefixes.claim(each.request.adapter, each.request.prompt_ids)
            admitted.append(Admitted(each, claim))
            fresh += len(claim.fresh)
            if fresh >= PREFILL_BUDGET:
                break
        return admitted

    def _forward(self, routes: Routes, share: list[int], admitted: list[Admitted]) -> Tensor:
        """The next logits [n, V] of one share: rows of the running and, numbered after them, of the admitted."""
        count = len(self._running)
        rows = [row for row in share if row < count]
        newcomers = [admitted[row - count] for row in share[len(rows) :]]
        tails, adapters = self._tails(newcomers)
        fresh = new_nodes(tails)
        states = self._pass(routes, rows, tails, adapters) if rows or fresh else None
        ends = {each.end for each in newcomers}
        for place, node in enumerate(fresh, start=len(rows)):
            if node in ends and states is not None:
                self._prefixes.note(node, states[place])
        self._usage = replace(
            self._usage,
            prompt_tokens=self._usage.prompt_tokens + sum(len(each.claim.path) for each in newcomers),
            prompt_tokens_computed=self._usage.prompt_tokens_computed + len(fresh),
        )
        known = [state for each in newcomers if (state := self._prefixes.state(each.end)) is not None]
        parts = [] if states is None else [states[: len(rows)]]
        parts += [torch.stack(known)] if known else []
        adapter = (self._running[rows[0]] if rows else newcomers[0].running).request.adapter
        return self.policy.head(adapter)(torch.cat(parts))

    def _tails(self, newcomers: list[Admitted]) -> tuple[list[Tail], list[str | None]]:
        """What must be computed of each prompt, and the adapter of every such token."""
        tails: list[Tail] = []
        adapters: list[str | None] = []
        computed: set[int] = set()
        for each in newcomers:
            path, count = each.claim.path, len(each.claim.fresh)  # what is fresh is the path's end
            if not count and each.end not in computed and self._prefixes.state(each.end) is None:
                count = 1  # so far it stood inside other prompts: its keys are known, and nobody kept its state
            if count:
                tails.append((len(path) - count, path))
                adapters += [each.running.request.adapter] * count
                computed.update(path[-count:].tolist())
        return tails, adapters

    def _pass(self, routes: Routes, rows: list[int], tails: list[Tail], adapters: list[str | None]) -> Tensor:
        """Last hidden states [n + m, H]: of the newest token of the running `rows`, then of the tokens of `tails`."""
        base, prefixes = self.policy.base, self._prefixes
        device = base.device
        running = [self._running[row] for row in rows]
        at = [each.length - 1 for each in running]
        fresh = new_nodes(tails)
        owners = [*(each.request.adapter for each in running), *adapters]
        padding = rounded(len(owners)) - len(owners) if device.type == "cpu" else 0
        tokens = [*(each.tokens[-1] for each in running), *prefixes.tokens(fresh), *[0] * padding]
        states = routes.hidden(
            owners + [owners[0]] * padding,
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([at + prefixes.depths(fresh) + [0] * padding], device=device),
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=base.model.dtype, device=device),  # `Step` knows who sees whom
            keys_values=Step(self._slots, rows, at, prefixes, tails, base),
        )
        return states[0]

    def _seat(self, admitted: list[Admitted]) -> None:
        """Give the admitted their slots, and count what their prompts cost."""
        if not admitted:
            return
        first = len(self._running)
        self._running += [each.running for each in admitted]
        self._waiting = self._waiting[len(admitted) :]  # only now: until they run, an error finds them in the queue
        room = max(len(each.request.prompt_ids) + each.request.sampling.max_tokens for each in self._running)
        self._slots.fill(self._prefixes, [each.claim.path for each in admitted], first, room)

    def _draw(self, members: list[Running], logits: Tensor) -> None:
        draws = torch.tensor([float(each.draws[len(each.tokens)]) for each in members], device=logits.device)
        tokens, logprobs = choose(
            logits, draws, [each.request.sampling for each in members], [each.request.greedy for each in members]
        )
        for each, token, logprob in zip(members, tokens, logprobs, strict=True):
            each.tokens.append(token)
            each.logprobs.append(logprob)
            if each.request.on_token and not each.future.done():
                try:
                    each.request.on_token(token)
                except Exception as error:  # the listener's own: it ends this request, and nobody else's
                    each.future.set_exception(error)
        self._usage = replace(self._usage, sampled_tokens=self._usage.sampled_tokens + len(members))

    def _finish(self) -> None:
        stops = self.policy.base.chat.stop_ids
        done = [
            place
            for place, each in enumerate(self._running)
            if each.tokens[-1] in stops or len(each.tokens) == each.request.sampling.max_tokens
        ]
        self._remember(done)
        for place in reversed(done):
            each = self._running[place]
            stop: Literal["stop", "length"] = "stop" if each.tokens[-1] in stops else "length"
            if not each.future.done():
                each.future.set_result(Reply(tuple(each.tokens), tuple(each.logprobs), stop, each.version))
            self._release(place)

    def _remember(self, done: list[int]) -> None:
        """Put what these slots hold into the prefix tree: a later turn of the episode goes on from there.

        The newest token was drawn but never taken in, so it is not part of it.
        """
        nodes: list[int] = []
        slots: list[int] = []
        for place in done:
            each = self._running[place]
            claim = self._prefixes.claim(each.request.adapter, [*each.request.prompt_ids, *each.tokens[:-1]])
            nodes += claim.fresh
            slots += [place] * len(claim.fresh)
        if nodes:
            places = np.array(self._prefixes.depths(nodes))
            self._slots.keep(self._prefixes, np.array(nodes), np.array(slots), places)

    def _release(self, place: int) -> None:
        """Free a slot: the last row moves into it, so that the running rows stay side by side."""
        last = len(self._running) - 1
        if place != last:
            self._slots.move(last, place)
            self._running[place] = self._running[last]
        self._running.pop()
