"""Drawing tokens inside vLLM by the rule of every engine here: `choose`, with a request's own uniform numbers.

vLLM returns log-probabilities at temperature 1, or those after temperature *and* top-k/top-p. A learner scores at the
sampling temperature before any filter. So the token is chosen here, where vLLM lets a custom logits processor change
the logits: what is left of a row is the chosen token alone, and in its place its log-probability. vLLM then takes the
only token there is (temperature 0) and returns the number (`logprobs_mode="processed_logits"`).

Only vLLM's own processes import this module: it needs vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Processor
from vllm.v1.sample.logits_processor import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Processor

from marft.config import SamplingConfig
from marft.generate.sampling import choose, uniform

KEY = "marft"  # of SamplingParams.extra_args


@dataclass(frozen=True)
class Rule:
    """How one request's tokens are drawn: `draws` [max_tokens] uniform numbers in [0, 1), one for each."""

    sampling: SamplingConfig
    greedy: bool
    draws: np.ndarray

    @classmethod
    def of(cls, params: Any) -> Rule | None:
        """The rule in vLLM's sampling parameters; None where nobody put one."""
        given = (params.extra_args or {}).get(KEY)
        if given is None:
            return None
        sampling = SamplingConfig(**given["sampling"])
        return cls(sampling, given["greedy"], uniform(given["seed"], sampling.max_tokens))

    def draw(self, drawn: int) -> float:
        """The number for the next token after `drawn` others. A prompt still being read is drawn for, and ignored."""
        return float(self.draws[min(max(drawn, 0), len(self.draws) - 1)])


def decide(logits: Tensor, rules: Mapping[int, tuple[Rule, int]]) -> Tensor:
    """Leave of the rows in `rules` (row -> rule, tokens drawn before) of `logits` [n, V] one token each, in place."""
    if not rules:
        return logits
    rows = torch.tensor(list(rules), device=logits.device)
    found = [rule for rule, _ in rules.values()]
    draws = torch.tensor([rule.draw(drawn) for rule, drawn in rules.values()], device=logits.device)
    tokens, logprobs = choose(logits[rows], draws, [rule.sampling for rule in found], [rule.greedy for rule in found])
    logits[rows] = float("-inf")
    logits[rows, torch.tensor(tokens, device=logits.device)] = torch.tensor(
        logprobs, device=logits.device, dtype=logits.dtype
    )
    return logits


class DrawV1(V1Processor):  # type: ignore[misc]
    """For vLLM's first model runner, which is the one on CPUs."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Rule, Sequence[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """No: it decides what the largest is."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests as they come, go and move."""
        process_dict_updates(self._rows, batch_update, self._row)

    def apply(self, logits: Tensor) -> Tensor:
        """Draw for every row; vLLM keeps the lists of output tokens current."""
        rules = {row: (rule, len(output)) for row, (rule, output) in self._rows.items() if row < len(logits)}
        return decide(logits, rules)

    @staticmethod
    def _row(params: Any, prompt: list[int] | None, output: list[int]) -> tuple[Rule, Sequence[int]] | None:
        rule = Rule.of(params)
        return None if rule is None else (rule, output)


class DrawV2(V2Processor):  # type: ignore[misc]
    """For vLLM's second model runner, the default on GPUs since 0.32."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._prompts = req_states.prompt_len
        self._slots: dict[int, Rule] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Note a request's rule under its slot, which another one may have had before."""
        self._slots.pop(req_idx, None)
        rule = Rule.of(sampling_params)
        if rule is not None:
            self._slots[req_idx] = rule
        return rule is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Draw for every row; without speculative decoding each request has one, and lengths on the host are exact."""
        rules = {}
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            if slot in self._slots:
                drawn = int(ctx.seq_lens_upper_bound_np[row]) - int(self._prompts.np[slot])
                rules[row] = (self._slots[slot], drawn)
        return decide(logits, rules)
