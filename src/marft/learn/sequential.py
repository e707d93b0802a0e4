"""Agent-by-agent updates: who is updated in an iteration, and what the earlier updates do to the later ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from marft.learn.losses import LOG_RATIO_LIMIT

Schedule = Literal["sequential", "alternate", "simultaneous"]
Order = Literal["declared", "reverse", "random"]


def update_order(
    agents: Sequence[str], schedule: Schedule, order: Order, iteration: int, seed: int = 0
) -> tuple[str, ...]:
    """Which of the trainable `agents` (as declared) are updated in this iteration, first to last.

    `sequential`: all of them in `order`. `alternate`: one, going round in `order`; every agent has its turn once in
    every len(agents) iterations. `simultaneous`: all as declared, because the caller updates each from the same
    joint policy with no carry and the order cannot matter. `random` is a function of `seed` and `iteration` alone,
    so that a resumed run goes on as it would have.
    """
    if not agents:
        raise ValueError("no agent to update")
    if schedule == "simultaneous":
        return tuple(agents)
    if schedule == "sequential":
        return _arrange(agents, order, iteration, seed)
    cycle, place = divmod(iteration, len(agents))
    return (_arrange(agents, order, cycle, seed)[place],)


def carry_on(carry: Tensor, log_ratio: Tensor, episode: Tensor, turn: Tensor, updated: Tensor, clip: float) -> Tensor:
    """HAPPO's factor M^{m+1} [N] after one more agent was updated, M^1 being all ones.

    A row's factor is multiplied by the product of new / old ratios of the just updated agent's actions in the same
    `episode` and `turn` (all [N]), and kept within [1 / (1 + clip), 1 + clip]. `log_ratio` [N] is that of whole
    actions, not divided by their length: M is a ratio of probabilities. It is read at `updated` rows only, and those
    keep their own factor. No gradient.

    M^{m+1} = M^m * prod pi_new / pi_old (Kuba et al., arXiv 2109.11251; Zhong et al., arXiv 2304.09870).
    """
    mine = updated.bool()
    moves = torch.where(mine, log_ratio.detach(), 0.0)
    together = torch.unique(torch.stack([episode, turn]), dim=1, return_inverse=True)[1]
    shared = torch.zeros_like(moves).index_add(0, together, moves)[together]
    factor = shared.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().to(carry.dtype)
    return torch.where(mine, carry, (carry * factor).clamp(1.0 / (1.0 + clip), 1.0 + clip))


def _arrange(agents: Sequence[str], order: Order, number: int, seed: int) -> tuple[str, ...]:
    if order == "declared":
        return tuple(agents)
    if order == "reverse":
        return tuple(reversed(agents))
    # A text seed is hashed with SHA-512: the same on every machine, and (1, 23) differs from (12, 3)
    return tuple(random.Random(f"update order {seed} {number}").sample(list(agents), len(agents)))
