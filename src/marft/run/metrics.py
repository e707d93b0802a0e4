"""Metrics of a run: one JSON object per iteration in `metrics.jsonl`, and the same numbers as TensorBoard scalars."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from marft.run.directory import RunDirectory, fsync, read_jsonl, to_json, write_text

if TYPE_CHECKING:  # the view reads metrics without loading torch
    from torch.utils.tensorboard import SummaryWriter


class MetricsWriter:
    """Appends one row per iteration; every row is on the disk when `write` returns.

    JSON has no NaN: a number that is not finite is written as null, and the row's `nonfinite` says which it was, as
    {"planner/kl": "nan"}. `start` is the first iteration this process will play (0, or where it resumes): older rows
    stay, later ones are dropped, so that no iteration appears twice in the file or in TensorBoard.
    """

    def __init__(self, run: RunDirectory, start: int = 0, tensorboard: bool = True) -> None:
        path = run.metrics_file
        if path.exists():
            kept = [row for row in read_jsonl(path) if row["iteration"] < start]
            write_text(path, "".join(to_json(row) + "\n" for row in kept))
        self._file = open(path, "ab")  # noqa: SIM115 (closed by `close`)
        fsync(path.parent)
        self._board = _summary_writer(run.tensorboard, start) if tensorboard else None

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
        if self._board is not None:
            for key, value in scalars.items():
                if key != "iteration":
                    self._board.add_scalar(key, value, iteration)
            self._board.flush()

    def close(self) -> None:
        """Close both files; closing twice does no harm."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


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


def _summary_writer(folder: Path, start: int) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter  # over a second, and only wanted here

    # purge_step makes TensorBoard hide what a killed process wrote at or after the iteration we resume from
    return SummaryWriter(str(folder), purge_step=start)
