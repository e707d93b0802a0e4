"""The crash detector: from the rows of `metrics.jsonl` to alarms. Numbers in, sentences out; what is done about them
stands in `run/rollback.py`.

A row speaks of iteration i: `success`, `reward`, `entropy`, `reference_kl` and a critic's `explained_variance` of the
weights it began with, those of checkpoint i; everything under `update` of the step that followed, which led to
checkpoint i + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.config import GuardConfig
from marft.learn.collapse import Row, collapse, finite_number, first_recent, good_until, winning
from marft.types import MarftError

BABBLE = 0.5  # nats per token below which an agent is sure of itself, however many times its first entropy they are


class Diverged(MarftError):
    """The gradient of `who` is not finite: the step was not made, and no later one can be."""

    def __init__(self, who: str, hint: str = "") -> None:
        super().__init__(f"{who}: the gradient is not finite; lower update.lr and critic.lr{hint}")
        self.who = who


@dataclass(frozen=True)
class Alarm:
    """Something ran away. `kind` is the key of `guard` that judged it (or `nonfinite`), `who` an agent, a critic
    or "team", `value` the number that was too much, `since` the iteration before which all was well: checkpoint `since`
    is good.
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
    return (*now, *_lost_critics(rows, config), *_odd_entropies(rows, config), *_collapse(rows, config))


def health(found: Sequence[Alarm]) -> dict[str, Any]:
    """Alarms as plain numbers for a row: {"alarms": 2, "kl": {"planner": 1.3}, "collapse": {"team": 0.1}}."""
    told: dict[str, Any] = {"alarms": len(found)}
    for each in found:
        told.setdefault(each.kind, {})[each.who] = each.value
    return told


def marks(rows: Sequence[Row], config: GuardConfig) -> tuple[int, ...]:
    """For each slow alarm the last iteration at which all was still well: where it would lead back to, were it raised.

    All are the latest row while nothing declines.
    """
    start = first_recent(rows)
    found = [_from_base(rows, config), *_critics(rows, config).values(), *_entropies(rows, config).values()]
    return (good_until(rows, config), *(each.good_until(start) for each in found if each.known))


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
        kl = finite_number(stats.get("kl"))
        if kl is not None and kl > config.kl:
            text = (
                f"agent '{agent}': KL of {kl:.3g} nats per token in one update (guard.kl: {config.kl:g}); lower "
                "update.lr or update.epochs, or set update.kl_stop"
            )
            yield Alarm("kl", agent, kl, text, iteration)
        high, middle = finite_number(stats.get("ratio_p95")), finite_number(stats.get("ratio_p50"))
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


@dataclass(frozen=True)
class _Course:
    """A number over the iterations, None where a row lacks it, and the range in which it is well inside its limits.

    Well inside, not just inside: from the brink the same steps lead over it again.
    """

    points: tuple[tuple[int, float | None], ...]
    low: float = -math.inf
    high: float = math.inf

    @property
    def known(self) -> list[float]:
        return [value for _, value in self.points if value is not None]

    @property
    def latest(self) -> float | None:
        return self.points[-1][1]

    def good_until(self, start: int) -> int:
        """The last iteration from `start` on whose number was well inside, else `start`."""
        fine = [at for at, value in self.points if at >= start and value is not None and self.low <= value <= self.high]
        return fine[-1] if fine else start


def _points(rows: Sequence[Row], key: str, *within: str) -> tuple[tuple[int, float | None], ...]:
    """The numbers at `row[within[0]][within[1]]...[key]`."""
    found = []
    for row in rows:
        place: Any = row
        for each in within:
            place = place.get(each, {})
        found.append((int(row["iteration"]), finite_number(place.get(key))))
    return tuple(found)


def _from_base(rows: Sequence[Row], config: GuardConfig) -> _Course:
    """The team's KL from the base model, which is measured only with `update.kl_reference` above 0."""
    return _Course(_points(rows, "reference_kl"), high=config.reference_kl / 2)


def _entropies(rows: Sequence[Row], config: GuardConfig) -> dict[str, _Course]:
    """By agent; those that were quite sure of themselves from the start have no share of it to be judged by."""
    courses = {}
    for agent in dict.fromkeys(name for row in rows for name in row.get("entropy", {})):
        points = _points(rows, agent, "entropy")
        first = next((value for _, value in points if value is not None), 0.0)
        if first > 0.0:
            high = max(config.entropy_high * first, BABBLE) / math.sqrt(config.entropy_high)
            courses[agent] = _Course(points, math.sqrt(config.entropy_low) * first, high)
    return courses


def _critics(rows: Sequence[Row], config: GuardConfig) -> dict[str, _Course]:
    """Explained variance by critic, negative only where it means something.

    Where all episodes end alike, returns differ by little but what the critic itself said, and the smallest error is
    many times their variance. There it counts only with a loss above all that the critic had in better times, and not
    at all while nobody has ever earned anything.
    """
    well, earned = -config.critic / 2, _earned(rows)
    decided = [finite_number(row.get("success")) in (None, 0.0, 1.0) for row in rows]
    courses = {}
    for name in dict.fromkeys(key for row in rows for key in row if key == "critic" or key.startswith("critic-")):
        explained, losses = _points(rows, "explained_variance", name), _points(rows, "loss", name)
        found = [(at, value, loss) for (at, value), (_, loss) in zip(explained, losses, strict=True)]
        usual = max((loss or 0.0 for _, value, loss in found if value is not None and value >= well), default=0.0)
        judged = [
            (at, max(value, 0.0) if value is not None and alike and (not earned or (loss or 0.0) <= usual) else value)
            for (at, value, loss), alike in zip(found, decided, strict=True)
        ]
        courses[name] = _Course(tuple(judged), low=well)
    return courses


def _earned(rows: Sequence[Row]) -> bool:
    """Whether any iteration's reward, the team's or an agent's, was other than 0."""
    everyone = [stats for row in rows for stats in (row, *row.get("play", {}).values())]
    return any(finite_number(stats.get("reward")) for stats in everyone)


def _far_from_base(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    course = _from_base(rows, config)
    if course.latest is not None and course.latest > config.reference_kl:
        text = (
            f"the team is {course.latest:.3g} nats per token from the base model (guard.reference_kl: "
            f"{config.reference_kl:g}); raise update.kl_reference or lower update.lr"
        )
        yield Alarm("reference_kl", "team", course.latest, text, course.good_until(first_recent(rows)))


def _lost_critics(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    """Critics that have run away. A row's values are those of its own checkpoint, so that one is bad already."""
    for name, course in _critics(rows, config).items():
        if course.latest is not None and course.latest < -config.critic:
            text = (
                f"{name}: explained variance of {course.latest:.3g} (guard.critic: -{config.critic:g}), so its values "
                "add nothing but noise; lower critic.lr and critic.head_lr"
            )
            yield Alarm("critic", name, course.latest, text, course.good_until(first_recent(rows)))


def _odd_entropies(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    """Agents that have stopped trying anything, or that babble: beside their own first entropy.

    A team that wins more and more, or nearly always, may be as sure of itself as it likes.
    """
    start = first_recent(rows)
    for agent, course in _entropies(rows, config).items():
        if (value := course.latest) is None:
            continue
        share = value / course.known[0]
        if share < config.entropy_low and not winning(rows, config.window):
            text = (
                f"agent '{agent}': entropy of {value:.3g} nats per token is {share:.2g} of its first (guard.entropy_low"
                f": {config.entropy_low:g}), so all its replies are alike; set update.entropy or lower update.lr"
            )
            yield Alarm("entropy_low", agent, value, text, course.good_until(start))
        elif share > config.entropy_high and value > BABBLE:
            text = (
                f"agent '{agent}': entropy of {value:.3g} nats per token is {share:.3g} times its first "
                f"(guard.entropy_high: {config.entropy_high:g}), so it babbles; lower update.lr or update.entropy, or "
                "set update.kl_reference"
            )
            yield Alarm("entropy_high", agent, value, text, course.good_until(start))


def _collapse(rows: Sequence[Row], config: GuardConfig) -> Iterator[Alarm]:
    found = collapse(rows, config)
    if found is not None:
        value, text = found
        yield Alarm("collapse", "team", value, text, good_until(rows, config))
