"""Reward allocation: on which of a side's actions what it earned stands, before credit flows along a chain.

The equations are in docs/algorithm.md, "Reward allocation". Pure: lists of K numbers in, lists of K numbers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from marft.types import Action

if TYPE_CHECKING:
    from marft.config import CreditConfig

How = Literal["per_action", "team_last", "equal", "step_discounted", "own_team"]


@dataclass(frozen=True)
class Allocation:
    """`discount` in (0, 1] is an action's share over that of the next (`step_discounted`); `own_share` in [0, 1] the
    weight of an agent's own reward beside the mean of all (`own_team`)."""

    how: How = "per_action"
    discount: float = 0.9
    own_share: float = 0.5

    @classmethod
    def of(cls, config: CreditConfig) -> Allocation:
        """The allocation a config asks for."""
        return cls(config.allocation, config.allocation_discount, config.own_share)


def allocate(actions: Sequence[Action], allocation: Allocation) -> list[float]:
    """The reward [K] of each of one side's K actions, given in execution order.

    All but `own_team` keep the sum of what was earned. `own_team` pays every agent, so its sum means something only on
    chains of single agents.
    """
    paid = [action.reward for action in actions]
    total = sum(paid)
    if allocation.how == "per_action":
        return paid
    if allocation.how == "team_last":
        return [0.0] * (len(paid) - 1) + [total]
    if allocation.how == "own_team":
        return _own_and_team(actions, allocation.own_share)
    discount = 1.0 if allocation.how == "equal" else allocation.discount
    weights = [discount ** (len(paid) - 1 - place) for place in range(len(paid))]
    return [total * weight / sum(weights) for weight in weights]


def _own_and_team(actions: Sequence[Action], own_share: float) -> list[float]:
    """Turn by turn, what each agent that has acted so far earned itself, mixed with the mean over them.

    A reward to the team as a whole is everyone's own. It stands on the agent's latest action of that turn or before.
    (MAPoRL, arXiv 2502.18439, with own_share = 1/2.)
    """
    rewards = [0.0] * len(actions)
    latest: dict[str, int] = {}
    for turn in sorted({action.turn for action in actions}):
        here = {place: action for place, action in enumerate(actions) if action.turn == turn}
        latest.update({action.agent: place for place, action in here.items()})
        shared = sum(action.shared for action in here.values())
        own = dict.fromkeys(latest, 0.0)
        for action in here.values():
            own[action.agent] += action.reward - action.shared
        mean = sum(own.values()) / len(own)
        for agent, place in latest.items():
            rewards[place] += shared + own_share * own[agent] + (1.0 - own_share) * mean
    return rewards
