"""A packed forward pass gives every row what the row alone would give, values and gradients."""

import numpy as np
import pytest
import torch

from builders import Plain, policy_of, snapshot, tiny_base
from marft.models.pack import pack

A, B, C, D, E = 8, 9, 10, 11, 12
ROWS = [
    [A, B, C, D],
    [A, B, C, D],  # a duplicate
    [A, B, C],  # a prefix of another
    [A, E, E, A, A, A],
    [C],
    [E, D, C, B, A],
]


@pytest.fixture(scope="module")
def world():
    base = tiny_base()
    policy = policy_of(base, "one", "two")
    return base, policy, Plain(base.model)


@pytest.mark.parametrize("budget", [1, 5, 8, 1000])
@pytest.mark.parametrize("adapter", [None, "one", "two"])
def test_packed_logits_equal_each_row_alone(world, budget, adapter):
    base, policy, plain = world
    tensors = snapshot(policy, adapter) if adapter else None
    seen = []
    for packed in pack(ROWS, budget):
        with torch.no_grad():
            logits = base.head(policy.hidden(packed, adapter))
        for row, path in zip(packed.rows, packed.paths, strict=True):
            torch.testing.assert_close(logits[path], plain.logits(ROWS[row], tensors), atol=1e-5, rtol=1e-5)
            seen.append(row)
    assert sorted(seen) == list(range(len(ROWS)))


def test_a_shared_prefix_stands_once():
    (packed,) = pack(ROWS, 1000)
    distinct = {tuple(row[: end + 1]) for row in ROWS for end in range(len(row))}
    assert len(packed.tokens) == len(distinct) == 4 + 5 + 1 + 5
    for row, path in zip(packed.rows, packed.paths, strict=True):
        assert packed.tokens[path].tolist() == ROWS[row]
        assert packed.depth[path].tolist() == list(range(len(path)))
        visible = packed.visible[path[-1]].nonzero().squeeze(1).tolist()
        assert visible == sorted(path.tolist())  # its ancestors and itself, nobody else


def test_packs_keep_the_budget_unless_one_row_alone_is_longer():
    for budget in range(1, 20):
        for packed in pack(ROWS, budget):
            longest_alone = len(packed.rows) == 1 and len(packed.tokens) == len(ROWS[packed.rows[0]])
            assert len(packed.tokens) <= budget or longest_alone
    assert [len(packed.tokens) for packed in pack(ROWS, 1000)] == [15]
    assert pack([], 10) == []


def test_random_rows_keep_their_own_tokens_and_see_only_themselves():
    random = np.random.default_rng(0)
    rows = [random.integers(0, 3, size=random.integers(1, 9)).tolist() for _ in range(60)]
    for packed in pack(rows, 40):
        for row, path in zip(packed.rows, packed.paths, strict=True):
            assert packed.tokens[path].tolist() == rows[row]
            for place, node in enumerate(path):
                assert packed.visible[node].nonzero().squeeze(1).tolist() == sorted(path[: place + 1].tolist())


@pytest.mark.parametrize("budget", [6, 1000])
def test_packed_gradient_equals_the_plain_one(world, budget):
    _, policy, plain = world
    weight = [1.0, -0.5, 2.0, 0.3, 0.0, -1.2]
    rows = [row for row in ROWS if len(row) > 1]
    for each in policy.parameters("one").values():
        each.grad = None
    for packed in pack(rows, budget):
        scores = policy.score(packed, [1] * len(rows), "one", 1.0)
        parts = torch.split(scores.logprobs, list(scores.lengths))
        sum(weight[row] * part.sum() for row, part in zip(scores.rows, parts, strict=True)).backward()
    ours = {name: each.grad for name, each in policy.parameters("one").items()}

    leaves = {name: each.requires_grad_() for name, each in snapshot(policy, "one").items()}
    loss = sum(weight[place] * plain.logprobs(row[:1], row[1:], leaves).sum() for place, row in enumerate(rows))
    loss.backward()
    for name, leaf in leaves.items():
        assert torch.linalg.norm(ours[name] - leaf.grad) <= 1e-5 * torch.linalg.norm(leaf.grad), name
    assert all(each.grad is None for each in policy.parameters("two").values())
