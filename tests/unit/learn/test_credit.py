"""Credit: the design's hand-worked vectors, an independent O(K^2) definition, and faults reported elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from marft.config import CreditConfig
from marft.learn.credit import (
    Links,
    assign_credit,
    critic_credit,
    gae,
    group_advantages,
    group_credit,
    lone_groups,
    normalise_advantages,
    return_credit,
    running_credit,
    running_means,
)
from marft.types import Batch, Credit

PROMPT = 2
NAN = float("nan")
UNDISCOUNTED = Links(1.0, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Said:
    """One action: who, in which turn, how many tokens, the reward, and the critic's value at each token."""

    agent: int
    turn: int
    tokens: int = 1
    reward: float = 0.0
    values: tuple[float, ...] = (0.0,)


def make_batch(
    episodes: list[list[Said]], level: str = "action", terminated: list[bool] | None = None
) -> tuple[Batch, Tensor]:
    """A float64 batch of one task and its values [N, S], which are NaN wherever they must not be read."""
    said = [each for episode in episodes for each in episode]
    length = PROMPT + max(each.tokens for each in said) + 1
    action_mask = torch.zeros(len(said), length, dtype=torch.bool)
    decision_mask = action_mask.clone()
    values = torch.full((len(said), length), NAN, dtype=torch.float64)
    for row, each in enumerate(said):
        decisions = each.tokens if level == "token" else 1
        action_mask[row, PROMPT : PROMPT + each.tokens] = True
        decision_mask[row, PROMPT : PROMPT + decisions] = True
        known = (each.values * decisions)[:decisions]
        values[row, PROMPT : PROMPT + decisions] = torch.tensor(known, dtype=torch.float64)
    blank = torch.zeros(len(said), length, dtype=torch.long)
    agent, turn = torch.tensor([each.agent for each in said]), torch.tensor([each.turn for each in said])
    batch = Batch(
        agents=tuple(f"agent{i}" for i in range(int(agent.max()) + 1)),
        tokens=blank,
        attention_mask=action_mask,
        action_mask=action_mask,
        decision_mask=decision_mask,
        logprobs=blank.double(),
        joint=blank,
        joint_mask=action_mask,
        rewards=torch.tensor([each.reward for each in said], dtype=torch.float64),
        agent=agent,
        turn=turn,
        episode=torch.tensor([i for i, episode in enumerate(episodes) for _ in episode]),
        words=torch.ones(len(said), dtype=torch.long),
        groups=10 * turn + agent + 7,
        final_joint=blank[: len(episodes)],
        final_joint_mask=action_mask[: len(episodes)],
        terminated=torch.tensor(terminated or [True] * len(episodes)),
        version=torch.zeros(len(said), dtype=torch.long),
    )
    return batch, values


def duo(first: float, second: float, reward: float = 1.0) -> list[Said]:
    """Two agents, one turn; the second earns the reward."""
    return [Said(0, 0, values=(first,)), Said(1, 0, reward=reward, values=(second,))]


def at_decisions(numbers: Tensor, batch: Batch) -> list[float]:
    return numbers[batch.decision_mask].tolist()


def row_numbers(numbers: Tensor) -> list[float]:
    return numbers[:, PROMPT].tolist()


def everywhere(gamma: float, lam: float) -> Links:
    return Links(gamma, gamma, gamma, lam, lam)


# ---- gae


def quadratic_gae(rewards: Tensor, values: Tensor, discounts: Tensor, lambdas: Tensor) -> list[float]:
    """A_k = sum over j >= k of (product over k <= i < j of gamma_i lambda_i) delta_j, term by term."""
    steps = len(rewards)
    deltas = [rewards[j] + discounts[j] * values[j + 1] - values[j] for j in range(steps)]
    advantages = []
    for k in range(steps):
        total = 0.0
        for j in range(k, steps):
            weight = 1.0
            for i in range(k, j):
                weight *= float(discounts[i] * lambdas[i])
            total += weight * float(deltas[j])
        advantages.append(total)
    return advantages


@pytest.mark.parametrize("steps", [1, 2, 7, 23])
def test_gae_equals_its_definition(steps: int) -> None:
    draw = torch.Generator().manual_seed(steps)
    rewards, values, discounts, lambdas = (
        torch.rand(4, size, generator=draw, dtype=torch.float64) for size in (steps, steps + 1, steps, steps)
    )
    advantages, returns = gae(rewards, values, discounts, lambdas)
    for row in range(4):
        expected = quadratic_gae(rewards[row], values[row], discounts[row], lambdas[row])
        assert advantages[row].tolist() == pytest.approx(expected, abs=1e-12)
        assert returns[row].tolist() == pytest.approx((values[row, :-1] + advantages[row]).tolist(), abs=1e-12)
    alone = gae(rewards[1], values[1], discounts[1], lambdas[1])[0]
    assert torch.equal(alone, advantages[1])


def test_gae_with_lambda_one_is_the_return_less_the_value_and_with_zero_the_error() -> None:
    rewards, values = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([10.0, 20.0, 30.0, 8.0])
    half = torch.full((3,), 0.5)
    # return-to-go: 4 + .5*8 = 8; 2 + .5*8 = 6; 1 + .5*6 = 4
    assert gae(rewards, values, half, torch.ones(3))[0].tolist() == [4 - 10, 6 - 20, 8 - 30]
    assert gae(rewards, values, half, torch.zeros(3))[0].tolist() == [1 + 10 - 10, 2 + 15 - 20, 4 + 4 - 30]


def test_gae_does_not_read_beyond_a_link_of_discount_zero() -> None:
    rewards, values = torch.tensor([0.0, 1.0, NAN]), torch.tensor([0.5, 0.25, NAN, torch.inf])
    advantages, returns = gae(rewards, values, torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]))
    assert advantages[:2].tolist() == [0.5, 0.75]
    assert returns[:2].tolist() == [1.0, 1.0]


def test_gae_refuses_values_without_a_bootstrap_entry() -> None:
    with pytest.raises(ValueError, match="one longer"):
        gae(torch.zeros(3), torch.zeros(3), torch.ones(3), torch.ones(3))


# ---- the design's vectors


@pytest.mark.parametrize(
    ("values", "links", "advantages", "returns"),
    [
        ((0.5, 0.6), UNDISCOUNTED, [0.5, 0.4], [1.0, 1.0]),
        ((0.5, 0.6), everywhere(0.99, 0.95), [0.4702, 0.4], [0.9702, 1.0]),
        ((0.2, 0.5), everywhere(0.99, 0.95), [0.76525, 0.5], [0.96525, 1.0]),
    ],
)
@pytest.mark.parametrize("level", ["action", "token"])
def test_two_agents_in_one_turn(
    values: tuple[float, float], links: Links, advantages: list[float], returns: list[float], level: str
) -> None:
    batch, critic = make_batch([duo(*values)], level)
    credit = critic_credit(batch, critic, None, links)
    assert at_decisions(credit.advantages, batch) == pytest.approx(advantages, abs=1e-12)
    assert at_decisions(credit.returns, batch) == pytest.approx(returns, abs=1e-12)


@pytest.mark.parametrize(("gamma_token", "first"), [(0.99, 0.817717625), (1.0, 0.8269875)])
def test_token_level(gamma_token: float, first: float) -> None:
    said = [Said(0, 0, tokens=2, values=(0.1, 0.2)), Said(1, 0, reward=1.0, values=(0.5,))]
    batch, values = make_batch([said], "token")
    links = replace(everywhere(0.99, 0.95), gamma_token=gamma_token)
    credit = critic_credit(batch, values, None, links)
    assert at_decisions(credit.advantages, batch) == pytest.approx([first, 0.76525, 0.5], abs=1e-12)


@pytest.mark.parametrize("baseline", ["critic", "none"])
def test_every_episode_of_a_batch_gets_its_whole_credit(baseline: str) -> None:
    batch, values = make_batch([duo(0, 0), duo(0, 0)])
    config = CreditConfig(gamma=1, lam=1, baseline=baseline)  # type: ignore[arg-type]
    credit = assign_credit(batch, values, torch.full((2,), NAN), config)
    assert row_numbers(credit.advantages) == [1.0, 1.0, 1.0, 1.0]


def test_the_paper_code_preset_discounts_every_link() -> None:
    batch, values = make_batch([duo(0.5, 0.6)])
    paper = assign_credit(batch, values, None, CreditConfig(preset="paper-code"))
    assert row_numbers(paper.advantages) == pytest.approx([0.4702, 0.4], abs=1e-12)
    # marft's own default keeps gamma_agent = 1: delta_1 = .6 - .5 = .1, and .1 + .95 * .4 = .48
    own = assign_credit(batch, values, None, CreditConfig())
    assert row_numbers(own.advantages) == pytest.approx([0.48, 0.4], abs=1e-12)


# ---- links


def test_each_kind_of_link_has_its_own_discount() -> None:
    said = [Said(0, 0, tokens=2), Said(1, 0), Said(0, 1, reward=1000.0)]
    batch, values = make_batch([said], "token")
    links = Links(gamma=0.1, gamma_agent=0.25, gamma_token=0.5, lam=1.0, lam_token=1.0)
    credit = critic_credit(batch, values, None, links)
    assert at_decisions(credit.advantages, batch) == pytest.approx([12.5, 25.0, 100.0, 1000.0])


def test_each_kind_of_link_has_its_own_lambda() -> None:
    said = [Said(0, 0, tokens=2), Said(1, 0), Said(0, 1, reward=1000.0)]
    batch, values = make_batch([said], "token")
    credit = critic_credit(batch, values, None, Links(1.0, 1.0, 1.0, lam=0.5, lam_token=0.25))
    assert at_decisions(credit.advantages, batch) == pytest.approx([62.5, 250.0, 500.0, 1000.0])


def test_a_truncated_episode_is_bootstrapped_and_a_terminated_one_is_not() -> None:
    said = [Said(0, 0), Said(1, 0, reward=1.0), Said(0, 1), Said(1, 1, reward=2.0)]
    batch, values = make_batch([said, said], terminated=[False, True])
    final = torch.tensor([4.0, NAN], dtype=torch.float64)  # what a terminated episode is given is not looked at
    credit = critic_credit(batch, values, final, Links(0.5, 1.0, 1.0, 1.0, 1.0))
    # truncated: 2 + .5*4 = 4; 4; 1 + .5*4 = 3; 3.  terminated: 2; 2; 1 + .5*2 = 2; 2
    assert row_numbers(credit.returns) == [3.0, 3.0, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0]


def test_a_truncated_episode_without_a_bootstrap_value_is_refused() -> None:
    batch, values = make_batch([duo(0, 0)], terminated=[False])
    with pytest.raises(ValueError, match="bootstrap"):
        critic_credit(batch, values, None, UNDISCOUNTED)


def test_an_episode_that_starts_mid_batch_is_credited_as_if_alone() -> None:
    long = [Said(a, t, tokens=1 + t, reward=a * t, values=(0.3 * a, 0.1 * t, 0.7)) for t in range(3) for a in (0, 1)]
    for level in ("action", "token"):
        batch, values = make_batch([duo(0.4, 0.1), long, duo(0.2, 0.9, -1.0)], level)
        alone, alone_values = make_batch([long], level)
        together = critic_credit(batch, values, None, Links())
        single = critic_credit(alone, alone_values, None, Links())
        assert torch.equal(together.advantages[2:8], single.advantages)
        assert torch.equal(together.returns[2:8], single.returns)


def test_values_off_the_mask_never_leak() -> None:  # ROLL#447
    batch, values = make_batch([[Said(0, 0, tokens=2, reward=1.0, values=(0.0, 0.0))]], "token")
    for garbage in (100.0, NAN, torch.inf):
        dirty = torch.where(batch.decision_mask, values, garbage)
        credit = critic_credit(batch, dirty, torch.tensor([garbage]), Links(1.0, 1.0, 1.0, 0.95, 0.95))
        assert credit.advantages[0].tolist() == pytest.approx([0, 0, 0.95, 1, 0])
        assert credit.returns[0].tolist() == pytest.approx([0, 0, 0.95, 1, 0])


def test_a_reward_crosses_an_observation_between_two_actions() -> None:  # verl#7278
    rows, values = make_batch([[Said(0, 0, tokens=2), Said(0, 1, tokens=2, reward=1.0)]], "token")
    credit = critic_credit(rows, values, None, UNDISCOUNTED)
    assert at_decisions(credit.returns, rows) == [1.0] * 4
    gap, values = make_batch([[Said(0, 0, tokens=6, reward=1.0)]], "token")
    seen = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1, 0]]).bool()
    gap = replace(gap, action_mask=seen, decision_mask=seen)
    credit = critic_credit(gap, values, None, UNDISCOUNTED)
    assert credit.returns[0].tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0]


# ---- where credit lands


def test_action_level_credit_stands_on_every_token_and_its_return_on_the_first() -> None:
    batch, values = make_batch([[Said(0, 0, tokens=3, values=(0.25,)), Said(1, 0, tokens=1, reward=1.0)]])
    credit = critic_credit(batch, values, None, UNDISCOUNTED)
    assert credit.advantages.tolist() == [[0, 0, 0.75, 0.75, 0.75, 0], [0, 0, 1, 0, 0, 0]]
    assert credit.returns.tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


def test_credit_keeps_float32_and_carries_no_gradient() -> None:
    batch, values = make_batch([duo(0.5, 0.6)])
    for dtype in (torch.float32, torch.bfloat16):
        critic = values.to(dtype).requires_grad_()
        credit = critic_credit(batch, critic, None, UNDISCOUNTED)
        assert credit.advantages.dtype == credit.returns.dtype == torch.float32
        assert not credit.advantages.requires_grad


def test_broken_batches_are_refused() -> None:
    batch, values = make_batch([duo(0, 0), duo(0, 0)])
    empty = batch.decision_mask.clone()
    empty[1] = False
    with pytest.raises(ValueError, match="row 1 has no decision"):  # agent-lightning#74
        critic_credit(replace(batch, decision_mask=empty), values, None, UNDISCOUNTED)
    with pytest.raises(ValueError, match="outside action_mask"):
        critic_credit(replace(batch, decision_mask=torch.ones_like(empty)), values, None, UNDISCOUNTED)
    shifted = batch.action_mask | batch.action_mask.roll(-1, 1)
    with pytest.raises(ValueError, match="first token"):
        critic_credit(replace(batch, action_mask=shifted), values, None, UNDISCOUNTED)
    with pytest.raises(ValueError, match="episode order"):
        critic_credit(replace(batch, episode=batch.episode.flip(0)), values, None, UNDISCOUNTED)
    with pytest.raises(ValueError, match="needs values"):
        assign_credit(batch, None, None, CreditConfig())


# ---- no critic


def test_without_a_baseline_the_advantage_is_the_discounted_return_to_go() -> None:
    said = [Said(0, 0, reward=1.0), Said(1, 0, reward=2.0), Said(0, 1, reward=4.0)]
    batch, _ = make_batch([said], terminated=[False])
    credit = return_credit(batch, Links(0.5, 1.0, 1.0, 0.3, 0.3))  # lambda and bootstrap play no part
    assert row_numbers(credit.advantages) == [5.0, 4.0, 4.0]
    assert torch.equal(credit.returns, credit.advantages)


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("reward", [1.0, 0.1, 0.7, 1e6])
def test_a_group_of_equal_returns_gets_exactly_zero(level: str, reward: float) -> None:
    # NeMo-RL#4161: the residue of a mean must not be blown up to +-1000 by its tiny std
    batch, _ = make_batch([duo(0, 0, reward) for _ in range(7)], level)
    for dtype in (torch.float32, torch.float64):
        same = replace(batch, rewards=batch.rewards.to(dtype))
        credit = normalise_advantages(group_credit(same, Links()), same, "batch")
        assert not credit.advantages.any()


def test_returns_that_are_equal_but_for_rounding_get_exactly_zero() -> None:
    split = [Said(0, 0, reward=0.1), Said(1, 0, reward=0.2)]
    whole = [Said(0, 0, reward=0.3), Said(1, 0)]
    batch, _ = make_batch([split, whole])
    credit = group_credit(batch, UNDISCOUNTED)
    assert 0.1 + 0.2 != 0.3
    assert row_numbers(credit.advantages)[::2] == [0.0, 0.0]


def test_two_problems_do_not_share_a_group() -> None:  # PettingLLMs
    batch, _ = make_batch([[Said(0, 0, reward=r)] for r in (1, 1, 0, 0)])
    credit = group_credit(replace(batch, groups=torch.tensor([3, 3, 8, 8])), Links())
    assert not credit.advantages.any()


def test_a_baseline_per_turn() -> None:  # agent-lightning#489
    long = [Said(0, 0), Said(0, 1, reward=1.0)]
    batch, _ = make_batch([long, [Said(0, 0)], long, [Said(0, 0)]])
    credit = group_credit(batch, UNDISCOUNTED)
    # turn 0 has mean .5 over four episodes, turn 1 has mean 1 over two
    assert row_numbers(credit.advantages) == [0.5, 0.0, -0.5, 0.5, 0.0, -0.5]


def test_a_baseline_per_agent() -> None:  # prime-rl#3108
    played = [[Said(0, 0, reward=s), Said(1, 0, reward=j)] for s, j in ((1, 10), (0, 8))]
    batch, _ = make_batch(played)
    credit = group_credit(batch, Links(gamma=0.0, gamma_agent=0.0))  # each agent on its own reward
    assert row_numbers(credit.advantages) == [0.5, 1.0, -0.5, -1.0]


def test_zero_sum_roles_have_their_own_baselines() -> None:  # prime-rl#3136
    played = [[Said(0, 0, reward=r), Said(1, 0, reward=-r)] for r in (3, 1)]
    batch, _ = make_batch(played)
    credit = group_credit(batch, Links(gamma=0.0, gamma_agent=0.0))
    assert row_numbers(credit.advantages) == [1.0, -1.0, -1.0, 1.0]


def test_a_group_of_one_stays_at_zero_and_is_counted() -> None:
    batch, _ = make_batch([[Said(0, 0, reward=5.0)], [Said(0, 0, reward=7.0), Said(1, 0, reward=1.0)]])
    credit = group_credit(batch, UNDISCOUNTED)
    assert row_numbers(credit.advantages) == [-1.5, 1.5, 0.0]
    assert lone_groups(batch.groups) == 1


def test_group_credit_at_token_level_compares_whole_actions() -> None:
    batch, _ = make_batch([[Said(0, 0, tokens=2, reward=4.0)], [Said(0, 0, tokens=1)]], "token")
    credit = group_credit(batch, Links(gamma_token=0.5))
    # first decisions' returns 2 and 0, mean 1; returns-to-go stay those of each token
    assert credit.advantages[:, PROMPT:].tolist() == [[1, 1, 0], [-1, 0, 0]]
    assert credit.returns[:, PROMPT:].tolist() == [[2, 4, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("mean", "scale", "expected"),
    [
        # returns 1, 0, 0, 3 of one group: mean 1, population variance (0 + 1 + 1 + 4) / 4
        ("all", "none", [0, -1, -1, 2]),
        ("all", "std", [0, -1 / 1.5**0.5, -1 / 1.5**0.5, 2 / 1.5**0.5]),
        # means of the others: 1, 4/3, 4/3, 1/3
        ("others", "none", [0, -4 / 3, -4 / 3, 8 / 3]),
        ("others", "std", [0, -4 / 3 / 1.5**0.5, -4 / 3 / 1.5**0.5, 8 / 3 / 1.5**0.5]),
    ],
)
def test_the_group_relative_family_by_hand(mean: str, scale: str, expected: list[float]) -> None:
    returns = torch.tensor([7.0, 1.0, 0.0, 0.0, 3.0, 2.0, 2.0], dtype=torch.float64)
    groups = torch.tensor([9, 4, 4, 4, 4, 6, 6])
    found = group_advantages(returns, groups, mean, scale).tolist()
    assert found == pytest.approx([0, *expected, 0, 0], abs=1e-12)
    assert found[0] == found[5] == found[6] == 0  # one alone, and two that are equal: exactly 0


def test_leave_one_out_is_the_return_less_the_mean_of_the_others() -> None:
    generator = torch.Generator().manual_seed(3)
    returns = torch.randn(40, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, 6, (40,), generator=generator)
    for place, found in enumerate(group_advantages(returns, groups, "others").tolist()):
        others = [float(returns[i]) for i in range(40) if groups[i] == groups[place] and i != place]
        assert found == pytest.approx(float(returns[place]) - sum(others) / len(others))


def test_rounding_is_not_divided_by_its_own_tiny_spread() -> None:  # NeMo-RL#4161
    returns = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert group_advantages(returns, torch.zeros(3), "all", "std").tolist() == [0, 0, 0]


def test_a_running_baseline_per_role_in_a_zero_sum_game() -> None:  # prime-rl#3136
    played = [[Said(0, 0, reward=r), Said(1, 0, reward=-r)] for r in (3, 1)]
    batch, _ = make_batch(played)
    links = Links(gamma=0.0, gamma_agent=0.0)
    first = running_credit(batch, links, {})
    assert row_numbers(first.advantages) == [1, -1, -1, 1]  # against this batch's own means, 2 and -2
    means = running_means(batch, links, {}, 0.9)
    assert means == pytest.approx({"agent0": 2, "agent1": -2})
    later, _ = make_batch([[Said(0, 0, reward=4.0), Said(1, 0, reward=-4.0)]])
    # The white side got better: every one of its actions is above what it earned before, and black's below
    assert row_numbers(running_credit(later, links, means).advantages) == pytest.approx([2, -2])
    assert running_means(later, links, means, 0.9) == pytest.approx({"agent0": 2.2, "agent1": -2.2})


def test_who_did_not_act_keeps_its_running_mean() -> None:
    batch, _ = make_batch([[Said(1, 0, reward=1.0)]])
    assert running_means(batch, Links(), {"agent0": 5.0, "agent1": 0.0}, 0.5) == {"agent0": 5.0, "agent1": 0.5}


# ---- normalisation


def spoken(advantages: list[float], agents: list[int], tokens: list[int], level: str) -> tuple[Credit, Batch]:
    """One-action episodes with the given advantages on all their tokens."""
    said = [[Said(agent, 0, tokens=count)] for agent, count in zip(agents, tokens, strict=True)]
    batch, _ = make_batch(said, level)
    numbers = torch.tensor(advantages, dtype=torch.float64)[:, None] * batch.action_mask
    return Credit(numbers, numbers), batch


def test_a_zero_advantage_is_data() -> None:
    credit, batch = spoken([0, 0, 1, 1], [0] * 4, [1] * 4, "action")
    result = normalise_advantages(credit, batch, "batch")
    assert row_numbers(result.advantages) == [-1.0, -1.0, 1.0, 1.0]
    assert not result.advantages[~batch.action_mask].any()
    assert torch.equal(result.returns, credit.returns)


def test_an_action_counts_once_however_long_and_a_token_once() -> None:
    credit, batch = spoken([0, 1], [0, 0], [3, 1], "action")
    result = normalise_advantages(credit, batch, "batch").advantages
    assert result[:, PROMPT:].tolist() == [[-1, -1, -1, 0], [1, 0, 0, 0]]
    credit, batch = spoken([0, 1], [0, 0], [3, 1], "token")
    result = normalise_advantages(credit, batch, "batch").advantages
    # three zeros and a one: mean 1/4, std sqrt(3)/4
    assert result[0, PROMPT].item() == pytest.approx(-1 / 3**0.5)
    assert result[1, PROMPT].item() == pytest.approx(3**0.5)


def test_agents_are_normalised_apart_when_asked() -> None:
    credit, batch = spoken([0, 1, 100, 300], [0, 0, 1, 1], [1] * 4, "action")
    assert row_numbers(normalise_advantages(credit, batch, "agent").advantages) == [-1, 1, -1, 1]
    pooled = row_numbers(normalise_advantages(credit, batch, "batch").advantages)
    assert pooled[:2] == pytest.approx([-0.8207, -0.8125], abs=1e-3)  # mean 100.25, std 122.17
    assert normalise_advantages(credit, batch, "none") is credit


@pytest.mark.parametrize("advantage", [0.0, 1.0, -0.1, 1e-9])
@pytest.mark.parametrize("how", ["batch", "agent"])
def test_a_constant_set_and_a_single_decision_map_to_zero(advantage: float, how: str) -> None:
    for count in (1, 3):
        credit, batch = spoken([advantage] * count, [0] * count, [2] * count, "action")
        assert not normalise_advantages(credit, batch, how).advantages.any()  # type: ignore[arg-type]


def test_rounding_of_returns_is_not_taken_for_advantages() -> None:
    credit, batch = spoken([1e-8, -1e-8], [0, 0], [1, 1], "action")
    large = replace(credit, returns=batch.action_mask.double())
    assert not normalise_advantages(large, batch, "batch").advantages.any()
    small = replace(credit, returns=1e-7 * batch.action_mask.double())
    assert row_numbers(normalise_advantages(small, batch, "batch").advantages) == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("how", ["batch", "agent"])
def test_an_advantage_that_is_no_number_stays_none(how: str) -> None:
    batch, _ = make_batch([duo(0.0, 0.0), duo(0.0, 0.0, 0.0)])
    spoilt = return_credit(batch, UNDISCOUNTED)
    spoilt.advantages[0, PROMPT] = NAN
    found = normalise_advantages(spoilt, batch, how)
    assert bool(found.advantages[0, PROMPT].isnan())  # 0 would let a broken critic pass in silence


def test_partners_that_never_learn_count_in_no_mean() -> None:
    credit, batch = spoken([1, 3, -50, 70], [0, 0, 1, 1], [1, 1, 9, 9], "token")
    learning = torch.tensor([True, True, False, False])
    assert row_numbers(normalise_advantages(credit, batch, "batch", learning).advantages)[:2] == [-1, 1]
