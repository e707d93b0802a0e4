"""Losses and metrics against hand-worked numbers and torch's own equivalents."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from marft.learn import losses

GARBAGE = [float("nan"), float("inf"), -float("inf"), 100.0]
MASK = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0]]).bool()


def dirty(numbers: list[list[float]], garbage: float) -> Tensor:
    """[N, S] float64 with `garbage` off MASK."""
    return torch.where(MASK, torch.tensor(numbers, dtype=torch.float64), garbage)


NEW = [[0.0, -1.0, -2.0, 0.0], [0.0, -0.5, 0.0, 0.0]]
OLD = [[0.0, -1.25, -1.5, 0.0], [0.0, -0.75, 0.0, 0.0]]


# ---- log-probabilities and entropy


def test_temperature_divides_the_logits() -> None:  # trl#4159
    logits = torch.tensor([2.0, 1.0, 0.0]).expand(3, 3)
    result = losses.token_logprobs(logits, torch.arange(3), temperature=0.5)
    assert result.tolist() == pytest.approx([-0.142932, -2.142932, -4.142932], abs=1e-6)


def test_token_logprobs_equal_log_softmax_with_a_temperature_per_token() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 11, generator=draw)
    tokens = torch.randint(11, (2, 3), generator=draw)
    heat = torch.tensor([[1.0, 0.5, 2.0], [0.7, 1.0, 1.0]])
    expected = Categorical(logits=logits / heat[..., None]).log_prob(tokens)
    assert torch.allclose(losses.token_logprobs(logits, tokens, heat), expected, atol=1e-6)
    assert torch.allclose(
        losses.token_logprobs(logits, tokens, torch.tensor(1.0)),
        F.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0],
        atol=1e-6,
    )


def test_half_precision_logits_are_scored_in_float32_and_float64_stays() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens = torch.arange(4)
    result = losses.token_logprobs(logits, tokens)
    assert result.dtype == torch.float32
    assert torch.allclose(result, F.log_softmax(logits.float(), -1)[torch.arange(4), tokens], atol=1e-6)
    assert losses.token_logprobs(logits.double(), tokens).dtype == torch.float64


@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_entropy_is_exact_in_any_chunk_and_differentiable(chunk: int) -> None:
    logits = torch.randn(2, 5, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    result = losses.entropy(ours, temperature=0.7, chunk=chunk)
    expected = Categorical(logits=theirs / 0.7).entropy()
    assert torch.allclose(result, expected, atol=1e-12)
    result.sum().backward()
    expected.sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-12)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_entropy_ignores_masked_positions(garbage: float) -> None:
    logits = torch.where(MASK[..., None], 0.0, torch.full((2, 4, 8), garbage)).requires_grad_()
    result = losses.entropy(logits, MASK)
    assert torch.allclose(result, MASK * math.log(8))
    result.sum().backward()
    assert logits.grad is not None
    assert torch.allclose(logits.grad, torch.zeros(2, 4, 8), atol=1e-7)


def test_entropy_with_tokens_that_cannot_be_drawn() -> None:
    logits = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf], requires_grad=True)
    result = losses.entropy(logits)
    assert result.item() == pytest.approx(math.log(2))
    result.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_entropy_of_nothing_is_empty() -> None:
    assert losses.entropy(torch.zeros(0, 5)).shape == (0,)
    assert losses.entropy(torch.zeros(2, 5), torch.zeros(2).bool()).tolist() == [0.0, 0.0]


# ---- ratios and the surrogate


@pytest.mark.parametrize("garbage", GARBAGE)
def test_action_log_ratio_sums_an_actions_own_tokens(garbage: float) -> None:
    new = dirty(NEW, garbage).requires_grad_()
    result = losses.action_log_ratio(new, dirty(OLD, garbage), MASK, torch.ones(2))
    assert result.tolist() == [0.25 - 0.5, 0.25]
    result.sum().backward()
    assert torch.equal(new.grad, MASK.double())
    assert losses.token_log_ratio(new, dirty(OLD, garbage), MASK).tolist() == [[0, 0.25, -0.5, 0], [0, 0.25, 0, 0]]


def test_action_normalisation_divides_by_one_tokens_or_words() -> None:
    words = torch.tensor([4, 0])  # an action of no words is divided by 1, not by 0
    assert losses.action_divisor("sum", MASK, words).tolist() == [1, 1]
    assert losses.action_divisor("token", MASK, words).tolist() == [2, 1]
    assert losses.action_divisor("word", MASK, words).tolist() == [4, 1]
    new, old = dirty(NEW, 0.0), dirty(OLD, 0.0)
    assert losses.action_log_ratio(new, old, MASK, torch.tensor([2.0, 1.0])).tolist() == [-0.125, 0.25]


def test_equal_policies_have_ratio_exactly_one() -> None:
    logprobs = torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(3, 40).bool()
    assert losses.action_log_ratio(logprobs, logprobs, mask, torch.ones(3)).exp().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: -rho A, and d/dlog rho is the same
        (1.5, 2.0, -2.6, 0.0),  # above with A > 0: held at 1.3
        (0.5, 2.0, -1.0, -1.0),  # below with A > 0: the policy must come back
        (0.5, -2.0, 1.6, 0.0),  # below with A < 0: held at .8
        (1.5, -2.0, 3.0, 3.0),  # above with A < 0: must come back
        (1.0, 2.0, -2.0, -2.0),  # where both branches meet the gradient is whole
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    result = losses.clipped_surrogate(log_ratio, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.3)
    assert result.item() == pytest.approx(loss, abs=1e-12)
    result.backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(slope, abs=1e-12)


def test_extreme_ratios_stay_finite() -> None:
    log_ratio = torch.tensor([500.0, 500.0, -500.0, -500.0], requires_grad=True)
    result = losses.clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2, 0.2)
    result.sum().backward()
    assert result.isfinite().all()
    assert log_ratio.grad is not None
    assert log_ratio.grad.isfinite().all()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_token_surrogate_is_zero_off_the_mask_with_no_gradient(garbage: float) -> None:
    new = dirty(NEW, garbage).requires_grad_()
    log_ratio = losses.token_log_ratio(new, dirty(OLD, garbage), MASK)
    result = losses.clipped_surrogate(log_ratio, MASK.double(), 0.9, 9.0)
    assert not result[~MASK].any()
    result.sum().backward()
    assert new.grad is not None
    assert not new.grad[~MASK].any()
    assert new.grad[MASK].tolist() == pytest.approx([-math.exp(0.25), -math.exp(-0.5), -math.exp(0.25)])


def test_micro_batches_over_the_full_denominator_add_up_to_the_full_batch() -> None:
    draw = torch.Generator().manual_seed(4)
    new, old, advantages = (torch.randn(8, 6, generator=draw) for _ in range(3))
    mask = torch.rand(8, 6, generator=draw) < torch.linspace(0.1, 1, 8)[:, None]  # micro-batches of uneven length

    def part(rows: slice) -> Tensor:
        log_ratio = losses.token_log_ratio(new[rows], old[rows], mask[rows])
        policy = losses.clipped_surrogate(log_ratio, advantages[rows] * mask[rows], 0.2, 0.2).sum()
        value = losses.value_loss(new[rows], old[rows], advantages[rows], mask[rows], "huber", 1.0, 0.2)
        return (policy + value) / mask.sum()

    pieces = sum(part(rows) for rows in (slice(0, 1), slice(1, 3), slice(3, 8)))
    assert float(pieces) == pytest.approx(float(part(slice(0, 8))), abs=1e-6)


# ---- the critic's loss


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize(("error", "loss"), [(-20.0, 150.0), (20.0, 150.0), (-10.0, 50.0), (4.0, 8.0), (0.0, 0.0)])
def test_huber_is_two_sided(error: float, loss: float) -> None:
    result = losses.value_loss(one(error), one(error), one(0.0), torch.tensor([True]), "huber", 10.0)
    assert result.item() == loss
    assert result.item() == F.huber_loss(one(error), one(0.0), delta=10.0).item()


def test_mse_is_half_the_square_and_hubers_limit() -> None:
    mask = torch.tensor([True])
    assert losses.value_loss(one(-20.0), one(0.0), one(0.0), mask, "mse").item() == 200.0
    assert losses.value_loss(one(-20.0), one(0.0), one(0.0), mask, "huber", 1e9).item() == 200.0


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        (1.5, 2.0, 0.5 * 0.8**2, 0.0),  # moved past the clip towards the target: no further pull
        (0.5, 2.0, 0.5 * 1.5**2, -1.5),  # moved past the clip away from it: pulled back in full
        (1.1, 2.0, 0.5 * 0.9**2, -0.9),  # within the clip
    ],
)
def test_value_clipping_takes_the_larger_loss(value: float, target: float, loss: float, slope: float) -> None:
    values = one(value).requires_grad_()
    result = losses.value_loss(values, one(1.0), one(target), torch.tensor([True]), "mse", clip=0.2)
    assert result.item() == pytest.approx(loss)
    result.backward()
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_value_loss_ignores_masked_positions(garbage: float) -> None:
    values = dirty(NEW, garbage).requires_grad_()
    result = losses.value_loss(values, dirty(OLD, garbage), dirty(OLD, garbage), MASK, "mse")
    assert result.item() == 0.5 * (0.25**2 + 0.5**2 + 0.25**2)
    result.backward()
    assert values.grad is not None
    assert not values.grad[~MASK].any()


# ---- KL


def pair() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    first, second = (torch.randn(6, dtype=torch.float64, generator=draw).log_softmax(-1) for _ in range(2))
    return first, second


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_both_estimators_have_the_exact_kl_as_their_mean(kind: str) -> None:
    first, second = pair()
    exact = float(kl_divergence(Categorical(logits=first), Categorical(logits=second)))
    everything = torch.ones(6).bool()
    # one sample of each token, weighted by the probability of drawing it
    drawn = torch.stack([losses.approx_kl((second - first)[i : i + 1], everything[:1], kind) for i in range(6)])  # type: ignore[arg-type]
    assert float((first.exp() * drawn).sum()) == pytest.approx(exact, abs=1e-12)
    per_token = losses.reference_kl(first, second, everything, kind)  # type: ignore[arg-type]
    assert float((first.exp() * per_token).sum()) == pytest.approx(exact, abs=1e-12)


def test_k3_by_hand_and_never_negative() -> None:
    mask = torch.tensor([True])
    assert losses.approx_kl(one(math.log(2)), mask).item() == pytest.approx(1 - math.log(2))
    assert losses.approx_kl(one(math.log(2)), mask, "k1").item() == pytest.approx(-math.log(2))
    many = torch.linspace(-30, 30, 1001)
    assert (losses.reference_kl(many, torch.zeros(1001), torch.ones(1001).bool()) >= 0).all()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_kl_ignores_masked_positions(garbage: float) -> None:
    new, old = dirty(NEW, garbage).requires_grad_(), dirty(OLD, garbage)
    expected = 2 * (math.exp(0.25) - 1.25) + (math.exp(-0.5) - 0.5)
    assert losses.approx_kl(new - old, MASK).item() == pytest.approx(expected)
    per_token = losses.reference_kl(new, old, MASK)
    assert not per_token[~MASK].any()
    per_token.sum().backward()
    assert new.grad is not None
    assert not new.grad[~MASK].any()


def test_the_mean_gradient_of_the_reference_kl_as_a_loss_and_none_to_the_reference() -> None:
    start, target = pair()
    logits, reference = start.clone().requires_grad_(), target.clone().requires_grad_()
    per_token = losses.reference_kl(logits.log_softmax(-1), reference, torch.ones(6).bool())
    (start.exp() * per_token).sum().backward()
    # as the docs say: the gradient of KL(reference || new), which is new - reference in the logits
    assert torch.allclose(logits.grad, start.exp() - target.exp(), atol=1e-12)
    assert reference.grad is None


# ---- corrections and statistics


def test_importance_weights_are_truncated_and_have_no_gradient() -> None:
    log_ratio = torch.tensor([math.log(0.5), 0.0, math.log(1.5), 50.0], requires_grad=True)
    result = losses.importance_weight(log_ratio, cap=2.0)
    assert result.tolist() == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert not result.requires_grad


def test_explained_variance() -> None:
    returns, mask = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([1, 1, 1, 0]).bool()
    nan = float("nan")
    assert losses.explained_variance(torch.tensor([1.0, 2.0, 3.0, nan]), returns, mask) == pytest.approx(1.0)
    assert losses.explained_variance(torch.tensor([2.0, 2.0, 2.0, nan]), returns, mask) == pytest.approx(0.0)
    # residuals 2, 0, -2 have four times the variance of -1, 0, 1
    assert losses.explained_variance(torch.tensor([-1.0, 2.0, 5.0, nan]), returns, mask) == pytest.approx(-3.0)


def test_explained_variance_of_constant_or_no_returns_is_zero() -> None:
    mask = torch.ones(3).bool()
    assert losses.explained_variance(torch.tensor([0.0, 1.0, 2.0]), torch.full((3,), 0.1), mask) == 0.0
    assert losses.explained_variance(torch.zeros(3), torch.zeros(3), ~mask) == 0.0
    rounded = torch.tensor([1.0, 1.0 + 1e-9, 1.0 - 1e-9], dtype=torch.float64)
    assert losses.explained_variance(torch.zeros(3), rounded, mask) == 0.0


@pytest.mark.parametrize("garbage", GARBAGE)
def test_ratio_statistics_by_hand(garbage: float) -> None:
    ratios = torch.tensor([0.5, 0.9, 1.0, 1.1, 2.0], dtype=torch.float64)
    log_ratio = torch.cat([ratios.log(), torch.tensor([garbage], dtype=torch.float64)])
    mask = torch.tensor([1, 1, 1, 1, 1, 0]).bool()
    result = losses.ratio_statistics(log_ratio, mask, 0.2, 0.2)
    # five points: the 5% level lies 1/5 of the way from the lowest to the next
    assert result == pytest.approx(
        {"ratio_p05": 0.58, "ratio_p50": 1.0, "ratio_p95": 1.82, "ratio_max": 2.0, "clip_share": 0.4}
    )
    assert all(type(each) is float for each in result.values())


def test_statistics_of_nothing_are_empty() -> None:
    nothing = torch.zeros(2).bool()
    assert losses.ratio_statistics(torch.zeros(2), nothing, 0.2, 0.2) == {}
    assert losses.sampler_gap(torch.zeros(2), torch.ones(2), nothing) == {}
    assert losses.quantiles(torch.zeros(0), "carry") == {}


def test_quantiles_carry_their_name() -> None:
    result = losses.quantiles(torch.arange(101.0), "carry")
    assert result == pytest.approx({"carry_p05": 5.0, "carry_p50": 50.0, "carry_p95": 95.0, "carry_max": 100.0})


@pytest.mark.parametrize("garbage", GARBAGE)
def test_the_sampler_gap_reads_action_tokens_only(garbage: float) -> None:  # rllm#503
    result = losses.sampler_gap(dirty(NEW, garbage), dirty(OLD, 0.0), MASK)
    assert result == pytest.approx({"max": 0.5, "mean": 1.0 / 3})
