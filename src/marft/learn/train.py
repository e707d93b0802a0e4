"""The training loop: this file, read top to bottom, is the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from marft.config import UpdateConfig
from marft.learn.ahead import play_and_learn
from marft.learn.clock import Clock, shares
from marft.learn.collate import Layout, collate
from marft.learn.credit import Links, assign_credit, lone_groups, normalise_advantages, running_means
from marft.learn.losses import action_log_ratio, quantiles
from marft.learn.memory import Memory
from marft.learn.score import fit_critics, prepare, present_version, value_decisions
from marft.learn.sequential import carry_on, update_order
from marft.learn.traces import Keep, traces
from marft.learn.update import Learner, Lesson, Stats, score_rows, select, update_agent
from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.run.evaluate import held_out
from marft.run.interrupt import GracefulStop
from marft.run.metrics import MetricsWriter
from marft.run.progress import Watcher
from marft.run.rewind import rewind
from marft.run.rollback import Guard, finite_gradients, recorded
from marft.run.state import load_training, save_training
from marft.team import Team
from marft.types import Episode, Trace


@dataclass(frozen=True)
class Training:
    """A team and what learns it: one optimiser per adapter (and one per critic, by the critic's name)."""

    team: Team
    optimisers: dict[str, torch.optim.Optimizer]
    memory: Memory = field(default_factory=Memory)

    @classmethod
    def of(cls, team: Team) -> Training:
        """Fresh optimisers for every adapter some trainable agent acts with, and for the critics."""
        update, critic = team.config.update, team.config.critic
        adapters = dict.fromkeys(team.game.agent(name).adapter for name in team.trainable)
        optimisers: dict[str, torch.optim.Optimizer] = {
            name: torch.optim.AdamW(
                team.policy_of(name).parameters(name).values(), update.lr, weight_decay=update.weight_decay
            )
            for name in adapters
        }
        for critic_name, each in team.critics.items():
            head = [value for name, value in each.parameters().items() if name.startswith("head.")]
            body = [value for name, value in each.parameters().items() if not name.startswith("head.")]
            groups = [{"params": head, "lr": critic.head_lr}, {"params": body, "lr": critic.lr}]
            # The head divides by its width, and so are the gradients behind it: Adam's epsilon must not outweigh them
            eps = 1e-8 / each.head.in_features
            optimisers[critic_name] = torch.optim.AdamW(groups, weight_decay=0.0, eps=eps)
        return cls(team, optimisers)


def train(team: Team, run: RunDirectory, watcher: Watcher, stop: GracefulStop, resume: bool = False) -> dict[str, Any]:
    """Train a team, writing everything worth looking at to the run directory; returns the evaluations by iteration.

    Raises `MarftError` when too many episodes fail. When `stop` is requested, the iteration under way is finished,
    saved, and the function returns early.
    """
    config = team.config
    training = Training.of(team)
    checkpoint.clean(run)
    checkpoint.seed_rng(config.seed)  # nothing here draws from the global states, but a user's environment may
    first = load_training(run, team, training.optimisers, training.memory) if resume else 0
    rewind(run, first)
    team.load(version=first)
    reports: dict[str, Any] = {}
    episodes: list[Episode] = []
    saving = 0.0  # seconds the last checkpoint took: they count in the next row, because a row is written before it
    with MetricsWriter(run, first, config.run, watcher.note) as writer:
        guard = Guard(run, team, training.optimisers, training.memory, watcher)
        guard.begin()
        watcher.start(summary(team, run), config.iterations, first)
        if first == 0:
            reports["before"] = record_evaluation(training, writer, 0, watcher, "Before training")
        for iteration in range(first, config.iterations):
            if stop.requested:
                if iteration > first and checkpoint.iterations(run)[-1:] != [iteration]:
                    save_training(run, team, training.optimisers, iteration, training.memory, guard.keep(iteration))
                return reports
            clock = Clock({"save": saving})
            learnt: list[Trace] = []
            episodes, stats = iterate(training, iteration, clock, watcher, learnt.extend)
            checkpoint.mark_if_best(run, iteration, _score(episodes))
            stats = guard.look(iteration, stats)  # warns, or goes back to older weights
            team.load(version=iteration + 1)  # the sampler sees new weights
            due = config.evaluation.every and (iteration + 1) % config.evaluation.every == 0
            if due and iteration + 1 < config.iterations:
                with clock.phase("evaluate"):
                    reports[str(iteration + 1)] = record_evaluation(
                        training, writer, iteration + 1, watcher, f"After iteration {iteration + 1}"
                    )
            with clock.phase("save"):
                record_play(training, run, iteration, episodes, learnt)
            stats = {**stats, **shares(clock)}
            # The row first: resuming drops rows beyond the checkpoint, and could not make up for a missing one
            writer.write(iteration, stats)
            watcher.iteration({"iteration": iteration, **stats})
            saving = save_if_due(training, run, iteration, guard)
            guard.end_if_hopeless()
        # Also on resuming a run that was stopped between its last checkpoint and this evaluation
        if config.iterations not in run.read_evaluations() and not stop.requested:
            reports["after"] = record_evaluation(training, writer, config.iterations, watcher, "After training")
    return reports


def iterate(
    training: Training, iteration: int, clock: Clock, watcher: Watcher, keep: Keep | None = None
) -> tuple[list[Episode], dict[str, Any]]:
    """One iteration: play with the current joint policy, and learn: from that, or from earlier play.

    Returns all episodes played, and what play and learning say of themselves; `keep` is told what became of each action
    that was learnt from.
    """

    def learn(episodes: Sequence[Episode], by: Watcher) -> dict[str, Any]:
        return learn_from(training, episodes, iteration, clock, by, keep)

    return play_and_learn(training.team, training.memory, iteration, learn, clock, watcher)  # 1


def learn_from(
    training: Training,
    episodes: Sequence[Episode],
    iteration: int,
    clock: Clock,
    watcher: Watcher,
    keep: Keep | None = None,
) -> dict[str, Any]:
    """Learn from episodes: value, give credit, improve agent by agent, fit the critic."""
    team, config = training.team, training.team.config
    stats: dict[str, Any] = {}
    collated = collate(episodes, team.game.names, Layout.of(config))  # 2 N rows, one per action
    batch = collated.batch
    if batch is None:
        return stats
    with clock.phase("score"):
        watcher.phase("scoring what was played")
        lesson = prepare(team, batch, stats, present_version(team))
    with clock.phase("critic"):
        watcher.phase("valuing what was played")
        values, final = value_decisions(team, batch) if team.critics else (None, None)  # 3
    lesson, returns = give_credit(training, lesson, values, final)  # 4 advantages, returns
    ratios = torch.full(batch.tokens.shape, torch.nan)
    with clock.phase("update"), recorded(stats, config.guard):
        learnt = iteration - config.rollout.staleness  # iterations that learnt something before
        if learnt >= config.critic.warmup or not team.critics:
            stats["update"], ratios = update_agents(training, lesson, iteration, watcher)  # 5-7 agent by agent
    if keep is not None and "update" in stats:
        keep(traces(collated.origins, lesson, ratios))
    if values is not None:
        with clock.phase("critic"), recorded(stats, config.guard), finite_gradients("critic"):
            watcher.phase("fitting the critic")
            stats.update(fit_critics(team, training.optimisers, batch, values, returns, iteration))
    elif config.credit.baseline == "group":
        stats["groups_of_one"] = lone_groups(batch.groups)
    if "update" in stats:
        trained = lesson.batch.action_mask[lesson.learning].sum()
        stats["update_tokens_per_second"] = float(trained) / clock.seconds["update"]
    return stats


def give_credit(
    training: Training, lesson: Lesson, values: Tensor | None, final: Tensor | None
) -> tuple[Lesson, Tensor]:
    """The lesson with normalised advantages, and the returns the critic is fitted to; running means move on."""
    config, memory = training.team.config.credit, training.memory
    credit = assign_credit(lesson.batch, values, final, config, memory.running)
    if config.baseline == "running":
        newest = select(lesson.batch, (lesson.batch.version == lesson.batch.version.max()).nonzero().squeeze(1))
        memory.running = running_means(newest, Links.of(config), memory.running, config.running_decay)
    normalised = normalise_advantages(credit, lesson.batch, config.normalise, lesson.learning)
    return replace(lesson, credit=normalised), credit.returns


def update_agents(
    training: Training, lesson: Lesson, iteration: int, watcher: Watcher
) -> tuple[dict[str, Stats], Tensor]:
    """Improve the agents one after another, each with the factor M of those before it (or all at once: no factor).

    Returns numbers per agent, and new over old probabilities [N, S] of tokens: NaN in rows in which no one looked.
    """
    team, config = training.team, training.team.config.update
    order = update_order(team.trainable, config.schedule, config.order, iteration, team.config.seed)
    batch, carry = lesson.batch, torch.ones(lesson.batch.rows)
    stats: dict[str, Stats] = {}
    ratios = torch.full(batch.tokens.shape, torch.nan)
    for members in units(team, order):
        adapter = team.game.agent(members[0]).adapter
        optimiser = training.optimisers[adapter]
        set_learning_rate(optimiser, config.lr * training.memory.lr_scale, iteration, config.lr_warmup)
        acting = torch.isin(batch.agent, torch.tensor([team.game.names.index(name) for name in members]))
        rows = acting.nonzero().squeeze(1)
        if not len(rows):
            continue
        watcher.phase(f"updating {', '.join(members)}")
        learner = Learner(team.policy_of(adapter), adapter, optimiser)
        with finite_gradients(", ".join(members)):
            updated = update_agent(learner, replace(lesson, carry=carry), rows, config, seed=iteration)
        ratios[updated.rows] = updated.ratio
        found = updated.stats
        if config.carry == "happo":
            found = {**found, **quantiles(carry[rows], "carry")}
            carry = _carry_after(learner, lesson, carry, acting, config)
        for name in members:
            stats[name] = found
    return stats, ratios


def units(team: Team, order: Sequence[str]) -> list[tuple[str, ...]]:
    """Who is updated together: agents that share an adapter, which no one else's update may then move."""
    together: dict[str, list[str]] = {}
    for name in order:
        together.setdefault(team.game.agent(name).adapter, []).append(name)
    return [tuple(names) for names in together.values()]


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float, iteration: int, warmup: int) -> None:
    """Linear warm-up over the first `warmup` iterations, constant afterwards."""
    for group in optimiser.param_groups:
        group["lr"] = lr * min(1.0, (iteration + 1) / (warmup + 1))


def _carry_after(learner: Learner, lesson: Lesson, carry: Tensor, acting: Tensor, config: UpdateConfig) -> Tensor:
    """M^{m+1}: what the update just done does to the probability of its agent's actions, the rows `acting` [N]."""
    rows = acting.nonzero().squeeze(1)
    new = lesson.old.clone()
    new[rows] = score_rows(learner, lesson, rows, config)
    log_ratio = action_log_ratio(new, lesson.old, lesson.batch.action_mask, torch.ones(len(carry)))
    return carry_on(carry, log_ratio, lesson.batch.episode, lesson.batch.turn, acting, config.carry_clip)


def record_play(
    training: Training, run: RunDirectory, iteration: int, episodes: Sequence[Episode], learnt: Sequence[Trace]
) -> None:
    """Write the episodes of every `episodes_every`th iteration, and whatever is learnt from them, now or later."""
    every = training.team.config.run.episodes_every
    if iteration % every == 0:
        run.write_episodes(f"train-{iteration:06d}", episodes, training.team.spell)
    written = [trace for trace in learnt if trace.played % every == 0]
    if written:
        run.write_learnt(iteration, written)


def record_evaluation(training: Training, writer: MetricsWriter, iteration: int, watcher: Watcher, title: str) -> Any:
    """Evaluate, write report and episodes, and show the report; None when evaluation is off."""
    team = training.team
    if not team.config.evaluation.tasks:
        return None
    evaluation = held_out(team, watcher)
    writer.run.write_episodes(f"evaluation-{iteration:06d}", evaluation.episodes, team.spell)
    writer.run.write_evaluation(iteration, evaluation.report)
    writer.evaluation(iteration, evaluation.report)
    watcher.evaluation(title, evaluation.headline, iteration)
    return evaluation.report


def save_if_due(training: Training, run: RunDirectory, iteration: int, guard: Guard) -> float:
    """Write a checkpoint after every `run.save_every` iterations, after the last and after going back to an older one;
    returns the seconds it took."""
    config = training.team.config
    clock = Clock({"save": 0.0})
    if guard.restored or iteration + 1 == config.iterations or (iteration + 1) % config.run.save_every == 0:
        with clock.phase("save"):
            kept = guard.keep(iteration + 1)
            save_training(run, training.team, training.optimisers, iteration + 1, training.memory, kept)
    return clock.seconds["save"]


def _score(episodes: Sequence[Episode]) -> float:
    played = [each for each in episodes if each.error is None]
    return sum(each.success for each in played) / len(played) if played else 0.0


def summary(team: Team, run: RunDirectory) -> dict[str, object]:
    """What the display says about a run when it starts."""
    config = team.config
    return {
        "run": run.path,
        "model": "; ".join(map(str, team.backends)),
        "team": ", ".join(team.game.names),
        "learner": f"{config.update.level} level, {config.credit.baseline} baseline, chain per {config.credit.chain}, "
        f"{config.update.schedule}",
    }
