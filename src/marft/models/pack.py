"""Packing: many rows that share prefixes become one sequence in which every shared prefix stands once.

Rows of an agent share its profile, samples of a task share the task, and the critic's views of an episode grow out of
each other. A row is a path in the prefix tree of all rows; a token may attend to exactly its ancestors and sits at the
position of its depth, so a packed forward pass computes for every row what the row alone would give, and gradients of
shared tokens add up by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marft.models.attention import additive
from marft.models.blocks import cut


@dataclass(frozen=True)
class Packed:
    """T tree nodes: `tokens` [T], `depth` [T] (positions).

    `paths[i]` are the nodes of row `rows[i]` in order: token j of that row is node `paths[i][j]`.
    """

    tokens: Tensor
    depth: Tensor
    rows: tuple[int, ...]
    paths: tuple[np.ndarray, ...]

    @cached_property
    def visible(self) -> Tensor:
        """[T, T], True where the token of a row may see that of a column."""
        seen = np.zeros((len(self.tokens), len(self.tokens)), dtype=bool)
        for path in self.paths:
            seen[path[:, None], path[None, :]] |= np.tri(len(path), dtype=bool)
        return torch.from_numpy(seen)

    def inputs(self, device: torch.device, dtype: torch.dtype, window: int | None = None) -> dict[str, Any]:
        """What a transformers backbone takes: batch 1, T tokens, attended to in blocks.

        Layers with sliding attention see the nearest `window` ancestors, the token itself included.
        """
        return {
            "input_ids": self.tokens[None].to(device),
            "position_ids": self.depth[None].to(device),
            "attention_mask": torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),  # the blocks know who sees whom
            "keys_values": cut(self.paths, device, dtype, window),
        }

    def dense_inputs(self, device: torch.device, dtype: torch.dtype, window: int | None = None) -> dict[str, Any]:
        """The same with one mask of T x T: slow, and what the blocks are tested against."""
        depth, visible = self.depth.to(device), self.visible.to(device)
        near = depth[:, None] - depth[None, :] < (window or len(depth))
        return {
            "input_ids": self.tokens[None].to(device),
            "position_ids": depth[None],
            "attention_mask": additive(visible[None, None], dtype),
            "windowed_mask": additive((visible & near)[None, None], dtype),
        }


def pack(rows: Sequence[Sequence[int]], budget: int) -> list[Packed]:
    """Pack rows of token ids into sequences of at most `budget` nodes (a longer row stands alone).

    Rows are taken in lexicographic order, so that those sharing the longest prefixes meet.
    """
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    packs: list[Packed] = []
    chosen: list[int] = []
    size = 0
    for row in order:
        fresh = len(rows[row]) - (_shared_prefix(rows[chosen[-1]], rows[row]) if chosen else 0)
        if chosen and size + fresh > budget:
            packs.append(_pack_sorted(rows, chosen))
            chosen, size, fresh = [], 0, len(rows[row])
        chosen.append(row)
        size += fresh
    if chosen:
        packs.append(_pack_sorted(rows, chosen))
    return packs


def _pack_sorted(rows: Sequence[Sequence[int]], chosen: Sequence[int]) -> Packed:
    tokens: list[int] = []
    depth: list[int] = []
    paths: list[np.ndarray] = []
    previous: Sequence[int] = ()
    path = np.zeros(0, dtype=np.int64)
    for row in chosen:
        shared = _shared_prefix(previous, rows[row])
        fresh = rows[row][shared:]
        path = np.concatenate([path[:shared], np.arange(len(tokens), len(tokens) + len(fresh))])
        tokens += fresh
        depth += range(shared, shared + len(fresh))
        paths.append(path)
        previous = rows[row]
    return Packed(torch.tensor(tokens), torch.tensor(depth), tuple(chosen), tuple(paths))


def _shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
