"""The process's global random generators, lent to code that insists on them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

NUMPY_SEEDS = 2**32  # numpy's old global generator takes no larger seed


class OwnRandomness:
    """Python's and numpy's global generators as a stream of one's own, from a seed >= 0."""

    def __init__(self, seed: int) -> None:
        before = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % NUMPY_SEEDS)
        self._python, self._numpy = random.getstate(), np.random.get_state()
        random.setstate(before[0])
        np.random.set_state(before[1])

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """What runs inside draws from this stream, where it left off; the process's generators are then put back."""
        before = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])


def own_randomness(seed: int) -> contextlib.AbstractContextManager[None]:
    """Python's and numpy's global generators, seeded (seed >= 0) for what runs inside and then put back."""
    return OwnRandomness(seed).lent()
