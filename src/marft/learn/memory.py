"""What training remembers from one iteration to the next, besides weights and optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Memory:
    """Part of every checkpoint, so that a resumed run goes on as it would have.

    `running` is the running mean of returns per agent (`credit.baseline: running`). `lr_scale` is what the guard left
    of the learning rates after `rollbacks` rollbacks.
    """

    running: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    rollbacks: int = 0

    def state(self) -> dict[str, Any]:
        """Everything as plain values, for `checkpoint.save_state`."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        for each in fields(self):
            setattr(self, each.name, state[each.name])
