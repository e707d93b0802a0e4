"""Which tasks come next: on and on through a split, and where a curriculum is asked for, by success rate.

Sampling for learnability (Rutherford et al., arXiv 2408.15099; for language models Foster et al., arXiv 2502.12272): a
task that is won with probability p teaches in proportion to p (1 - p), the variance of winning it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")
UNKNOWN = 0.5  # the success rate of a task of a kind that nobody has met
LIMIT = 100_000  # tasks, and kinds, whose success rates are remembered: those played last


@dataclass(frozen=True)
class Record:
    """What choosing tasks remembers: the place in the split's order from which tasks come next, and running success
    rates in [0, 1] of tasks (by index; none of an endless split) and of kinds, those played last at the end."""

    cursor: int = 0
    tasks: Mapping[int, float] = field(default_factory=dict)
    kinds: Mapping[str, float] = field(default_factory=dict)

    def success(self, index: int, kind: str) -> float:
        """What is expected of a task: its own rate, else that of its kind, else `UNKNOWN`."""
        return self.tasks.get(index, self.kinds.get(kind, UNKNOWN))

    def state(self) -> dict[str, Any]:
        """As plain values; a dict would forget the order of the tasks' numbers where they become text."""
        return {"cursor": self.cursor, "tasks": list(self.tasks.items()), "kinds": dict(self.kinds)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Record:
        """What `state` gave."""
        return cls(state["cursor"], dict(state["tasks"]), dict(state["kinds"]))


@dataclass(frozen=True)
class Result:
    """How a task went: the mean success of its episodes."""

    index: int
    kind: str
    success: float


def ordered(size: int | None, seed: int, start: int = 0) -> Iterator[int]:
    """The indices of a split in the order in which they come, from place `start`, without end.

    0, 1, 2, … in an endless split (`size` None), else epoch by epoch, each shuffled by `seed` and its own number.
    """
    place = start
    while True:
        if size is None:
            yield place
            place += 1
            continue
        epoch, first = divmod(place, size)
        order = random.Random(f"{seed}/{epoch}").sample(range(size), size)
        yield from order[first:]
        place = (epoch + 1) * size


def upcoming(
    size: int | None, seed: int, cursor: int, count: int, taken: Collection[int] = ()
) -> tuple[list[int], int]:
    """The next `count` different indices that are not `taken`, and the place after the last of them.

    Fewer when a finite split has no more.
    """
    found: dict[int, None] = {}
    walked = 0
    farthest = None if size is None else 2 * size - 1  # from anywhere, so many places hold a whole epoch
    for index in islice(ordered(size, seed, cursor), farthest):
        if len(found) == count:
            break
        walked += 1
        if index not in taken:
            found.setdefault(index)
    return list(found), cursor + walked


def weight(success: float, floor: float) -> float:
    """max(floor, p (1 - p) / 0.25): 1 for a task that is won every second time, `floor` for one that never is."""
    return max(floor, 4.0 * success * (1.0 - success))


def choose(weights: Sequence[float], count: int, draws: random.Random) -> list[int]:
    """At most `count` places of `weights` (> 0), in order, drawn one after another without replacement.

    Each draw takes a place with probability weight / sum of those left. Drawn all at once: those with the shortest
    exponential waiting times at these rates (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
    """
    waits = [draws.expovariate(each) for each in weights]
    return sorted(sorted(range(len(waits)), key=waits.__getitem__)[:count])


def noted(record: Record, results: Iterable[Result], decay: float, endless: bool) -> Record:
    """The record after an iteration: each rate keeps `decay` of its weight, the new mean gets the rest.

    A kind's new mean is over all of its tasks of the iteration. A rate that was not there yet is the new mean itself.
    """
    tasks, kinds, news = dict(record.tasks), dict(record.kinds), dict[str, list[float]]()
    for each in results:
        news.setdefault(each.kind, []).append(each.success)
        if not endless:  # no index of an endless split comes again
            tasks[each.index] = _mixed(tasks.pop(each.index, None), each.success, decay)
    for kind, wins in news.items():
        kinds[kind] = _mixed(kinds.pop(kind, None), sum(wins) / len(wins), decay)
    return replace(record, tasks=_latest(tasks), kinds=_latest(kinds))


def _mixed(before: float | None, now: float, decay: float) -> float:
    return now if before is None else decay * before + (1.0 - decay) * now


def _latest(rates: dict[T, float]) -> dict[T, float]:
    return dict(list(rates.items())[-LIMIT:])
