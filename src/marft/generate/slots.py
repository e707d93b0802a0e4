"""Where keys and values live while replies grow: one row per slot, positions counted from its own start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.generate.prefixes import Nodes, Prefixes
from marft.models.attention import additive
from marft.models.base import Base
from marft.models.blocks import Block, Tail, alike, block_of, padded


class Slots:
    """Keys and values [slots, heads, room, d] per layer; the first n slots are in use.

    Room grows as needed and is never more than the longest running reply asks for, rounded up.
    """

    STEP = 64

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def fill(self, prefixes: Prefixes, paths: Sequence[Nodes], first: int, room: int) -> None:
        """Copy prompts into slots first, first+1, …: slot i gets the keys along `paths[i]`."""
        self._ensure(prefixes, room)
        longest = max(len(path) for path in paths)
        # Padding repeats node 0; nothing ever attends beyond a row's own length
        index = np.zeros((len(paths), longest), dtype=np.int64)
        for row, path in enumerate(paths):
            index[row, : len(path)] = path
        for mine, theirs in ((self.keys, prefixes.keys), (self.values, prefixes.values)):
            for layer, known in enumerate(theirs):
                where = torch.from_numpy(index).to(known.device)
                mine[layer][first : first + len(paths), :, :longest] = known[:, where].transpose(0, 1)

    def keep(self, prefixes: Prefixes, nodes: Nodes, slots: Nodes, places: Nodes) -> None:
        """Give `prefixes` what slot `slots[i]` holds at position `places[i]`, as node `nodes[i]`."""
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            at = [torch.from_numpy(each).to(keys.device) for each in (nodes, slots, places)]
            prefixes.write(layer, at[0], keys[at[1], :, at[2]].transpose(0, 1), values[at[1], :, at[2]].transpose(0, 1))

    def move(self, source: int, target: int) -> None:
        """Copy a slot over another."""
        for layer in range(len(self.keys)):
            self.keys[layer][target] = self.keys[layer][source]
            self.values[layer][target] = self.values[layer][source]

    def _ensure(self, prefixes: Prefixes, room: int) -> None:
        have = self.keys[0].shape[2] if self.keys else 0
        if room <= have:
            return
        room = -(-room // self.STEP) * self.STEP
        for mine, theirs in ((self.keys, prefixes.keys), (self.values, prefixes.values)):
            grown = []
            for layer, known in enumerate(theirs):
                fresh = known.new_zeros(self.count, known.shape[0], room, known.shape[2])
                if have:
                    fresh[:, :, :have] = mine[layer]
                grown.append(fresh)
            mine[:] = grown


@dataclass(frozen=True)
class Sprouts:
    """New prompt tokens of like size: `block` says who sees whom, `tokens` [rows, queries] where they stand among all
    new tokens of a pass (-1: padding), `paths` [rows, keys] which nodes of the prefix tree their rows are made of."""

    block: Block
    tokens: Tensor
    paths: Tensor


class Step:
    """The keys and values of one flat pass: first the newest token of n running replies, then m new prompt tokens.

    The reply in slot `rows[i]` writes at position `at[i]` and attends to its slot up to there. Each of `tails` are the
    new tokens at the end of a path in the prefix tree, in the order of the pass: all write into the tree first, and
    attend to their path. What comes after them is padding and attends to nothing.
    """

    def __init__(
        self,
        slots: Slots,
        rows: Sequence[int],
        at: Sequence[int],
        prefixes: Prefixes,
        tails: Sequence[Tail],
        base: Base,
    ) -> None:
        dtype, device, window = base.model.dtype, base.device, base.window
        self._slots, self._prefixes = slots, prefixes
        self._count = len(rows)
        self._rows = torch.tensor(rows, dtype=torch.long, device=device)
        # A view of the cache where the rows are its first ones, else a copy of some of it
        self._used: slice | Tensor = slice(self._count) if list(rows) == list(range(self._count)) else self._rows
        self._at = torch.tensor(at, dtype=torch.long, device=device)
        self._longest = max(at, default=-1) + 1
        back = self._at[:, None] - torch.arange(self._longest, device=device)
        self._mask = additive(back >= 0, dtype)[:, None, None]
        self._windowed: Tensor | None = None
        if window is not None and self._longest > window:
            self._windowed = additive((back >= 0) & (back < window), dtype)[:, None, None]
        fresh = [path[start:] for start, path in tails]
        self._fresh = torch.from_numpy(np.concatenate(fresh) if fresh else np.zeros(0, dtype=np.int64)).to(device)
        first = dict(zip((int(part[0]) for part in fresh), np.cumsum([0, *map(len, fresh)]), strict=False))
        self._sprouts = []
        for group in alike(tails):
            block = block_of(group, device, dtype, window)
            places = [first[int(path[start])] + np.arange(len(path) - start) for start, path in group]
            tokens, paths = padded(places, block.queries), padded([path for _, path in group], block.keys)
            self._sprouts.append(
                Sprouts(block, torch.from_numpy(tokens).to(device), torch.from_numpy(paths.clip(0)).to(device))
            )

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        """Attention of one layer: query [1, h, T, d], key and value [1, h_kv, T, d] -> [1, h, T, d], T >= n + m."""
        replies, prompts = self._count, len(self._fresh)
        parts = []
        if replies:
            here = slice(replies)
            parts.append(self._replies(layer, query[:, :, here], key[0, :, here], value[0, :, here], scaling, window))
        if prompts:
            there = slice(replies, replies + prompts)
            self._prefixes.write(layer, self._fresh, key[0, :, there], value[0, :, there])
            parts.append(self._prompts(layer, query[0, :, there], scaling, window))
        padding = query.shape[2] - replies - prompts
        if padding:
            parts.append(query.new_zeros(1, query.shape[1], padding, value.shape[3]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _replies(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        keys, values = self._slots.keys[layer], self._slots.values[layer]
        keys[self._rows, :, self._at] = key.transpose(0, 1)
        values[self._rows, :, self._at] = value.transpose(0, 1)
        mask = self._mask if window is None or self._windowed is None else self._windowed
        # Query heads that share a key head become its queries, so that the cache is never repeated
        folded = query[0].transpose(0, 1).reshape(self._count, len(key), -1, query.shape[-1])
        seen = scaled_dot_product_attention(
            folded, keys[self._used, :, : self._longest], values[self._used, :, : self._longest],
            attn_mask=mask, scale=scaling,
        )  # fmt: skip
        return seen.reshape(1, self._count, query.shape[1], -1).transpose(1, 2)

    def _prompts(self, layer: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """[h, m, d] -> [1, h, m, d of the values]."""
        keys, values = self._prefixes.keys[layer], self._prefixes.values[layer]
        found = query.new_empty(query.shape[0], query.shape[1], values.shape[2])
        for each in self._sprouts:
            queries, k, v = query[:, each.tokens.clamp(min=0)], keys[:, each.paths], values[:, each.paths]
            seen = each.block.attend(queries.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), scaling, window)
            real = each.tokens >= 0
            found[:, each.tokens[real]] = seen.transpose(0, 1)[:, real]
        return found[None]
