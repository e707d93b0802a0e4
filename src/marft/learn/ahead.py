"""Play and learning of one iteration: one after the other, or at the same time where they do not wait for each other.

With `rollout.staleness: k`, iteration i plays with the newest weights and learns from what was played k iterations
earlier. Neither needs the other, so where play has weights of its own both go on at once. The results are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marft.learn.clock import Clock
from marft.learn.memory import Memory, Round
from marft.learn.play import Played, play_iteration
from marft.run.progress import Watcher
from marft.running import beside, result_of
from marft.team import Team
from marft.types import Episode

Learn = Callable[[Sequence[Episode], Watcher], dict[str, Any]]
"""What is to be done with episodes; returns what it says of itself."""


def play_and_learn(
    team: Team, memory: Memory, iteration: int, learn: Learn, clock: Clock, watcher: Watcher
) -> tuple[list[Episode], dict[str, Any]]:
    """Play an iteration and `learn` from what is due; returns all episodes played, and what both say.

    An exception on either side propagates when the other side has ended; where learning fails, play is cut short.
    """
    config = team.config.rollout
    late = (iteration, config.staleness, config.reuse)
    if config.staleness and plays_apart(team):
        hold(team)
        both = Both(watcher)
        with beside(play_iteration(team, memory.record, iteration, Side(both, 0))) as playing:
            learnt = _learn(memory.due(*late), learn, Side(both, 1))
            both.phase(1, "")
            with clock.phase("rollout"):  # what is left of it
                played = playing.result()
        team.rest()
        _note(memory, iteration, played)
    else:
        with clock.phase("rollout"):
            played = result_of(play_iteration(team, memory.record, iteration, watcher))
            team.rest()
        _note(memory, iteration, played)
        learnt = _learn(memory.due(*late), learn, watcher)
    memory.forget(*late)
    if not (config.staleness or config.reuse or config.resample):
        del learnt["learnt"]  # it is what was played
    return played.episodes, {**played.stats, **learnt}


def plays_apart(team: Team) -> bool:
    """Whether everybody at the table plays with weights that learning does not move."""
    return all(seat.generator.own_weights for seat in team.seats.values())


def hold(team: Team) -> None:
    """Have everything that generates keep the weights of now until it is told of new ones."""
    adapters = tuple(dict.fromkeys(agent.adapter for agent in team.game.agents))
    for generator in {id(seat.generator): seat.generator for seat in team.seats.values()}.values():
        generator.hold(adapters)


class Both:
    """One watcher for two sides that work at the same time: what they do is shown side by side."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._now: dict[int, str] = {}

    def phase(self, side: int, name: str, done: int | None = None, total: int | None = None) -> None:
        """What a side does now; an empty name: nothing."""
        count = "" if done is None else f" {done}" if total is None else f" {done}/{total}"
        with self._lock:  # a watcher is told by one at a time
            self._now[side] = f"{name}{count}"
            self._watcher.phase(" · ".join(self._now[each] for each in sorted(self._now) if self._now[each]))

    def tell(self, say: Callable[[Watcher], None]) -> None:
        """Tell the watcher something else."""
        with self._lock:
            say(self._watcher)


class Side:
    """A `Watcher` of one of two sides."""

    def __init__(self, both: Both, number: int) -> None:
        self._both, self._number = both, number

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.start(summary, iterations, first))

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Shown beside what the other side does."""
        self._both.phase(self._number, name, done, total)

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.iteration(metrics))

    def episode(self, episode: Episode) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.episode(episode))

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.evaluation(title, report, done))

    def note(self, text: str) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.note(text))

    def finish(self) -> None:
        """Passed on."""
        self._both.tell(lambda watcher: watcher.finish())


def _note(memory: Memory, iteration: int, played: Played) -> None:
    memory.record = played.record
    memory.add(Round(iteration, played.kept))


def _learn(due: Sequence[Round], learn: Learn, watcher: Watcher) -> dict[str, Any]:
    episodes = [each for batch in due for each in batch.episodes]
    stats = learn(episodes, watcher) if episodes else {}
    return {**stats, "learnt": {"episodes": len(episodes), "iterations": len(due)}}
