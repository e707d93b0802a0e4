"""Intervals and pass@k against arithmetic, scipy and simulation."""

import math
import random
from collections import Counter
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from marft.run.statistics import (
    Interval,
    majority_at_k,
    mean_interval,
    mean_majority_at_k,
    mean_pass_at_k,
    paired_bootstrap,
    paired_difference,
    pass_at_k,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (0, 32), (3, 10), (16, 32), (31, 32), (32, 32), (500, 1319)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_wilson_is_scipys(successes, n, level):
    expected = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    interval = wilson(successes, n, level)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (successes / n, expected.low, expected.high), abs=1e-12
    )


def test_wilson_by_hand():
    # 1 of 1 at z = 1.959964: low = 1 / (1 + z^2) = 1 / 4.841459
    assert wilson(1, 1).low == pytest.approx(0.206549, abs=1e-6)
    assert wilson(1, 1).high == 1.0


@pytest.mark.parametrize(("successes", "n"), [(2, 1), (-1, 3), (0, 0)])
def test_wilson_refuses_impossible_counts(successes, n):
    with pytest.raises(ValueError, match="trials"):
        wilson(successes, n)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 10, 31, 32, 199, 1318])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_t_quantile_is_scipys(df, level):
    assert t_quantile(level, df) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-11)


@pytest.mark.parametrize(("level", "df"), [(0.95, 0), (1.0, 3), (0.0, 3)])
def test_t_quantile_refuses_nonsense(level, df):
    with pytest.raises(ValueError, match="t quantile"):
        t_quantile(level, df)


def test_one_binary_sample_per_task_is_plain_wilson():
    interval = mean_interval([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], range(10))
    expected = stats.binomtest(3, 10).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_copies_of_a_sample_tell_nothing_new():
    # 4 identical samples of each of 10 tasks: 40 values, but 10 independent ones; only the quantile changes (t with 9)
    interval = mean_interval([1] * 12 + [0] * 28, [i // 4 for i in range(40)])
    q, n, p = stats.t.ppf(0.975, 9), 10, 0.3
    half = q / (1 + q * q / n) * math.sqrt(p * (1 - p) / n + q * q / (4 * n * n))
    centre = (p + q * q / (2 * n)) / (1 + q * q / n)
    assert (interval.low, interval.high) == pytest.approx((centre - half, centre + half), abs=1e-12)


def test_effective_size_by_hand():
    # Task means 1/2, 1/2, 1, 0 over two samples each: p = 1/2, v = (0 + 0 + 1/4 + 1/4) / 16 = 1/32, n' = (1/4) / v = 8
    interval = mean_interval([0, 1, 1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    q = stats.t.ppf(0.975, 3)
    half = q / (1 + q * q / 8) * math.sqrt(1 / 32 + q * q / 256)
    assert (interval.low, interval.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


def test_every_task_weighs_the_same():
    assert mean_interval([1, 1, 1, 0], ["a", "a", "a", "b"]).mean == 0.5


def test_perfect_and_hopeless_scores_keep_a_width():
    assert mean_interval([1.0] * 64, [i // 4 for i in range(64)]).low == pytest.approx(
        stats.binomtest(16, 16).proportion_ci(method="wilson").low  # 16 tasks, nothing to estimate a variance from
    )
    hopeless = mean_interval([0.0] * 16, range(16))
    assert (hopeless.low, hopeless.high) == (
        0.0,
        pytest.approx(stats.binomtest(0, 16).proportion_ci(method="wilson").high),
    )


def test_one_task_says_little_however_often_it_is_played():
    interval = mean_interval([1, 0] * 500, ["only"] * 1000)
    assert interval.high - interval.low > 0.85  # Wilson with one trial and p = 1/2: half-width .49 z / sqrt(1 + z^2)


def test_rewards_get_students_interval_over_task_means():
    interval = mean_interval([2.0, 4.0, -1.0, 1.0, 6.0, 6.0], [0, 0, 1, 1, 2, 2], bounded=False)
    expected = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([3.0, 0.0, 6.0]))
    assert (interval.mean, interval.low, interval.high) == pytest.approx((3.0, *expected))
    assert mean_interval([2.0, 4.0], [0, 0], bounded=False) == Interval(3.0, -math.inf, math.inf)


def test_mean_interval_refuses_what_it_cannot_answer():
    with pytest.raises(ValueError, match="no values"):
        mean_interval([], [])
    with pytest.raises(ValueError, match="bounded=False"):
        mean_interval([0.5, 2.0], [0, 1])
    with pytest.raises(ValueError, match="shorter"):
        mean_interval([0.5, 1.0], [0])


@pytest.mark.parametrize(("tasks", "samples", "a", "b"), [(16, 4, 0.3, 0.3), (32, 4, 5, 0.3), (32, 1, 2, 2)])
def test_intervals_cover_the_truth(tasks, samples, a, b):
    """Tasks differ in difficulty (a Beta draw each); the interval must hold the rate over all tasks 95% of the time."""
    draw = random.Random(0)
    names = [task for task in range(tasks) for _ in range(samples)]
    covered = []
    for _ in range(600):
        rates = [draw.betavariate(a, b) for _ in range(tasks)]
        interval = mean_interval([float(draw.random() < rates[task]) for task in names], names)
        covered.append(interval.low <= a / (a + b) <= interval.high)
    assert 0.92 <= fmean(covered) <= 0.985  # the standard error of 600 trials is 0.009


def test_paired_difference_of_binary_pairs_is_bonett_and_price():
    # Of 10 tasks 5 are won, 1 is lost, 4 stay: p12 = 6/12, p21 = 2/12
    before = dict(enumerate([0, 0, 0, 0, 0, 1, 1, 1, 0, 0]))
    after = dict(enumerate([1, 1, 1, 1, 1, 0, 1, 1, 0, 0]))
    half = stats.norm.ppf(0.975) * math.sqrt((6 / 12 + 2 / 12 - (4 / 12) ** 2) / 12)
    interval = paired_difference(before, after)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.4, 4 / 12 - half, 4 / 12 + half))


def test_paired_difference_has_a_width_when_all_tasks_changed_alike():
    # All 8 of 8 won: centre 8/10, variance 10/10 - .64 = .36
    interval = paired_difference(dict.fromkeys(range(8), 0.0), dict.fromkeys(range(8), 1.0))
    assert interval.mean == 1.0
    assert interval.high == 1.0
    assert interval.low == pytest.approx(0.8 - stats.norm.ppf(0.975) * 0.6 / math.sqrt(10))


def test_paired_difference_of_rewards_is_the_paired_t_interval():
    before, after = [1.0, 5.0, -2.0, 0.5], [4.0, 6.0, 3.0, 0.0]
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    interval = paired_difference(dict(enumerate(before)), dict(enumerate(after)), bounded=False)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_paired_difference_refuses_unpaired_tasks_and_rewards():
    with pytest.raises(ValueError, match="b"):
        paired_difference({"a": 0.0}, {"a": 0.0, "b": 1.0})
    with pytest.raises(ValueError, match="bounded=False"):
        paired_difference({"a": 0.0}, {"a": 3.0})
    with pytest.raises(ValueError, match="no tasks"):
        paired_difference({}, {})


def test_bootstrap_is_scipys_percentile_interval_of_the_data_with_an_invented_win_and_loss():
    draw = random.Random(3)
    before = {f"t{i}": draw.randint(0, 4) / 4 for i in range(40)}
    after = {task: min(1.0, value + draw.choice([0, 0, 0.25, 0.5])) for task, value in before.items()}
    differences = [after[task] - before[task] for task in before]
    expected = stats.bootstrap(
        ([*differences, 1.0, -1.0],), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    interval = paired_bootstrap(before, after)
    assert interval.mean == pytest.approx(fmean(differences))
    # An end of the interval moves by about .0025 from one set of draws to the next
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_bootstrap_by_hand():
    """One task won: of the means of three draws from (1, 1, -1), (1/3)^3 = 3.7% are -1 and (2/3)^3 = 29.6% are 1."""
    interval = paired_bootstrap({"a": 0.0}, {"a": 1.0})
    assert (interval.mean, interval.low, interval.high) == (1.0, -1.0, 1.0)
    # At 90% the lower 5% lie beyond the 3.7%: the next mean is (1 - 1 - 1) / 3
    assert paired_bootstrap({"a": 0.0}, {"a": 1.0}, level=0.9).low == pytest.approx(-1 / 3)


def test_bootstrap_repeats_itself_whatever_the_order_of_the_tasks():
    before = {f"t{i}": (i % 3) / 2 for i in range(30)}
    after = {f"t{i}": (i % 5) / 4 for i in range(30)}
    turned = dict(reversed(list(before.items()))), dict(reversed(list(after.items())))
    assert paired_bootstrap(before, after) == paired_bootstrap(*turned)
    few = {"draws": 50}
    assert paired_bootstrap(before, after, **few, seed=1) != paired_bootstrap(before, after, **few)


def test_bootstrap_of_tasks_that_all_changed_alike_keeps_a_width_and_its_estimate():
    interval = paired_bootstrap(dict.fromkeys(range(500), 0.0), dict.fromkeys(range(500), 0.5))
    assert interval.low < interval.mean == 0.5 <= interval.high < 0.55
    unchanged = paired_bootstrap(dict.fromkeys(range(32), 1.0), dict.fromkeys(range(32), 1.0))
    assert unchanged.low < unchanged.mean == 0.0 < unchanged.high


def test_bootstrap_refuses_what_is_no_pair_of_successes():
    with pytest.raises(ValueError, match="b"):
        paired_bootstrap({"a": 0.0}, {"a": 0.0, "b": 1.0})
    with pytest.raises(ValueError, match="outside"):
        paired_bootstrap({"a": 0.0}, {"a": 3.0})
    with pytest.raises(ValueError, match="no tasks"):
        paired_bootstrap({}, {})


@pytest.mark.parametrize(
    ("tasks", "samples", "rates"),
    [(16, 1, (0.95, 0.98)), (16, 1, (0.02, 0.1)), (16, 4, (0.3, 0.6)), (32, 1, (0.05, 0.9)), (32, 4, (0.3, 0.3))],
)
def test_bootstrap_covers_the_truth_where_the_plain_one_does_not(tasks, samples, rates):
    """Of two runs with these rates on every task: at least 95% of the intervals hold the difference."""
    draw = np.random.default_rng(0)
    truth = rates[1] - rates[0]
    covered, plain = [], []
    for trial in range(300):
        before, after = (draw.binomial(samples, rate, tasks) / samples for rate in rates)
        interval = paired_bootstrap(dict(enumerate(before)), dict(enumerate(after)), draws=1000, seed=trial)
        covered.append(interval.low <= truth <= interval.high)
        means = draw.choice(after - before, (1000, tasks)).mean(1)
        plain.append(np.quantile(means, 0.025) - 1e-12 <= truth <= np.quantile(means, 0.975) + 1e-12)
    assert fmean(covered) >= 0.92  # the standard error of 300 trials is 0.013
    if rates == (0.95, 0.98):
        assert fmean(plain) < 0.7  # most evaluations see no change at all, and the plain interval is a point


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 4), (6, 6)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n, c):
    right = [i < c for i in range(n)]
    for k in range(1, n + 1):
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(draw) for draw in combinations(right, k)))


def test_pass_at_k_of_large_counts():
    expected = 1 - math.comb(1990, 1000) / math.comb(2000, 1000)  # exact whole numbers until the division
    assert pass_at_k(2000, 10, 1000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, c, k)


def test_mean_pass_at_k():
    # Task a: 1 of 2 right, pass@1 1/2, pass@2 1; task b: 0 of 2 (half credit is not right)
    successes, tasks = [1.0, 0.0, 0.5, 0.0], ["a", "a", "b", "b"]
    assert mean_pass_at_k(successes, tasks, 1) == 0.25
    assert mean_pass_at_k(successes, tasks, 2) == 0.5
    with pytest.raises(ValueError, match="pass@3"):
        mean_pass_at_k(successes, tasks, 3)


A, B, SILENT = ("7", 1.0), ("8", 0.0), ("", 0.0)


@pytest.mark.parametrize(
    ("samples", "k", "expected"),
    [
        ([A, A, B], 3, 1.0),  # two votes against one
        ([A, B, B], 3, 0.0),
        ([A, B, B], 1, 1 / 3),  # one sample is its own majority
        ([A, B, B], 2, 1 / 3),  # AB, AB, BB: a half, a half, 0
        ([A, B], 2, 0.5),  # a tie is shared
        ([A, B, ("9", 0.0)], 3, 1 / 3),
        ([A, SILENT, SILENT], 3, 1.0),  # who gives no answer does not vote
        ([A, SILENT, SILENT], 2, 2 / 3),
        ([SILENT, SILENT], 2, 0.0),
        ([A, A, B, B, B], 3, 0.3),  # of the 10 choices of 3, the 3 with both As
        ([("x", 1.0), ("x", 0.0), B], 3, 0.5),  # an answer is worth the mean of those who gave it
    ],
)
def test_majority_at_k_by_hand(samples, k, expected):
    answers, successes = zip(*samples, strict=True)
    assert majority_at_k(answers, successes, k) == pytest.approx(expected)


def test_majority_at_k_is_the_mean_over_all_choices_of_k_samples():
    draw = random.Random(0)
    for _ in range(100):
        answers = [draw.choice(["", "a", "b", "c", "d"]) for _ in range(draw.randint(1, 8))]
        worth = {answer: draw.choice([0.0, 0.5, 1.0]) for answer in "abcd"}
        successes = [worth.get(answer, 0.0) for answer in answers]
        for k in range(1, len(answers) + 1):
            outcomes = []
            for chosen in combinations(answers, k):
                votes = Counter(answer for answer in chosen if answer)
                winners = [answer for answer, count in votes.items() if count == max(votes.values())]
                outcomes.append(fmean(worth[answer] for answer in winners) if winners else 0.0)
            assert majority_at_k(answers, successes, k) == pytest.approx(fmean(outcomes))


def test_majority_at_k_of_many_samples_and_impossible_counts():
    # 64 different answers, one of them right: whoever is drawn, all tie, so the right one wins 1 in 64
    answers = [str(number) for number in range(64)]
    assert majority_at_k(answers, [1.0] + [0.0] * 63, 32) == pytest.approx(1 / 64)
    for k in (0, 3):
        with pytest.raises(ValueError, match="maj@"):
            majority_at_k(["a", "b"], [1.0, 0.0], k)


def test_mean_majority_at_k_weighs_tasks_alike():
    # Task x: A A B, 1 at k = 3; task y: B B A, 0
    answers, successes = ["7", "8", "7", "8", "8", "7"], [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    tasks = ["x", "y", "x", "y", "x", "y"]
    assert mean_majority_at_k(answers, successes, tasks, 3) == 0.5


def test_interval_reads_well():
    assert str(Interval(0.41, 0.304, 0.519)) == "0.41 [0.30, 0.52]"
    assert Interval(1.0, 0.5, 1.0).as_dict() == {"mean": 1.0, "low": 0.5, "high": 1.0}
