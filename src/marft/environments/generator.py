"""One reasoning-gym generator as an endless stream of questions that depends on its seed and nothing else."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from marft.environments.randomness import own_randomness
from marft.types import MarftError
from marft.validation import suggestion

BLOCK = 2000  # questions per generator object: some draw all of theirs when made, and one refuses more than 20,000
SEEDS = 2**31  # numpy's old global generator, which a few generators use, takes no larger seed

# These walk through Python sets while they draw, so their questions depend on PYTHONHASHSEED
HASH_DEPENDENT = frozenset({"isomorphic_strings", "polynomial_multiplication", "ransom_note"})


@dataclasses.dataclass(frozen=True)
class Question:
    """One drawn question; `entry` is what its generator's scorer wants to see."""

    text: str
    kind: str
    entry: Mapping[str, Any]


class QuestionStream:
    """The questions of one generator from one seed; raises `MarftError` for an unknown generator or parameter."""

    def __init__(self, name: str, parameters: Mapping[str, Any], seed: int) -> None:
        _check_generator(name, parameters)
        self.name, self._parameters, self._seed = name, dict(parameters), seed
        self._make = lru_cache(maxsize=16)(self._make_block)
        self._make(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return QuestionStream, (self.name, self._parameters, self._seed)  # the cache cannot be pickled, nor need it be

    def draw(self, index: int) -> Question:
        """Question number `index` >= 0; the process's global random state is left as it was."""
        block, place = divmod(index, BLOCK)
        with own_randomness((self._seed + index) % SEEDS):
            entry = self._make(block)[place]
        return Question(entry["question"], self.name, entry)

    def score(self, answer: str, entry: Mapping[str, Any]) -> tuple[float, bool]:
        """The generator's own score in [0, 1], and whether the scorer broke on the answer (which then scores 0)."""
        try:
            return min(1.0, max(0.0, float(self._make(0).score_answer(answer, entry)))), False
        except Exception:  # scorers that parse raise anything on nonsense; the flag goes to the episode's metrics
            return 0.0, True

    def _make_block(self, block: int) -> Any:
        seed = (self._seed + block * BLOCK) % SEEDS
        try:
            with own_randomness(seed):
                return reasoning_gym.create_dataset(self.name, **self._parameters, seed=seed, size=BLOCK)
        except (AssertionError, TypeError, ValueError) as error:
            raise MarftError(f"{self.name}: parameters: {error or 'not allowed'}") from None


def _check_generator(name: str, parameters: Mapping[str, Any]) -> None:
    known = sorted(set(DATASETS) - {"composite"})
    if name == "composite":
        raise MarftError("dataset: 'composite' is spelt `datasets` here: a list of {dataset, parameters, weight}")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {len(known)}, such as {', '.join(known[:3])}"
        raise MarftError(f"dataset: reasoning-gym has no '{name}'; {hint}")
    if name in HASH_DEPENDENT and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise MarftError(
            f"dataset: '{name}' draws other questions in every process; set PYTHONHASHSEED=0 and start again"
        )
    fields = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("seed", "size")]
    for key in parameters:
        if key in ("seed", "size"):
            raise MarftError(f"parameters: '{key}' is set by train_seed, heldout_seed and heldout_size")
        if key not in fields:
            raise MarftError(f"parameters: {name} has no '{key}'{suggestion(key, fields)}")
