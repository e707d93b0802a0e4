"""Rows of questions and answers: from a file (JSONL, JSON, CSV, Parquet) or through the `datasets` library.

Whatever cannot be used is one sentence with the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marft.types import MarftError
from marft.validation import suggestion


@dataclass(frozen=True)
class Record:
    """One row as it stands in its source; `number` counts from 1 and `place` names the row in errors."""

    number: int
    place: str
    content: Any


@dataclass(frozen=True)
class Columns:
    """Which columns to read. `lists`: the answer column may also hold a list of texts or numbers (several answers).

    `answer_else` is read where a row has it and no column `answer`.
    """

    question: str
    answer: str
    id: str | None = None
    kind: str | None = None
    lists: bool = False
    answer_else: str | None = None


@dataclass(frozen=True)
class Row:
    """One question and its answer column; `id` and `kind` are empty where no such column is named."""

    number: int
    place: str
    question: str
    answer: str
    id: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Source:
    """Where the rows of the two splits come from: files (`path`, `heldout_path`) or splits of a `datasets` id (`hub`).

    With one of the two alone, `path` or `split_train` shares out its questions, and `heldout_path` or `split_heldout`
    leaves nothing to train on.
    """

    path: str | None = None
    heldout_path: str | None = None
    hub: str | None = None
    subset: str | None = None
    split_train: str | None = None
    split_heldout: str | None = None
    heldout_share: float = 0.1

    def __str__(self) -> str:
        return str(self.path or self.heldout_path or self.hub)

    @property
    def evaluation_only(self) -> bool:
        """Whether it names nothing to train on."""
        return self.path is None and (self.hub is None or self.split_train is None)

    def rows(self, columns: Columns) -> tuple[list[Row], list[Row]]:
        """The rows to train on and those held out."""
        train, heldout = self._part(self.path, self.split_train), self._part(self.heldout_path, self.split_heldout)
        train_rows, heldout_rows = (part and rows(part[1], part[0], columns) for part in (train, heldout))
        if heldout_rows is None:
            return share_out(train_rows or [], self.heldout_share)
        return train_rows or [], heldout_rows

    def _part(self, path: str | None, split: str | None) -> tuple[str, Iterable[Record]] | None:
        if path is not None:
            return path, file_records(path)
        if self.hub is not None and split is not None:
            return self.hub, hub_records(self.hub, self.subset, split)
        return None


def file_records(path: str) -> list[Record]:
    """The records of a file, by its ending: .parquet, or (also with .gz) .json (a list), .csv, else JSON lines."""
    kinds = [ending for ending in Path(path).suffixes if ending != ".gz"]
    if kinds[-1:] == [".parquet"]:
        return _parquet_records(path)
    text = _text(path)
    if kinds[-1:] == [".csv"]:
        return _csv_records(path, text)
    if kinds[-1:] == [".json"] and text.lstrip()[:1] == "[":
        return _json_records(path, text)
    return _jsonl_records(path, text)


def hub_records(name: str, subset: str | None, split: str) -> Iterator[Record]:
    """The records of one split of a `datasets` source: a hub id, or a folder (saved by it, or of data files)."""
    try:
        import datasets
    except ImportError:
        raise MarftError(f"hub: '{name}' needs the `datasets` library; install marft[datasets]") from None
    saved = any((Path(name) / marker).is_file() for marker in ("dataset_dict.json", "dataset_info.json"))
    try:
        table = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, subset, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # not found, no network, unknown split or subset, broken files
        raise MarftError(f"hub: '{name}' (split '{split}') cannot be loaded: {' '.join(str(error).split())}") from error
    if isinstance(table, datasets.DatasetDict):
        if split not in table:
            raise MarftError(f"hub: '{name}' has no split '{split}'{suggestion(split, sorted(map(str, table)))}")
        table = table[split]
    for number, row in enumerate(table, start=1):
        yield Record(number, f"{name}, {split} row {number}", row)


def rows(records: Iterable[Record], source: str, columns: Columns) -> list[Row]:
    """The rows that the columns name; raises `MarftError` for the first that lacks one, is empty or repeats an id."""
    found: list[Row] = []
    places: dict[str, str] = {}
    for record in records:
        row = _row(record, columns)
        if columns.id is not None and row.id in places:
            raise MarftError(f"{record.place}: the {columns.id} {row.id!r} is also that of {places[row.id]}")
        places[row.id] = record.place
        found.append(row)
    if not found:
        raise MarftError(f"{source}: holds no rows")
    return found


def share_out(all_rows: list[Row], share: float) -> tuple[list[Row], list[Row]]:
    """Hold out the share of *questions* (at least one) whose hash is smallest: the same ones in every process."""
    questions = sorted({row.question for row in all_rows}, key=lambda text: hashlib.sha256(text.encode()).digest())
    out = set(questions[: max(1, round(share * len(questions)))])
    return [row for row in all_rows if row.question not in out], [row for row in all_rows if row.question in out]


def _row(record: Record, columns: Columns) -> Row:
    content, place = record.content, record.place
    if not isinstance(content, Mapping):
        raise MarftError(f"{place}: is not a mapping of columns")
    if columns.answer not in content and columns.answer_else in content:
        columns = replace(columns, answer=columns.answer_else or "")
    for column in (columns.question, columns.answer, columns.id, columns.kind):
        if column is not None and column not in content:
            raise MarftError(f"{place}: has no column '{column}'; its columns are: {', '.join(map(str, content))}")
    asked = content[columns.question]
    if not isinstance(asked, str) or not asked.strip():
        raise MarftError(f"{place}: the column '{columns.question}' must hold a text; it holds {asked!r}")
    answer = content[columns.answer]
    answers = answer if columns.lists and isinstance(answer, list) and answer else [answer]
    if not all(_is_scalar(each) for each in answers):
        raise MarftError(f"{place}: the column '{columns.answer}' must hold a text or a number; it holds {answer!r}")
    labels = []
    for column in (columns.id, columns.kind):
        label = "" if column is None else content[column]
        if not _is_scalar(label) or (column is not None and not str(label).strip()):
            raise MarftError(f"{place}: the column '{column}' must hold a text or a number; it holds {label!r}")
        labels.append(str(label))
    return Row(record.number, place, asked, ", ".join(map(str, answers)), *labels)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
        return (gzip.decompress(content) if path.endswith(".gz") else content).decode("utf-8-sig")
    except FileNotFoundError:
        raise MarftError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise MarftError(f"{path}: cannot be read: {error}") from None


def _jsonl_records(path: str, text: str) -> list[Record]:
    found = []
    for line, content in enumerate(text.split("\n"), start=1):  # splitlines would also cut at U+2028 inside a text
        if content.strip():
            found.append(Record(line, f"{path}, line {line}", _json(content, path, line)))
    return found


def _json_records(path: str, text: str) -> list[Record]:
    entries = _json(text, path, 1)
    return [Record(number, f"{path}, entry {number}", entry) for number, entry in enumerate(entries, start=1)]


def _json(text: str, path: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}"
        raise MarftError(f"{path}, {where}: is not JSON: {error.msg} at character {error.colno}") from None
    except RecursionError:
        raise MarftError(f"{path}, line {line}: is not JSON: nested too deeply") from None


def _csv_records(path: str, text: str) -> list[Record]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found = []
    try:
        for content in reader:
            line = reader.line_num
            if None in content or None in content.values():
                raise MarftError(f"{path}, line {line}: has another number of columns than the first line")
            found.append(Record(line, f"{path}, line {line}", content))
    except csv.Error as error:
        raise MarftError(f"{path}, line {reader.reader.line_num}: is not CSV: {error}") from None
    return found


def _parquet_records(path: str) -> list[Record]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MarftError(f"{path}: reading Parquet needs the `datasets` library; install marft[datasets]") from None
    try:
        entries = parquet.read_table(path).to_pylist()
    except FileNotFoundError:
        raise MarftError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
    except (OSError, ArrowException) as error:
        raise MarftError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    return [Record(number, f"{path}, row {number}", entry) for number, entry in enumerate(entries, start=1)]
