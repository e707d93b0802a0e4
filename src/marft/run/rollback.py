"""What is done about alarms: say so, and on request go back to the last good checkpoint with smaller steps.

A rollback in iteration i takes the weights and optimisers of an older checkpoint C and writes them as checkpoint i + 1,
so the numbers of rows and checkpoints only grow and resuming needs to know nothing of it. Until that checkpoint stands,
the disk is as it was before the iteration: a process killed on the way plays the iteration again and goes back again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from marft.config import GuardConfig
from marft.learn.guard import Alarm, Diverged, alarms, health, marks
from marft.learn.memory import Memory
from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.run.metrics import read_metrics
from marft.run.progress import Watcher
from marft.run.state import load_learners, save_training
from marft.team import Team
from marft.types import MarftError


class Guard:
    """Looks at every iteration of a run, whose earlier rows it reads from `metrics.jsonl`.

    `restored`: whether it went back to an older checkpoint in this iteration.
    """

    def __init__(
        self,
        run: RunDirectory,
        team: Team,
        optimisers: Mapping[str, torch.optim.Optimizer],
        memory: Memory,
        watcher: Watcher,
    ) -> None:
        self._run, self._team, self._optimisers, self._memory, self._watcher = run, team, optimisers, memory, watcher
        self._config = team.config.guard
        self._rows: list[dict[str, Any]] = read_metrics(run.path) if self._config.action != "off" else []
        self._last_words = ""
        self.restored = False

    def begin(self) -> None:
        """Have a way back from the start on: the untrained state as checkpoint 0 where nothing is saved yet.

        On resuming, finish the pruning that a killed process may have left undone: what there is decides where to go.
        """
        if self._config.action != "rollback":
            return
        saved = checkpoint.iterations(self._run)
        if saved:
            checkpoint.prune(self._run, self._team.config.run.keep_last, also=self.keep(saved[-1]))
        else:
            save_training(self._run, self._team, self._optimisers, 0, self._memory)

    def look(self, iteration: int, stats: Mapping[str, Any]) -> dict[str, Any]:
        """The iteration's numbers with `health`; on an alarm they also say what was done, and weights may be others.

        Call it right after learning, before anything generates with the new weights.
        """
        told = dict(stats)
        self.restored = False
        if self._config.action == "off":
            return told
        found = alarms([*self._rows, {"iteration": iteration, **told}], self._config)
        told["health"] = health(found)
        before = self._rows[-1].get("health", {}) if self._rows and "rollback_to" not in self._rows[-1] else {}
        for alarm in found:
            if alarm.who not in before.get(alarm.kind, {}):
                self._watcher.note(f"iter {iteration + 1}: {alarm.text}")
        if found and self._config.action == "rollback":
            told["rollback_to"] = self._go_back(iteration, found)
            told["lr_scale"] = self._memory.lr_scale
        self._rows.append({"iteration": iteration, **told})
        return told

    def keep(self, newest: int) -> tuple[int, ...]:
        """The checkpoints to go back to, oldest first, once `newest` is written: they must stay whatever is pruned.

        The latest, for a step that went wrong, and for each decline that is seen late the latest before it began.
        """
        if self._config.action != "rollback":
            return ()
        known = usable({*checkpoint.iterations(self._run), newest}, self._rows, self._team.config.run.save_every)
        good = {max((each for each in known if each <= mark), default=None) for mark in marks(self._rows, self._config)}
        return tuple(sorted({*(each for each in good if each is not None), *known[-1:]}))

    def end_if_hopeless(self) -> None:
        """Raise `MarftError` when this iteration's alarm came after the last rollback allowed; all is saved by then."""
        if self._last_words:
            raise MarftError(self._last_words)

    def _go_back(self, iteration: int, found: Sequence[Alarm]) -> int:
        """Load the checkpoint to go back to into team and optimisers, with smaller steps; returns its number."""
        config, memory = self._config, self._memory
        since = min(alarm.since for alarm in found)
        folder = choose(self._run, self.keep(checkpoint.iterations(self._run)[-1]), since)
        if memory.rollbacks == config.rollbacks:
            self._last_words = (
                f"{self._run.path}: iteration {iteration + 1}: {found[0].text}; the guard had gone back "
                f"{config.rollbacks} times already (guard.rollbacks), so the run ends with checkpoint "
                f"{iteration + 1:06d}, in the state of checkpoint {folder.name}"
            )
        else:
            memory.rollbacks += 1
            memory.lr_scale *= config.shrink
            self._watcher.note(
                f"iter {iteration + 1}: back to checkpoint {folder.name}, with learning rates times "
                f"{memory.lr_scale:g} (rollback {memory.rollbacks} of {config.rollbacks})"
            )
        load_learners(folder, self._team, self._optimisers)
        remembered = checkpoint.load_state(folder / "memory")
        memory.running = remembered["running"]  # what was played since may have made it another number, or none at all
        scale = memory.lr_scale / float(remembered["lr_scale"])
        for optimiser in self._optimisers.values():  # an agent's rate is set anew before each of its updates
            for group in optimiser.param_groups:
                group["lr"] *= scale
        self.restored = True
        return int(folder.name)


def usable(numbers: Collection[int], rows: Sequence[Mapping[str, Any]], save_every: int) -> list[int]:
    """Which checkpoints may be gone back to, oldest first.

    Not those of steps that were given up, nor those that exist only because somebody stopped the run there: a resumed
    run must go back to where it would have gone had it never been stopped.
    """
    back = {int(row["iteration"]) + 1: int(row["rollback_to"]) for row in rows if "rollback_to" in row}
    regular = [number for number in sorted(numbers) if number % save_every == 0 or number in back]
    return [number for number in regular if not any(to < number < at for at, to in back.items())]


def choose(run: RunDirectory, kept: Sequence[int], since: int) -> Path:
    """The newest checkpoint of `kept` not newer than `since`, else the oldest of them, else the best of the run.

    One with a number that is not finite is passed over: a step may have ruined what only the next iteration shows.
    Raises `MarftError` when none is left.
    """
    marked = checkpoint.best(run)
    early = [number for number in sorted(kept, reverse=True) if number <= since]
    late = [number for number in sorted(kept) if number > since]
    for number in [*early, *late, *([marked[0]] if marked else [])]:
        folder = checkpoint.named(run, str(number))
        if finite(folder):
            return folder
    raise MarftError(f"{run.checkpoints}: no checkpoint holds finite numbers, so there is nothing to go back to")


def finite(folder: Path) -> bool:
    """Whether all weights, optimiser states and running means of a checkpoint are finite numbers."""
    if not all(map(math.isfinite, checkpoint.load_state(folder / "memory")["running"].values())):
        return False
    files = [*folder.glob("adapters/*/*.safetensors"), *folder.glob("*_head.safetensors"), *folder.glob("optimiser-*")]
    return all(bool(each.isfinite().all()) for file in files for each in checkpoint.load_tensors(file).values())


@contextmanager
def finite_gradients(who: str) -> Iterator[None]:
    """Make torch's complaint about the norm of a gradient that is not finite a `Diverged` that names its owner."""
    try:
        yield
    except RuntimeError as error:
        if "non-finite" not in str(error):
            raise
        raise Diverged(who) from error


@contextmanager
def recorded(stats: dict[str, Any], config: GuardConfig) -> Iterator[None]:
    """Where the guard may go back, note a `Diverged` in the iteration's numbers; else it ends the run, with a hint."""
    try:
        yield
    except Diverged as error:
        if config.action != "rollback":
            raise Diverged(error.who, ", or set guard.action: rollback") from error
        stats.setdefault("diverged", {})[error.who] = str(error)
