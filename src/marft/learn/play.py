"""An iteration's play: which tasks, how many episodes, and what the rollout says by itself."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from marft.learn.collate import left_out
from marft.learn.curriculum import Record, Result, choose, noted, ordered, upcoming, weight
from marft.learn.repetition import repeated
from marft.rollout import Plan, rollout
from marft.run.progress import Watcher
from marft.running import result_of
from marft.team import Team
from marft.types import Episode, MarftError


class TooManyFailed(MarftError):
    """More episodes failed than the config allows; `episodes` are all that were played."""

    def __init__(self, text: str, episodes: Sequence[Episode]) -> None:
        super().__init__(text)
        self.episodes = tuple(episodes)


PLAY_SEED, EVALUATION_SEED = 0, 1  # first number of every seed: training play and evaluation never share draws
ROUNDING = 1e-6  # relative: what rewards that should be equal may differ by


@dataclass(frozen=True)
class Group:
    """The episodes of one task."""

    index: int
    episodes: tuple[Episode, ...]

    @property
    def played(self) -> list[Episode]:
        """Those that did not fail."""
        return [each for each in self.episodes if each.error is None]


@dataclass(frozen=True)
class Played:
    """What an iteration played: all of it, what may be learnt from, what it did to the record, and what it says."""

    episodes: list[Episode]
    kept: tuple[Episode, ...]
    record: Record
    stats: dict[str, Any]


async def play_iteration(team: Team, record: Record, iteration: int, watcher: Watcher) -> Played:
    """Play the iteration's tasks, `samples` episodes each, and replace tasks without a signal by further ones.

    A function of its arguments and the weights: nothing else changes. Raises `MarftError` when too many episodes fail.
    """
    config, used, started = team.config.rollout, team.usage, time.perf_counter()
    indices, after = first_tasks(team, record, iteration)
    groups = await play_groups(team, indices, iteration, (), watcher, "playing")
    rounds = 0
    while (missing := config.tasks - sum(map(has_signal, groups))) > 0 and rounds < config.resample:
        taken = {each.index for each in groups}
        indices, later = further_tasks(team, after, iteration, rounds + 1, missing, taken)
        if not indices:  # the whole split was played
            break
        rounds, after = rounds + 1, later
        groups += await play_groups(team, indices, iteration, groups, watcher, f"playing again ({rounds})")
    kept = [each for each in groups if has_signal(each)] or groups[-config.tasks :] if config.resample else groups
    episodes = [each for group in groups for each in group.episodes]
    stats = play_stats(team, episodes)
    if config.resample:
        stats["resample"] = {"rounds": rounds, "groups": len(groups), "dropped": len(groups) - len(kept)}
    if config.curriculum is not None:
        stats["curriculum"] = _curriculum_stats(record, groups)
        endless = team.game.environment.size("train") is None
        after = noted(after, _results(groups), config.curriculum.decay, endless)
    stats["tokens"] = {"prompt": team.usage.prompt_tokens - used.prompt_tokens}
    stats["play_tokens_per_second"] = (team.usage.sampled_tokens - used.sampled_tokens) / (
        time.perf_counter() - started
    )
    trainable = tuple(each for group in kept for each in group.episodes if left_out(each) is None)
    return Played(episodes, trainable, after, stats)


async def play_groups(
    team: Team, indices: Sequence[int], iteration: int, earlier: Sequence[Group], watcher: Watcher, title: str
) -> list[Group]:
    """Play `samples` episodes of each task; `earlier` was played before in this iteration."""
    config, plans = team.config, []
    for place, index in enumerate(indices, start=len(earlier)):
        task = team.game.environment.task("train", index)
        for sample in range(config.rollout.samples):
            number = place * config.rollout.samples + sample
            seed = (PLAY_SEED, config.seed, iteration, place, sample)
            # A task that comes twice starts from two states, so it makes two groups
            plans.append(Plan(task, sample, seed, number, group=f"{task.id}/{iteration}/{place}"))
    before = [each for group in earlier for each in group.episodes]
    episodes = await play_all(team, plans, watcher, title, before)
    size = config.rollout.samples
    return [Group(index, tuple(episodes[at * size : (at + 1) * size])) for at, index in enumerate(indices)]


def play_plans(team: Team, plans: Sequence[Plan], watcher: Watcher, title: str) -> list[Episode]:
    """Play plans with progress; stops the run when more than the allowed share of episodes fails."""
    return result_of(play_all(team, plans, watcher, title))


async def play_all(
    team: Team, plans: Sequence[Plan], watcher: Watcher, title: str, earlier: Sequence[Episode] = ()
) -> list[Episode]:
    """Play plans; raises `TooManyFailed` when too many of them and of `earlier` episodes together failed."""
    done = Counter[str]()

    def finished(episode: Episode) -> None:
        done["all"] += 1
        watcher.episode(episode)
        watcher.phase(title, done["all"], len(plans))

    watcher.phase(title, 0, len(plans))
    episodes = await rollout(team.stage, plans, finished)
    everything = [*earlier, *episodes]
    failures = [each.error for each in everything if each.error]
    if len(failures) > team.config.rollout.max_failed * len(everything):
        ((worst, count),) = Counter(failures).most_common(1)
        raise TooManyFailed(
            f"{len(failures)} of {len(everything)} episodes failed (rollout.max_failed allows "
            f"{team.config.rollout.max_failed:.0%}); {count} of them like this: {worst.who}: {worst.reason}",
            everything,
        )
    return episodes


def task_indices(team: Team, iteration: int) -> list[int]:
    """Which training tasks an iteration plays: on and on in an endless split, else epoch by epoch, each shuffled."""
    count, size = team.config.rollout.tasks, team.game.environment.size("train")
    return list(islice(ordered(size, team.config.seed, iteration * count), count))


def first_tasks(team: Team, record: Record, iteration: int) -> tuple[list[int], Record]:
    """The tasks an iteration starts with. Without curriculum and resampling, no record is needed for that."""
    play, size = team.config.rollout, team.game.environment.size("train")
    if play.curriculum is not None:
        return further_tasks(team, record, iteration, 0, play.tasks, ())
    if not play.resample:
        return task_indices(team, iteration), record
    indices = list(islice(ordered(size, team.config.seed, record.cursor), play.tasks))
    return indices, replace(record, cursor=record.cursor + play.tasks)


def further_tasks(
    team: Team, record: Record, iteration: int, number: int, count: int, taken: Collection[int]
) -> tuple[list[int], Record]:
    """`count` tasks that are not `taken`, or as many as the split has, for round `number` of an iteration's play.

    With a curriculum they are chosen among `pool` times as many candidates, by success rate.
    """
    environment, config = team.game.environment, team.config
    curriculum, size = config.rollout.curriculum, environment.size("train")
    pool = count * (curriculum.pool if curriculum is not None else 1)
    candidates, cursor = upcoming(size, config.seed, record.cursor, pool, taken)
    after = replace(record, cursor=cursor)
    if curriculum is None:
        return candidates, after
    rates = [record.tasks.get(each) for each in candidates]
    weights = [
        weight(record.success(index, environment.task("train", index).kind) if rate is None else rate, curriculum.floor)
        for index, rate in zip(candidates, rates, strict=True)
    ]
    # A text seed is hashed with SHA-512: the same on every machine
    places = choose(weights, count, random.Random(f"curriculum {config.seed} {iteration} {number}"))
    return [candidates[place] for place in places], after


def has_signal(group: Group) -> bool:
    """Whether two of the task's episodes that can be learnt from earned, up to rounding, something else in some turn.

    What is compared is what each agent earned by itself, and what each side was paid as a whole, whoever spoke last.
    """
    earned = [_earned(each) for each in group.episodes if left_out(each) is None]
    return any(_differ([each.get(who, 0.0) for each in earned]) for who in {who for each in earned for who in each})


def _earned(episode: Episode) -> dict[tuple[str, str, int], float]:
    found: dict[tuple[str, str, int], float] = defaultdict(float)
    for action in episode.actions:
        found["side", action.side, action.turn] += action.shared
        found["agent", action.agent, action.turn] += action.reward - action.shared
    return found


def _differ(numbers: Sequence[float]) -> bool:
    return max(numbers) - min(numbers) > ROUNDING * max(map(abs, numbers))


def _results(groups: Sequence[Group]) -> list[Result]:
    """How tasks went, those aside whose episodes all failed."""
    return [
        Result(each.index, each.played[0].task.kind, sum(one.success for one in each.played) / len(each.played))
        for each in groups
        if each.played
    ]


def _curriculum_stats(record: Record, groups: Sequence[Group]) -> dict[str, float]:
    """The mean success that was expected of what was played, and the share of it that had been played before."""
    expected = [record.success(each.index, each.episodes[0].task.kind) for each in groups]
    return {
        "expected_success": sum(expected) / len(expected),
        "known_tasks": sum(each.index in record.tasks for each in groups) / len(groups),
    }


def play_stats(team: Team, episodes: Sequence[Episode]) -> dict[str, Any]:
    """What the rollout says by itself: reward, success, failures by reason, and per agent how it spoke."""
    played = [each for each in episodes if each.error is None]
    actions = [action for episode in played for action in episode.actions]
    count = max(len(played), 1)
    reasons = Counter(left_out(each) for each in episodes)
    stats: dict[str, Any] = {
        "reward": sum(each.reward for each in played) / count,
        "success": sum(each.success for each in played) / count,
        "episodes": len(episodes),
        "failed": reasons["failed"],
        "empty": reasons["empty"],
        "failures": dict(Counter(f"{each.error.who}: {each.error.reason}" for each in episodes if each.error)),
        "truncated_episodes": sum(each.truncated for each in played) / count,
        "truncated_prompts": sum(action.truncated_tokens > 0 for action in actions),
        "play": {},
    }
    for name in team.game.names:
        mine = [action for action in actions if action.agent == name]
        if mine:
            stats["play"][name] = {
                "reward": sum(action.reward for action in mine) / count,
                "replies": len(mine) / count,
                "tool_calls": sum(len(action.tool_results) for action in mine) / count,
                "reply_tokens": sum(len(action.token_ids) for action in mine) / len(mine),
                "truncated_replies": sum(action.stop == "length" for action in mine) / len(mine),
                "repeated": sum(repeated(action.text) for action in mine) / len(mine),
            }
    return stats
