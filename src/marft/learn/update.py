"""Updates: improve one adapter on its agent's actions, and fit the critic. Packs are the micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from marft.config import CriticConfig, UpdateConfig
from marft.learn.collate import unpad
from marft.learn.losses import (
    action_divisor,
    action_log_ratio,
    approx_kl,
    clipped_surrogate,
    ratio_statistics,
    reference_kl,
    token_log_ratio,
    value_loss,
)
from marft.learn.staleness import ratio_sums, share_of, stale_weight
from marft.models.critic import Critic
from marft.models.pack import pack
from marft.models.policy import Entropy, Policy
from marft.types import Batch, Credit

Stats = dict[str, Any]


@dataclass(frozen=True)
class Lesson:
    """What one update learns from, all [N, S] or [N]: old and reference log-probabilities, advantages, the carry M.

    `learning` marks the rows of agents that learn. `version` is the policy's when the update begins; rows of an older
    one are `stale` [N].
    """

    batch: Batch
    credit: Credit
    old: Tensor
    reference: Tensor | None
    carry: Tensor
    temperature: Tensor
    learning: Tensor
    version: int = 0

    @property
    def stale(self) -> Tensor:
        """Which rows an older policy played."""
        return self.batch.version < self.version


@dataclass(frozen=True)
class Learner:
    """An adapter and the optimiser that moves it: nothing else can move in its update."""

    policy: Policy
    adapter: str
    optimiser: torch.optim.Optimizer


def batch_logprobs(
    policy: Policy, batch: Batch, adapters: Sequence[str | None], temperature: Tensor, budget: int
) -> Tensor:
    """The learner's log-probabilities [N, S] of all actions, row i under `adapters[i]`; zero off the action mask."""
    return batch_scores(policy, batch, adapters, temperature, budget, "none")[0]


def batch_scores(
    policy: Policy,
    batch: Batch,
    adapters: Sequence[str | None],
    temperature: Tensor,
    budget: int,
    entropy: Entropy = "value",
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of all actions' tokens, both [N, S] and zero off the action mask."""
    logprobs, spread = torch.zeros(batch.tokens.shape), torch.zeros(batch.tokens.shape)
    rows, starts = unpad(batch.tokens, batch.attention_mask), action_starts(batch)
    for adapter, heat in dict.fromkeys(zip(adapters, temperature.tolist(), strict=True)):
        mine = [row for row in range(batch.rows) if adapters[row] == adapter and float(temperature[row]) == heat]
        ids, begins = [rows[row] for row in mine], [starts[row] for row in mine]
        pairs = policy.measure(ids, begins, adapter, heat, budget, entropy)
        for row, (logprob, uncertain) in zip(mine, pairs, strict=True):
            logprobs[row, starts[row] : starts[row] + len(logprob)] = logprob.cpu()
            spread[row, starts[row] : starts[row] + len(logprob)] = uncertain.cpu()
    return logprobs, spread


def action_starts(batch: Batch) -> list[int]:
    """Where each row's action begins: its prompt length P."""
    starts: list[int] = batch.action_mask.int().argmax(1).tolist()
    return starts


@dataclass(frozen=True)
class Updated:
    """What an update did: its numbers (see docs/metrics.md), and how far the tokens of some `rows` [k] of the batch
    moved: `ratio` [k, S] is new over old probability, 1 off the action mask."""

    stats: Stats
    rows: Tensor
    ratio: Tensor


def update_agent(learner: Learner, lesson: Lesson, rows: Tensor, config: UpdateConfig, seed: int) -> Updated:
    """Improve an adapter on `rows` [n] of the batch for some epochs.

    Loss: the clipped surrogate plus the entropy bonus and the reference KL, summed over decisions and divided by the
    minibatch's number of decisions (or of actions: `loss_mean`), so that splitting it into packs changes nothing.
    """
    stopped: Stats = {}
    history: list[Stats] = []
    drift: dict[str, Stats] = {}
    for epoch in range(config.epochs):
        parts = _minibatches(rows, config.minibatches, seed + epoch)
        steps = [_policy_step(learner, lesson, part, config) for part in parts]
        drift[str(epoch)] = _mean([{name: each[name] for name in ("kl", "ess")} for each in steps])
        history += [{name: value for name, value in each.items() if name != "ess"} for each in steps]
        if config.kl_stop is not None and history[-1]["kl"] > config.kl_stop:
            stopped = {"stopped_early": 1.0}
            break
    epochs = {"epochs": drift} if config.epochs > 1 else {}
    after = after_update(learner, lesson, rows, config)
    return replace(after, stats={**_mean(history), **after.stats, **stopped, **epochs})


def after_update(learner: Learner, lesson: Lesson, rows: Tensor, config: UpdateConfig) -> Updated:
    """Ratios and KL of the finished update against the old policy, on a quarter of the rows it learnt from.

    A forward pass on all rows would cost a fifth of the update for numbers that are only looked at.
    """
    rows = rows[: max(16, len(rows) // 4)]
    new = score_rows(learner, lesson, rows, config)
    batch = select(lesson.batch, rows)
    log_ratio = decision_log_ratio(new, lesson.old[rows], batch, config)
    mask = decision_mask(batch, config)
    high = config.clip_high or config.clip
    tokens = batch.action_mask
    moved = token_log_ratio(new, lesson.old[rows], tokens)
    kl = float(approx_kl(moved, tokens) / tokens.sum())
    return Updated({**ratio_statistics(log_ratio, mask, config.clip, high), "kl": kl}, rows, moved.exp())


def decision_log_ratio(new: Tensor, old: Tensor, batch: Batch, config: UpdateConfig) -> Tensor:
    """Log-ratios of decisions: [n] at action level, [n, S] at token level."""
    if config.level == "token":
        return token_log_ratio(new, old, batch.action_mask)
    divisor = action_divisor(config.action_normalisation, batch.action_mask, batch.words)
    return action_log_ratio(new, old, batch.action_mask, divisor)


def correction(lesson: Lesson, rows: Tensor, batch: Batch, config: UpdateConfig) -> Tensor:
    """min(pi_old / mu, cap) of the decisions of `batch`, the lesson's `rows`, where the sampler is not the old policy:
    [n] or [n, S]. Rows of the present version weigh exactly 1, unless `old_logprobs` says that all are to be corrected.
    """
    log_ratio = decision_log_ratio(lesson.old[rows], batch.logprobs, batch, config)
    wanted = lesson.stale[rows] | torch.tensor(config.old_logprobs == "sampler")
    return stale_weight(log_ratio, wanted, config.importance_cap)


def decision_mask(batch: Batch, config: UpdateConfig) -> Tensor:
    """Which entries of `decision_log_ratio` are decisions."""
    return batch.action_mask if config.level == "token" else torch.ones(batch.rows, dtype=torch.bool)


def select(batch: Batch, rows: Tensor) -> Batch:
    """The batch of some rows; per-episode fields stay whole."""
    per_row = (
        "tokens attention_mask action_mask decision_mask logprobs joint joint_mask rewards agent turn episode "
        "words groups version"
    )
    return replace(batch, **{name: getattr(batch, name)[rows] for name in per_row.split()})


def _policy_step(learner: Learner, lesson: Lesson, rows: Tensor, config: UpdateConfig) -> Stats:
    """One optimiser step on a minibatch, its gradient accumulated pack by pack.

    Rows that cannot change the gradient are not computed, but count in every mean as they should. When none can, no
    gradient exists and the optimiser leaves everything where it is.
    """
    learner.optimiser.zero_grad(set_to_none=True)
    batch = select(lesson.batch, rows)
    by_action = config.level == "action" or config.loss_mean == "action"
    units = float(batch.rows if by_action else batch.action_mask.sum())  # what the loss is a mean over
    # Entropy and KL are means per token, whatever the surrogate is a mean over
    per_unit = units / float(batch.action_mask.sum())
    rows = rows[_teaching(lesson, rows, config)]
    batch = select(lesson.batch, rows)
    sums: Stats = {"loss": 0.0, "kl": 0.0, "reference_kl": 0.0}
    ratios = [0.0, 0.0, 0.0]
    for here, new, entropy in _packs_with_gradient(learner, lesson, batch, rows, config):
        mine = select(batch, here)
        chosen = rows[here]
        old = lesson.old[chosen].to(new)
        log_ratio = decision_log_ratio(new, old, mine, config)
        surrogate = clipped_surrogate(
            log_ratio, _advantages(lesson, chosen, config), config.clip, config.clip_high or config.clip
        )
        surrogate = surrogate * correction(lesson, chosen, mine, config)
        tokens = mine.action_mask
        if by_action and config.level == "token":
            surrogate = surrogate / tokens.sum(dim=1, keepdim=True)
        loss = surrogate.sum()
        spread = entropy[tokens].sum()
        loss = loss - config.entropy * spread * per_unit
        if lesson.reference is not None and config.kl_in == "loss":
            distance = reference_kl(new, lesson.reference[chosen], tokens).sum()
            sums["reference_kl"] += float(distance.detach())
            loss = loss + config.kl_reference * distance * per_unit
        (loss / units).backward()  # type: ignore[no-untyped-call]
        sums["loss"] += float(loss.detach()) / units
        sums["kl"] += float(approx_kl(token_log_ratio(new.detach(), old, tokens), tokens))
        ratios = [sum(pair) for pair in zip(ratios, ratio_sums(log_ratio, decision_mask(mine, config)), strict=True)]
    parameters = [each for group in learner.optimiser.param_groups for each in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm, error_if_nonfinite=True)
    learner.optimiser.step()
    tokens_seen = max(float(batch.action_mask.sum()), 1.0)
    per_token = {name: sums[name] / tokens_seen for name in ("kl", "reference_kl")}
    return {"loss": sums["loss"], "grad_norm": float(norm), **per_token, "ess": share_of(*ratios)}


def _teaching(lesson: Lesson, rows: Tensor, config: UpdateConfig) -> Tensor:
    """Which of `rows` have a gradient: with neither entropy bonus nor KL, those whose advantage is not exactly 0."""
    if config.entropy > 0 or (lesson.reference is not None and config.kl_in == "loss"):
        return torch.ones(len(rows), dtype=torch.bool)
    return (lesson.credit.advantages[rows] != 0).any(dim=1)


def _advantages(lesson: Lesson, rows: Tensor, config: UpdateConfig) -> Tensor:
    """A · M of each decision: [n] at action level (it stands on every token of the action), [n, S] at token level."""
    advantages = lesson.credit.advantages[rows] * lesson.carry[rows, None]
    if config.level == "token":
        return advantages
    first = lesson.batch.action_mask[rows].int().argmax(1, keepdim=True)
    return advantages.gather(1, first).squeeze(1)


def _packs_with_gradient(
    learner: Learner, lesson: Lesson, batch: Batch, rows: Tensor, config: UpdateConfig
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per pack: places within `rows`, new log-probabilities and entropies [n, S], attached to the graph."""
    ids, starts = unpad(batch.tokens, batch.attention_mask), action_starts(batch)
    for heat in sorted(set(lesson.temperature[rows].tolist())):
        places = [place for place, row in enumerate(rows.tolist()) if float(lesson.temperature[row]) == heat]
        begins = [starts[place] for place in places]
        for packed in pack([ids[place] for place in places], config.micro_tokens):
            entropy: Entropy = "gradient" if config.entropy > 0 else "none"
            scores = learner.policy.score(packed, begins, learner.adapter, heat, entropy)
            here = torch.tensor([places[row] for row in scores.rows])
            mask = batch.action_mask[here]
            blank = torch.zeros(mask.shape)
            logprobs, spread = scores.logprobs.cpu(), scores.entropy.cpu()
            yield here, blank.masked_scatter(mask, logprobs), blank.masked_scatter(mask, spread)


def score_rows(learner: Learner, lesson: Lesson, rows: Tensor, config: UpdateConfig) -> Tensor:
    """The learner's present log-probabilities [n, S] of `rows`, without gradients."""
    batch = select(lesson.batch, rows)
    adapters = [learner.adapter] * len(rows)
    return batch_logprobs(learner.policy, batch, adapters, lesson.temperature[rows], config.micro_tokens)


@torch.no_grad()
def critic_values(critic: Critic, batch: Batch, budget: int) -> Tensor:
    """Values [N, S] at decision positions, zero elsewhere."""
    values = torch.zeros(batch.tokens.shape)
    for here, part in _value_packs(critic, batch, budget):
        mask = batch.decision_mask[here]
        values[here] = torch.zeros(mask.shape).masked_scatter(mask, part)
    return values


@torch.no_grad()
def view_values(critic: Critic, views: Sequence[Sequence[int]], budget: int) -> Tensor:
    """The values [n] of joint views, none of them empty."""
    values = torch.zeros(len(views))
    for packed in pack(views, budget):
        rows, part, _ = critic.values(packed, [len(view) for view in views])
        values[torch.tensor(rows)] = part.cpu()
    return values


def update_critic(
    critic: Critic, optimiser: torch.optim.Optimizer, batch: Batch, old: Tensor, returns: Tensor, config: CriticConfig,
    budget: int, seed: int,
) -> Stats:  # fmt: skip
    """Fit V to the returns [N, S] at decision positions for some epochs."""
    history: list[Stats] = []
    for epoch in range(config.epochs):
        for rows in _minibatches(torch.arange(batch.rows), config.minibatches, seed + epoch):
            optimiser.zero_grad(set_to_none=True)
            chosen = select(batch, rows)
            decisions = float(chosen.decision_mask.sum())
            total = 0.0
            for here, part in _value_packs(critic, chosen, budget):
                mask = chosen.decision_mask[here]
                loss = value_loss(
                    part, old[rows[here]][mask], returns[rows[here]][mask], torch.ones_like(part, dtype=torch.bool),
                    config.loss, config.huber_delta, config.clip,
                )  # fmt: skip
                (loss / decisions).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach()) / decisions
            parameters = list(critic.parameters().values())
            norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm, error_if_nonfinite=True)
            optimiser.step()
            history.append({"loss": total, "grad_norm": float(norm)})
    return _mean(history)


def _value_packs(critic: Critic, batch: Batch, budget: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Per pack: rows, and the values of their decisions, flat in row-then-token order.

    At action level the critic reads the joint view; at token level also the action so far.
    """
    views = unpad(batch.joint, batch.joint_mask)
    starts = [len(view) for view in views]
    if bool((batch.decision_mask.sum(1) > 1).any()):  # token level
        ids, begins = unpad(batch.tokens, batch.attention_mask), action_starts(batch)
        views = [view + row[begin:] for view, row, begin in zip(views, ids, begins, strict=True)]
    for packed in pack(views, budget):
        rows, values, _ = critic.values(packed, starts)
        yield torch.tensor(rows), values.cpu()


def _minibatches(rows: Tensor, count: int, seed: int) -> Iterator[Tensor]:
    if count == 1:
        yield rows
        return
    generator = torch.Generator().manual_seed(seed)
    order = rows[torch.randperm(len(rows), generator=generator)]
    yield from (part.sort().values for part in order.tensor_split(min(count, len(rows))))


def _mean(history: Sequence[Stats]) -> Stats:
    names: Any = dict.fromkeys(name for stats in history for name in stats)
    return {name: sum(stats[name] for stats in history) / len(history) for name in names}
