"""The centralised critic: a value head on the shared base with an adapter of its own, reading the joint view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from marft.models.pack import Packed
from marft.models.policy import Policy


class Critic:
    """V(joint view) = w · norm(h) / H + b on the last hidden state h [H], through an adapter of its own, called `name`.

    The head starts at zero, so an untrained critic is a zero baseline. Hidden states are brought to unit scale and the
    sum is divided by their width H, so that one learning rate fits all models: a step of Adam moves every weight by
    about `head_lr`, and so V by about as much. Undivided it would move V by H times that, and never settle.
    """

    def __init__(self, policy: Policy, name: str = "critic") -> None:
        self.policy = policy
        self.name = name
        self.head = nn.Linear(policy.base.head.weight.shape[1], 1, device=policy.base.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The value head and the critic's adapter, by name."""
        head = {f"head.{name}": each for name, each in self.head.named_parameters()}
        return {**head, **self.policy.parameters(self.name)}

    def values(self, packed: Packed, starts: Sequence[int]) -> tuple[tuple[int, ...], Tensor, tuple[int, ...]]:
        """Values before token `starts[row]`, `starts[row]+1`, … of each row; rows in pack order, values flat.

        A row that ends at `starts[row]` has one value, at its end (action level); a longer one has a value before each
        of its remaining tokens (token level). Returns (rows, values [ΣK], lengths).
        """
        places, lengths = [], []
        for row, path in zip(packed.rows, packed.paths, strict=True):
            count = max(1, len(path) - starts[row])
            places.append(path[starts[row] - 1 : starts[row] - 1 + count])
            lengths.append(count)
        nodes = torch.from_numpy(np.concatenate(places)).to(self.policy.base.device)
        states = self.policy.hidden(packed, self.name)[nodes].float()
        scaled = nn.functional.rms_norm(states, states.shape[-1:]) / states.shape[-1]
        return packed.rows, self.head(scaled).squeeze(-1), tuple(lengths)
