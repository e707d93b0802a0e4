"""The prefix tree: keys and values of every prompt and reply computed with the present weights, each prefix once.

A node is one token after its ancestors, for one adapter: all agents' profiles, all samples of a task and all turns of
an episode meet in one tree (RadixAttention, arXiv 2312.07104, with tokens in place of runs of tokens: the tree is small
beside the model's work). Replies copy what they start from into slots of their own, so any node may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Nodes = np.ndarray  # node numbers, int64


@dataclass(frozen=True)
class Claim:
    """A prompt's `path` from its first token to its last [P], and the nodes of it whose keys nobody has computed yet.

    Nodes that an earlier claim of the same pass computes are not `fresh` again.
    """

    path: Nodes
    fresh: tuple[int, ...]


class Prefixes:
    """A tree of at most about `budget` tokens; beyond it, what was used least recently is forgotten."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._roots: dict[str | None, int] = {}
        self._child: dict[tuple[int, int], int] = {}
        self._parent: list[int] = []
        self._token: list[int] = []
        self._depth: list[int] = []
        self._stamp: list[int] = []
        self._clock = 0
        self._states: dict[int, Tensor] = {}  # last hidden states [H] where prompts ended
        self.keys: list[Tensor] = []  # per layer [heads, room, d]
        self.values: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._token)

    def trim(self) -> None:
        """Forget the least recently used half of the budget if there is more than that. No claim may be open."""
        if len(self) <= self._budget:
            return
        # An ancestor was used no earlier than its descendants and has a lower number: what is kept is a tree again
        order = np.lexsort((np.arange(len(self)), -np.array(self._stamp)))
        kept = np.sort(order[: self._budget // 2])
        number = np.full(len(self), -1)
        number[kept] = np.arange(len(kept))
        for store in (self.keys, self.values):
            for layer, each in enumerate(store):
                store[layer] = each[:, torch.from_numpy(kept).to(each.device)]
        self._parent = [int(number[p]) if (p := self._parent[node]) >= 0 else p for node in kept.tolist()]
        self._token = [self._token[node] for node in kept.tolist()]
        self._depth = [self._depth[node] for node in kept.tolist()]
        self._stamp = [self._stamp[node] for node in kept.tolist()]
        self._child = {pair: node for node, pair in enumerate(zip(self._parent, self._token, strict=True))}
        self._states = {int(number[node]): each for node, each in self._states.items() if number[node] >= 0}

    def claim(self, adapter: str | None, ids: Sequence[int]) -> Claim:
        """Find or make the path of `ids`; whoever gets fresh nodes must compute them before anybody reads them."""
        self._clock += 1
        at = self._roots.setdefault(adapter, -1 - len(self._roots))
        path, fresh = [], []
        for depth, token in enumerate(ids):
            node = self._child.get((at, token))
            if node is None:
                node = len(self._token)
                self._child[at, token] = node
                self._parent.append(at)
                self._token.append(token)
                self._depth.append(depth)
                self._stamp.append(self._clock)
                fresh.append(node)
            else:
                self._stamp[node] = self._clock
            path.append(node)
            at = node
        return Claim(np.array(path, dtype=np.int64), tuple(fresh))

    def tokens(self, nodes: Sequence[int]) -> list[int]:
        """The token of each node."""
        return [self._token[node] for node in nodes]

    def depths(self, nodes: Iterable[int]) -> list[int]:
        """The position of each node in its sequence, from 0."""
        return [self._depth[node] for node in nodes]

    def write(self, layer: int, nodes: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep keys and values [heads, n, d] of nodes [n]."""
        for store, fresh in ((self.keys, keys), (self.values, values)):
            if layer == len(store):
                store.append(fresh.new_empty(fresh.shape[0], 0, fresh.shape[2]))
            room = store[layer].shape[1]
            if room < len(self):
                # The budget may be passed for as long as a pass needs it
                grown = fresh.new_empty(fresh.shape[0], max(len(self), min(2 * room, self._budget)), fresh.shape[2])
                grown[:, :room] = store[layer]
                store[layer] = grown
            store[layer][:, nodes] = fresh

    def note(self, node: int, state: Tensor) -> None:
        """Keep the last hidden state [H] of a prompt's end: who asks for the same prompt need not compute anything."""
        self._states[node] = state.clone()

    def state(self, node: int) -> Tensor | None:
        """What `note` was told of a node."""
        return self._states.get(node)
