"""A run on disk as Python people want it: tables of its metrics, its episodes, and the team it made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from marft.config import Overrides
from marft.run import hub
from marft.run.directory import RunDirectory
from marft.run.metrics import flatten, read_metrics
from marft.run.records import Episodes
from marft.types import MarftError

if TYPE_CHECKING:  # a run is looked at without either
    from pandas import DataFrame

    from marft.team import Team


@dataclass(frozen=True, repr=False)
class Run:
    """A run on disk, finished or still being trained: every property reads it anew.

    `path` is its folder. Reading needs neither torch nor the environment; files that are damaged raise `MarftError`.
    """

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config as plain values, also of a run that an older version wrote."""
        file = RunDirectory(self.path).config_file
        try:
            raw = yaml.safe_load(file.read_text(encoding="utf8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise MarftError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(raw, dict):
            raise MarftError(f"{file}: must hold a mapping of keys")
        return raw

    @property
    def metrics(self) -> DataFrame:
        """A row per `iteration` (the index), a column per number, such as `success` and `update/planner/kl`.

        What an iteration lacks is NaN; the counts of `failures` by reason are left out. docs/metrics.md says what each
        means.
        """
        from pandas import DataFrame, Index

        rows = _iterations(self.path)
        frame = DataFrame([dict(_numbers(row)) for row in rows], dtype=float)
        frame.index = Index([row["iteration"] for row in rows], name="iteration", dtype=int)
        return frame

    @property
    def evaluations(self) -> DataFrame:
        """A row per `iteration` and `play` (the index: `sampled`, `greedy`, `no_verdict`).

        Columns: `success`, `success/low`, `success/high` (95%), `reward`, `tokens`, `failed`, `pass_at/K`, `maj_at/K`,
        `kinds/KIND`; in rows of sampled play also `influence/AGENT` (success lost when its messages are swapped) and
        `retention/AGENT/kl`. What a row lacks is NaN.
        """
        from pandas import DataFrame, Index, MultiIndex

        reports = _reports(self.path)
        rows = {(done, play): row for done, report in reports.items() for play, row in _rows(report).items()}
        frame = DataFrame(list(rows.values()), dtype=float)
        levels = Index([done for done, _ in rows], dtype=int), Index([play for _, play in rows], dtype=str)
        frame.index = MultiIndex.from_arrays(levels, names=["iteration", "play"])
        return frame

    @property
    def episodes(self) -> Episodes:
        """The episodes on disk, oldest first, read when they are asked for."""
        return Episodes.of(RunDirectory(self.path))

    @property
    def checkpoints(self) -> list[int]:
        """The iterations after which a checkpoint is kept, oldest first."""
        return RunDirectory(self.path).checkpoint_numbers()

    def team(self, checkpoint: str | int = "latest", overrides: Overrides = ()) -> Team:
        """The team as a checkpoint (`latest`, `best` or a number) has it, ready to be asked; loads the model.

        `overrides` change keys of the config for this team, such as `["device=cpu"]`. Raises `MarftError` when there is
        no such checkpoint or it does not fit the config.
        """
        from marft.run.opening import open_team

        return open_team(str(self.path), str(checkpoint), overrides)[0]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {', '.join(f'{key} {value}' for key, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        rows = {"run": str(self.path), **self._summary()}
        cells = (f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    def _summary(self) -> dict[str, str]:
        config, rows, checkpoints = self.config, _iterations(self.path), self.checkpoints
        summary = {"name": str(config.get("name", "")), "agents": " ".join(_names(config)) or "unknown"}
        summary["iterations"] = f"{rows[-1]['iteration'] + 1 if rows else 0}/{config.get('iterations', '?')}"
        if rows and isinstance(rows[-1].get("success"), int | float):
            summary["success"] = f"{rows[-1]['success']:.2f}"
        summary["checkpoints"] = " ".join(map(str, checkpoints)) or "none"
        return summary


def open_run(path: str | Path) -> Run:
    """The run in the folder `path`, or a pushed one at `hf://user/name[@revision]`.

    A run that is being trained can be opened too; a pushed one is downloaded, and has no episodes. Raises `MarftError`
    with the nearest runs when there is none.
    """
    folder = hub.local(path) if hub.is_remote(path) else Path(path).expanduser()
    return Run(RunDirectory.open(folder).path)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    """The agents' names, as far as a config that an older version or a person wrote says them."""
    team = config.get("team")
    agents = team.get("agents") if isinstance(team, Mapping) else None
    for each in agents if isinstance(agents, list) else ():
        if isinstance(each, Mapping) and "name" in each:
            yield str(each["name"])


def _iterations(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics; raises `MarftError` where one says of no iteration."""
    rows = read_metrics(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            file = RunDirectory(path).metrics_file
            raise MarftError(f"{file}: row {number} does not say which iteration it is of; the file is damaged")
    return rows


def _reports(path: Path) -> dict[int, dict[str, Any]]:
    """A run's evaluations by the iterations before them; raises `MarftError` where one is damaged."""
    try:
        reports = RunDirectory(path).read_evaluations()
    except (OSError, ValueError) as error:
        raise MarftError(f"{path / 'evaluations'}: a report cannot be read: {' '.join(str(error).split())}") from None
    for done, report in reports.items():
        if not isinstance(report, dict):
            raise MarftError(f"{path / 'evaluations' / f'{done:06d}.json'}: holds no report; the file is damaged")
    return reports


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an iteration, those that JSON has no form for included."""
    kept = {key: value for key, value in row.items() if key not in ("iteration", "failures", "nonfinite")}
    yield from flatten(kept)
    for key, text in row.get("nonfinite", {}).items():
        yield key, float(text)


def _rows(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The rows of one evaluation by kind of play; what is said of the team as a whole was measured in sampled play."""
    plays = {key: value for key, value in report.items() if isinstance(value, Mapping) and _is_play(value)}
    rest = {key: value for key, value in report.items() if key not in plays and isinstance(value, Mapping)}
    common = {key: float(value) for key, value in report.items() if isinstance(value, int | float)}
    rows = {name: {**common, **dict(_cells(each))} for name, each in plays.items()}
    if "greedy" in rows:
        rows["greedy"]["samples"] = 1.0  # a task is played once
    for name, worth in rest.pop("influence", {}).items():
        loss = worth.get("loss", worth.get("drop"))
        rows["sampled"] |= dict(_cells({"influence": {name: loss}}))
        rows["sampled"] |= dict(_cells({"swapped": {name: worth["swapped"]}}))
    if "sampled" in rows:
        rows["sampled"] |= dict(_cells(rest))
    return rows


def _is_play(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("success"), Mapping) and "mean" in part["success"]


def _cells(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by their path; an interval is its mean under its own name, and its ends."""
    for key, value in part.items():
        if isinstance(value, Mapping) and value.keys() == {"mean", "low", "high"}:
            yield f"{prefix}{key}", value["mean"]
            yield f"{prefix}{key}/low", value["low"]
            yield f"{prefix}{key}/high", value["high"]
        elif isinstance(value, Mapping):
            yield from _cells(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
