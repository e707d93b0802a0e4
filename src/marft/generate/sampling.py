"""Drawing tokens: one uniform number per reply and step, so that a draw depends on its own row alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marft.config import SamplingConfig


def choose(
    logits: Tensor, draws: Tensor, samplings: Sequence[SamplingConfig], greedy: Sequence[bool]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [n, V] by inverting the cumulative distribution at `draws` [n] in [0, 1).

    Returns tokens and their log-probabilities at each row's temperature, before any top-k/top-p filter: that is the
    distribution the learner scores. Greedy rows take the most probable token.
    """
    temperature = torch.tensor([each.temperature for each in samplings], device=logits.device)
    logs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    allowed = _filtered(logs, samplings)
    cumulative = allowed.exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).squeeze(-1)
    # Rounding may push a draw past the last token that has any probability
    best = logs.argmax(-1)
    drawn = drawn.clamp(max=logs.shape[-1] - 1)
    drawn = torch.where(allowed.gather(-1, drawn[:, None]).squeeze(-1).isinf(), best, drawn)
    tokens = torch.where(torch.tensor(greedy, device=logits.device), best, drawn)
    chosen = logs.gather(-1, tokens[:, None]).squeeze(-1)
    return tokens.tolist(), chosen.tolist()


def _filtered(logs: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    """Log-probabilities with what top-k and top-p leave out at -inf (not renormalised)."""
    if all(each.top_k is None and each.top_p is None for each in samplings):
        return logs
    result = logs.clone()
    for row, each in enumerate(samplings):
        order = logs[row].argsort(descending=True, stable=True)
        keep = len(order)
        if each.top_k is not None:
            keep = min(keep, each.top_k)
        if each.top_p is not None:
            before = logs[row, order].exp().cumsum(0) - logs[row, order].exp()
            keep = min(keep, int((before < each.top_p).sum()))
        result[row, order[max(keep, 1) :]] = float("-inf")
    return result
