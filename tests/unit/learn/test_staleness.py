"""The correction for older play, and how far off it is: numbers by hand."""

import math

import pytest
import torch

from marft.learn.staleness import effective_share, off_policy, ratio_sums, share_of, stale_weight


def test_only_stale_rows_are_weighed_and_the_weight_is_cut():
    log_ratio = torch.tensor([math.log(1.5), math.log(4.0), math.log(0.2), math.log(4.0)], requires_grad=True)
    stale = torch.tensor([True, True, True, False])
    found = stale_weight(log_ratio, stale, 2.0)
    torch.testing.assert_close(found, torch.tensor([1.5, 2.0, 0.2, 1.0]))
    assert float(found[3]) == 1.0
    assert not found.requires_grad
    tokens = stale_weight(torch.log(torch.tensor([[3.0, 0.5], [3.0, 0.5]])), torch.tensor([False, True]), 2.0)
    torch.testing.assert_close(tokens, torch.tensor([[1.0, 1.0], [2.0, 0.5]]))


def test_what_is_not_stale_may_be_anything():
    found = stale_weight(torch.tensor([float("nan"), 0.0]), torch.tensor([False, True]), 2.0)
    assert found.tolist() == [1.0, 1.0]


def test_the_effective_share_by_hand():
    assert effective_share(torch.tensor([2.0, 2.0, 2.0])) == pytest.approx(1.0)
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_share(torch.tensor([1.0, 2.0])) == pytest.approx(9 / (2 * 5))
    assert effective_share(torch.zeros(0)) == 1.0


def test_sums_over_parts_give_the_share_of_the_whole():
    ratios = torch.tensor([[1.0, 2.0, 0.5], [4.0, 1.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    parts = [ratio_sums(row.log(), keep) for row, keep in zip(ratios, mask, strict=True)]
    assert parts == [pytest.approx((3.0, 5.0, 2)), pytest.approx((4.0, 16.0, 1))]
    assert share_of(*(sum(each) for each in zip(*parts, strict=True))) == pytest.approx(49 / (3 * 21))
    assert share_of(0.0, 0.0, 0) == 1.0


def test_ages_and_weights_of_an_agents_rows():
    weights = torch.tensor([[1.0, 2.0], [0.5, 7.0]])
    mask = torch.tensor([[True, True], [True, False]])
    found = off_policy(weights, mask, torch.tensor([0, 3]))
    assert (found["age_mean"], found["age_max"]) == (1.5, 3.0)
    assert (found["weight_p50"], found["weight_max"]) == (1.0, 2.0)
    assert found["ess"] == pytest.approx(3.5**2 / (3 * 5.25))
    assert off_policy(weights[:0], mask[:0], torch.zeros(0)) == {}
