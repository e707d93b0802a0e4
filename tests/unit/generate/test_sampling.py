"""One token by inverting the cumulative distribution: expectations from arithmetic."""

import math

import pytest
import torch

from marft.config import SamplingConfig
from marft.generate.sampling import choose

P = [0.5, 0.3, 0.15, 0.05]


def pick(draws, greedy=False, probabilities=P, **settings):
    logits = torch.tensor(probabilities).log().repeat(len(draws), 1)
    sampling = SamplingConfig(**settings)
    return choose(logits, torch.tensor(draws), [sampling] * len(draws), [greedy] * len(draws))


def shares(**settings):
    count = 1000
    tokens, _ = pick([(i + 0.5) / count for i in range(count)], **settings)
    return [tokens.count(token) / count for token in range(4)]


def test_a_draw_falls_into_its_tokens_share():
    tokens, logprobs = pick([0.0, 0.499, 0.501, 0.799, 0.801, 0.949, 0.951, 0.9999999])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert logprobs == pytest.approx([math.log(P[token]) for token in tokens], abs=1e-6)
    assert shares() == pytest.approx(P, abs=1e-9)


def test_temperature_sharpens_and_is_in_the_log_probability():
    squares = [p * p / sum(q * q for q in P) for p in P]  # T = 1/2
    assert shares(temperature=0.5) == pytest.approx(squares, abs=1.5e-3)
    _, (logprob,) = pick([0.0], temperature=0.5)
    assert logprob == pytest.approx(math.log(squares[0]), abs=1e-6)


def test_the_known_temperature_case():
    tokens, logprobs = choose(
        torch.tensor([[2.0, 1.0, 0.0]] * 3),
        torch.tensor([0.0, 0.9, 0.999]),
        [SamplingConfig(temperature=0.5)] * 3,
        [False] * 3,
    )
    assert tokens == [0, 1, 2]
    assert logprobs == pytest.approx([-0.142932, -2.142932, -4.142932], abs=1e-6)


def test_top_k_keeps_the_most_probable_and_their_proportions():
    assert shares(top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-3)
    assert shares(top_k=1) == [1, 0, 0, 0]
    assert shares(top_k=99) == shares()


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    assert shares(top_p=0.6) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-3)
    assert shares(top_p=0.4) == [1, 0, 0, 0]
    assert shares(top_p=0.81) == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], abs=1e-3)
    assert shares(top_p=1.0) == shares()
    assert shares(top_p=0.81, top_k=1) == [1, 0, 0, 0]


def test_filtered_draws_are_scored_unfiltered():
    _, logprobs = pick([0.0, 0.9], top_k=2)
    assert logprobs == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)


def test_greedy_takes_the_most_probable_whatever_the_draw():
    tokens, logprobs = pick([0.0, 0.99], greedy=True, probabilities=[0.2, 0.3, 0.4, 0.1])
    assert tokens == [2, 2]
    assert logprobs == pytest.approx([math.log(0.4)] * 2, abs=1e-6)


def test_a_token_without_probability_is_never_drawn():
    highest = 1 - 2**-24  # the largest float32 below 1
    for probabilities in ([0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]):
        tokens, _ = pick([0.0, 0.5, highest], probabilities=probabilities)
        assert all(probabilities[token] > 0 for token in tokens)
    tokens, _ = pick([highest], probabilities=[1 / 3, 1 / 3, 1 / 3, 0.0], top_k=3)
    assert tokens != [3]


def test_rows_keep_their_own_settings():
    logits = torch.tensor([P, P, P]).log()
    settings = [SamplingConfig(), SamplingConfig(top_k=1), SamplingConfig(temperature=0.01)]
    tokens, _ = choose(logits, torch.tensor([0.97] * 3), settings, [False] * 3)
    assert tokens == [3, 0, 0]
