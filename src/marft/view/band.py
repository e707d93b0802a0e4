"""The band around a curve of training play: how sure its mean over episodes is, with tasks as the unit.

The curve weighs every episode that was played the same (`learn.play.play_stats`). Where failures are uneven, tasks have
different numbers of episodes, so it is no mean of task means but a ratio of sums over tasks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import NormalDist, fmean

from marft.run.statistics import Interval, t_quantile, wilson


def mean_band(values: Sequence[float], tasks: Sequence[Hashable], bounded: bool, level: float = 0.95) -> Interval:
    """The mean of `values` (each weighs the same) and its interval; `tasks[i]` says which task value i is of.

    Ratio estimator with clusters: r = sum y / sum n over k tasks with sums y and n values each, variance
    v = sum (y - r n)^2 / (sum n)^2, times k/(k-1) for Student's interval (Cochran 1977, "Sampling techniques", 6.4).
    With equally many values of each task this is `run.statistics.mean_interval`, whose rules it keeps for success
    (`bounded`: Wilson's interval at the effective sample size r(1-r)/v) and for all else (Student's interval). Where v
    tells nothing (r is 0 or 1, a single task), all values of a task are taken to agree: (sum n)^2 / sum n^2 of them.
    """
    sums: dict[Hashable, float] = defaultdict(float)
    for value, task in zip(values, tasks, strict=True):
        sums[task] += value
    counts = Counter(tasks)
    k, n, mean = len(counts), len(values), fmean(values)
    variance = sum((sums[task] - mean * counts[task]) ** 2 for task in counts) / n**2
    if not bounded:
        if k == 1:  # one task says nothing about other tasks
            return Interval(mean, -math.inf, math.inf)
        half = t_quantile(level, k - 1) * math.sqrt(variance * k / (k - 1))
        return Interval(mean, mean - half, mean + half)
    told = 0 < mean < 1 and k > 1
    effective = n**2 / sum(each**2 for each in counts.values())
    if told:
        effective = min(mean * (1 - mean) / variance, n) if variance > 0 else float(n)
    if told and k < n:
        # Wilson's interval depends on quantile^2 / n alone: this puts Student's in the place of the normal quantile
        effective *= (NormalDist().inv_cdf((1 + level) / 2) / t_quantile(level, k - 1)) ** 2
    found = wilson(min(mean * effective, effective), effective, level)
    return Interval(mean, min(mean, found.low), max(mean, found.high))
