"""The runs that a page shows, read from the disk when asked for: every answer of the JSON API as plain values."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marft import __version__
from marft.run.directory import RunDirectory
from marft.run.hub import is_remote
from marft.run.metrics import flatten
from marft.types import MarftError
from marft.view import team
from marft.view.episodes import Query
from marft.view.glossary import glossary
from marft.view.health import health
from marft.view.index import EpisodeIndex, Played, finite
from marft.view.learnt import Learnt
from marft.view.reading import NotHere, RunFiles, section
from marft.view.together import differences, names

MOST = 12  # runs of one folder


class RunView:
    """One run's answers. Its files are read once and again when they change; one question at a time is answered."""

    def __init__(self, run: RunDirectory) -> None:
        self.files = RunFiles(run)
        self._index = EpisodeIndex(run)
        self._learnt = Learnt(run.path / "learnt")
        self._lock = threading.RLock()

    def about(self) -> dict[str, Any]:
        """What the list of runs says of it, but for its id and name; a damaged run says so in `error`.

        `damaged` has a sentence for each file of episodes that was left out, once somebody has asked for what is in
        them: to read them all would keep the list waiting.
        """
        with self._lock:
            files, live, damaged = self.files, self.files.live, self._index.damaged
            told: dict[str, Any] = {
                "path": str(files.path),
                "live": live,
                "done": 0,
                "iterations": None,
                "agents": [],
                "level": None,
                "started": files.started,
                "stamp": files.stamp(live, damaged),
                "damaged": damaged,
                "episodes_held": 0,
                "episodes_all": 0,
            }
            try:
                told["iterations"] = section(files.config, "iterations")
                told["agents"] = [each["name"] for each in team.members(files.config)]
                told["level"] = section(files.config, "update", "level")
                told["episodes_held"] = told["episodes_all"] = files.episodes
                told["done"] = files.rows[-1]["iteration"] + 1 if files.rows else 0
            except MarftError as error:  # the others can still be looked at
                told["error"] = str(error)
            return told

    @property
    def config(self) -> Mapping[str, Any]:
        """The config; empty where it is damaged."""
        with self._lock:
            try:
                return self.files.config
            except MarftError:
                return {}

    def metrics(self) -> dict[str, Any]:
        """Iterations, every number of the rows as a series over them, and intervals of success and reward."""
        with self._lock:
            rows, intervals = self.files.rows, self.index().intervals()
        flat = [dict(flatten(row)) for row in rows]
        keys = dict.fromkeys(key for each in flat for key in each if key != "iteration")
        series = {key: [_finite(each.get(key)) for each in flat] for key in keys}
        iterations = [row["iteration"] for row in rows]
        bounds: dict[str, dict[str, list[float | None]]] = {}
        for key in ("success", "reward"):
            found = [intervals.get(iteration, {}).get(key) for iteration in iterations]
            bounds[key] = {
                "low": [None if each is None else finite(each.low) for each in found],
                "high": [None if each is None else finite(each.high) for each in found],
            }
        return {"iterations": iterations, "series": series, "intervals": bounds}

    def evaluations(self) -> list[dict[str, Any]]:
        """Every report, oldest first, with the number of iterations it came after."""
        with self._lock:
            return [{**report, "iteration": iteration} for iteration, report in self.files.evaluations.items()]

    def team(self, iteration: int | None = None) -> dict[str, Any]:
        """The agents, D as played (in all episodes, or in those of an iteration), and each agent's influence."""
        with self._lock:
            config, reports, files = self.files.config, self.files.evaluations, self.index().played.values()
            return {
                "agents": team.agents(config),
                "dependency": team.organisation(config),
                **team.played(each for each in files if iteration in (None, each.file.iteration)),
                "influence": team.influence(reports, iteration),
            }

    def teams(self) -> dict[int, dict[str, Any]]:
        """What differs in `team(iteration)`, for every iteration of which episodes or an evaluation are written."""
        with self._lock:
            reports = self.files.evaluations
            by_iteration: dict[int, list[Played]] = {iteration: [] for iteration in reports}
            for each in self.index().played.values():
                by_iteration.setdefault(each.file.iteration, []).append(each)
            return {
                iteration: {**team.played(files), "influence": team.influence(reports, iteration)}
                for iteration, files in sorted(by_iteration.items())
            }

    def episodes(self, query: Query) -> dict[str, Any]:
        """One page of the episodes that a query asks for."""
        with self._lock:
            return self.index().query(query)

    def episode(self, identity: str) -> dict[str, Any]:
        """A whole episode, its actions joined with what was learnt from them."""
        return self.records([identity])[identity]

    def records(self, identities: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Whole episodes by id."""
        with self._lock:
            index, rollout = self.index(), section(self.files.config, "rollout")
            later = sum(each for key in ("staleness", "reuse") if isinstance(each := section(rollout, key), int))
            return {identity: self._learnt.join(index.record(identity), later) for identity in identities}

    def items(self) -> list[dict[str, Any]]:
        """All episodes as a list shows them, oldest first."""
        with self._lock:
            return self.index().items()

    def task(self, task: str) -> list[dict[str, Any]]:
        """All episodes of a task, oldest first."""
        with self._lock:
            found = self.index().task(task)
        if not found:
            raise NotHere(f"task: there is no episode of '{task}' in this run")
        return found

    def health(self) -> dict[str, Any]:
        """What the crash detector saw, and why episodes failed."""
        with self._lock:
            return health(self.files.rows)

    def index(self) -> EpisodeIndex:
        """The index of episodes, up to date."""
        with self._lock:
            self._index.refresh()
            return self._index


class Library:
    """The runs that were named; `id` is a run's place among them, as text."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        found = dict.fromkeys(path.resolve() for path in map(Path, paths))
        self.views = {
            str(place): RunView(RunDirectory.open(path)) for place, path in enumerate(_as_given(paths, found))
        }
        self.names = names([view.files.path for view in self.views.values()])

    def run(self, identity: str) -> RunView:
        """The run of that id; raises `NotHere` when there is none."""
        if identity not in self.views:
            raise NotHere(f"run: there is no run '{identity}'; there are 0 to {len(self.views) - 1}")
        return self.views[identity]

    def runs(self) -> dict[str, Any]:
        """All runs, and what their configs differ in."""
        return {
            "runs": [
                {"id": identity, "name": name, **view.about()}
                for (identity, view), name in zip(self.views.items(), self.names, strict=True)
            ],
            "differences": differences([view.config for view in self.views.values()]),
            "version": __version__,
            "report": False,
        }

    def glossary(self) -> list[dict[str, Any]]:
        """What each metric means."""
        return glossary()


def find_runs(words: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """The runs that paths name, and what to say about it: a folder of runs stands for its newest ones.

    Raises `MarftError` for what is neither a run nor a folder that holds runs.
    """
    paths: list[Path] = []
    notes = []
    for given in words:
        if is_remote(given):
            raise MarftError(f"{given}: a pushed run holds no episodes to look at; name a run on this machine")
        word = Path(given)
        if not word.is_dir() or (word / "config.yaml").exists():
            paths.append(RunDirectory.open(word).path)
            continue
        inside = list(word.glob("*/config.yaml"))
        if not inside:
            there = f"; did you mean '{word / 'runs'}'?" if (word / "runs").is_dir() else ""
            raise MarftError(f"{given}: is not a run and holds none (no config.yaml in it or in its folders){there}")
        newest = sorted((file.parent for file in inside), key=lambda run: -(run / "config.yaml").stat().st_mtime)
        paths += newest[:MOST]
        if len(newest) > MOST:
            notes.append(f"{word}: the newest {MOST} of {len(newest)} runs are shown; name others to see them")
    return paths, notes


def _as_given(paths: Sequence[str | Path], resolved: Mapping[Path, Any]) -> Iterator[Path]:
    """Each run once, by the path it was first given by."""
    left = dict(resolved)
    for path in map(Path, paths):
        if path.resolve() in left:
            del left[path.resolve()]
            yield path


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
