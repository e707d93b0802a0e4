"""A game of two sides: each learns from its own rewards, along its own actions."""

import pytest
import torch

from builders import action, episode
from marft.learn.collate import Layout, collate, unpad
from marft.learn.credit import Links, critic_credit, return_credit

LINKS = Links(gamma=0.5, gamma_agent=1.0, gamma_token=1.0, lam=1.0, lam_token=1.0)


def duel(**settings):
    """ann moves, bob moves, ann moves, bob wins: four turns, two sides."""
    moves = [
        action("ann", turn=0, side="white"),
        action("bob", turn=1, side="black"),
        action("ann", turn=2, side="white", reward=-1.0),
        action("bob", turn=3, side="black", reward=1.0),
    ]
    return episode(*moves, **settings)


def test_rows_of_a_side_stand_together_and_count_as_an_episode():
    batch = collate([duel(), duel(group="u")], ("ann", "bob"), Layout()).batch
    assert batch.agent.tolist() == [0, 0, 1, 1] * 2
    assert batch.turn.tolist() == [0, 2, 1, 3] * 2
    assert batch.episode.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch.terminated.tolist() == [True] * 4


def test_what_one_side_wins_is_no_credit_of_the_other():
    batch = collate([duel()], ("ann", "bob"), Layout()).batch
    returns = return_credit(batch, LINKS).returns[batch.decision_mask]
    # Along one chain of all four, ann's first return would be .25 * -1 + .125 * 1: neither side's own
    assert returns.tolist() == pytest.approx([-0.5, -1.0, 0.5, 1.0])


def test_a_truncated_game_is_valued_for_each_side_by_itself():
    cut = duel(terminated=False, truncated=True, final_joint_ids={"ann": (4,), "bob": (5, 6)})
    batch = collate([cut], ("ann", "bob"), Layout()).batch
    assert unpad(batch.final_joint, batch.final_joint_mask) == [[4], [5, 6]]
    values, final = torch.zeros(batch.tokens.shape), torch.tensor([2.0, -2.0])
    returns = critic_credit(batch, values, final, LINKS).returns[batch.decision_mask]
    assert returns.tolist() == pytest.approx([(-1 + 0.5 * 2) * 0.5, -1 + 0.5 * 2, (1 - 0.5 * 2) * 0.5, 1 - 0.5 * 2])
