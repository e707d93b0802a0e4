"""Going on from a checkpoint: what was written after it tells of a future that will be played anew."""

from __future__ import annotations

import re

from marft.run.directory import RunDirectory

# Folder -> pattern of files that hold the number of an iteration, and whether that iteration itself is played again
_FILES = (
    ("episodes", re.compile(r"train-(\d+)\.jsonl"), True),
    ("learnt", re.compile(r"(\d+)\.jsonl"), True),
    ("episodes", re.compile(r"evaluation-(\d+)\.jsonl"), False),
    ("evaluations", re.compile(r"(\d+)\.json"), False),
)


def rewind(run: RunDirectory, first: int) -> None:
    """Delete what iterations `first` (from 0) and later have written; evaluations after `first` iterations stay.

    `MetricsWriter` drops their rows.
    """
    for folder, pattern, again in _FILES:
        for path in sorted((run.path / folder).glob("*")):
            found = pattern.fullmatch(path.name)
            if found and (int(found[1]) > first or (again and int(found[1]) == first)):
                path.unlink()
