"""Episodes from plans: turn by turn until the world ends the game, the horizon cuts it off, or something fails."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from marft.environments.base import Environment
from marft.rollout.stage import Plan, PlayFailed, Stage, run_together
from marft.rollout.table import Table
from marft.rollout.turns import play_turn
from marft.types import Episode, Failure


async def rollout(
    stage: Stage, plans: Iterable[Plan], finished: Callable[[Episode], None] = lambda episode: None
) -> list[Episode]:
    """Play all plans at once; episodes come back in the order of the plans. `finished` hears of each as it ends."""

    async def play_and_tell(plan: Plan) -> Episode:
        episode = await play(stage, plan)
        finished(episode)
        return episode

    return await run_together(play_and_tell(plan) for plan in plans)


async def play(stage: Stage, plan: Plan) -> Episode:
    """Play one episode; a failure or a passed deadline is recorded in it, a cancellation propagates."""
    table = Table(stage, plan)
    try:
        async with asyncio.timeout(stage.deadline):
            return await _play(table)
    except TimeoutError:
        slow = table.speaking[0] if table.speaking else "environment"
        failure = Failure(slow, f"the episode passed its deadline of {stage.deadline:g} s")
    except PlayFailed as error:
        failure = error.failure
    return table.episode(terminated=False, truncated=False, error=failure)


async def _play(table: Table) -> Episode:
    game = table.stage.game
    # One seed per task: all samples of a group start from the same state
    seed = zlib.crc32(repr(table.plan.seed[:-1]).encode())
    state = table.world(lambda: game.environment.reset(table.plan.task, game.names, seed))
    table.sides = table.world(lambda: _sides(game.environment, state))
    for turn in range(game.turns):
        messages = await play_turn(table, state, turn)
        outcome = await table.step(state, messages)
        state = outcome.state
        if outcome.terminated or outcome.truncated:
            return table.episode(outcome.terminated, outcome.truncated)
    return table.episode(terminated=False, truncated=True)


def _sides(environment: Environment, state: Any) -> dict[str, str]:
    """Who plays for whom, in a world of several sides."""
    sides = getattr(environment, "sides", None)
    return dict(sides(state)) if sides else {}
