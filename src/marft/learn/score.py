"""What the models say of a batch: log-probabilities and values. Each base model reads the rows in its own tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marft.learn.collate import unpad
from marft.learn.losses import explained_variance, reference_kl, sampler_gap
from marft.learn.staleness import off_policy
from marft.learn.update import (
    Lesson,
    Stats,
    batch_logprobs,
    batch_scores,
    correction,
    critic_values,
    decision_mask,
    select,
    update_critic,
    view_values,
)
from marft.team import Backend, Team
from marft.types import Batch, Credit


def prepare(team: Team, batch: Batch, stats: dict[str, Any], version: int = 0) -> Lesson:
    """Old and reference log-probabilities of what was played; the KL to the base joins the reward if it should.

    Only rows of agents that learn are scored; the others keep what their sampler reported. `version` is that of the
    present policy: what an older one played is stale.
    """
    update, agents = team.config.update, team.game.agents
    temperature = torch.tensor([agents[agent].sampling.temperature for agent in batch.agent.tolist()])
    learning = torch.tensor([agents[agent].trainable for agent in batch.agent.tolist()])
    old, entropy = batch.logprobs.clone(), torch.zeros_like(batch.logprobs)
    reference = batch.logprobs.clone() if update.kl_reference > 0 else None
    for backend in team.backends:
        rows = rows_of(team, batch, backend, learning)
        mine = select(batch, rows)
        adapters = [agents[agent].adapter for agent in mine.agent.tolist()]
        old[rows], entropy[rows] = batch_scores(backend.policy, mine, adapters, temperature[rows], update.micro_tokens)
        if reference is not None:
            bare: list[str | None] = [None] * len(rows)
            reference[rows] = batch_logprobs(backend.policy, mine, bare, temperature[rows], update.micro_tokens)
    learnt = batch.action_mask & learning[:, None]
    tokens = {agent.name: learnt & (batch.agent == place)[:, None] for place, agent in enumerate(agents)}
    stats["entropy"] = {name: float(entropy[mine].mean()) for name, mine in tokens.items() if bool(mine.any())}
    fresh = learnt & (batch.version >= version)[:, None]  # of older play the gap is what was learnt since
    stats["sampler_gap"] = sampler_gap(old, batch.logprobs, fresh)
    if reference is not None:
        distance = reference_kl(old, reference, batch.action_mask, "k1").sum(1)
        stats["reference_kl"] = float(distance.sum() / learnt.sum())
        if update.kl_in == "reward":
            batch = replace(batch, rewards=batch.rewards - update.kl_reference * distance)
    ones = torch.ones(batch.rows)
    nothing = Credit(torch.zeros_like(old), torch.zeros_like(old))
    lesson = Lesson(batch, nothing, old, reference, ones, temperature, learning, version)
    if update.old_logprobs == "sampler" or bool(lesson.stale.any()):
        stats["off_policy"] = off_policy_stats(team, lesson)
    return lesson


def present_version(team: Team) -> int:
    """The version of the policy that the team holds, as it was last announced to everything that generates."""
    return next(iter(team.seats.values())).generator.version


def off_policy_stats(team: Team, lesson: Lesson) -> dict[str, Stats]:
    """Per agent that learns: the age of its rows in versions, and the weights that correct for it."""
    batch, config = lesson.batch, team.config.update
    weights, mask = correction(lesson, torch.arange(batch.rows), batch, config), decision_mask(batch, config)
    found = {}
    for place, name in enumerate(batch.agents):
        mine = (batch.agent == place) & lesson.learning
        found[name] = off_policy(weights[mine], mask[mine], lesson.version - batch.version[mine])
    return {name: each for name, each in found.items() if each}


def rows_of(team: Team, batch: Batch, backend: Backend, among: Tensor | None = None) -> Tensor:
    """The numbers of the rows that are in the tokens of a backend's base model (of those `among` [N], if given)."""
    mine = _acted(batch, backend.agents)
    return (mine if among is None else mine & among).nonzero().squeeze(1)


def rows_valued(team: Team, batch: Batch) -> dict[str, Tensor]:
    """Critic name -> the numbers of the rows that it values; critics that have none are left out."""
    readers: dict[str, list[str]] = {}
    for backend in team.backends:
        for agent, critic in backend.critics.items():
            readers.setdefault(critic.name, []).append(agent)
    found = {name: _acted(batch, agents).nonzero().squeeze(1) for name, agents in readers.items()}
    return {name: rows for name, rows in found.items() if len(rows)}


def _acted(batch: Batch, agents: Sequence[str]) -> Tensor:
    """Which rows [N] are of one of `agents`."""
    return torch.isin(batch.agent, torch.tensor([batch.agents.index(name) for name in agents], dtype=torch.long))


def value_decisions(team: Team, batch: Batch) -> tuple[Tensor, Tensor]:
    """Values [N, S] at decision positions, and of the final joint views of truncated episodes [B] (0 elsewhere).

    A final view is in the tokens of whoever acted last, and is read by the critic of that agent. Rows of agents that
    no critic values keep 0.
    """
    budget = team.config.update.micro_tokens
    values, final = torch.zeros(batch.tokens.shape), torch.zeros(len(batch.terminated))
    views = unpad(batch.final_joint, batch.final_joint_mask)
    last = {episode: row for row, episode in enumerate(batch.episode.tolist())}
    critics = team.critics
    for name, rows in rows_valued(team, batch).items():
        values[rows] = critic_values(critics[name], select(batch, rows), budget)
        mine = set(rows.tolist())
        ends = [each for each, row in last.items() if row in mine and views[each] and not bool(batch.terminated[each])]
        final[ends] = view_values(critics[name], [views[each] for each in ends], budget)
    return values, final


def fit_critics(
    team: Team,
    optimisers: Mapping[str, torch.optim.Optimizer],
    batch: Batch,
    values: Tensor,
    returns: Tensor,
    iteration: int,
) -> dict[str, Stats]:
    """Fit each critic to the returns of the rows it values; `values` are those from before."""
    stats = {}
    for name, rows in rows_valued(team, batch).items():
        mine = select(batch, rows)
        fitted = update_critic(
            team.critics[name], optimisers[name], mine, values[rows], returns[rows], team.config.critic,
            team.config.update.micro_tokens, iteration,
        )  # fmt: skip
        variance = explained_variance(values[rows], returns[rows], mine.decision_mask)
        stats[name] = {**fitted, "explained_variance": variance}
    return stats
