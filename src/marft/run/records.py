"""The episodes of a run on disk, as a sequence that reads a record when it is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
_NAME = re.compile(r"(train|evaluation)-([0-9]{6,9})")


@dataclass(frozen=True)
class EpisodeFile:
    """`episodes/train-NNNNNN.jsonl`, the play of iteration NNNNNN; or `evaluation-NNNNNN.jsonl`, after so many of them.

    `report` is where the report of an evaluation stands, or will stand (it is written after the episodes); training
    play has none. This is the one place that knows which lines of an evaluation's file are greedy.
    """

    path: Path
    iteration: int
    report: Path | None = None

    @property
    def plays(self) -> tuple[Play, ...]:
        """What it may hold."""
        return ("train",) if self.report is None else ("greedy", "sampled")

    def play(self, line: int) -> Play:
        """Whose episode a line holds."""
        return "train" if self.report is None else "greedy" if line < self.greedy else "sampled"

    @cached_property
    def greedy(self) -> int:
        """How many greedy episodes, one a task, an evaluation's file begins with; all others are sampled.

        As many as its report has tasks; while there is none that can be read, as many as are different in the file.
        """
        if self.report is None:
            return 0
        try:
            return int(json.loads(self.report.read_bytes())["tasks"])
        except (OSError, ValueError, LookupError, TypeError):
            tasks = set()
            for line, (_, text) in enumerate(self.lines()):
                try:
                    tasks.add(str(self._record(line, text)["task"]["id"]))
                except (LookupError, TypeError):
                    raise MarftError(f"{self.path}: line {line + 1} is not an episode; the file is damaged") from None
            return len(tasks)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Where each line begins, in bytes, and the line; the last one may lack its end. Empty ones do not count."""
        start = 0
        with self._open() as file:
            for text in file:
                if text.strip():
                    yield start, text
                start += len(text)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each line begins and ends, in bytes."""
        return tuple((start, start + len(text)) for start, text in self.lines())

    def read(self, line: int) -> Record:
        """The record of a line; raises `MarftError` when it is none."""
        start, end = self.spans[line]
        with self._open() as file:
            file.seek(start)
            text = file.read(end - start)
        about = {"id": f"{self.path.stem}:{line}", "split": self.play(line), "iteration": self.iteration}
        return {**about, **self._record(line, text)}

    def _record(self, line: int, text: bytes) -> Record:
        try:
            found = json.loads(text)
            if isinstance(found, dict):
                return found
            fault = "not an episode"
        except ValueError:
            fault = "not valid JSON"
        raise MarftError(
            f"{self.path}: line {line + 1} is {fault}; the file is damaged, or was written anew meanwhile: ask for the "
            "run's episodes once more"
        )

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise MarftError(f"{self.path}: cannot be read ({error.strerror})") from None


def episode_file(run: RunDirectory, name: str) -> EpisodeFile | None:
    """The file `episodes/<name>.jsonl` of a run; None for one that belongs to no iteration, such as `failed`."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    report = run.path / "evaluations" / f"{found[2]}.json" if found[1] == "evaluation" else None
    return EpisodeFile(run.episodes / f"{name}.jsonl", int(found[2]), report)


def episode_files(run: RunDirectory) -> list[EpisodeFile]:
    """All files of episodes that a run has now, by name."""
    found = (episode_file(run, name) for name in run.episode_names())
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class Episodes(Sequence[Record]):
    """Episodes on disk, oldest first: of each iteration the evaluation before it, greedy then sampled, then its play.

    A record is read when it is asked for; nothing is kept. `only` leaves out one kind of an evaluation's episodes.
    """

    files: tuple[EpisodeFile, ...]
    only: Play | None = None

    @classmethod
    def of(cls, run: RunDirectory) -> Episodes:
        """All episodes of a run as it is now."""
        return cls(tuple(sorted(episode_files(run), key=lambda each: (each.iteration, each.report is None))))

    def where(self, split: Play | None = None, iteration: int | None = None) -> Episodes:
        """Those of one kind of play (`train`, `greedy`, `sampled`), of one iteration, or both.

        Evaluations count the iterations before them: 0 is the untrained team. Raises `MarftError` for another `split`.
        """
        if split is not None and split not in get_args(Play):
            raise MarftError(f"split '{split}': there is no such kind of play{suggestion(split, get_args(Play))}")
        files = [each for each in self.files if iteration in (None, each.iteration)]
        if split is None:
            return replace(self, files=tuple(files))
        kept = tuple(each for each in files if split in each.plays)
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
    def _places(self) -> tuple[tuple[EpisodeFile, range], ...]:
        """The lines of each file that are meant."""
        found = []
        for file in self.files:
            start, end = 0, len(file.spans)
            if self.only in ("greedy", "sampled"):
                greedy = min(file.greedy, end)
                start, end = (0, greedy) if self.only == "greedy" else (greedy, end)
            found.append((file, range(start, end)))
        return tuple(found)


_COLUMNS = (
    "id", "split", "iteration", "task", "kind", "prompt", "group", "sample", "success", "reward", "answer", "failed",
    "replies", "tokens", "last",
)  # fmt: skip


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
