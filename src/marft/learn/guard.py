"""The crash detector: from the rows of `metrics.jsonl` to alarms. Numbers in, sentences out; what is done about them
stands in `run/rollback.py`.

A row speaks of iteration i: `success`, `reward`, `entropy` and `reference_kl` of the weights that played it, those of
checkpoint i; everything under `update` of the step that followed, which led to checkpoint i + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from marft.config import GuardConfig
from marft.types import MarftError

Row = Mapping[str, Any]

SOLVED = 0.8  # mean success of a window from which on little entropy is the aim, not an illness
ERRORS = 2.5  # standard errors that a difference of two window means must exceed to be more than noise


class Diverged(MarftError):
    """The gradient of `who` is not finite: the step was not made, and no later one can be."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{who}: the gradient is not finite; lower update.lr and critic.lr, or set guard.action: rollback"
        )
        self.who = who


@dataclass(frozen=True)
class Alarm:
    """Something ran away. `kind` is the key of `guard` that judged it (or `nonfinite`), `who` an agent or "team",
    `value` the number that was too much, `since` the iteration before which all was well: checkpoint `since` is good.
    """

    kind: str
    who: str
    value: float
    text: str
    since: int

    @property
    def key(self) -> tuple[str, str]:
        """What makes two alarms of successive iterations the same trouble."""
        return self.kind, self.who


def alarms(rows: Sequence[Row], config: GuardConfig) -> tuple[Alarm, ...]:
    """What is wrong after the last of `rows`, newest last; () when all is well or there are none.

    Rows up to the last one with `rollback_to` are of weights that were given up: they still say how good the team has
    been and what its entropy was at first, never how it fares now.
    """
    if not rows:
        return ()
    now = [*_not_finite(rows[-1]), *_steps(rows[-1], config), *_far_from_base(rows, config)]
    return (*now, *_entropies(rows, config), *_collapse(rows, config))


def health(found: Sequence[Alarm]) -> dict[str, Any]:
    """Alarms as plain numbers for a row: {"alarms": 2, "kl": {"planner": 1.3}, "collapse": {"team": 0.1}}."""
    told: dict[str, Any] = {"alarms": len(found)}
    for each in found:
        told.setdefault(each.kind, {})[each.who] = each.value
    return told


def first_recent(rows: Sequence[Row]) -> int:
    """The iteration of the first row after the last rollback: also the checkpoint that this rollback wrote."""
    back = [int(row["iteration"]) for row in rows if "rollback_to" in row]
    return back[-1] + 1 if back else 0


def good_until(rows: Sequence[Row], config: GuardConfig) -> int:
    """The last iteration at whose end the team played as well as it ever has, as far as noise lets one tell.

    Ends of windows after the last rollback; before the first whole window, the latest row. Where no window is as good
    any more: the first row after the rollback.
    """
    scores = _scores(rows)
    recent = [place for place in range(len(scores)) if scores[place].iteration >= first_recent(rows)]
    if len(recent) < config.window:
        return scores[recent[-1]].iteration if recent else first_recent(rows)
    means = _means(scores, config.window)
    best = max(means)
    noise = _window_error(scores, len(scores) - config.window, best, config.window)
    ends = [place for place in recent[config.window - 1 :] if means[place - config.window + 1] >= best - noise]
    return scores[ends[-1]].iteration if ends else first_recent(rows)


# ---- one row by itself


def _not_finite(row: Row) -> Iterator[Alarm]:
    """Numbers that are NaN or infinite, in memory or as `nonfinite` on the disk, and gradients that stopped a step."""
    iteration = int(row["iteration"])
    names = dict.fromkeys([*row.get("nonfinite", {}), *_nonfinite_keys(row)])
    if names:
        some = ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        text = f"not a finite number: {some}; lower update.lr, and critic.lr where it is the critic's"
        yield Alarm("nonfinite", "team", float(len(names)), text, iteration)
    for who, reason in row.get("diverged", {}).items():
        yield Alarm("nonfinite", who, 1.0, reason, iteration)


def _nonfinite_keys(values: Row, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _nonfinite_keys(value, f"{prefix}{key}/")
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{prefix}{key}"


def _steps(row: Row, config: GuardConfig) -> Iterator[Alarm]:
    """Updates that moved an agent too far: the checkpoint before the update is good."""
    iteration = int(row["iteration"])
    for agent, stats in row.get("update", {}).items():
        kl = _number(stats.get("kl"))
        if kl is not None and kl > config.kl:
            text = (
                f"agent '{agent}': KL of {kl:.3g} nats per token in one update (guard.kl: {config.kl:g}); lower "
                "update.lr or update.epochs, or set update.kl_stop"
            )
            yield Alarm("kl", agent, kl, text, iteration)
        high, middle = _number(stats.get("ratio_p95")), _number(stats.get("ratio_p50"))
        advice = "lower update.lr, or set update.action_normalisation to 'token' where replies are long"
        if high is not None and high > config.ratio:
            text = (
                f"agent '{agent}': one decision in 20 became over {high:.3g} times as likely in one update "
                f"(guard.ratio: {config.ratio:g}); {advice}"
            )
            yield Alarm("ratio", agent, high, text, iteration)
        elif middle is not None and middle < 1.0 / config.ratio:
            text = (
                f"agent '{agent}': every other decision kept under {middle:.3g} of its probability in one update "
                f"(guard.ratio: 1/{config.ratio:g}); {advice}"
            )
            yield Alarm("ratio", agent, middle, text, iteration)


# ---- a row beside those before it


def _far_from_base(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    """The team's KL from the base model, which is measured only with `update.kl_reference` above 0."""
    course = [(int(row["iteration"]), _number(row.get("reference_kl"))) for row in rows]
    value = course[-1][1]
    if value is not None and value > config.reference_kl:
        text = (
            f"the team is {value:.3g} nats per token from the base model (guard.reference_kl: "
            f"{config.reference_kl:g}); raise update.kl_reference or lower update.lr"
        )
        since = _last_within(course, 0.0, config.reference_kl / 2, rows)
        yield Alarm("reference_kl", "team", value, text, since)


def _entropies(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    """Agents that have stopped trying anything, or that babble: beside their own first entropy.

    A team that wins more and more, or nearly always, may be as sure of itself as it likes.
    """
    winning = _winning(_scores(rows), config.window)
    for agent in rows[-1].get("entropy", {}):
        course = [(int(row["iteration"]), _number(row.get("entropy", {}).get(agent))) for row in rows]
        known = [value for _, value in course if value is not None]
        value = course[-1][1]
        if value is None or known[0] <= 0.0:
            continue
        share = value / known[0]
        if share < config.entropy_low and not winning:
            text = (
                f"agent '{agent}': entropy of {value:.3g} nats per token is {share:.2g} of its first (guard.entropy_low"
                f": {config.entropy_low:g}), so all its replies are alike; set update.entropy or lower update.lr"
            )
            since = _last_within(course, math.sqrt(config.entropy_low) * known[0], math.inf, rows)
            yield Alarm("entropy_low", agent, value, text, since)
        elif share > config.entropy_high:
            text = (
                f"agent '{agent}': entropy of {value:.3g} nats per token is {share:.3g} times its first "
                f"(guard.entropy_high: {config.entropy_high:g}), so it babbles; lower update.lr or update.entropy, or "
                "set update.kl_reference"
            )
            since = _last_within(course, 0.0, math.sqrt(config.entropy_high) * known[0], rows)
            yield Alarm("entropy_high", agent, value, text, since)


def _winning(scores: Sequence[_Score], window: int) -> bool:
    """Whether the mean of the last window is near 1, or above that of the window before by more than one error."""
    if not scores:
        return False
    if fmean(each.success for each in scores[-window:]) >= SOLVED:
        return True
    values = _values(scores)
    latest, before = values[-window:], values[-2 * window : -window] or values[:1]
    earlier = fmean(before)
    return fmean(latest) > earlier + _window_error(scores, len(scores), earlier, len(before))


def _last_within(course: Sequence[tuple[int, float | None]], low: float, high: float, rows: Sequence[Row]) -> int:
    """The last iteration since the last rollback whose value was well inside its limits, else the first since then.

    Well inside, not just inside: from the brink the same steps lead over it again.
    """
    start = first_recent(rows)
    fine = [place for place, value in course if place >= start and value is not None and low <= value <= high]
    return fine[-1] if fine else start


# ---- collapse


@dataclass(frozen=True)
class _Score:
    """How well a team played an iteration, in `played` episodes."""

    iteration: int
    success: float
    reward: float
    played: int


def _collapse(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    """The mean of the last `window` iterations beside the best such mean before them.

    Success is judged by its share of the best. Where all iterations have the same success, which then says nothing, it
    is the reward, which may be negative: by its share of what was gained over the first window. Either way the loss
    must stand out from the noise of both means.
    """
    window, scores = config.window, _scores(rows)
    recent = [each for each in scores if each.iteration >= first_recent(rows)]
    if len(recent) < window or len(scores) < 2 * window:
        return
    means = _means(scores, window)
    current, before = means[-1], means[: len(scores) - 2 * window + 1]
    best, rewards = max(before), _by_reward(scores)
    floor = before[0] if rewards else 0.0
    end = len(scores) - window
    best_for_sure = best - ERRORS * _window_error(scores, end, best, window)
    limit = floor + config.collapse * (best_for_sure - floor)
    if best_for_sure <= floor or current >= limit - ERRORS * _window_error(scores, end, limit, window):
        return
    what, key = ("reward", "gain since the start") if rewards else ("success", "best")
    text = (
        f"mean {what} of the last {window} iterations is {current:.3g}, after {best:.3g} at best (guard.collapse: "
        f"{config.collapse:g} of the {key}, less what may be noise); lower update.lr, or set update.kl_stop or "
        "update.kl_reference"
    )
    yield Alarm("collapse", "team", current, text, good_until(rows, config))


def _scores(rows: Sequence[Row]) -> list[_Score]:
    """The rows in which anything was played."""
    scores = []
    for row in rows:
        success, reward = _number(row.get("success")), _number(row.get("reward"))
        played = int(row.get("episodes", 0)) - int(row.get("failed", 0))
        if success is not None and reward is not None and played > 0:
            scores.append(_Score(int(row["iteration"]), success, reward, played))
    return scores


def _by_reward(scores: Sequence[_Score]) -> bool:
    return len({each.success for each in scores}) == 1


def _values(scores: Sequence[_Score]) -> list[float]:
    rewards = _by_reward(scores)
    return [each.reward if rewards else each.success for each in scores]


def _means(scores: Sequence[_Score], window: int) -> list[float]:
    """The mean of every `window` successive scores; place j is the mean of j .. j + window - 1."""
    values = _values(scores)
    return [sum(values[start : start + window]) / window for start in range(len(values) - window + 1)]


def _window_error(scores: Sequence[_Score], end: int, mean: float, window: int) -> float:
    """The standard error of a window's mean: what independent episodes would have at this mean, or, where it is more,
    what the differences of successive iterations before place `end` show (half their mean square is the variance).

    The second counts that episodes of one task are alike, and is all there is for rewards; a trend adds little to it.
    """
    values = _values(scores)[:end]
    squares = [(later - earlier) ** 2 for earlier, later in pairwise(values)]
    variance = sum(squares) / len(squares) / 2 if squares else 0.0
    if not _by_reward(scores):
        played = sum(each.played for each in scores[-window:]) / window
        share = min(max(mean, 0.0), 1.0)
        variance = max(variance, share * (1.0 - share) / played)
    return math.sqrt(variance / window)


def _number(value: Any) -> float | None:
    """A finite number, or None for what is missing, null or not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
