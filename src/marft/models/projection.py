"""Log-probabilities through a frozen vocabulary projection, without ever keeping logits.

For logits z = W h / T, the gradient of log p(w) in h is (w_w - sum_v p_v w_v) / T: one vector per position, computed
beside the log-probability while the position's logits are at hand. A backward pass then needs no logits, and no second
forward pass: memory is bounded by one chunk however many positions there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK = 128  # positions at a time: chunk x vocabulary floats of memory, few enough to be allocated fast


def scores(
    head: nn.Linear, states: Tensor, where: Tensor, tokens: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [K] of `tokens` [K] at positions `where` [K] of states [M, H], and entropies [K] (or zeros).

    The log-probabilities come with a gradient in `states`; the entropies are values.
    """
    return _Scores.apply(states, head, where, tokens, temperature, entropy)  # type: ignore[no-any-return,no-untyped-call]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: nn.Linear, where: Tensor, tokens: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(states.dtype, torch.float32)
        first = tokens.new_zeros(len(states))  # one of the tokens asked for at each position, whichever
        first[where] = tokens
        found = torch.zeros(len(tokens), dtype=precise, device=states.device)
        spread = torch.zeros(len(states), dtype=precise, device=states.device)
        learning = ctx.needs_input_grad[0]
        away = torch.empty_like(states) if learning else states  # sum_v p_v w_v - w_first, per position
        for start in range(0, len(states), CHUNK):
            part = slice(start, start + CHUNK)
            logs = head(states[part]).to(precise)
            logs = (logs if temperature == 1.0 else logs.div_(temperature)).log_softmax(-1)
            mine = ((where >= start) & (where < start + CHUNK)).nonzero().squeeze(-1)
            found[mine] = logs[where[mine] - start, tokens[mine]]
            if entropy:
                spread[part] = torch.special.entr(logs.exp()).sum(-1)
            if learning:
                chances = logs.exp_()
                # In full precision, before rounding: of a probability near 1 only the rest counts
                chances[torch.arange(len(chances), device=chances.device), first[part]] -= 1.0
                away[part] = chances.to(states.dtype) @ head.weight
        if learning:
            ctx.save_for_backward(away, where, tokens, first, head.weight)
            ctx.temperature = temperature
        entropies = spread[where]
        ctx.mark_non_differentiable(entropies)
        return found, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        away, where, tokens, first, weight = ctx.saved_tensors
        gradient = gradient / ctx.temperature
        total = torch.zeros(len(away), dtype=gradient.dtype, device=away.device).index_add_(0, where, gradient)
        result = away * -total[:, None]
        # Where rows part, their tokens differ from the position's first
        other = (tokens != first[where]).nonzero().squeeze(-1)
        apart = (weight[tokens[other]] - weight[first[where[other]]]) * gradient[other, None]
        result.index_add_(0, where[other], apart.to(result.dtype))
        return result.to(away.dtype), None, None, None, None, None
