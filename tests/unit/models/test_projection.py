"""Scores through the frozen projection equal those of whole logits, in values and in gradients."""

import pytest
import torch
from torch import nn

from marft.learn.losses import entropy, token_logprobs
from marft.models import projection

WHERE = torch.tensor([0, 1, 1, 1, 3, 4, 6, 6])  # several tokens at one position, none at others
TOKENS = torch.tensor([2, 5, 5, 1, 0, 10, 3, 4])
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 0.7, -1.0, 1.0])


def whole(head, states, heat):
    logits = head(states)
    return token_logprobs(logits, TOKENS, heat, WHERE), entropy(logits, temperature=heat)[WHERE]


def gradient(logprobs, states):
    return torch.autograd.grad((logprobs * WEIGHTS).sum(), states)[0]


@pytest.fixture
def head():
    torch.manual_seed(0)
    return nn.Linear(8, 11).requires_grad_(False)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("heat", [1.0, 0.4])
def test_scores_equal_those_of_whole_logits(head, heat, chunk, monkeypatch):
    monkeypatch.setattr(projection, "CHUNK", chunk)
    states = (3 * torch.randn(7, 8)).requires_grad_()
    ours, spread = projection.scores(head, states, WHERE, TOKENS, heat, True)
    theirs, expected = whole(head, states, heat)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spread, expected, atol=1e-5, rtol=1e-5)
    assert not spread.requires_grad
    torch.testing.assert_close(gradient(ours, states), gradient(theirs, states), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        again, none = projection.scores(head, states, WHERE, TOKENS, heat, False)
    assert torch.equal(again, ours)
    assert not none.any()


def test_a_nearly_certain_token_keeps_its_gradient_in_bfloat16(head):
    # p(token) = 1 - 2e-3 or so: 1 in bfloat16
    states = torch.randn(7, 8, dtype=torch.float64)
    states += 6.5 * torch.linalg.pinv(head.weight.double())[:, TOKENS[[0, 1, 1, 4, 5, 6, 6]]].T
    exact = states.requires_grad_()
    theirs = gradient(whole(nn.Linear.double(head), exact, 1.0)[0], exact)
    rough = head.to(torch.bfloat16)
    states = exact.detach().to(torch.bfloat16).requires_grad_()
    found, _ = projection.scores(rough, states, WHERE, TOKENS, 1.0, False)
    logits = rough(states)
    plain = gradient(token_logprobs(logits, TOKENS, 1.0, WHERE), states)
    assert found.dtype == torch.float32
    ours = gradient(found, states)
    assert torch.linalg.norm(ours - theirs) <= 1.2 * torch.linalg.norm(plain - theirs) + 1e-3
