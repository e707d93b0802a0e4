"""An iteration's play: which tasks, how many episodes, and what the rollout says by itself."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from marft.rollout import Plan, rollout
from marft.run.progress import Watcher
from marft.team import Team
from marft.types import Episode, MarftError


class TooManyFailed(MarftError):
    """More episodes failed than the config allows; `episodes` are all that were played."""

    def __init__(self, text: str, episodes: Sequence[Episode]) -> None:
        super().__init__(text)
        self.episodes = tuple(episodes)


PLAY_SEED, EVALUATION_SEED = 0, 1  # first number of every seed: training play and evaluation never share draws


def play_iteration(team: Team, iteration: int, watcher: Watcher) -> list[Episode]:
    """Play the iteration's tasks, `samples` episodes each. Raises `MarftError` when too many of them fail."""
    config = team.config
    plans = []
    for place, index in enumerate(task_indices(team, iteration)):
        task = team.game.environment.task("train", index)
        for sample in range(config.rollout.samples):
            number = place * config.rollout.samples + sample
            seed = (PLAY_SEED, config.seed, iteration, place, sample)
            # A task that comes twice starts from two states, so it makes two groups
            plans.append(Plan(task, sample, seed, number, group=f"{task.id}/{place}"))
    return play_plans(team, plans, watcher, "playing")


def play_plans(team: Team, plans: Sequence[Plan], watcher: Watcher, title: str) -> list[Episode]:
    """Play plans with progress; stops the run when more than the allowed share of episodes fails."""
    done = Counter[str]()

    def finished(episode: Episode) -> None:
        done["all"] += 1
        watcher.phase(title, done["all"], len(plans))

    watcher.phase(title, 0, len(plans))
    episodes = asyncio.run(rollout(team.stage, plans, finished))
    failures = [each.error for each in episodes if each.error]
    if len(failures) > team.config.rollout.max_failed * len(plans):
        ((worst, count),) = Counter(failures).most_common(1)
        raise TooManyFailed(
            f"{len(failures)} of {len(plans)} episodes failed (rollout.max_failed allows "
            f"{team.config.rollout.max_failed:.0%}); {count} of them like this: {worst.who}: {worst.reason}",
            episodes,
        )
    return episodes


def task_indices(team: Team, iteration: int) -> list[int]:
    """Which training tasks an iteration plays: on and on in an endless split, else epoch by epoch, each shuffled."""
    count, size = team.config.rollout.tasks, team.game.environment.size("train")
    positions = range(iteration * count, (iteration + 1) * count)
    if size is None:
        return list(positions)
    orders: dict[int, list[int]] = {}
    for epoch in {position // size for position in positions}:
        orders[epoch] = random.Random(f"{team.config.seed}/{epoch}").sample(range(size), size)
    return [orders[position // size][position % size] for position in positions]


def play_stats(team: Team, episodes: Sequence[Episode], dropped: dict[str, int]) -> dict[str, Any]:
    """What the rollout says by itself: reward, success, failures by reason, and per agent how it spoke."""
    played = [each for each in episodes if each.error is None]
    actions = [action for episode in played for action in episode.actions]
    count = max(len(played), 1)
    stats: dict[str, Any] = {
        "reward": sum(each.reward for each in played) / count,
        "success": sum(each.success for each in played) / count,
        "episodes": len(episodes),
        "failed": dropped["failed"],
        "empty": dropped["empty"],
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
            }
    return stats
