"""From recorded runs to numbers: means over seeds with intervals, and differences between conditions seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from benchmarks.study.conditions import Condition, Contrast, Experiment, Run
from benchmarks.study.records import Record, Records
from benchmarks.study.results import at
from marft.run.statistics import Interval, mean_interval, t_quantile

Measure = Literal["before", "area", "final", "greedy"]
Verdict = Literal["better", "worse", "no difference shown", "not known"]


@dataclass(frozen=True)
class Findings:
    """The records of an experiment: condition key -> seed -> record."""

    experiment: Experiment
    records: Mapping[str, Mapping[int, Record]]

    @classmethod
    def of(cls, experiment: Experiment, runs: Sequence[Run], records: Records) -> Findings:
        """What was recorded of these runs."""
        found: dict[str, dict[int, Record]] = {each.key: {} for each in experiment.conditions}
        for run in runs:
            record = records.of(run)
            if record is not None:
                found[run.condition][run.seed] = record
        return cls(experiment, found)

    @property
    def every(self) -> list[Record]:
        """All records, each once: conditions that are the same training share theirs."""
        return list({id(record): record for seeds in self.records.values() for record in seeds.values()}.values())

    @property
    def measured(self) -> list[Condition]:
        """The conditions of which there is at least one record."""
        return [each for each in self.experiment.conditions if self.records[each.key]]

    def values(self, key: str, measure: Measure) -> dict[int, float]:
        """Seed -> value; a run without training has no area."""
        found = {seed: value_of(record, measure) for seed, record in self.records[key].items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def twin(self, condition: Condition) -> str | None:
        """The name of an earlier condition of its group that is the same training, whose runs stand for both."""
        mine = list(map(id, self.records[condition.key].values()))
        for other in self.experiment.conditions[: self.experiment.conditions.index(condition)]:
            if other.group == condition.group and list(map(id, self.records[other.key].values())) == mine:
                return other.name
        return None

    def mean(self, key: str, measure: Measure) -> Interval | None:
        """Over seeds; None without any."""
        return over_seeds(self.values(key, measure))

    def difference(self, condition: Condition, measure: Measure) -> Interval | None:
        """To the baseline of its group; None for the baseline itself, and without a common seed."""
        baseline = self.experiment.baseline_of(condition)
        if condition.key == baseline:
            return None
        return paired(self.values(baseline, measure), self.values(condition.key, measure))

    def contrast(self, contrast: Contrast, measure: Measure) -> Interval | None:
        """Over the seeds that all its conditions have."""
        signed = [(1, key) for key in contrast.plus] + [(-1, key) for key in contrast.minus]
        values = [(sign, self.values(key, measure)) for sign, key in signed]
        common = set.intersection(*(set(found) for _, found in values))
        return over_seeds({seed: sum(sign * found[seed] for sign, found in values) for seed in sorted(common)})

    def average(self, key: str, *path: str) -> float | None:
        """The mean over seeds of a number somewhere in the records; None where no record has it."""
        found = [value for record in self.records[key].values() if (value := at(record, *path)) is not None]
        return fmean(found) if found else None

    def average_answer(self, key: str) -> float | None:
        """Tokens sampled for one held-out answer after training, mean over seeds."""
        found = [last(record)["answer_tokens"] for record in self.records[key].values()]
        return fmean(found) if found else None

    def average_language(self, key: str) -> tuple[float, float] | None:
        """KL from the base per token and perplexity over the base's, after training: means over agents and seeds."""
        found = [last(record) for record in self.records[key].values()]
        told = [
            (fmean(each["kl"].values()), fmean(each["perplexity"].values())) for each in found if "perplexity" in each
        ]
        return (fmean(kl for kl, _ in told), fmean(ratio for _, ratio in told)) if told else None


def last(record: Record) -> dict[str, Any]:
    """The evaluation after training."""
    evaluations: dict[str, Any] = record["evaluations"]
    return evaluations[max(evaluations, key=int)]


@dataclass(frozen=True)
class Votes:
    """Majority votes of one agent: `success` by the number k of samples, each of `tokens` sampled tokens."""

    tokens: float
    success: Mapping[int, Interval]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Votes | None:
        """Over seeds; None for a team, and where no more than two samples a task were played."""
        numbers = sorted({int(k) for record in records for k in last(record).get("majority", {})})
        if records[0]["agents"] > 1 or numbers[-1:] < [3]:
            return None
        found = {k: over_seeds({each["seed"]: last(each)["majority"][str(k)] for each in records}) for k in numbers}
        tokens = fmean(last(record)["answer_tokens"] for record in records)
        return cls(tokens, {k: each for k, each in found.items() if each is not None})

    def needed(self, success: float) -> int | None:
        """The smallest k whose mean success reaches this one."""
        return next((k for k, each in self.success.items() if each.mean >= success), None)


def value_of(record: Record, measure: Measure) -> float | None:
    """A measure of one run: held-out success at temperature 1 before and after training and greedily after it, and the
    area under its learning curve, which is the mean success over training."""
    evaluations = record["evaluations"]
    if measure == "area":
        return fmean(record["curve"]) if record["curve"] else None
    first, last = min(evaluations, key=int), max(evaluations, key=int)
    return float(evaluations[first if measure == "before" else last]["greedy" if measure == "greedy" else "sampled"])


def over_seeds(values: Mapping[int, float]) -> Interval | None:
    """The mean and its 95% Student interval, each seed a draw; without an end on either side for one seed."""
    if not values:
        return None
    return mean_interval(list(values.values()), list(values), bounded=False)


def paired(baseline: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """The mean of other - baseline over the seeds that both have, and its 95% Student interval."""
    common = sorted(baseline.keys() & other.keys())
    return over_seeds({seed: other[seed] - baseline[seed] for seed in common})


def verdict(difference: Interval | None) -> Verdict:
    """What a difference and its interval say."""
    if difference is None or math.isinf(difference.low):
        return "not known"
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "no difference shown"


def band(curves: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """(mean, half the width of its 95% Student interval) of curves, iteration by iteration, up to the shortest's end.

    With one curve the width is 0.
    """
    columns = list(zip(*curves, strict=False))
    means = [fmean(column) for column in columns]
    n = len(curves)
    if n == 1:
        return means, [0.0] * len(means)
    quantile = t_quantile(0.95, n - 1)
    variances = [
        sum((value - mean) ** 2 for value in column) / (n - 1) for column, mean in zip(columns, means, strict=True)
    ]
    return means, [quantile * math.sqrt(variance / n) for variance in variances]


def smooth(curve: Sequence[float], width: int = 5) -> list[float]:
    """Each value averaged with those around it, `width` in all, fewer at the ends."""
    half = width // 2
    return [fmean(curve[max(0, place - half) : place + half + 1]) for place in range(len(curve))]
