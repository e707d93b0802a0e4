"""Reward allocation: hand-worked shares, sums that stay, and who is paid what."""

import pytest
import torch

from builders import World, action, config_of, episode, team_of
from marft.learn.allocation import Allocation, allocate
from marft.learn.collate import Layout, collate, unpad
from marft.learn.credit import Links, critic_credit, return_credit
from marft.learn.play import play_plans
from marft.rollout import Plan
from marft.run.progress import Silent
from marft.types import MarftError, Task


def paid(*amounts):
    """Two turns of ann and bob; each amount is what an action was paid, (own, shared)."""
    names = ["ann", "bob"] * 2
    return [
        action(name, turn=place // 2, reward=own + shared, shared=shared)
        for place, (name, (own, shared)) in enumerate(zip(names, amounts, strict=True))
    ]


MIXED = paid((1, 0), (0, 2), (0, 0), (3, 4))  # ann 1; the team 2; bob 3; the team 4: ten in all


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("per_action", [1, 2, 0, 7]),
        ("team_last", [0, 0, 0, 10]),
        ("equal", [2.5, 2.5, 2.5, 2.5]),
        # weights 1/8, 1/4, 1/2, 1 add up to 15/8
        ("step_discounted", [10 / 15, 20 / 15, 40 / 15, 80 / 15]),
    ],
)
def test_shares_worked_by_hand_keep_the_sum(how, expected):
    found = allocate(MIXED, Allocation(how, discount=0.5))
    assert found == pytest.approx(expected)
    assert sum(found) == pytest.approx(10)


def test_own_and_team_worked_by_hand():
    # Turn 0: ann earned 1 herself, bob 0, the team 2: ann 2 + 1/4 * 1 + 3/4 * 1/2, bob 2 + 3/4 * 1/2.
    # Turn 1: ann 0, bob 3, the team 4: ann 4 + 3/4 * 3/2, bob 4 + 1/4 * 3 + 3/4 * 3/2.
    found = allocate(MIXED, Allocation("own_team", own_share=0.25))
    assert found == pytest.approx([2.625, 2.375, 5.125, 5.875])


def test_a_team_reward_is_everyones_own_and_a_share_of_one_leaves_agents_their_own():
    everyone = paid((0, 0), (0, 1), (0, 0), (0, 0))
    assert allocate(everyone, Allocation("own_team")) == [1, 1, 0, 0]
    own = paid((5, 0), (2, 0), (0, 0), (1, 0))
    assert allocate(own, Allocation("own_team", own_share=1.0)) == [5, 2, 0, 1]


def test_an_agent_that_rests_is_paid_on_what_it_said_last():
    played = [action("ann"), action("bob"), action("bob", turn=1, reward=4.0, shared=4.0)]
    assert allocate(played, Allocation("own_team")) == [4, 0, 4]


def test_chains_of_agents_hold_their_own_actions_and_see_their_own_prompts():
    played = [
        action("ann", prompt=(5,), tokens=(8,), turn=0, joint_ids=(1,)),
        action("bob", prompt=(6, 6), tokens=(9,), turn=0, joint_ids=(1, 2), reward=1.0, shared=1.0),
        action("ann", prompt=(5, 5, 5), tokens=(8, 8), turn=1, joint_ids=(1, 2, 3)),
        action("bob", prompt=(6, 6, 6, 6), tokens=(9,), turn=1, joint_ids=(1, 2, 3, 4)),
    ]
    cut = episode(*played, terminated=False, truncated=True, final_joint_ids={"ann": (7,), "bob": (7, 7)})
    layout = Layout(chain="agent", view="own", allocation=Allocation("own_team"))
    batch = collate([cut], ("ann", "bob"), layout).batch
    assert batch.agent.tolist() == [0, 0, 1, 1]
    assert batch.episode.tolist() == [0, 0, 1, 1]
    assert batch.rewards.tolist() == [1, 0, 1, 0]
    assert unpad(batch.joint, batch.joint_mask) == [[5], [5, 5, 5], [6, 6], [6, 6, 6, 6]]
    # There is no next prompt: an agent's own last state is what it read and said last
    assert unpad(batch.final_joint, batch.final_joint_mask) == [[5, 5, 5, 8, 8], [6, 6, 6, 6, 9]]
    joint = collate([cut], ("ann", "bob"), Layout(chain="agent")).batch
    assert unpad(joint.joint, joint.joint_mask) == [[1], [1, 2, 3], [1, 2], [1, 2, 3, 4]]
    assert unpad(joint.final_joint, joint.final_joint_mask) == [[7], [7, 7]]


def test_independent_chains_discount_from_turn_to_turn_of_one_agent():
    played = [action(name, turn=turn) for turn in (0, 1) for name in ("ann", "bob")]
    played[-1] = action("bob", turn=1, reward=1.0, shared=1.0)
    layout = Layout(chain="agent", allocation=Allocation("own_team"))
    batch = collate([episode(*played)], ("ann", "bob"), layout).batch
    links = Links(gamma=0.5, gamma_agent=1.0, gamma_token=1.0, lam=1.0, lam_token=1.0)
    returns = return_credit(batch, links).returns[batch.decision_mask]
    assert returns.tolist() == pytest.approx([0.5, 1, 0.5, 1])  # ann, ann, bob, bob
    values = torch.where(batch.decision_mask, 0.25, 0.0)
    advantages = critic_credit(batch, values, torch.zeros(2), links).advantages[batch.decision_mask]
    assert advantages.tolist() == pytest.approx([0.25, 0.75, 0.25, 0.75])


def test_a_number_from_the_world_is_the_teams_and_a_mapping_is_the_agents():
    def played(pay):
        team = team_of("ann", "bob", world=World(pay=pay))
        return play_plans(team, [Plan(Task("t", "c"), 0, (0, 0), 0)], Silent(), "playing")[0].actions

    assert [(each.reward, each.shared) for each in played(lambda said: 2.0)] == [(0, 0), (2, 2)]
    assert [(each.reward, each.shared) for each in played(lambda said: {"ann": 1.0, "bob": 3.0})] == [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"credit": {"allocation": "own_team"}}, "credit.allocation: 'own_team'"),
        ({"critic": {"kind": "own"}}, "critic.kind: 'own'"),
        ({"credit": {"chain": "agent"}, "update": {"carry": "happo"}}, "update.carry: 'happo'"),
        ({"credit": {"baseline": "running"}}, "critic.kind: 'shared' goes unused"),
        ({"critic": {"kind": "none"}}, "needs critic.kind 'shared' or 'own'"),
        ({"rollout": {"staleness": 3}, "iterations": 3}, "rollout.staleness: 3 iterations behind play"),
        ({"rollout": {"resample": 1, "samples": 1}}, "rollout.resample: compares"),
        ({"evaluation": {"vote_tokens": 9, "samples": 1}}, "evaluation.vote_tokens"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(sections, words):
    with pytest.raises(MarftError, match=words):
        config_of("ann", "bob", **sections)
