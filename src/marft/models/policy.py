"""The policy: one frozen base model and the LoRA adapters of all agents (and of the critic) on top of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from marft.config import LoraConfig
from marft.learn.losses import entropy as token_entropy
from marft.learn.losses import token_logprobs
from marft.models.base import Base
from marft.models.pack import Packed, pack
from marft.types import MarftError

Entropy = Literal["gradient", "value", "none"]
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

    def __init__(self, base: Base, lora: LoraConfig, adapters: Sequence[str], seed: int = 0) -> None:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

        self.base = base
        self.adapters = tuple(dict.fromkeys(adapters))
        settings = PeftConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.targets, task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            for position, name in enumerate(self.adapters):
                torch.manual_seed(_seed_of(seed, name))
                try:
                    if position == 0:
                        self.peft: Any = get_peft_model(base.model, settings, adapter_name=name)
                    else:
                        self.peft.add_adapter(name, settings)
                except KeyError:  # torch keeps adapters by name beside its own methods, such as `train` or `type`
                    raise MarftError(f"team.agents: no adapter can be called '{name}'; choose another name") from None
                except ValueError as error:
                    raise MarftError(f"lora.targets: {lora.targets} do not fit {base.name}: {error}") from None
        self.peft.eval()
        self.routed = Routed(self)
        self._parameters = {name: _adapter_parameters(self.peft, name) for name in self.adapters}
        for parameters in self._parameters.values():
            for parameter in parameters.values():
                parameter.data = parameter.data.float()

    def parameters(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        """The adapter's own tensors by name: never another's, whichever adapter is active."""
        return self._parameters[adapter]

    def load_parameters(self, adapter: str, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite an adapter in place. Raises `MarftError` when names or shapes do not fit."""
        own = self._parameters[adapter]
        if set(own) != set(tensors) or any(own[name].shape != tensors[name].shape for name in own):
            raise MarftError(
                f"adapter '{adapter}': its tensors do not fit this model and lora section (other r or targets?)"
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[name])

    @contextmanager
    def acting_as(self, adapter: str | None) -> Iterator[Any]:
        """Route the backbone through one adapter, or through none; yields the backbone."""
        if adapter is None:
            try:
                with self.peft.disable_adapter():
                    yield self.base.backbone
            finally:
                self._thaw()
        else:
            self.peft.set_adapter(adapter)
            self._thaw()
            yield self.base.backbone

    def _thaw(self) -> None:
        """Undo what peft does at every switch: a graph that holds a frozen adapter loses its gradient in silence."""
        for parameters in self._parameters.values():
            for parameter in parameters.values():
                parameter.requires_grad_(True)

    def hidden(self, packed: Packed, adapter: str | None) -> Tensor:
        """Last hidden states [T, H] of a packed sequence."""
        with self.acting_as(adapter) as backbone:
            inputs = packed.inputs(self.base.device, self.base.model.dtype)
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
        logprobs, spread = self._project(states, where, tokens, temperature, entropy)
        return Scores(packed.rows, logprobs, spread, tuple(lengths))

    def _project(
        self, states: Tensor, where: Tensor, tokens: Tensor, temperature: float, entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        """Project states [M, H] in chunks; returns log-probabilities and entropies of (where, token) pairs, flat."""
        logprobs = torch.zeros(len(tokens), device=states.device)
        spreads = torch.zeros(len(tokens), device=states.device)

        def chunk(part: Tensor, inside: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.base.head(part)
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


class Routed:
    """Decoding with a different adapter in every row of one batch (inference only)."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def hidden(self, adapters: Sequence[str | None], **inputs: Any) -> Tensor:
        """Last hidden states [n, q, H] of a batch whose row i goes through adapter `adapters[i]`."""
        peft, backbone = self.policy.peft, self.policy.base.backbone
        names = ["__base__" if name is None else name for name in adapters]
        if len(set(names)) == 1:
            with self.policy.acting_as(adapters[0]):
                states: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
            return states
        failure: BaseException | None = None
        with peft.base_model._enable_peft_forward_hooks(adapter_names=names):
            try:
                states = backbone(**inputs, use_cache=False).last_hidden_state
            except BaseException as error:
                failure = error  # peft takes its hooks off only when nothing is raised inside
        if failure is not None:
            raise failure
        return states


def _adapter_parameters(peft: Any, adapter: str) -> dict[str, torch.nn.Parameter]:
    # The name right after lora_A or lora_B and no other: agents may be called "0" or "mlp", as parts of a model are
    mine = re.compile(rf"(\.lora_\w+)\.{re.escape(adapter)}(?=\.|$)")
    found = {mine.sub(r"\1", name): each for name, each in peft.named_parameters() if mine.search(name)}
    return found


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
