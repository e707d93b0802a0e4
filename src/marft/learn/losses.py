"""Losses and the numbers that watch them: tensors in, tensors out (docs/algorithm.md and docs/metrics.md).

Losses are per element or SUMS, never means. A caller divides by the number of decisions of the *full* batch, so that
the losses of micro-batches add up to the full batch's and a short micro-batch does not weigh more than a long one.

`mask` says which elements exist. What lies off it may be anything, NaN included, and reaches neither a result nor a
gradient: it is replaced before any arithmetic that could turn it into NaN (0 * NaN is NaN, in backward as well).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

# exp(20) is far outside any clip; beyond it float32 overflows, and inf * 0 in backward is NaN
LOG_RATIO_LIMIT = 20.0


def token_logprobs(
    logits: Tensor, tokens: Tensor, temperature: float | Tensor = 1.0, rows: Tensor | None = None
) -> Tensor:
    """Log-probability of each of `tokens` [...] under softmax(logits / T), `logits` [..., V], in float32 or better.

    `temperature` is one number or one per token (broadcast to [...]): the same T must be used to draw and to score.
    With `rows` [K], token k [K] is scored under row `rows[k]` of `logits` [M, V]; each row is normalised once.
    """
    scaled = _scale(logits, temperature)
    total = scaled.logsumexp(-1)  # never a whole [..., V] of log-probabilities, whose gradient would cost as much again
    if rows is not None:
        return scaled[rows, tokens] - total[rows]
    return scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - total


def entropy(logits: Tensor, mask: Tensor | None = None, temperature: float | Tensor = 1.0, chunk: int = 1024) -> Tensor:
    """Exact entropy in nats of softmax(logits / T) at each position: `logits` [..., V] -> [...], 0 off `mask`.

    Computed `chunk` positions at a time, so that without gradients only one chunk's intermediates are in memory (with
    gradients all are kept; cut the logits before the call). A logit of -inf is a token that cannot be drawn.
    """
    shape = logits.shape[:-1]
    blank = torch.zeros(shape, dtype=_precise(logits), device=logits.device)
    keep = torch.ones_like(blank, dtype=torch.bool) if mask is None else mask.bool()
    chosen = logits.reshape(-1, logits.shape[-1]) if mask is None else logits[keep]
    heat = torch.as_tensor(temperature, dtype=blank.dtype, device=blank.device).expand(shape)[keep]
    parts = [_entropy(*part) for part in zip(torch.split(chosen, chunk), torch.split(heat, chunk), strict=True)]
    return blank.masked_scatter(keep, torch.cat(parts))


def action_divisor(kind: Literal["sum", "token", "word"], action_mask: Tensor, words: Tensor) -> Tensor:
    """What an action's log-probability is divided by, [N]: 1, its tokens (`action_mask` [N, S]) or its `words` [N]."""
    if kind == "sum":
        return torch.ones(action_mask.shape[0], device=action_mask.device)
    return (action_mask.bool().sum(dim=1) if kind == "token" else words).clamp(min=1).float()


def action_log_ratio(new: Tensor, old: Tensor, mask: Tensor, divisor: Tensor) -> Tensor:
    """log of pi_new(a) / pi_old(a) per action, divided by `divisor` [N]: log-probabilities [N, S] -> [N] (MARFT-A)."""
    return token_log_ratio(new, old, mask).sum(dim=1) / divisor


def token_log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """log of pi_new(w) / pi_old(w) per token, 0 off `mask`: [N, S] -> [N, S] (MARFT-T)."""
    return torch.where(mask.bool(), new - old, 0.0)


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """PPO's loss to minimise, per element ([N] or [N, S]): max(-rho A, -clip(rho, 1 - clip_low, 1 + clip_high) A).

    Elements off a mask are 0 when both arguments are 0 there, as `token_log_ratio` and `Credit` leave them.
    (Schulman et al., arXiv 1707.06347.)
    """
    ratio = _exp(log_ratio)
    return torch.maximum(-ratio * advantages, -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    kind: Literal["huber", "mse"] = "huber",
    delta: float = 10.0,
    clip: float | None = None,
) -> Tensor:
    """Sum over `mask` of the critic's loss, all tensors of one shape.

    With e = V - R: `mse` is e^2 / 2; `huber` is e^2 / 2 where |e| <= delta and delta (|e| - delta / 2) beyond, on both
    sides, so that it equals `mse` for a large delta. With `clip`, the larger of the loss of V and of V kept within
    `clip` of the old value, as PPO does.
    """
    keep = mask.bool()
    now, before, target = values[keep], old_values[keep].detach(), returns[keep].detach()
    loss = _error(now - target, kind, delta)
    if clip is not None:
        near = before + (now - before).clamp(-clip, clip)
        loss = torch.maximum(loss, _error(near - target, kind, delta))
    return loss.sum()


def approx_kl(log_ratio: Tensor, mask: Tensor, kind: Literal["k1", "k3"] = "k3") -> Tensor:
    """Sum over `mask` of an estimate of KL(old || new) from samples of old; `log_ratio` = log new - log old.

    `k1` is -x: unbiased, of either sign. `k3` is exp(x) - 1 - x: unbiased, never negative, of smaller variance.
    (Schulman, "Approximating KL divergence", 2020.)
    """
    x = log_ratio[mask.bool()]
    return (-x if kind == "k1" else _k3(x)).sum()


def reference_kl(new: Tensor, reference: Tensor, mask: Tensor, kind: Literal["k1", "k3"] = "k3") -> Tensor:
    """Per-token estimate of KL(new || reference) from samples of new, 0 off `mask`: [N, S] -> [N, S].

    With x = log reference - log new: `k3` (exp(x) - 1 - x) belongs in a loss, `k1` (-x) in a reward. As a loss, k1
    would have a gradient of mean 0. `reference` gets no gradient.
    """
    x = torch.where(mask.bool(), reference.detach() - new, 0.0)
    return -x if kind == "k1" else _k3(x)


def importance_weight(log_ratio: Tensor, cap: float) -> Tensor:
    """min(exp(log_ratio), cap) without gradient; `log_ratio` = log proximal - log behaviour, per action or token.

    It corrects for actions drawn from a policy that is not quite the one called old (another engine, or stale play);
    make `log_ratio` with `action_log_ratio` or `token_log_ratio`, which leave weight 1 off the mask. The truncation
    bounds the variance and lets a little bias in (Ionides, 2008).
    """
    return _exp(log_ratio.detach()).clamp(max=cap)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over `mask`: 1 is perfect, 0 as good as a constant, below 0 worse than that.

    0.0 when the returns are constant, or there are none: then there is no variance to explain.
    """
    keep = mask.bool()
    predicted, actual = values[keep].detach().double(), returns[keep].detach().double()
    if actual.numel() == 0:
        return 0.0
    spread = float(actual.std(correction=0))
    if spread <= 1e-6 * float(actual.abs().max()):
        return 0.0
    return 1.0 - float((actual - predicted).var(correction=0)) / spread**2


def ratio_statistics(log_ratio: Tensor, mask: Tensor, clip_low: float, clip_high: float) -> dict[str, float]:
    """`ratio_p05`, `ratio_p50`, `ratio_p95`, `ratio_max` and `clip_share`, the share of ratios outside the clip range.

    Empty when `mask` is: an agent that did not act has no ratios.
    """
    ratio = _exp(log_ratio.detach()[mask.bool()])
    if ratio.numel() == 0:
        return {}
    outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
    return {**quantiles(ratio, "ratio"), "clip_share": float(outside.double().mean())}


def quantiles(numbers: Tensor, name: str) -> dict[str, float]:
    """`{name}_p05`, `_p50`, `_p95` and `_max` of all entries of `numbers`; empty when there are none."""
    flat = numbers.detach().double().flatten()
    if flat.numel() == 0:
        return {}
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64, device=flat.device)
    low, middle, high = torch.quantile(flat, levels).tolist()
    return {f"{name}_p05": low, f"{name}_p50": middle, f"{name}_p95": high, f"{name}_max": float(flat.max())}


def sampler_gap(learner: Tensor, sampler: Tensor, mask: Tensor) -> dict[str, float]:
    """`max` and `mean` over `mask` of |learner's - sampler's log-probability|, in nats; empty when `mask` is."""
    gap = (learner.detach() - sampler.detach())[mask.bool()].abs().double()
    return {"max": float(gap.max()), "mean": float(gap.mean())} if gap.numel() else {}


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _scale(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """logits / T in float32 or better; bfloat16 has too few digits for a ratio that must start at 1."""
    precise = logits.to(_precise(logits))
    if isinstance(temperature, Tensor):
        return precise / (temperature.unsqueeze(-1) if temperature.dim() else temperature)
    return precise if temperature == 1.0 else precise / temperature  # a division by 1 still costs a copy of [..., V]


def _entropy(logits: Tensor, temperature: Tensor) -> Tensor:
    logp = _scale(logits, temperature).log_softmax(-1)
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)  # 0 log 0 is 0


def _error(error: Tensor, kind: Literal["huber", "mse"], delta: float) -> Tensor:
    squared = 0.5 * error.square()
    if kind == "mse":
        return squared
    size = error.abs()
    return torch.where(size <= delta, squared, delta * (size - 0.5 * delta))


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _k3(x: Tensor) -> Tensor:
    return x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() - x
