"""From episodes to a batch: one row per action; masks from the lengths the sampler reported, never from a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marft.types import Action, Batch, Episode


@dataclass(frozen=True)
class Collated:
    """The batch (None when nothing is left to train on) and how many episodes were left out, by reason."""

    batch: Batch | None
    dropped: dict[str, int]


def collate(episodes: Sequence[Episode], agents: Sequence[str], level: Literal["action", "token"]) -> Collated:
    """Rows of all trainable-on episodes. Episodes that failed, or hold an action without tokens, are left out whole."""
    kept, dropped = [], {"failed": 0, "empty": 0}
    for episode in episodes:
        if episode.error is not None:
            dropped["failed"] += 1
        elif not episode.actions or any(not each.token_ids or not each.prompt_ids for each in episode.actions):
            dropped["empty"] += 1
        else:
            kept.append(episode)
    return Collated(_batch(kept, tuple(agents), level) if kept else None, dropped)


@dataclass(frozen=True)
class _Chain:
    """The actions of one side of an episode: what one reward flows back along."""

    episode: Episode
    actions: tuple[Action, ...]
    final_joint: tuple[int, ...]


def _chains(episode: Episode) -> list[_Chain]:
    """One chain per side, in the order in which they first acted; a team that plays alone has one side."""
    sides = dict.fromkeys(action.side for action in episode.actions)
    return [
        _Chain(
            episode,
            tuple(action for action in episode.actions if action.side == side),
            episode.final_joint_ids.get(side, ()),
        )
        for side in sides
    ]


def _batch(episodes: Sequence[Episode], agents: tuple[str, ...], level: Literal["action", "token"]) -> Batch:
    chains = [chain for episode in episodes for chain in _chains(episode)]
    actions = [action for chain in chains for action in chain.actions]
    owner = [number for number, chain in enumerate(chains) for _ in chain.actions]
    tokens, attention = pad([[*each.prompt_ids, *each.token_ids] for each in actions])
    action_mask = torch.zeros_like(attention)
    logprobs = torch.zeros(tokens.shape)
    for row, each in enumerate(actions):
        start, end = len(each.prompt_ids), len(each.prompt_ids) + len(each.token_ids)
        action_mask[row, start:end] = True
        logprobs[row, start:end] = torch.tensor(each.logprobs)
    joint, joint_mask = pad([each.joint_ids for each in actions])
    final_joint, final_joint_mask = pad([chain.final_joint for chain in chains])
    groups: dict[tuple[str, str, int, int], int] = {}
    group = [
        groups.setdefault(_group(chains[number].episode, each), len(groups))
        for number, each in zip(owner, actions, strict=True)
    ]
    return Batch(
        agents=agents,
        tokens=tokens,
        attention_mask=attention,
        action_mask=action_mask,
        decision_mask=_first(action_mask) if level == "action" else action_mask,
        logprobs=logprobs,
        joint=joint,
        joint_mask=joint_mask,
        rewards=torch.tensor([each.reward for each in actions]),
        agent=torch.tensor([agents.index(each.agent) for each in actions]),
        turn=torch.tensor([each.turn for each in actions]),
        episode=torch.tensor(owner),
        words=torch.tensor([max(1, len(each.text.split())) for each in actions]),
        groups=torch.tensor(group),
        final_joint=final_joint,
        final_joint_mask=final_joint_mask,
        terminated=torch.tensor([chain.episode.terminated for chain in chains]),
    )


def pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids [n, longest] and their mask (True: a token)."""
    longest = max(map(len, rows), default=0)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[number, : len(row)] = True
    return ids, mask


def unpad(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """The rows of right-padded ids, without their padding."""
    return [row[:length] for row, length in zip(ids.tolist(), mask.sum(1).tolist(), strict=True)]


def _first(mask: Tensor) -> Tensor:
    """The first True of every row."""
    return mask & (mask.cumsum(1) == 1)


def _group(episode: Episode, action: Action) -> tuple[str, str, int, int]:
    return episode.group, action.agent, action.turn, action.step
