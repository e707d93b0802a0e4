"""Search by words in a small collection of documents: SQLite's full-text index, ranked by BM25."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from marft.tools.base import ToolError, ToolSpec
from marft.types import MarftError

PASSAGE = 1000  # characters; paragraphs are packed into passages of about this length
MOST_WORDS = 32  # of a query: more would not make it better


class Search:
    """A search tool over (id, text) documents, kept in memory; it gives the `results` best passages."""

    def __init__(
        self,
        documents: Iterable[tuple[str, str]],
        results: int = 3,
        name: str = "search",
        description: str = "Searches a collection of documents.",
    ) -> None:
        self.documents = tuple(documents)
        self.results = results
        self.spec = ToolSpec(
            name,
            description,
            {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "words to look for"}},
                "required": ["query"],
            },
        )

    def __getstate__(self) -> dict[str, Any]:
        # A database in memory cannot be pickled; its copy makes its own
        return {key: value for key, value in self.__dict__.items() if key != "_index"}

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The best passages, each after its document's id; passages that hold any of the words, rarer words first."""
        found = self.find(arguments["query"])
        return "\n\n".join(f"[{name}] {text}" for name, text in found) or "nothing found; try other words"

    def find(self, query: str) -> list[tuple[str, str]]:
        """(id, passage) of the best passages. The query is words and nothing else: it has no operators."""
        words = list(dict.fromkeys(re.findall(r"\w+", query.casefold())))[:MOST_WORDS]
        if not words:
            raise ToolError("the query holds no words")
        match = " OR ".join(f'"{word}"' for word in words)
        # Equal scores come in the order of the documents, so that one search always gives the same
        select = "SELECT id, text FROM passages WHERE passages MATCH ? ORDER BY rank, rowid LIMIT ?"
        return list(self._index.execute(select, (match, self.results)))

    @cached_property
    def _index(self) -> sqlite3.Connection:
        # Another event loop may run in another thread; sqlite serialises the calls
        index = sqlite3.connect(":memory:", check_same_thread=False)
        index.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(id, text, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        rows = ((name, passage) for name, text in self.documents for passage in passages(text))
        index.executemany("INSERT INTO passages VALUES (?, ?)", rows)
        return index


def passages(text: str) -> Iterator[str]:
    """A text in pieces of whole paragraphs, about `PASSAGE` characters each; a longer paragraph is cut."""
    packed = ""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if packed and len(packed) + len(paragraph) > PASSAGE:
            yield packed
            packed = ""
        packed = f"{packed}\n\n{paragraph}" if packed else paragraph
        while len(packed) > PASSAGE:
            cut = packed.rfind(" ", 0, PASSAGE)
            cut = cut if cut > 0 else PASSAGE
            yield packed[:cut]
            packed = packed[cut:].lstrip()
    if packed:
        yield packed


def read_documents(path: str) -> list[tuple[str, str]]:
    """(id, text) of a folder's .txt and .md files (id: the path in it), or of a JSONL file with `id` and `text`.

    Raises `MarftError` naming the file, and the line, that cannot be used.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        files = sorted(each for each in place.rglob("*") if each.suffix.lower() in (".txt", ".md") and each.is_file())
        found = [(each.relative_to(place).as_posix(), _text(each)) for each in files]
    elif place.is_file():
        # splitlines would also cut at U+2028 inside a text
        lines = enumerate(_text(place).split("\n"), start=1)
        found = [_document(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    else:
        raise MarftError(f"{path}: there is no such folder or file (looked in {Path.cwd()})")
    if not any(text.strip() for _, text in found):
        raise MarftError(f"{path}: holds no documents: it must be a folder of .txt and .md files, or a JSONL file")
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MarftError(f"{path}: two documents have the id '{twice}'; give each its own")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise MarftError(f"{file}: cannot be read: {error}") from None


def _document(line: str, place: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise MarftError(f"{place}: is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str) or not isinstance(row.get("id"), str | int):
        raise MarftError(f'{place}: must be of the form {{"id": …, "text": "…"}}')
    return str(row["id"]), row["text"]
