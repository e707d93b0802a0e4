"""Where an iteration's time goes: model compute by kind, against everything else.

Model compute is what happens inside the decoder, the vocabulary projection, the drawing of tokens, log-softmax and
entropy, the backward pass and the optimiser's step. A measurement inside another counts for the inner one alone, so
that all kinds and the rest add up to the whole. Nothing of `marft` is changed: torch's own hooks on modules and
optimisers, and wrappers around functions by name for as long as the stopwatch runs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from marft.learn.clock import Clock
from marft.team import Team

# Functions by the name under which their callers know them: kind -> paths
FUNCTIONS = {
    "sampling": ("marft.generate.torch_engine.choose",),
    "log-softmax": (  # `scores` computes the gradient of the projection beside it
        "marft.models.projection.scores",
        "marft.models.policy.token_logprobs",
        "marft.models.policy.token_entropy",
    ),
    "backward": ("torch.autograd.backward", "torch.autograd.grad"),
}
KINDS = ("decoder", "head", "sampling", "log-softmax", "backward", "optimiser")


class Stopwatch:
    """Seconds by phase of the training loop, and of compute by (phase, kind)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.compute: dict[tuple[str, str], float] = defaultdict(float)
        self._phase = "between"
        self._open: list[tuple[str, float]] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        started, self._phase = time.perf_counter(), name
        try:
            yield
        finally:
            self._phase = "between"
            self.seconds[name] += time.perf_counter() - started

    @contextmanager
    def kind(self, name: str) -> Iterator[None]:
        """Add the time spent inside, but not in a measurement within it, to a kind of compute."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A measurement begins."""
        self._settle()
        self._open.append((name, 0.0))

    def leave(self) -> None:
        """The innermost measurement ends."""
        self._settle()
        self._open.pop()

    def reset(self) -> None:
        """Begin anew."""
        self.seconds.clear()
        self.compute.clear()

    def copy(self) -> Stopwatch:
        """What it shows now."""
        found = Stopwatch()
        found.seconds.update(self.seconds)
        found.compute.update(self.compute)
        return found

    def kinds(self, phase: str | None = None) -> dict[str, float]:
        """Seconds of each kind in a phase, or in all."""
        found: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        for (where, kind), spent in self.compute.items():
            if phase in (None, where):
                found[kind] += spent
        return found

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.compute[self._phase, self._open[-1][0]] += now - self._since
        self._since = now


@contextmanager
def watched(team: Team, watch: Stopwatch) -> Iterator[None]:
    """Measure all compute of a team for the length of a `with`."""
    with ExitStack() as stack:
        for backend in team.backends:
            for kind, module in (("decoder", backend.base.backbone), ("head", backend.base.head)):
                stack.enter_context(_module(watch, kind, module))
        before = register_optimizer_step_pre_hook(lambda *_: watch.enter("optimiser"))
        after = register_optimizer_step_post_hook(lambda *_: watch.leave())
        stack.callback(before.remove)
        stack.callback(after.remove)
        stack.enter_context(_phases(watch))
        for kind, paths in FUNCTIONS.items():
            for path in paths:
                stack.enter_context(_function(watch, kind, path))
        yield


@contextmanager
def _phases(watch: Stopwatch) -> Iterator[None]:
    """Hear of the phases that the training loop gives to its clock."""
    theirs = Clock.phase

    @contextmanager
    def phase(clock: Clock, name: str) -> Iterator[None]:
        with watch.phase(name), theirs(clock, name):
            yield

    with patch.object(Clock, "phase", phase):
        yield


@contextmanager
def _module(watch: Stopwatch, kind: str, module: torch.nn.Module) -> Iterator[None]:
    before = module.register_forward_pre_hook(lambda *_: watch.enter(kind))
    after = module.register_forward_hook(lambda *_: watch.leave(), always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@contextmanager
def _function(watch: Stopwatch, kind: str, path: str) -> Iterator[None]:
    theirs: Callable[..., Any] = resolve_name(path)

    def measured(*given: Any, **named: Any) -> Any:
        with watch.kind(kind):
            return theirs(*given, **named)

    with patch(path, measured):
        yield
