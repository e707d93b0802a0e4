"""Drawing tokens: one uniform number per reply and step, so that a draw depends on its own row alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marft.config import SamplingConfig


def uniform(seed: Sequence[int], count: int) -> np.ndarray:
    """The numbers [count] in [0, 1) that draw a reply's tokens, by its request's seed alone."""
    return np.random.default_rng(tuple(seed)).random(count, dtype=np.float32)


def choose(
    logits: Tensor, draws: Tensor, samplings: Sequence[SamplingConfig], greedy: Sequence[bool]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [n, V] by inverting the cumulative distribution at `draws` [n] in [0, 1).

    Returns tokens and their log-probabilities at each row's temperature, before any top-k/top-p filter: that is the
    distribution the learner scores. Greedy rows take the most probable token.
    """
    scaled = logits.float()
    if any(each.temperature != 1 for each in samplings):
        scaled = scaled / torch.tensor([each.temperature for each in samplings], device=logits.device)[:, None]
    # One pass over [n, V] each for softmax, its sum and the search: on a CPU these cost as much as a layer of the model
    probabilities = _filtered(torch.softmax(scaled, dim=-1), samplings)
    cumulative = probabilities.cumsum(-1)
    tokens = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).squeeze(-1)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    # Rounding may push a draw past the last token that has any probability
    best = [
        row
        for row, (always, chance) in enumerate(zip(greedy, _at(probabilities, tokens).tolist(), strict=True))
        if always or chance == 0
    ]
    if best:
        tokens[best] = scaled[best].argmax(-1)
    chosen = _at(scaled, tokens) - torch.logsumexp(scaled, dim=-1)
    return tokens.tolist(), chosen.tolist()


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    """Of [n, V], the entry [n] of each row's token."""
    return values.gather(-1, tokens[:, None]).squeeze(-1)


def _filtered(probabilities: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    """Probabilities with what top-k and top-p leave out at 0 (not renormalised)."""
    if all(each.top_k is None and each.top_p is None for each in samplings):
        return probabilities
    result = probabilities.clone()
    for row, each in enumerate(samplings):
        order = probabilities[row].argsort(descending=True, stable=True)
        keep = len(order)
        if each.top_k is not None:
            keep = min(keep, each.top_k)
        if each.top_p is not None:
            sorted_ = probabilities[row, order]
            keep = min(keep, int((sorted_.cumsum(0) - sorted_ < each.top_p).sum()))
        result[row, order[max(keep, 1) :]] = 0
    return result
