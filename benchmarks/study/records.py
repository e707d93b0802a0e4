"""What was measured: `runs.jsonl`, a line per finished run, and `configs.jsonl`, what each of its hashes stands for.

Both only grow, a whole line at a time. A later line of the same run counts instead of an earlier one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from benchmarks.study.conditions import Run, same
from marft.run.directory import read_jsonl, to_json, write_text

Record = Mapping[str, Any]
State = Literal["done", "stale", "missing"]


class Records:
    """The records in a folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._same: dict[tuple[str, str], bool] = {}
        self.load()

    def load(self) -> None:
        """Read what is there."""
        self.rows: list[dict[str, Any]] = _read(self.folder / "runs.jsonl")
        self._configs = dict(_unfolded(_read(self.folder / "configs.jsonl")))

    def of(self, run: Run) -> Record | None:
        """The newest record of what the run would train, whatever experiment it was made for."""
        found = [row for row in self.rows if row["seed"] == run.seed and self._is(row["hash"], run)]
        return found[-1] if found else None

    def state(self, run: Run) -> State:
        """stale: the run was recorded, but its condition has changed since."""
        if self.of(run) is not None:
            return "done"
        key = (run.experiment, run.condition, run.seed)
        named = any((row["experiment"], row["condition"], row["seed"]) == key for row in self.rows)
        return "stale" if named else "missing"

    def add(self, run: Run, result: Mapping[str, Any]) -> None:
        """Append a finished run; it is on the disk when this returns."""
        names = {"experiment": run.experiment, "condition": run.condition, "seed": run.seed, "hash": run.hash}
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            configs = _read(self.folder / "configs.jsonl")
            if run.hash not in {row["hash"] for row in configs}:
                _append(self.folder / "configs.jsonl", _folded(configs, run))
            _append(self.folder / "runs.jsonl", {**names, **result})
        self.load()

    def drop(self, unwanted: Callable[[Record], bool]) -> int:
        """Take records away; how many."""
        if not self.rows:
            return 0
        with self._alone():
            kept = [row for row in self.rows if not unwanted(row)]
            write_text(self.folder / "runs.jsonl", "".join(to_json(row) + "\n" for row in kept))
        dropped = len(self.rows) - len(kept)
        self.load()
        return dropped

    def prune(self, runs: Iterable[Run]) -> int:
        """Take away the records that count for none of these runs; how many."""
        kept = {id(record) for run in runs if (record := self.of(run)) is not None}
        return self.drop(lambda row: id(row) not in kept)

    def forget(self, runs: Iterable[Run]) -> int:
        """Take away the records that count for these runs, so that they are made again; how many."""
        gone = {id(record) for run in runs if (record := self.of(run)) is not None}
        return self.drop(lambda row: id(row) in gone)

    def _is(self, hash: str, run: Run) -> bool:
        if (hash, run.hash) not in self._same:
            self._same[hash, run.hash] = hash == run.hash or (hash in self._configs and same(self._configs[hash], run))
        return self._same[hash, run.hash]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two studies may write to the same files."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _read(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file) if file.exists() else []


def _append(file: Path, row: Mapping[str, Any]) -> None:
    torn = file.exists() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")
    if torn:  # a kill cut the last line: `read_jsonl` passes over it, and the next one must not grow out of it
        write_text(file, "".join(to_json(each) + "\n" for each in read_jsonl(file)))
    with open(file, "ab") as opened:
        opened.write((to_json(row) + "\n").encode())
        opened.flush()
        os.fsync(opened.fileno())


def _folded(configs: list[dict[str, Any]], run: Run) -> dict[str, Any]:
    """The first config of the file is whole, the others say where they differ from it."""
    if not configs:
        return {"hash": run.hash, "config": dict(run.settled)}
    first = configs[0]["config"]
    changed = {key: value for key, value in run.settled.items() if key not in first or first[key] != value}
    return {"hash": run.hash, "changed": changed, "without": sorted(first.keys() - run.settled.keys())}


def _unfolded(configs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in configs:
        whole = row.get("config")
        if whole is None:
            first = {key: value for key, value in configs[0]["config"].items() if key not in row["without"]}
            whole = {**first, **row["changed"]}
        yield row["hash"], whole
