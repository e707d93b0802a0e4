"""The index of a run's episodes: a table in memory, filled file by file, that knows where on the disk each one stands.

Transcripts stay on the disk and are read when asked for. The rules of filters and orders are written twice: here as
SQL, and in `page/source.js` for a report, which has no server; a test compares their answers.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marft.run.directory import RunDirectory
from marft.run.records import EpisodeFile, episode_file
from marft.run.statistics import Interval
from marft.types import MarftError
from marft.view.band import mean_band
from marft.view.episodes import Edge, Query, edges, parse_id, summary
from marft.view.reading import NotHere, Signature, listing

_TABLE = """
CREATE TABLE episodes (
    file TEXT, line INTEGER, start INTEGER, length INTEGER, split TEXT, iteration INTEGER, time INTEGER,
    task TEXT, kind TEXT, prompt TEXT, success REAL, reward REAL, tokens INTEGER, failed INTEGER, agents TEXT,
    answer TEXT, last TEXT, mean_logprob REAL, change REAL, said TEXT, PRIMARY KEY (file, line)
);
CREATE INDEX by_task ON episodes (task, split, iteration);
"""
_COLUMNS = (
    "file, line, start, length, split, iteration, time, task, kind, prompt, success, reward, tokens, failed, agents, "
    "answer, last, mean_logprob, said"
)
_LISTED = _COLUMNS.replace("said", "change")  # without all that was said, a list is sorted many times faster
# Change: the reward minus the mean reward of the same task in the same split the previous time it was played. What
# failed was paid nothing for its play, so it neither has a change nor counts in a mean. Rounded, so that the error of a
# mean of equal rewards is no change (+ 0.0: nor is it -0)
_CHANGES = """
CREATE TEMP TABLE means AS
    SELECT task, split, iteration, lag(avg(reward)) OVER (PARTITION BY task, split ORDER BY iteration) AS before
    FROM episodes WHERE NOT failed GROUP BY task, split, iteration;
CREATE INDEX temp.of_means ON means (task, split, iteration);
UPDATE episodes SET change = CASE WHEN failed THEN NULL ELSE round(reward - (
    SELECT before FROM means
    WHERE means.task = episodes.task AND means.split = episodes.split AND means.iteration = episodes.iteration
), 12) + 0.0 END;
DROP TABLE means;
"""
# `time` puts an evaluation after n iterations just before the training play of iteration n
_OLDEST = "time, file, line"
_NEWEST = "time DESC, file, line"
_ORDERS = {
    "newest": _NEWEST,
    "oldest": _OLDEST,
    "best": f"failed, reward DESC, {_NEWEST}",
    "worst": f"failed, reward, {_NEWEST}",
    "risen": f"change IS NULL, change DESC, {_NEWEST}",
    "fallen": f"change IS NULL, change, {_NEWEST}",
    "longest": f"tokens DESC, {_NEWEST}",
    "unlikely": f"mean_logprob IS NULL, mean_logprob, {_NEWEST}",
}
_OUTCOMES = {
    "won": "NOT failed AND success >= 0.5",
    "lost": "NOT failed AND success < 0.5",
    "failed": "failed",
}
_CHANGED = {
    "up": "change > 0",
    "down": "change < 0",
    "same": "change = 0",
    "new": "change IS NULL AND NOT failed",
}
State = tuple[Signature, Signature | None]
"""Of a file of episodes and, of an evaluation, of its report."""


@dataclass
class Played:
    """What is known of one file of episodes beside its rows: D as played, by how many episodes, and the intervals."""

    file: EpisodeFile
    state: State
    episodes: int = 0
    edges: Counter[Edge] = field(default_factory=Counter)
    intervals: dict[str, Interval] | None = None


class EpisodeIndex:
    """All episodes of a run. `refresh` brings it up to date; every question is about the state it found."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.played: dict[str, Played] = {}
        self._damaged: dict[str, tuple[State, str]] = {}
        self._base = sqlite3.connect(":memory:", check_same_thread=False)  # who calls holds the run's lock
        self._base.row_factory = sqlite3.Row
        self._base.executescript(_TABLE)

    @property
    def damaged(self) -> list[str]:
        """A sentence for each file that was left out when the index was last brought up to date."""
        return [sentence for _, (_, sentence) in sorted(self._damaged.items())]

    def refresh(self) -> None:
        """Read the files that are new or have changed. A damaged one is left out (`damaged`); all others are there."""
        there = self._files()
        known = {name: each.state for name, each in self.played.items()}
        known |= {name: state for name, (state, _) in self._damaged.items()}
        changed = {
            name for name in known.keys() | there.keys() if name not in there or known.get(name) != there[name][1]
        }
        for name in sorted(changed):
            self._base.execute("DELETE FROM episodes WHERE file = ?", (name,))
            self.played.pop(name, None)
            self._damaged.pop(name, None)
            if name in there:
                try:
                    self._read(*there[name])
                except MarftError as error:
                    self._damaged[name] = (there[name][1], str(error))
        if changed:
            self._base.executescript(_CHANGES)
            self._base.commit()

    def _files(self) -> dict[str, tuple[EpisodeFile, State]]:
        """The files of episodes by the names of their ids, as they stand now."""
        found = {}
        reports = listing(self.run.path / "evaluations")
        for name, state in listing(self.run.episodes).items():
            file = episode_file(self.run, name.removesuffix(".jsonl")) if name.endswith(".jsonl") else None
            if file is not None:
                found[file.path.stem] = file, (state, None if file.report is None else reports.get(file.report.name))
        return found

    def query(self, query: Query) -> dict[str, Any]:
        """{"total", "items"}: how many episodes there are, and one page of them."""
        conditions, values = _conditions(query)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        (total,) = self._base.execute(f"SELECT count(*) FROM episodes{where}", values).fetchone()
        rows = self._base.execute(
            f"SELECT {_LISTED} FROM episodes{where} ORDER BY {_ORDERS[query.sort]} LIMIT ? OFFSET ?",
            (*values, query.size, query.page * query.size),
        )
        return {"total": total, "items": [item(row) for row in rows]}

    def items(self) -> list[dict[str, Any]]:
        """Every episode as `query` lists it, oldest first."""
        return [item(row) for row in self._base.execute(f"SELECT {_LISTED} FROM episodes ORDER BY {_OLDEST}")]

    def record(self, identity: str) -> dict[str, Any]:
        """The whole record of an episode, with its `id`, `split` and `iteration`."""
        file, line = parse_id(identity)
        row = self._base.execute(f"SELECT {_LISTED} FROM episodes WHERE file = ? AND line = ?", (file, line)).fetchone()
        if file in self._damaged:
            raise MarftError(self._damaged[file][1])
        if row is None:
            raise NotHere(f"id: there is no episode '{identity}' in this run")
        path = self.played[file].file.path
        try:
            with open(path, "rb") as opened:
                opened.seek(row["start"])
                record = json.loads(opened.read(row["length"]))
        except (OSError, ValueError):
            raise MarftError(f"{path}: changed while it was read; ask again") from None
        return {"id": identity, "split": row["split"], "iteration": row["iteration"], **record}

    def task(self, task: str) -> list[dict[str, Any]]:
        """All episodes of a task, oldest first."""
        rows = self._base.execute(f"SELECT {_LISTED} FROM episodes WHERE task = ? ORDER BY {_OLDEST}", (task,))
        keys = ("id", "split", "iteration", "success", "reward", "failed")
        return [{key: found[key] for key in keys} for found in map(item, rows)]

    def intervals(self) -> dict[int, dict[str, Interval]]:
        """By iteration of training play: 95% intervals of the mean success and reward over its episodes, tasks as the
        unit."""
        found = {}
        for name, played in self.played.items():
            if played.file.report is None:
                if played.intervals is None:
                    played.intervals = self._intervals(name)
                found[played.file.iteration] = played.intervals
        return found

    def _intervals(self, file: str) -> dict[str, Interval]:
        rows = self._base.execute(
            "SELECT task, success, reward FROM episodes WHERE file = ? AND NOT failed ORDER BY line", (file,)
        ).fetchall()
        if not rows:
            return {}
        tasks, success = [row["task"] for row in rows], [row["success"] for row in rows]
        rate = all(0.0 <= each <= 1.0 for each in success)
        return {
            "success": mean_band(success, tasks, bounded=rate),
            "reward": mean_band([row["reward"] for row in rows], tasks, bounded=False),
        }

    def _read(self, file: EpisodeFile, state: State) -> None:
        """Put the episodes of a file into the table; raises `MarftError` naming the line that is none."""
        played, rows = Played(file, state), []
        for line, (start, text) in enumerate(file.lines()):
            try:
                record = json.loads(text)
                row = summary(record)
                found = edges(record)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise MarftError(f"{file.path}: line {line + 1} is not an episode; the file is damaged") from None
            rows.append({**row, "file": file.path.stem, "line": line, "start": start, "length": len(text)})
            if not row["failed"]:
                played.episodes += 1
                played.edges += found
        time = 2 * file.iteration + (file.report is None)
        for row in rows:
            row |= {"split": file.play(row["line"]), "iteration": file.iteration, "time": time}
        marks = ", ".join(f":{column}" for column in _COLUMNS.split(", "))
        self._base.executemany(f"INSERT INTO episodes ({_COLUMNS}) VALUES ({marks})", map(_storable, rows))
        self.played[file.path.stem] = played


def item(row: sqlite3.Row) -> dict[str, Any]:
    """An episode as a list shows it."""
    same = ("split", "iteration", "success", "reward", "change", "tokens", "answer", "last", "mean_logprob")
    return {
        "id": f"{row['file']}:{row['line']}",
        "task": {"id": row["task"], "kind": row["kind"], "prompt": row["prompt"]},
        "failed": bool(row["failed"]),
        "agents": json.loads(row["agents"]),
        **{key: row[key] for key in same},
    }


def finite(value: float) -> float | None:
    """A bound that a page can draw: None where the data cannot tell."""
    return value if math.isfinite(value) else None


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    """Each filter as a condition of SQL, and the values in them; the same filters stand in `page/source.js`."""
    found: list[tuple[str, Any]] = []
    if query.split is not None:
        found.append(("split = ?", query.split))
    if query.iteration is not None:
        found.append(("iteration = ?", query.iteration))
    if query.agent is not None:
        found.append(("EXISTS (SELECT 1 FROM json_each(agents) WHERE value = ?)", query.agent))
    if query.task is not None:
        found.append(("task = ?", query.task))
    if query.search is not None:
        found.append(("instr(said, ?)", query.search.lower()))
    conditions = [condition for condition, _ in found]
    if query.outcome is not None:
        conditions.append(f"({_OUTCOMES[query.outcome]})")
    if query.change is not None:
        conditions.append(f"({_CHANGED[query.change]})")
    return conditions, [_text(value) for _, value in found]


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _text(value) for key, value in row.items()}


def _text(value: Any) -> Any:
    """A lone surrogate (from a task's JSON) has no UTF-8 form, which the table needs: its backslash form stands in."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf8", errors="backslashreplace").decode("utf8")
    return value
