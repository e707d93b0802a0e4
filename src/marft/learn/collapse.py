"""How well a team has played, by the rows of `metrics.jsonl`, and whether it has collapsed: for `learn/guard.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from marft.config import GuardConfig

Row = Mapping[str, Any]

SOLVED = 0.8  # mean success of a window from which on little entropy is the aim, not an illness
ERRORS = 3.0  # standard errors that the mean of a window must lack to have collapsed, and not to have been unlucky


@dataclass(frozen=True)
class Score:
    """How well a team played an iteration, in `played` episodes."""

    iteration: int
    success: float
    reward: float
    played: int


def collapse(rows: Sequence[Row], config: GuardConfig) -> tuple[float, str] | None:
    """The mean of the last `window` iterations and a sentence, where that mean is too low; None where all is well.

    It is compared with the best such mean before. Success is judged by its share of the best. Where all iterations have
    the same success, which then says nothing, it is the reward, which may be negative: by its share of what was gained
    over the first window. Either way the loss must stand out from the noise of the two means together.
    """
    window, scores = config.window, scores_of(rows)
    recent = [each for each in scores if each.iteration >= first_recent(rows)]
    if len(recent) < window or len(scores) < 2 * window:
        return None
    means = _means(scores, window)
    current, before = means[-1], means[: len(scores) - 2 * window + 1]
    best, rewards = max(before), _by_reward(scores)
    floor = before[0] if rewards else 0.0
    limit, end = floor + config.collapse * (best - floor), len(scores) - window
    noise = math.hypot(
        config.collapse * _window_error(scores, end, best, window), _window_error(scores, end, limit, window)
    )
    if best <= floor or current >= limit - ERRORS * noise:
        return None
    what, key = ("reward", "gain since the start") if rewards else ("success", "best")
    return current, (
        f"mean {what} of the last {window} iterations is {current:.3g}, after {best:.3g} at best (guard.collapse: "
        f"{config.collapse:g} of the {key}, less what may be noise); lower update.lr, or set update.kl_stop or "
        "update.kl_reference"
    )


def first_recent(rows: Sequence[Row]) -> int:
    """The iteration of the first row after the last rollback: also the checkpoint that this rollback wrote."""
    back = [int(row["iteration"]) for row in rows if "rollback_to" in row]
    return back[-1] + 1 if back else 0


def good_until(rows: Sequence[Row], config: GuardConfig) -> int:
    """The last iteration at whose end the team played as well as it ever has, as far as noise lets one tell.

    Ends of windows after the last rollback; before the first whole window, the latest row. Where no window is as good
    any more: the first row after the rollback.
    """
    scores = scores_of(rows)
    recent = [place for place in range(len(scores)) if scores[place].iteration >= first_recent(rows)]
    if len(recent) < config.window:
        return scores[recent[-1]].iteration if recent else first_recent(rows)
    means = _means(scores, config.window)
    best = max(means)
    noise = _window_error(scores, len(scores) - config.window, best, config.window)
    ends = [place for place in recent[config.window - 1 :] if means[place - config.window + 1] >= best - noise]
    return scores[ends[-1]].iteration if ends else first_recent(rows)


def winning(rows: Sequence[Row], window: int) -> bool:
    """Whether the mean of the last window is near 1, or above that of the window before by more than one error."""
    scores = scores_of(rows)
    if not scores:
        return False
    if fmean(each.success for each in scores[-window:]) >= SOLVED:
        return True
    values = _values(scores)
    latest, before = values[-window:], values[-2 * window : -window] or values[:1]
    earlier = fmean(before)
    return fmean(latest) > earlier + _window_error(scores, len(scores), earlier, len(before))


def scores_of(rows: Sequence[Row]) -> list[Score]:
    """The rows in which anything was played."""
    scores = []
    for row in rows:
        success, reward = finite_number(row.get("success")), finite_number(row.get("reward"))
        played = int(row.get("episodes", 0)) - int(row.get("failed", 0))
        if success is not None and reward is not None and played > 0:
            scores.append(Score(int(row["iteration"]), success, reward, played))
    return scores


def finite_number(value: Any) -> float | None:
    """A finite number, or None for what is missing, null or not finite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _by_reward(scores: Sequence[Score]) -> bool:
    return len({each.success for each in scores}) == 1


def _values(scores: Sequence[Score]) -> list[float]:
    rewards = _by_reward(scores)
    return [each.reward if rewards else each.success for each in scores]


def _means(scores: Sequence[Score], window: int) -> list[float]:
    """The mean of every `window` successive scores; place j is the mean of j .. j + window - 1."""
    values = _values(scores)
    return [sum(values[start : start + window]) / window for start in range(len(values) - window + 1)]


def _window_error(scores: Sequence[Score], end: int, mean: float, window: int) -> float:
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
