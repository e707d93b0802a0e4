"""What learning made of each action, from tensors back to the actions they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from marft.learn.update import Lesson
from marft.types import Trace

Keep = Callable[[Sequence[Trace]], None]
"""Told what became of the actions that an iteration learnt from."""

Origin = tuple[str, int, int]
"""Where a row comes from: group and sample of its episode, place of its action."""


def traces(origins: Sequence[Origin], lesson: Lesson, ratios: Tensor) -> list[Trace]:
    """A trace of every row whose agent learns; `ratios` [N, S] are new over old probabilities, NaN where not measured.

    Numbers are rounded to 4 decimals.
    """
    batch = lesson.batch
    found = []
    for row in lesson.learning.nonzero().squeeze(1).tolist():
        tokens = batch.action_mask[row]
        advantages = _rounded(lesson.credit.advantages[row, tokens])
        whole = not torch.equal(batch.decision_mask[row], tokens)  # the action is one decision
        group, sample, place = origins[row]
        measured = not bool(ratios[row, tokens].isnan().any())
        found.append(
            Trace(
                group,
                sample,
                place,
                int(batch.version[row]),  # the policy of version i plays iteration i
                advantages[0] if whole or len(advantages) == 1 else advantages,
                _rounded(ratios[row, tokens]) if measured else None,
            )
        )
    return found


def _rounded(numbers: Tensor) -> tuple[float, ...]:
    return tuple(round(each, 4) for each in numbers.tolist())
