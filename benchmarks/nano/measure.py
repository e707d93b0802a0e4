"""How well untrained or trained teams solve held-out problems."""

from __future__ import annotations

from marft.learn.play import EVALUATION_SEED, play_plans
from marft.rollout import Plan
from marft.run.progress import Silent
from marft.team import Team
from marft.types import Episode


def held_out(team: Team, tasks: int = 256, greedy: bool = False) -> list[Episode]:
    """The first held-out problems, each played once: greedily, or at the team's own temperature."""
    problems = [team.game.environment.task("heldout", index) for index in range(tasks)]
    plans = [
        Plan(problem, 0, (EVALUATION_SEED, team.config.seed, place, 0), place, greedy)
        for place, problem in enumerate(problems)
    ]
    return play_plans(team, plans, Silent(), "held out")


def success(episodes: list[Episode]) -> float:
    """The share of episodes that were won."""
    return sum(each.success for each in episodes) / len(episodes)
