"""One run's plain files as they stand on the disk now: config, rows of metrics, evaluations, whether it is training."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from marft.run.directory import RunDirectory, read_jsonl
from marft.run.records import episode_files
from marft.types import MarftError

T = TypeVar("T")
Signature = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, inode: what tells two states of a file apart."""

FOLDERS = ("evaluations", "episodes", "learnt")


class NotHere(MarftError):
    """What was asked for does not exist."""


class Cached(Generic[T]):
    """What `read` makes of a file, read again only when the file has changed."""

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._known: dict[Path, tuple[Signature, T]] = {}

    def __call__(self, path: Path) -> T:
        now = signature(path)
        known = self._known.get(path)
        if known is None or known[0] != now:
            known = self._known[path] = (now, self._read(path))
        return known[1]


class RunFiles:
    """A run directory that may be growing. Nothing is parsed by today's config schema, so that old runs open too."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.path = run.path
        self._config = Cached(read_config)
        self._rows = Cached(read_rows)
        self._report = Cached(read_object)
        self._lines = Cached(count_lines)

    @property
    def config(self) -> Mapping[str, Any]:
        """The config as plain YAML."""
        return self._config(self.run.config_file)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`; none before the first iteration. A last line torn by a kill is left out."""
        return self._rows(self.run.metrics_file) if self.run.metrics_file.exists() else []

    @property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        """Reports by the number of iterations they came after, oldest first."""
        files = sorted(each for each in self.path.glob("evaluations/*.json") if each.stem.isdecimal())
        return {int(file.stem): self._report(file) for file in files}

    @property
    def episodes(self) -> int:
        """How many episodes are written."""
        return sum(self._lines(file.path) for file in episode_files(self.run))

    @property
    def live(self) -> bool:
        """Whether a process is training in the run now: whether its lock is held."""
        try:
            with open(self.path / ".lock", "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:  # no lock was ever made, or the file system has no locks
            return False
        return False

    @property
    def started(self) -> str | None:
        """When the run began, as local time (of a copied run: when it was copied); None when it is there no more."""
        began = []
        for mark in (self.run.config_file, self.path / ".lock"):  # resuming writes the first anew, and not the second
            with suppress(OSError):
                began.append(mark.stat().st_mtime)
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(began))) if began else None

    def stamp(self, *told: object) -> str:
        """A word that changes whenever anything to be seen has changed on the disk, or something of `told` has."""
        seen: list[object] = [*told]
        for file in (self.run.config_file, self.run.metrics_file):
            seen.append(signature(file) if file.exists() else None)
        for folder in FOLDERS:
            seen.append(listing(self.path / folder))
        return hashlib.blake2b(repr(seen).encode("utf8", "replace"), digest_size=8).hexdigest()


def signature(path: Path) -> Signature:
    """The state of a file; raises `MarftError` when it cannot be read."""
    try:
        state = path.stat()
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror})") from None
    return state.st_size, state.st_mtime_ns, state.st_ino


def listing(folder: Path) -> dict[str, Signature]:
    """The files of a folder by name, sorted; half-written ones (hidden) are left out, and a missing folder is empty."""
    found = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # replaced a moment ago; the next look finds it
                    state = entry.stat()
                    found[entry.name] = (state.st_size, state.st_mtime_ns, state.st_ino)
    return dict(sorted(found.items()))


def read_config(path: Path) -> Mapping[str, Any]:
    """A config as nested mappings, whatever its keys."""
    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise MarftError(f"{path}: is not YAML; the file is damaged") from None
    if not isinstance(found, Mapping):
        raise MarftError(f"{path}: holds no keys; the file is damaged")
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of metrics, by iteration; raises `MarftError` naming the line that is none."""
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            raise MarftError(f"{path}: line {number} is no row of metrics (it has no iteration); the file is damaged")
    return rows


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object a file holds."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MarftError(f"{path}: is not a JSON object; the file is damaged")
    return found


def count_lines(path: Path) -> int:
    """How many lines a file has; its last one may lack its end."""
    try:
        with open(path, "rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror})") from None


def section(config: Any, *keys: str) -> Any:
    """What a config holds at nested keys; None where it holds nothing."""
    place: Any = config
    for key in keys:
        place = place.get(key) if isinstance(place, Mapping) else None
    return place
