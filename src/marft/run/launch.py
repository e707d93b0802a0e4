"""`marft train`: from a config to a finished run, or from a run that was stopped onwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.config import Config, Given, Overrides, dump_config, read_config
from marft.learn.play import TooManyFailed
from marft.learn.train import train
from marft.run import checkpoint
from marft.run.directory import RunDirectory, write_text
from marft.run.interrupt import GracefulStop
from marft.run.preflight import check_prompts
from marft.run.progress import Watcher
from marft.run.records import Episodes, Play
from marft.run.statistics import Interval, paired_difference
from marft.run.trackers import check_trackers
from marft.team import Team, build_team
from marft.types import MarftError

# What may change on resuming: how long and where a run is computed, never what is learnt
CHANGEABLE = ("iterations", "device", "threads")


@dataclass(frozen=True)
class Change:
    """A success rate before and after training, and the paired difference over tasks."""

    before: Interval
    after: Interval
    difference: Interval


@dataclass(frozen=True)
class Outcome:
    """Where a run stands when the command ends; `done` counts the iterations that are in a checkpoint."""

    run: RunDirectory
    done: int
    iterations: int
    exit_code: int


def start(given: Given, overrides: Overrides, at: str | Path | None, watcher: Watcher) -> Outcome:
    """Train a new run. Everything that can be wrong with a config is found before its folder is made."""
    config, source = read_config(given, overrides)
    check_trackers(config.run, source)
    team = build_team(config, source)
    check_prompts(team, source)
    run = RunDirectory.create(config, at)
    with run.lock(), _stop(watcher) as stop, _failures_kept(team, run):
        train(team, run, watcher, stop)
    return _outcome(run, config, stop)


def resume(given: Given | None, overrides: Overrides, at: str | Path, watcher: Watcher) -> Outcome:
    """Go on with a run from its newest checkpoint; a run that is complete is left as it is."""
    run = RunDirectory.open(at)
    config = _config_to_resume(run, given, overrides)
    with run.lock():
        checkpoint.clean(run)
        done = _done(run)
        if done > config.iterations:
            raise MarftError(f"{run.path}: {done} iterations are already done; 'iterations' must be at least that many")
        evaluated = not config.evaluation.tasks or config.iterations in run.read_evaluations()
        if done == config.iterations and evaluated:
            return Outcome(run, done, config.iterations, 0)
        check_trackers(config.run, str(run.config_file))
        team = build_team(config, str(run.config_file))
        write_text(run.config_file, dump_config(config))
        with _stop(watcher) as stop, _failures_kept(team, run):
            train(team, run, watcher, stop, resume=True)
    return _outcome(run, config, stop)


@contextmanager
def _failures_kept(team: Team, run: RunDirectory) -> Iterator[None]:
    """Write what was played when too much of it failed: the error gives one reason, the episodes show what was said."""
    try:
        yield
    except TooManyFailed as error:
        path = run.write_episodes("failed", error.episodes, team.spell)
        raise MarftError(f"{error}; all of them are in {path}") from None


def changes(run: RunDirectory) -> dict[str, Change]:
    """Success of sampled and greedy play in the run's first and last evaluation; empty when it has not got both."""
    reports = run.read_evaluations()
    if len(reports) < 2:
        return {}
    first, last = min(reports), max(reports)
    found: dict[str, Change] = {}
    kinds: tuple[Play, ...] = ("sampled", "greedy")
    for kind in kinds:
        before, after = (Interval(**reports[number][kind]["success"]) for number in (first, last))
        was, became = (_task_means(run, number, kind) for number in (first, last))
        found[kind] = Change(before, after, paired_difference(was, became))
    return found


def _task_means(run: RunDirectory, iteration: int, kind: Play) -> dict[str, float]:
    """Mean success per held-out task in one kind of an evaluation's play; what failed is no success."""
    wins: dict[str, list[float]] = {}
    for episode in Episodes.of(run).where(kind, iteration):
        wins.setdefault(episode["task"]["id"], []).append(0.0 if episode["error"] else episode["success"])
    return {task: sum(each) / len(each) for task, each in wins.items()}


def _config_to_resume(run: RunDirectory, given: Given | None, overrides: Overrides) -> Config:
    """The run's own config with what may change; a config given beside it must say the same."""
    config, _ = read_config(run.config_file, overrides)
    for override in overrides:
        key = override.partition("=")[0]
        if key not in CHANGEABLE:
            raise MarftError(
                f"override '{override}': a run goes on with the config it was started with ({run.config_file}); only "
                f"{', '.join(CHANGEABLE)} may change with --resume"
            )
    if given is not None:
        beside, source = read_config(given)
        differing = _first_difference(beside.model_dump(mode="json"), run.config().model_dump(mode="json"))
        if differing is not None:
            raise MarftError(
                f"{source}: '{differing}' is not what the run was started with ({run.config_file}); start a new "
                "run, or leave the config file out to go on as before"
            )
    return config


def _first_difference(given: Any, recorded: Any, prefix: str = "") -> str | None:
    """The dotted key where two configs part, those that may change left aside."""
    if isinstance(given, dict) and isinstance(recorded, dict):
        for key in dict.fromkeys([*given, *recorded]):
            if not prefix and key in CHANGEABLE:
                continue
            found = _first_difference(given.get(key), recorded.get(key), f"{prefix}{key}.")
            if found is not None:
                return found
        return None
    return None if given == recorded else prefix.removesuffix(".")


def _stop(watcher: Watcher) -> GracefulStop:
    # In a thread of its own, because the signal may come while this one is in the middle of printing
    return GracefulStop(announce=lambda text: threading.Thread(target=watcher.note, args=(text,), daemon=True).start())


def _done(run: RunDirectory) -> int:
    return (checkpoint.iterations(run) or [0])[-1]


def _outcome(run: RunDirectory, config: Config, stop: GracefulStop) -> Outcome:
    return Outcome(run, _done(run), config.iterations, stop.exit_code)
