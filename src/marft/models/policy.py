"""The policy: one frozen base model and the adapters of all agents (and of the critic) on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from marft.config import LoraConfig
from marft.learn.losses import entropy as token_entropy
from marft.learn.losses import token_logprobs
from marft.models import projection
from marft.models.base import Base
from marft.models.pack import Packed, pack
from marft.models.weights import Backbone, FullWeights, Head, LoraAdapters, Weights

Entropy = Literal["gradient", "value", "none"]
Tuning = Literal["lora", "full"]
HEAD_CHUNK = 1024  # positions projected to the vocabulary at a time: bounds memory at chunk x vocabulary floats


@dataclass(frozen=True)
class Scores:
    """Of the rows of one pack, in its order: `logprobs` and `entropy` of every action token, flat [ΣA]; `lengths` A."""

    rows: tuple[int, ...]
    logprobs: Tensor
    entropy: Tensor
    lengths: tuple[int, ...]


class Policy:
    """Base plus named adapters. Only the adapter named in a call takes part in it; None is the bare base model."""

    def __init__(
        self, base: Base, lora: LoraConfig, adapters: Sequence[str], seed: int = 0, tuning: Tuning = "lora"
    ) -> None:
        self.adapters = tuple(dict.fromkeys(adapters))
        self.weights: Weights = (
            FullWeights(base, self.adapters) if tuning == "full" else LoraAdapters(base, lora, self.adapters, seed)
        )
        self.base = self.weights.base

    def parameters(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        """The adapter's own tensors by name: never another's, whichever adapter is active."""
        return self.weights.parameters(adapter)

    def acting_as(self, adapter: str | None) -> AbstractContextManager[Backbone]:
        """The backbone as one adapter computes it, or as the bare base does, for the length of a `with`."""
        return self.weights.acting_as(adapter)

    def head(self, adapter: str | None) -> Head:
        """The vocabulary projection of an adapter (states [..., H] -> logits [..., V]); callable at any time."""
        return self.weights.head(adapter)

    def hidden(self, packed: Packed, adapter: str | None) -> Tensor:
        """Last hidden states [T, H] of a packed sequence."""
        with self.acting_as(adapter) as backbone:
            inputs = packed.inputs(self.base.device, self.base.model.dtype, self.base.window)
            states: Tensor = backbone(**inputs, use_cache=False).last_hidden_state[0]
        return states

    def score(
        self, packed: Packed, starts: Sequence[int], adapter: str | None, temperature: float, entropy: Entropy = "value"
    ) -> Scores:
        """Log-probabilities of every row's tokens from `starts[row]` on, at the sampling temperature.

        `starts` is indexed by the row numbers given to `pack`. Only positions that predict an action token go through
        the vocabulary projection, each distinct one once. `entropy` comes with its gradient, as a value, or not at all
        (zeros).
        """
        froms, targets, lengths = [], [], []
        for row, path in zip(packed.rows, packed.paths, strict=True):
            start = starts[row]
            froms.append(path[start - 1 : -1])
            targets.append(path[start:])
            lengths.append(len(path) - start)
        nodes, place = np.unique(np.concatenate(froms), return_inverse=True)
        device = self.base.device
        states = self.hidden(packed, adapter)[torch.from_numpy(nodes).to(device)]
        tokens = packed.tokens[np.concatenate(targets)].to(device)
        where = torch.from_numpy(place).to(device)
        logprobs, spread = self._project(self.head(adapter), states, where, tokens, temperature, entropy)
        return Scores(packed.rows, logprobs, spread, tuple(lengths))

    def _project(
        self, head: Head, states: Tensor, where: Tensor, tokens: Tensor, temperature: float, entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        """Project states [M, H] in chunks; returns log-probabilities and entropies of (where, token) pairs, flat."""
        if type(head) is torch.nn.Linear and not head.weight.requires_grad and entropy != "gradient":
            return projection.scores(head, states, where, tokens, temperature, entropy == "value")
        logprobs = torch.zeros(len(tokens), device=states.device)
        spreads = torch.zeros(len(tokens), device=states.device)

        def chunk(part: Tensor, inside: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            logits = head(part)
            found = token_logprobs(logits, wanted, temperature, inside)
            if entropy == "none":
                return found, torch.zeros_like(found)
            with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
                return found, token_entropy(logits, temperature=temperature)[inside]

        for start in range(0, len(states), HEAD_CHUNK):
            mine = ((where >= start) & (where < start + HEAD_CHUNK)).nonzero().squeeze(-1)
            arguments = (states[start : start + HEAD_CHUNK], where[mine] - start, tokens[mine])
            if len(states) > HEAD_CHUNK and torch.is_grad_enabled():
                found, spread = checkpoint(chunk, *arguments, use_reentrant=False)
            else:
                found, spread = chunk(*arguments)
            logprobs = logprobs.index_put((mine,), found)
            spreads = spreads.index_put((mine,), spread)
        return logprobs, spreads

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int], adapter: str | None, temperature: float, budget: int
    ) -> list[Tensor]:
        """Per row the log-probabilities [A] of its tokens from `starts[row]` on, without gradients."""
        return [logprobs for logprobs, _ in self.measure(rows, starts, adapter, temperature, budget, "none")]

    @torch.no_grad()
    def measure(
        self,
        rows: Sequence[Sequence[int]],
        starts: Sequence[int],
        adapter: str | None,
        temperature: float,
        budget: int,
        entropy: Entropy = "value",
    ) -> list[tuple[Tensor, Tensor]]:
        """Per row log-probabilities and entropies, both [A], of its tokens from `starts[row]` on, without gradients."""
        result: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(rows)
        for packed in pack(rows, budget):
            scores = self.score(packed, starts, adapter, temperature, entropy)
            lengths = list(scores.lengths)
            pairs = zip(torch.split(scores.logprobs, lengths), torch.split(scores.entropy, lengths), strict=True)
            for row, pair in zip(scores.rows, pairs, strict=True):
                result[row] = pair
        return result
