"""A user's own functions that are told how a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marft.run.metrics import flatten
from marft.run.progress import Watcher
from marft.types import Episode, MarftError

OnIteration = Callable[[Mapping[str, float]], object]
OnEpisode = Callable[[Episode], object]


class Callbacks:
    """A watcher that passes everything on to another, and tells functions of iterations and episodes.

    `on_iteration` gets the numbers of an iteration under the names they have in `Run.metrics`, in a mapping of its own.
    Raises `MarftError` naming the callback that raised an exception, which is its cause.
    """

    def __init__(self, watcher: Watcher, on_iteration: OnIteration | None, on_episode: OnEpisode | None) -> None:
        self._watcher, self._on_iteration, self._on_episode = watcher, on_iteration, on_episode

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Passed on."""
        self._watcher.start(summary, iterations, first)

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Passed on."""
        self._watcher.phase(name, done, total)

    def episode(self, episode: Episode) -> None:
        """Passed on, and told."""
        self._watcher.episode(episode)
        if self._on_episode is not None:
            _call("on_episode", self._on_episode, episode)

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Passed on, and told."""
        self._watcher.iteration(metrics)
        if self._on_iteration is not None:
            _call("on_iteration", self._on_iteration, dict(flatten(metrics)))

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Passed on."""
        self._watcher.evaluation(title, report, done)

    def note(self, text: str) -> None:
        """Passed on."""
        self._watcher.note(text)

    def finish(self) -> None:
        """Passed on."""
        self._watcher.finish()


def _call(key: str, function: Callable[[Any], object], told: object) -> None:
    try:
        function(told)
    except Exception as error:  # the function is the user's own
        name = getattr(function, "__qualname__", type(function).__name__)
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise MarftError(f"{key}: the callback '{name}' failed with {what}") from error
