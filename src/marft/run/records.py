"""The episodes of a run on disk, as a sequence that reads a record when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args, overload

from marft.run.directory import RunDirectory
from marft.types import MarftError
from marft.validation import suggestion

if TYPE_CHECKING:
    from pandas import DataFrame

Record = dict[str, Any]
"""One episode as `episodes/*.jsonl` holds it, with `id`, `split` and `iteration`."""

Play = Literal["train", "greedy", "sampled"]


@dataclass(frozen=True)
class File:
    """`episodes/<name>.jsonl`: the training play of an iteration, or an evaluation after so many of them.

    `greedy` counts the greedy episodes that an evaluation's file begins with.
    """

    path: Path
    iteration: int
    greedy: int | None = None

    @property
    def splits(self) -> tuple[Play, ...]:
        """What it may hold."""
        return ("train",) if self.greedy is None else ("greedy", "sampled")

    def split(self, line: int) -> Play:
        """Whose episode a line holds."""
        return "train" if self.greedy is None else "greedy" if line < self.greedy else "sampled"

    @cached_property
    def lines(self) -> tuple[tuple[int, int], ...]:
        """Where each line begins and ends, in bytes."""
        with self._open() as file:
            ends = accumulate((len(line) for line in file), initial=0)
            return tuple(pairwise(ends))

    def read(self, line: int) -> Record:
        """The record of a line; raises `MarftError` when it is none."""
        start, end = self.lines[line]
        with self._open() as file:
            file.seek(start)
            text = file.read(end - start)
        try:
            record = json.loads(text)
        except ValueError:
            raise MarftError(
                f"{self.path}: line {line + 1} is not valid JSON; the file is damaged, or was written anew meanwhile: "
                "ask for the run's episodes once more"
            ) from None
        about = {"id": f"{self.path.stem}:{line}", "split": self.split(line), "iteration": self.iteration}
        return {**about, **record}

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise MarftError(f"{self.path}: cannot be read ({error.strerror})") from None


@dataclass(frozen=True)
class Episodes(Sequence[Record]):
    """Episodes on disk, oldest first: of each iteration the evaluation before it, greedy then sampled, then its play.

    A record is read when it is asked for; nothing is kept. `only` leaves out one kind of an evaluation's episodes.
    """

    files: tuple[File, ...]
    only: Play | None = None

    @classmethod
    def of(cls, run: RunDirectory) -> Episodes:
        """All episodes of a run as it is now."""
        files = [_file(run, name) for name in run.episode_names()]
        known = [each for each in files if each is not None]
        return cls(tuple(sorted(known, key=lambda each: (each.iteration, each.greedy is None))))

    def where(self, split: Play | None = None, iteration: int | None = None) -> Episodes:
        """Those of one kind of play (`train`, `greedy`, `sampled`), of one iteration, or both.

        Evaluations count the iterations before them: 0 is the untrained team. Raises `MarftError` for another `split`.
        """
        if split is not None and split not in get_args(Play):
            raise MarftError(f"split '{split}': there is no such kind of play{suggestion(split, get_args(Play))}")
        files = [each for each in self.files if iteration in (None, each.iteration)]
        if split is None:
            return replace(self, files=tuple(files))
        kept = tuple(each for each in files if split in each.splits)
        return replace(self, files=() if self.only not in (None, split) else kept, only=split)

    def frame(self) -> DataFrame:
        """A table with a row per episode: who played what, what it earned, how long it was, and how it ended.

        Columns `id`, `split`, `iteration`, `task`, `kind`, `prompt`, `group`, `sample`, `success`, `reward`, `answer`,
        `failed` (why; empty: it did not), `replies`, `tokens`, `last` (the last reply), and the environment's metrics
        as `metrics/NAME`.
        """
        from pandas import DataFrame

        rows = [_row(each) for each in self]
        return DataFrame(rows) if rows else DataFrame(columns=list(_COLUMNS))

    def __len__(self) -> int:
        return sum(len(places) for _, places in self._places)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        left = index + len(self) if index < 0 else index
        for file, places in self._places:
            if 0 <= left < len(places):
                return file.read(places[left])
            left -= len(places)
        raise IndexError(f"episode {index} of {len(self)}")

    def __iter__(self) -> Iterator[Record]:
        for file, places in self._places:
            for line in places:
                yield file.read(line)

    def __repr__(self) -> str:
        return f"<{len(self)} episodes in {len(self.files)} files>"

    @cached_property
    def _places(self) -> tuple[tuple[File, range], ...]:
        """The lines of each file that are meant."""
        found = []
        for file in self.files:
            count = len(file.lines)
            greedy = min(file.greedy or 0, count)
            start, end = (greedy, count) if self.only == "sampled" else (0, greedy if self.only == "greedy" else count)
            found.append((file, range(start, end)))
        return tuple(found)


_COLUMNS = (
    "id", "split", "iteration", "task", "kind", "prompt", "group", "sample", "success", "reward", "answer", "failed",
    "replies", "tokens", "last",
)  # fmt: skip


def _file(run: RunDirectory, name: str) -> File | None:
    """A file of episodes; None for one that belongs to no iteration, such as `failed`."""
    kind, _, number = name.partition("-")
    if kind not in ("train", "evaluation") or not number.isdecimal():
        return None
    path = run.episodes / f"{name}.jsonl"
    if kind == "train":
        return File(path, int(number))
    report = run.path / "evaluations" / f"{number}.json"
    try:
        tasks = int(json.loads(report.read_bytes())["tasks"])
    except (OSError, ValueError, KeyError):  # written after the episodes: there is none yet
        return None
    return File(path, int(number), tasks)


def _row(record: Record) -> dict[str, Any]:
    task, actions, error = record["task"], record["actions"], record["error"]
    return {
        **{key: record[key] for key in ("id", "split", "iteration")},
        **{"task": task["id"], "kind": task["kind"], "prompt": task["prompt"]},
        **{key: record[key] for key in ("group", "sample", "success", "reward")},
        "answer": record.get("answer", ""),
        "failed": "" if error is None else f"{error['who']}: {error['reason']}",
        "replies": len(actions),
        "tokens": sum(action["tokens"] for action in actions),
        "last": actions[-1]["text"] if actions else "",
        **{f"metrics/{key}": value for key, value in record["metrics"].items()},
    }
