"""Where keys and values live while replies grow: one row per slot, positions counted from its own start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


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

    def advance(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """The next `update` writes row i's new key at position `at[i]` [n]; returns the mask [n, 1, 1, longest]."""
        self._rows = torch.arange(len(at), device=at.device)
        self._at = at
        self._longest = int(at.max()) + 1
        seen = torch.arange(self._longest, device=at.device) <= at[:, None]
        return torch.zeros(seen.shape, dtype=dtype, device=at.device).masked_fill_(~seen, float("-inf"))[:, None, None]

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one new key and value per row [n, heads, 1, d]; attend to all of the row."""
        self.keys[layer][self._rows, :, self._at] = keys[:, :, 0]
        self.values[layer][self._rows, :, self._at] = values[:, :, 0]
        used = len(self._rows)
        return self.keys[layer][:used, :, : self._longest], self.values[layer][:used, :, : self._longest]

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
