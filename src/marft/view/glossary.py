"""What each metric means, read from `docs/metrics.md`, so that the page and the documentation say the same."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

NAMES = frozenset({"AGENT", "WHO", "E", "PHASE", "CRITIC", "KIND", "K"})
"""Words of a pattern that match any one part of a key; WHO at its end matches all that is left of it."""


def document() -> Path:
    """Where the document stands: in the installed package, else in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "docs" / "metrics.md"
    return installed if installed.is_file() else package.parents[1] / "docs" / "metrics.md"


@cache
def glossary() -> list[dict[str, Any]]:
    """The rows of the document's tables; none where the document is missing."""
    path = document()
    return read_glossary(path.read_text(encoding="utf8")) if path.is_file() else []


def read_glossary(text: str) -> list[dict[str, Any]]:
    """[{"patterns", "name", "group", "meaning", "healthy", "sick"}] of every row of a table with a column `key`."""
    found: list[dict[str, Any]] = []
    group, columns = "", list[str]()
    for line in text.splitlines():
        if line.startswith("## "):
            group = _plain(line.removeprefix("## ").strip())
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not columns:
            columns = cells
        elif "key" in columns and not set(line) <= set("|-: "):
            row = dict(zip(columns, cells, strict=True))
            words = {name: _plain(row.get(name, "")) for name in ("meaning", "healthy", "sick")}
            patterns = re.findall(r"`([^`]+)`", row["key"])
            found.append({"patterns": patterns, "name": _plain(row["metric"]), "group": group, **words})
    return found


def matches(pattern: str, key: str) -> bool:
    """Whether a pattern such as `update/AGENT/kl` speaks of a key such as `update/planner/kl`."""
    words = pattern.split("/")
    parts = key.split("/", len(words) - 1 if words[-1] == "WHO" else -1)
    return len(words) == len(parts) and all(
        part != "" and (word == part or word in NAMES) for word, part in zip(words, parts, strict=True)
    )


def _plain(cell: str) -> str:
    """A cell's words without markup: they are shown as text."""
    words = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", cell).replace("\\|", "|").replace("`", "")
    return re.sub(r"(?<!\w)(\*{1,2})([^*]+)\1(?!\w)", r"\2", words)
