"""Rows and masks come from what the sampler reported, never from the value of a token."""

import torch

from builders import Plain, action, episode, policy_of, snapshot, tiny_base
from marft.learn.collate import Layout, collate, pad, unpad
from marft.learn.update import action_starts, batch_logprobs
from marft.types import Failure

EOS = 3  # also what pads, in many models


def batch_of(*episodes, level="action", agents=("ann", "bob")):
    return collate(list(episodes), agents, Layout(level)).batch


def test_a_prompt_of_three_and_an_action_of_two_mask_exactly_the_two():
    batch = batch_of(episode(action()))
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.action_mask.tolist() == [[False, False, False, True, True]]
    assert batch.attention_mask.all()
    torch.testing.assert_close(batch.logprobs, torch.tensor([[0, 0, 0, -0.1, -0.2]]))


def test_the_end_of_text_decision_is_trained_though_it_also_pads():
    batch = batch_of(episode(action(tokens=(5, 6, EOS)), action("bob", tokens=(5, 6, 7, 8, EOS))), level="token")
    row = batch.action_mask[0, 3:].tolist()
    assert row == [True, True, True, False, False]
    assert batch.decision_mask.equal(batch.action_mask)
    inside = batch_of(episode(action(prompt=(EOS, EOS), tokens=(EOS, EOS, 4))))
    assert inside.action_mask.tolist() == [[False, False, True, True, True]]


def test_lengths_two_and_five_have_mask_sums_two_and_five():
    batch = batch_of(episode(action(tokens=[EOS] * 2), action("bob", prompt=[EOS], tokens=[EOS] * 5)))
    assert batch.action_mask.sum(1).tolist() == [2, 5]
    assert batch.attention_mask.sum(1).tolist() == [5, 6]
    assert action_starts(batch) == [3, 1]


def test_decisions_are_first_tokens_or_all_tokens():
    played = episode(action(), action("bob", prompt=(4,), tokens=(5, 6, 7)))
    by_action, by_token = (batch_of(played, level=level) for level in ("action", "token"))
    assert by_action.decision_mask.nonzero().tolist() == [[0, 3], [1, 1]]
    assert by_token.decision_mask.nonzero().tolist() == [[0, 3], [0, 4], [1, 1], [1, 2], [1, 3]]


def test_rows_keep_the_order_of_execution_and_know_where_they_are_from():
    one = episode(action("bob"), action("ann", turn=1, reward=2.0), group="x")
    ends = {"terminated": False, "truncated": True, "final_joint_ids": {"ann": (7, 8, 9)}}
    two = episode(action("ann", reward=-1.0), group="y", **ends)
    batch = batch_of(one, two)
    assert batch.agent.tolist() == [1, 0, 0]
    assert batch.turn.tolist() == [0, 1, 0]
    assert batch.episode.tolist() == [0, 0, 1]
    assert batch.rewards.tolist() == [0, 2, -1]
    assert batch.terminated.tolist() == [True, False]
    assert unpad(batch.final_joint, batch.final_joint_mask) == [[], [7, 8, 9]]


def test_groups_are_per_task_agent_and_turn():
    problems = [("p", 0), ("p", 1), ("q", 0), ("q", 1)]
    batch = batch_of(*(
        episode(action("ann"), action("bob"), action("ann", turn=1), group=task, sample=sample)
        for task, sample in problems
    ))  # fmt: skip
    groups = batch.groups.view(4, 3)
    assert groups[0].equal(groups[1])
    assert groups[2].equal(groups[3])
    assert len(set(batch.groups.tolist())) == 6  # two tasks x (ann 0, bob 0, ann 1)


def test_failed_and_empty_episodes_are_left_out_whole_and_counted():
    good = episode(action(tokens=(8,)))
    failed = episode(action(), error=Failure("ann", "why"), terminated=False)
    hollow = [episode(action(), action("bob", tokens=())), episode(action(prompt=(), tokens=(), reward=1.0)), episode()]
    found = collate([failed, good, *hollow], ("ann", "bob"), Layout())
    assert found.dropped == {"failed": 1, "empty": 3}
    assert (found.batch.rows, found.batch.tokens.tolist()) == (1, [[5, 6, 7, 8]])
    assert len(found.batch.terminated) == 1
    nothing = collate([failed, *hollow], ("ann", "bob"), Layout())
    assert (nothing.batch, nothing.dropped) == (None, {"failed": 1, "empty": 3})


def test_words_are_counted_in_the_text_and_never_zero():
    batch = batch_of(episode(action(text="one two  three"), action("bob", text="")))
    assert batch.words.tolist() == [3, 1]


def test_pad_and_unpad_give_rows_back_whatever_their_values():
    rows = [[0, 0], [], [1, 0, 0, 0], [0]]
    ids, mask = pad(rows)
    assert ids.shape == mask.shape == (4, 4)
    assert unpad(ids, mask) == rows
    assert pad([])[0].shape == (0, 0)


def test_the_action_mask_never_changes_logits():
    base = tiny_base()
    policy, plain = policy_of(base, "ann", "bob"), Plain(base.model)
    batch = batch_of(episode(action(tokens=(8, 9, EOS)), action("bob", prompt=(4, 4), tokens=(EOS, 10))))
    heat = torch.ones(2)
    found = batch_logprobs(policy, batch, ["ann", "bob"], heat, 100)
    ann = plain.logprobs((5, 6, 7), (8, 9, EOS), snapshot(policy, "ann"))
    bob = plain.logprobs((4, 4), (EOS, 10), snapshot(policy, "bob"))
    torch.testing.assert_close(found[0, 3:6], ann, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1, 2:4], bob, atol=1e-5, rtol=1e-5)
    assert not found[~batch.action_mask].any()
