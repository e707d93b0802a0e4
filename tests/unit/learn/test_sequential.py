"""The order of updates, and HAPPO's factor against brute force on a tiny game."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import Tensor

from marft.learn.credit import gae
from marft.learn.losses import clipped_surrogate
from marft.learn.sequential import carry_on, update_order

TEAM = ("planner", "solver", "judge")


# ---- order


def test_sequential_updates_everyone_in_the_given_order() -> None:
    for iteration in range(3):
        assert update_order(TEAM, "sequential", "declared", iteration) == ("planner", "solver", "judge")
        assert update_order(TEAM, "sequential", "reverse", iteration) == ("judge", "solver", "planner")


def test_alternate_goes_round() -> None:
    declared = [update_order(TEAM, "alternate", "declared", i) for i in range(4)]
    assert declared == [("planner",), ("solver",), ("judge",), ("planner",)]
    assert [update_order(TEAM, "alternate", "reverse", i) for i in range(2)] == [("judge",), ("solver",)]


def test_alternate_in_random_order_updates_everyone_once_per_round() -> None:
    rounds = [
        [update_order(TEAM, "alternate", "random", 3 * cycle + i, seed=1)[0] for i in range(3)] for cycle in range(20)
    ]
    assert all(sorted(each) == sorted(TEAM) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_random_orders_are_permutations_that_vary_with_iteration_and_seed() -> None:
    orders = [update_order(TEAM, "sequential", "random", i, seed=0) for i in range(60)]
    assert all(sorted(each) == sorted(TEAM) for each in orders)
    assert len(set(orders)) == math.factorial(3)
    assert orders != [update_order(TEAM, "sequential", "random", i, seed=1) for i in range(60)]


def test_random_order_is_the_same_in_another_process() -> None:
    code = (
        "from marft.learn.sequential import update_order as u;"
        f"print([u({TEAM!r}, 'sequential', 'random', i, 5) for i in range(6)])"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == str([update_order(TEAM, "sequential", "random", i, 5) for i in range(6)])


def test_simultaneous_is_everyone_as_declared() -> None:
    for order in ("declared", "reverse", "random"):
        assert update_order(TEAM, "simultaneous", order, 3) == TEAM  # type: ignore[arg-type]


def test_one_agent_is_always_updated_and_no_agent_is_an_error() -> None:
    assert update_order(["solo"], "alternate", "random", 7, 2) == ("solo",)
    with pytest.raises(ValueError, match="no agent"):
        update_order([], "alternate", "declared", 0)


# ---- carry


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_carry_joins_the_ratios_of_the_same_episode_and_turn_only() -> None:
    #                      episode 0: turn 0       turn 1    episode 1: turn 0
    episode, turn = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 0, 0])
    updated = torch.tensor([1, 0, 1, 0, 1, 0]).bool()
    ratios = rows(1.1, 9.0, 0.9, 9.0, 1.05, 9.0)  # those of rows not updated are not read
    result = carry_on(torch.ones(6, dtype=torch.float64), ratios.log(), episode, turn, updated, 0.2)
    assert result.tolist() == pytest.approx([1.0, 1.1, 1.0, 0.9, 1.0, 1.05])


def test_carry_multiplies_over_agents_and_over_an_agents_actions() -> None:
    episode, turn = torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    agent = torch.tensor([0, 1, 0, 2])  # agent 0 speaks twice in the turn
    first = carry_on(torch.ones(4), rows(1.1, 1.0, 1.05, 1.0).log(), episode, turn, agent == 0, 1.0)
    assert first.tolist() == pytest.approx([1.0, 1.155, 1.0, 1.155])
    second = carry_on(first, rows(7.0, 0.8, 7.0, 7.0).log(), episode, turn, agent == 1, 1.0)
    assert second.tolist() == pytest.approx([0.8, 1.155, 0.8, 0.924])
    assert second.dtype == torch.float32


def test_carry_is_clipped_both_ways_and_has_no_gradient() -> None:
    episode, turn = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.long)
    updated = torch.tensor([1, 0, 1, 0]).bool()
    for size in (2.0, 1000.0):
        log_ratio = torch.tensor([size, 0.0, -size, 0.0], requires_grad=True)
        result = carry_on(torch.ones(4), log_ratio, episode, turn, updated, 0.25)
        assert result.tolist() == pytest.approx([1.0, 1.25, 1.0, 0.8])
        assert not result.requires_grad


def test_rows_not_updated_may_hold_anything() -> None:
    episode, turn = torch.tensor([0, 0]), torch.tensor([0, 0])
    result = carry_on(torch.ones(2), rows(0.0, float("nan")), episode, turn, torch.tensor([True, False]), 0.2)
    assert result.tolist() == [1.0, 1.0]


# ---- a two-agent, one-turn game in full: agent 1 has 3 actions, agent 2 sees which and has 2

REWARDS = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]], dtype=torch.float64)
JOINT = list(product(range(3), range(2)))


class Policies:
    """pi_1 [3] and pi_2 [3, 2] drawn from a seed, with the game's exact values under them."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.first = torch.randn(3, generator=draw, dtype=torch.float64).softmax(-1)
        self.second = torch.randn(3, 2, generator=draw, dtype=torch.float64).softmax(-1)
        self.after_first = (self.second * REWARDS).sum(-1)  # Q(s, a1)
        self.start = float((self.first * self.after_first).sum())  # V(s)


OLD, NEW = Policies(0), Policies(1)
WEIGHTS = torch.stack([OLD.first[a] * OLD.second[a, b] for a, b in JOINT])
LOG_RATIO_1 = torch.stack([(NEW.first[a] / OLD.first[a]).log() for a, _ in JOINT])
LOG_RATIO_2 = torch.stack([(NEW.second[a, b] / OLD.second[a, b]).log() for a, b in JOINT])


def chain_advantages(lam: float) -> Tensor:
    """[6, 2]: one chain per joint action, the exact critic, gamma = 1."""
    rewards = torch.stack([rows(0.0, float(REWARDS[a, b])) for a, b in JOINT])
    values = torch.stack([rows(OLD.start, float(OLD.after_first[a]), 0.0) for a, _ in JOINT])
    return gae(rewards, values, rows(1.0, 0.0).expand(6, 2), torch.full((6, 2), lam, dtype=torch.float64))[0]


def carry_after_agent_1() -> Tensor:
    """M for agent 2's row of each joint action."""
    log_ratio = torch.stack([LOG_RATIO_1, torch.zeros(6)], dim=1).flatten()
    updated = torch.tensor([True, False]).repeat(6)
    episode = torch.arange(6).repeat_interleave(2)
    ones = torch.ones(12, dtype=torch.float64)
    return carry_on(ones, log_ratio, episode, torch.zeros(12, dtype=torch.long), updated, math.inf)[1::2]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_advantages_of_the_agents_add_up_to_the_teams(lam: float) -> None:
    """Advantage decomposition: sum over m of E[A^m | a^{1:m}] = A(s, a^{1:n}), here r - V(s)."""
    advantages = chain_advantages(lam)
    for index, (a, b) in enumerate(JOINT):
        mine = [i for i, (first, _) in enumerate(JOINT) if first == a]
        first = sum(float(OLD.second[a, JOINT[i][1]] * advantages[i, 0]) for i in mine)
        assert first == pytest.approx(float(OLD.after_first[a]) - OLD.start, abs=1e-12)
        assert first + float(advantages[index, 1]) == pytest.approx(float(REWARDS[a, b]) - OLD.start, abs=1e-12)


def test_the_factor_turns_agent_2s_expectation_into_one_over_agent_1s_new_policy() -> None:
    team = torch.stack([REWARDS[a, b] - OLD.start for a, b in JOINT])
    corrected = float((WEIGHTS * carry_after_agent_1() * team).sum())
    exact = sum(float(NEW.first[a] * OLD.second[a, b] * (REWARDS[a, b] - OLD.start)) for a, b in JOINT)
    assert corrected == pytest.approx(exact, abs=1e-12)


def test_the_corrected_surrogates_add_up_to_the_teams_improvement() -> None:
    """With M the agents' surrogates sum to J(new) - J(old) exactly; without it they do not."""
    advantages = chain_advantages(1.0)
    gain = NEW.start - OLD.start
    agent_1 = -float((WEIGHTS * clipped_surrogate(LOG_RATIO_1, advantages[:, 0], 1.0, 1e9)).sum())
    weighted = carry_after_agent_1() * advantages[:, 1]
    agent_2 = -float((WEIGHTS * clipped_surrogate(LOG_RATIO_2, weighted, 1.0, 1e9)).sum())
    assert agent_1 + agent_2 == pytest.approx(gain, abs=1e-12)
    plain = -float((WEIGHTS * clipped_surrogate(LOG_RATIO_2, advantages[:, 1], 1.0, 1e9)).sum())
    assert abs(agent_1 + plain - gain) > 1e-3


@pytest.mark.parametrize("critic", [(0.0, (0.0, 0.0, 0.0)), (5.0, (-2.0, 0.5, 7.0))])
def test_any_fixed_critic_leaves_the_policy_gradient_exact(critic: tuple[float, tuple[float, ...]]) -> None:
    """E[sum_k A_k grad log pi_k] = grad J for lambda = gamma = 1, whatever the critic says."""
    start, after = critic
    rewards = torch.stack([rows(0.0, float(REWARDS[a, b])) for a, b in JOINT])
    values = torch.stack([rows(start, after[a], 0.0) for a, _ in JOINT])
    ones = torch.ones(6, 2, dtype=torch.float64)
    advantages = gae(rewards, values, rows(1.0, 0.0).expand(6, 2), ones)[0]
    first, second = OLD.first.log().requires_grad_(), OLD.second.log().requires_grad_()
    pi_1, pi_2 = first.log_softmax(-1), second.log_softmax(-1)
    objective = (pi_1.exp()[:, None] * pi_2.exp() * REWARDS).sum()
    exact = torch.autograd.grad(objective, (first, second), retain_graph=True)
    moves = [[pi_1[a] - OLD.first[a].log(), pi_2[a, b] - OLD.second[a, b].log()] for a, b in JOINT]
    log_ratio = torch.stack([torch.stack(each) for each in moves])
    loss = (WEIGHTS[:, None] * clipped_surrogate(log_ratio, advantages, 0.2, 0.2)).sum()
    ours = torch.autograd.grad(-loss, (first, second))
    assert all(torch.allclose(mine, theirs, atol=1e-12) for mine, theirs in zip(ours, exact, strict=True))
