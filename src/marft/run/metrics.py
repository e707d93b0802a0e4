"""Metrics of a run: one JSON object per iteration in `metrics.jsonl`, and the same numbers in the run's trackers."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from marft.config.learning import RunConfig
from marft.run.directory import RunDirectory, fsync, read_jsonl, to_json, write_text
from marft.run.trackers import Note, Trackers


class MetricsWriter:
    """Appends one row per iteration; every row is on the disk when `write` returns.

    JSON has no NaN: a number that is not finite is written as null, and the row's `nonfinite` says which it was, as
    {"planner/kl": "nan"}. `start` is the first iteration this process will play (0, or where it resumes): older rows
    stay, later ones are dropped, so that no iteration appears twice in the file; what trackers do with them:
    `marft.run.trackers`. Without `settings` there are no trackers; `note` hears of one that fails.
    """

    def __init__(
        self, run: RunDirectory, start: int = 0, settings: RunConfig | None = None, note: Note = warnings.warn
    ) -> None:
        self.run = run
        path = run.metrics_file
        kept = [row for row in read_jsonl(path) if row["iteration"] < start] if path.exists() else []
        if path.exists():
            write_text(path, "".join(to_json(row) + "\n" for row in kept))
        self._file = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        fsync(path.parent)
        self._trackers = None
        if settings is not None and settings.trackers:
            rows = [(int(row["iteration"]), _row_scalars(row)) for row in kept]
            reports = [each for each in run.read_evaluations().items() if start and each[0] <= start]
            history = rows + [(number, evaluation_scalars(report)) for number, report in reports]
            self._trackers = Trackers(run, start, settings, sorted(history, key=lambda each: each[0]), note)

    def write(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Append the row of an iteration (counted from 0): numbers and text, nested by agent or phase as wished."""
        row = {"iteration": iteration, **metrics}
        if row["iteration"] != iteration:
            raise ValueError(f"metrics say iteration {row['iteration']}, but it is written as iteration {iteration}")
        scalars = dict(flatten(row))
        nonfinite = {key: str(value) for key, value in scalars.items() if not math.isfinite(value)}
        if nonfinite:
            row["nonfinite"] = nonfinite
        self._file.write((to_json(row) + "\n").encode("utf8", errors="backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._trackers is not None:
            del scalars["iteration"]
            self._trackers.log(iteration, scalars)

    def evaluation(self, iteration: int, report: Mapping[str, Any]) -> None:
        """Pass the report of an evaluation after `iteration` iterations on to the trackers; its own file is its own."""
        if self._trackers is not None:
            self._trackers.log(iteration, evaluation_scalars(report))

    def close(self, failed: bool = False) -> None:
        """Close file and trackers, which hear whether the run ended by an error; closing twice does no harm."""
        self._file.close()
        if self._trackers is not None:
            self._trackers.close(failed)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(failed=kind is not None)  # a run that was asked to stop leaves without an error


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, or of the run directory that holds it; none when nothing was written yet."""
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
        if not path.exists():
            return []
    return read_jsonl(path)


def flatten(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested metrics as ("planner/kl", 0.02); text, lists and nulls are no scalars and are left out."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
            continue
        if hasattr(value, "item"):  # a 0-dim tensor or a NumPy scalar
            value = value.item()
        if isinstance(value, int | float):  # a bool too: 0 or 1
            yield f"{prefix}{key}", float(value)


def evaluation_scalars(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a report as {"evaluation/sampled/success": 0.4}, with the bounds of its 95% interval beside it.

    An interval {mean, low, high} is its mean under the name itself, and `NAME_low`, `NAME_high`.
    """
    found = {}
    for key, value in flatten(report, "evaluation/"):
        name, _, last = key.rpartition("/")
        found[{"mean": name, "low": f"{name}_low", "high": f"{name}_high"}.get(last, key)] = value
    return found


def _row_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of a row that was read back; what was not finite is named in the row."""
    nonfinite = {key: float(text) for key, text in row.get("nonfinite", {}).items()}
    return {key: value for key, value in flatten(row) if key != "iteration"} | nonfinite
