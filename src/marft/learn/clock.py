"""Where an iteration's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Clock:
    """Seconds per phase of one iteration."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def shares(clock: Clock) -> dict[str, Any]:
    """Seconds of the iteration and each phase's share of them."""
    total = sum(clock.seconds.values())
    return {"seconds": total, "share": {name: spent / total for name, spent in clock.seconds.items()}}
