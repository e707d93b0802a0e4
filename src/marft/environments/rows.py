"""Rows of questions and answers, from a JSONL file or through the `datasets` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.types import MarftError
from marft.validation import suggestion


@dataclass(frozen=True)
class Row:
    """One question and its answer column; `number` counts rows from 1 and `place` names the row in errors."""

    number: int
    place: str
    question: str
    answer: str


def jsonl_rows(path: str, question: str, answer: str) -> list[Row]:
    """The rows of a JSONL file; raises `MarftError` naming the file and line when it cannot be used."""
    try:
        text = Path(path).read_text(encoding="utf8")
    except FileNotFoundError:
        raise MarftError(f"{path}: there is no such file (looked in {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MarftError(f"{path}: cannot be read: {error}") from None
    found: list[tuple[int, str, Any]] = []
    for line, content in enumerate(text.split("\n"), start=1):  # splitlines would also cut at U+2028 inside a text
        if content.strip():
            try:
                found.append((line, f"{path}, line {line}", json.loads(content)))
            except json.JSONDecodeError as error:
                raise MarftError(f"{path}, line {line}: is not JSON: {error}") from None
    return _rows(found, path, question, answer)


def hub_rows(name: str, subset: str | None, split: str, question: str, answer: str) -> list[Row]:
    """The rows of one split of a `datasets` source: a hub id, or a folder (saved by `datasets`, or of data files)."""
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
    rows = ((number, f"{name}, {split} row {number}", row) for number, row in enumerate(table, start=1))
    return _rows(rows, name, question, answer)


def _rows(found: Iterable[tuple[int, str, Any]], source: str, question: str, answer: str) -> list[Row]:
    rows = []
    for number, place, content in found:
        if not isinstance(content, Mapping):
            raise MarftError(f"{place}: is not a mapping of columns")
        for column in (question, answer):
            if column not in content:
                raise MarftError(f"{place}: has no column '{column}'; its columns are: {', '.join(map(str, content))}")
        asked = content[question]
        if not isinstance(asked, str) or not asked.strip():
            raise MarftError(f"{place}: the column '{question}' must hold a text; it holds {asked!r}")
        right = content[answer]
        if isinstance(right, bool) or not isinstance(right, str | int | float):
            raise MarftError(f"{place}: the column '{answer}' must hold a text or a number; it holds {right!r}")
        rows.append(Row(number, place, asked, str(right)))
    if not rows:
        raise MarftError(f"{source}: holds no rows")
    return rows
