"""Attention over a packed sequence in blocks: rows of like size at a time, so that rows do not pay for each other.

A pack of T tokens attends densely in T² products, although a token sees its ancestors alone. Here the tokens that a
row brings are queries over that row's path: the work is what each row alone would cost for its own tokens. Everything
but attention (projections, norms) goes over the flat sequence and pays for no padding at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, scaled_dot_product_attention

from marft.models.attention import additive

ALIKE = 0.6  # a row joins a block when its share of useful products would be at least this
Tail = tuple[int, np.ndarray]  # of a row: the place of its first new token, and its path up to the last
SHORT = 65_536  # products per head and row below which a CPU's bfloat16 kernel loses to the float32 one


@dataclass(frozen=True)
class Gather:
    """Places `index` [n] of a flat sequence, and for the way back: token t's copies are `copies[starts[t]:…]`."""

    index: Tensor
    copies: Tensor
    starts: Tensor
    trivial: bool

    @classmethod
    def of(cls, index: np.ndarray, tokens: int, device: torch.device) -> Gather:
        """The gather of places `index` (-1: padding, which is filled with token 0 and gives no gradient)."""
        order = np.argsort(index, kind="stable")
        order = order[int((index < 0).sum()) :]
        counts = np.bincount(index[index >= 0], minlength=tokens)
        trivial = len(index) == tokens and bool((index == np.arange(tokens)).all())
        places, copies, starts = (
            torch.from_numpy(each).to(device) for each in (np.maximum(index, 0), order, np.cumsum(counts) - counts)
        )
        return cls(places, copies, starts, trivial)

    def take(self, rows: Tensor) -> Tensor:
        """rows [T, F] -> [n, F]."""
        return rows if self.trivial else _Take.apply(rows, self.index, self.copies, self.starts)  # type: ignore[no-untyped-call]

    def bring_back(self, rows: Tensor) -> Tensor:
        """The inverse where every token stands at one place only: rows [n, F] -> [T, F]."""
        return rows if self.trivial else _Return.apply(rows, self.index, self.copies, self.starts)  # type: ignore[no-untyped-call]


class _Take(torch.autograd.Function):
    """rows[index]. A token's gradient is the sum over its copies: one kernel, summed in float32, unlike index_add."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, copies: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(copies, starts)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        copies, starts = ctx.saved_tensors
        return embedding_bag(copies, gradient.contiguous(), starts, mode="sum"), None, None, None


class _Return(torch.autograd.Function):
    """rows[copies]: what padding computed goes nowhere, and gets gradient 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, copies: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(copies)
        ctx.count = len(rows)
        return rows.index_select(0, copies)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (copies,) = ctx.saved_tensors
        spread = gradient.new_zeros(ctx.count, gradient.shape[1])
        return spread.index_copy_(0, copies, gradient), None, None, None


@dataclass(frozen=True)
class Block:
    """`rows` rows of `queries` new tokens over paths of `keys` tokens.

    `mask` and `windowed` [rows or 1, 1, queries, keys] are additive, the second for layers with a sliding window; None
    means that the queries are the keys, and causal.
    """

    rows: int
    queries: int
    keys: int
    mask: Tensor | None
    windowed: Tensor | None
    dtype: torch.dtype

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """Query [rows, h, queries, d], key and value [rows, h_kv, keys, d or its own] -> [rows, h, queries, ...]."""
        mask = self.mask if window is None else self.windowed
        q, k, v = (each.to(self.dtype) for each in (query, key, value))
        seen = scaled_dot_product_attention(
            q, k, v, mask, scale=scaling, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
        return seen.to(query.dtype)


@dataclass(frozen=True)
class Blocks:
    """All blocks of a pack: every token is a query once, and a key once for every row that brings tokens below it."""

    blocks: tuple[Block, ...]
    queries: Gather
    keys: Gather

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        """What `attention.KeysValues` promises, of a pack: query [1, h, T, d], key/value [1, h_kv, T, d]."""
        queries = torch.split(self.queries.take(_flat(query)), [each.rows * each.queries for each in self.blocks])
        sizes = [each.rows * each.keys for each in self.blocks]
        keys, values = (torch.split(self.keys.take(_flat(each)), sizes) for each in (key, value))
        heads, widths = query.shape[1], (query.shape[3], key.shape[3], value.shape[3])
        seen = []
        for block, *parts in zip(self.blocks, queries, keys, values, strict=True):
            lengths = (block.queries, block.keys, block.keys)
            q, k, v = (
                part.view(block.rows, length, -1, size).transpose(1, 2)
                for part, length, size in zip(parts, lengths, widths, strict=True)
            )
            out = block.attend(q, k, v, scaling, window)
            seen.append(out.transpose(1, 2).reshape(block.rows * block.queries, -1))
        flat = self.queries.bring_back(seen[0] if len(seen) == 1 else torch.cat(seen))
        return flat.view(1, -1, heads, value.shape[3]).transpose(1, 2)


def cut(paths: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype, window: int | None = None) -> Blocks:
    """The blocks of a pack whose row i is the nodes `paths[i]`, in lexicographic order (as `pack` leaves them)."""
    known, news = 0, []  # (first new depth, path) of every row that brings new tokens
    for path in paths:
        start = int(np.searchsorted(path, known))  # nodes are numbered as rows bring them, so a path only rises
        if start < len(path):
            news.append((start, path))
            known = int(path[-1]) + 1
    queries, keys, blocks = [], [], []
    for group in alike(news):
        block = block_of(group, device, dtype, window)
        queries.append(padded([path[start:] for start, path in group], block.queries).ravel())
        keys.append(padded([path for _, path in group], block.keys).ravel())
        blocks.append(block)
    return Blocks(
        tuple(blocks),
        Gather.of(np.concatenate(queries), known, device),
        Gather.of(np.concatenate(keys), known, device),
    )


def alike(news: Sequence[Tail]) -> list[list[Tail]]:
    """The rows in groups of like size, so that padding one to the other's costs little."""
    groups: list[list[Tail]] = []
    smallest = 0
    for new in sorted(news, key=lambda new: (len(new[1]) - new[0], len(new[1])), reverse=True):
        if groups and min(smallest, _area([new])) >= ALIKE * _area([*groups[-1], new]):
            groups[-1].append(new)
            smallest = min(smallest, _area([new]))
        else:
            groups.append([new])
            smallest = _area([new])
    return groups


def block_of(group: Sequence[Tail], device: torch.device, dtype: torch.dtype, window: int | None) -> Block:
    """Who sees whom in a group of rows that are padded to the longest of them."""
    starts = [start for start, _ in group]
    queries, keys = max(len(path) - start for start, path in group), max(len(path) for _, path in group)
    if device.type == "cpu" and queries * keys <= SHORT:
        dtype = torch.promote_types(dtype, torch.float32)
    begins = torch.tensor(starts[:1] if len(set(starts)) == 1 else starts, device=device)
    # Padding sees what the last token sees: a query that sees nothing would be no number
    depth = (begins[:, None] + torch.arange(queries, device=device)).clamp(max=keys - 1)
    back = depth[:, None, :, None] - torch.arange(keys, device=device)
    mask = additive(back >= 0, dtype) if any(starts) else None
    near = mask
    if window is not None and keys > window:
        near = additive((back >= 0) & (back < window), dtype)
    return Block(len(starts), queries, keys, mask, near, dtype)


def _flat(states: Tensor) -> Tensor:
    return states[0].transpose(0, 1).reshape(states.shape[2], -1)


def _area(group: Sequence[Tail]) -> int:
    return max(len(path) - start for start, path in group) * max(len(path) for _, path in group)


def padded(rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Rows of numbers as one table [n, length], -1 after each row's end."""
    table = np.full((len(rows), length), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
