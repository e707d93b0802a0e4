"""What was learnt from each action of an episode, from `learnt/NNNNNN.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft.run.directory import read_jsonl
from marft.view.reading import Cached

Key = tuple[str, int, int]
"""Group and sample of an episode, place of an action in it."""


class Learnt:
    """Advantages and ratios by action. The files of the last few episodes asked for are kept in memory."""

    KEPT = 4

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, Cached[dict[Key, dict[str, Any]]]] = {}

    def join(self, record: Mapping[str, Any], later: int = 0) -> dict[str, Any]:
        """The record, `advantage` and `ratio` added to the actions learnt from, and `learnt_in`: by which iteration.

        Learning may come up to `later` iterations after play; what was learnt from twice tells of the first time.
        """
        if record["split"] != "train":
            return dict(record)
        actions = [dict(action) for action in record["actions"]]
        for iteration in range(record["iteration"], record["iteration"] + later + 1):
            found = self._read(self.folder / f"{iteration:06d}.jsonl")
            for place, action in enumerate(actions):
                row = found.get((record.get("group", ""), record.get("sample", 0), place))
                if row is not None and "learnt_in" not in action:
                    action |= {"advantage": row.get("advantage"), "ratio": row.get("ratio"), "learnt_in": iteration}
        return {**record, "actions": actions}

    def _read(self, path: Path) -> dict[Key, dict[str, Any]]:
        if not path.is_file():
            return {}
        cached = self._files.pop(path, None) or Cached(_by_action)
        self._files[path] = cached
        for oldest in list(self._files)[: -self.KEPT]:
            del self._files[oldest]
        return cached(path)


def _by_action(path: Path) -> dict[Key, dict[str, Any]]:
    return {(row["group"], row["sample"], row["action"]): row for row in read_jsonl(path)}
