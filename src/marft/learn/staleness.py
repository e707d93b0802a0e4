"""Learning from what older policies played: the weight that corrects for it, and how far off the play is.

The decoupled objective (Hilton et al., arXiv 2110.00641; for asynchronous training of language models AReaL, Fu et al.,
arXiv 2505.24298): the clip is around the policy as it was before this update, pi_old, whoever played; a weight
pi_old / mu accounts for the policy mu that did.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marft.learn.losses import LOG_RATIO_LIMIT, importance_weight, quantiles


def stale_weight(log_ratio: Tensor, stale: Tensor, cap: float) -> Tensor:
    """min(pi_old / mu, cap) where the row is `stale` [N], exactly 1 elsewhere, without gradient.

    `log_ratio` = log pi_old - log mu of each decision: [N] at action level, [N, S] at token level.
    """
    rows = stale if log_ratio.dim() == 1 else stale[:, None]
    return torch.where(rows, importance_weight(log_ratio, cap), 1.0)


def effective_share(weights: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) of all n entries: the share of the sample that weighted means are as good as.

    1 for equal weights, 1 / n when one has it all (Kong's effective sample size over n); 1.0 when there are none.
    """
    flat = weights.detach().double().flatten()
    total = float(flat.square().sum())
    return float(flat.sum()) ** 2 / (flat.numel() * total) if total > 0 else 1.0


def ratio_sums(log_ratio: Tensor, mask: Tensor) -> tuple[float, float, int]:
    """Sum, sum of squares and number of the ratios exp(log_ratio) on `mask`: what `share_of` needs, pack by pack."""
    ratios = log_ratio.detach()[mask.bool()].double().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return float(ratios.sum()), float(ratios.square().sum()), ratios.numel()


def share_of(total: float, squares: float, count: float) -> float:
    """`effective_share` from sums over parts."""
    return total**2 / (count * squares) if squares > 0 else 1.0


def off_policy(weights: Tensor, mask: Tensor, ages: Tensor) -> dict[str, float]:
    """How stale rows are: `age_mean`, `age_max` over rows `ages` [N]; `weight_*` quantiles and `ess` over `mask`.

    `ess` is the effective share of the weights. Empty when there are no rows.
    """
    if not len(ages):
        return {}
    chosen = weights[mask.bool()]
    age = {"age_mean": float(ages.double().mean()), "age_max": float(ages.max())}
    return {**age, **quantiles(chosen, "weight"), "ess": effective_share(chosen)}
