"""Where keys and values live while replies grow: one row per slot, positions counted from its own start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marft.models.attention import additive


class Prefill:
    """Keeps the keys and values of a packed prompt pass, one pair [heads, T, d] per layer."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Note what a layer computed (batch 1) and attend to just that."""
        assert layer == len(self.layers), "layers report in order"
        self.layers.append((keys[0], values[0]))
        return keys, values


class Slots:
    """Keys and values [slots, heads, room, d] per layer; the first n slots are in use.

    Room grows as needed and is never more than the longest running reply asks for, rounded up.
    """

    STEP = 64

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._rows = torch.empty(0, dtype=torch.long)
        self._used: slice | Tensor = slice(0)
        self._at = torch.empty(0, dtype=torch.long)
        self._longest = 0

    def fill(self, prefill: Prefill, paths: Sequence[np.ndarray], first: int, room: int) -> None:
        """Copy prompts into slots first, first+1, …: slot i gets the keys along `paths[i]`."""
        self._ensure(prefill, room)
        longest = max(len(path) for path in paths)
        # Padding repeats node 0; nothing ever attends beyond a row's own length
        index = np.zeros((len(paths), longest), dtype=np.int64)
        for row, path in enumerate(paths):
            index[row, : len(path)] = path
        where = torch.from_numpy(index)
        for layer, (keys, values) in enumerate(prefill.layers):
            where = where.to(keys.device)
            self.keys[layer][first : first + len(paths), :, :longest] = keys[:, where].transpose(0, 1)
            self.values[layer][first : first + len(paths), :, :longest] = values[:, where].transpose(0, 1)

    def advance(
        self, at: Tensor, dtype: torch.dtype, window: int | None = None, rows: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        """The next `update` writes the new key of slot `rows[i]` (default: i) at position `at[i]` [n].

        Returns the backbone's masks [n, 1, 1, longest], with one for layers that have a sliding `window` if one of
        the rows is longer than it.
        """
        self._rows = torch.arange(len(at), device=at.device) if rows is None else torch.tensor(rows, device=at.device)
        self._used = slice(len(at)) if rows is None else self._rows  # a view of the cache, or a copy of some of it
        self._at = at
        self._longest = int(at.max()) + 1
        back = at[:, None] - torch.arange(self._longest, device=at.device)
        masks = {"attention_mask": additive(back >= 0, dtype)[:, None, None]}
        if window is not None and self._longest > window:
            masks["windowed_mask"] = additive((back >= 0) & (back < window), dtype)[:, None, None]
        return masks

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one new key and value per row [n, heads, 1, d]; attend to all of the row."""
        self.keys[layer][self._rows, :, self._at] = keys[:, :, 0]
        self.values[layer][self._rows, :, self._at] = values[:, :, 0]
        return self.keys[layer][self._used, :, : self._longest], self.values[layer][self._used, :, : self._longest]

    def move(self, source: int, target: int) -> None:
        """Copy a slot over another."""
        for layer in range(len(self.keys)):
            self.keys[layer][target] = self.keys[layer][source]
            self.values[layer][target] = self.values[layer][source]

    def _ensure(self, prefill: Prefill, room: int) -> None:
        have = self.keys[0].shape[2] if self.keys else 0
        if room <= have:
            return
        room = -(-room // self.STEP) * self.STEP
        for each, place in ((self.keys, 0), (self.values, 1)):
            grown = []
            for layer, pair in enumerate(prefill.layers):
                heads, _, size = pair[place].shape
                fresh = pair[place].new_zeros(self.count, heads, room, size)
                if have:
                    fresh[:, :, :have] = each[layer]
                grown.append(fresh)
            each[:] = grown
