"""From episodes to a batch: one row per action; masks from the lengths the sampler reported, never from a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from marft.learn.allocation import Allocation, allocate
from marft.types import Action, Batch, Episode

if TYPE_CHECKING:
    from marft.config import Config


@dataclass(frozen=True)
class Collated:
    """The batch (None when nothing is left to train on), where each of its rows comes from (group, sample, place of the
    action in its episode), and how many episodes were left out, by reason."""

    batch: Batch | None
    origins: tuple[tuple[str, int, int], ...]
    dropped: dict[str, int]


@dataclass(frozen=True)
class Layout:
    """How episodes become rows: what one decision is, whose actions make a chain, what the critic reads (`joint`: all
    that was said; `own`: its agent's prompt), and where the rewards stand."""

    level: Literal["action", "token"] = "action"
    chain: Literal["team", "agent"] = "team"
    view: Literal["joint", "own"] = "joint"
    allocation: Allocation = field(default_factory=Allocation)

    @classmethod
    def of(cls, config: Config) -> Layout:
        """The layout a config asks for."""
        view: Literal["joint", "own"] = "own" if config.critic.kind == "own" else "joint"
        return cls(config.update.level, config.credit.chain, view, Allocation.of(config.credit))


def collate(episodes: Sequence[Episode], agents: Sequence[str], layout: Layout) -> Collated:
    """Rows of all trainable-on episodes. Episodes that failed, or hold an action without tokens, are left out whole."""
    kept, dropped = [], {"failed": 0, "empty": 0}
    for episode in episodes:
        reason = left_out(episode)
        if reason is None:
            kept.append(episode)
        else:
            dropped[reason] += 1
    chains = [chain for episode in kept for chain in _chains(episode, layout)]
    origins = tuple((each.episode.group, each.episode.sample, place) for each in chains for place in each.places)
    return Collated(_batch(chains, tuple(agents), layout) if chains else None, origins, dropped)


def left_out(episode: Episode) -> Literal["failed", "empty"] | None:
    """Why nothing can be learnt from an episode; None where something can."""
    if episode.error is not None:
        return "failed"
    silent = not episode.actions or any(not each.token_ids or not each.prompt_ids for each in episode.actions)
    return "empty" if silent else None


@dataclass(frozen=True)
class _Chain:
    """Actions (by their places in the episode) that one reward flows back along, and what each earned."""

    episode: Episode
    places: tuple[int, ...]
    rewards: tuple[float, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """In execution order."""
        return tuple(self.episode.actions[place] for place in self.places)

    def final_view(self, view: Literal["joint", "own"]) -> tuple[int, ...]:
        """What the critic reads after the last action of a truncated episode."""
        last = self.actions[-1]
        if view == "own":
            return (*last.prompt_ids, *last.token_ids) if self.episode.truncated else ()
        return self.episode.final_joint_ids.get(last.agent, ())


def _chains(episode: Episode, layout: Layout) -> list[_Chain]:
    """One chain per side, or per agent of each side, in the order in which they first acted."""
    chains = []
    for side in dict.fromkeys(action.side for action in episode.actions):
        theirs = [place for place, action in enumerate(episode.actions) if action.side == side]
        actions = [episode.actions[place] for place in theirs]
        earned = list(zip(theirs, allocate(actions, layout.allocation), strict=True))
        owners = dict.fromkeys(action.agent for action in actions) if layout.chain == "agent" else [None]
        for owner in owners:
            mine = [pair for pair in earned if owner in (None, episode.actions[pair[0]].agent)]
            chains.append(_Chain(episode, tuple(place for place, _ in mine), tuple(pay for _, pay in mine)))
    return chains


def _batch(chains: Sequence[_Chain], agents: tuple[str, ...], layout: Layout) -> Batch:
    actions = [action for chain in chains for action in chain.actions]
    owner = [number for number, chain in enumerate(chains) for _ in chain.actions]
    tokens, attention = pad([[*each.prompt_ids, *each.token_ids] for each in actions])
    action_mask = torch.zeros_like(attention)
    logprobs = torch.zeros(tokens.shape)
    for row, each in enumerate(actions):
        start, end = len(each.prompt_ids), len(each.prompt_ids) + len(each.token_ids)
        action_mask[row, start:end] = True
        logprobs[row, start:end] = torch.tensor(each.logprobs)
    joint, joint_mask = pad([each.prompt_ids if layout.view == "own" else each.joint_ids for each in actions])
    final_joint, final_joint_mask = pad([chain.final_view(layout.view) for chain in chains])
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
        decision_mask=_first(action_mask) if layout.level == "action" else action_mask,
        logprobs=logprobs,
        joint=joint,
        joint_mask=joint_mask,
        rewards=torch.tensor([reward for chain in chains for reward in chain.rewards]),
        agent=torch.tensor([agents.index(each.agent) for each in actions]),
        turn=torch.tensor([each.turn for each in actions]),
        episode=torch.tensor(owner),
        words=torch.tensor([max(1, len(each.text.split())) for each in actions]),
        groups=torch.tensor(group),
        final_joint=final_joint,
        final_joint_mask=final_joint_mask,
        terminated=torch.tensor([chain.episode.terminated for chain in chains]),
        version=torch.tensor([each.policy_version for each in actions]),
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
