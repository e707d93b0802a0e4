"""What went wrong in a run, by its rows of metrics: alarms, rollbacks, updates that were not made, failed episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def health(rows: Sequence[Row]) -> dict[str, Any]:
    """{"alarms", "rollbacks", "diverged", "failures"}, the first three in the order of the iterations."""
    return {
        "alarms": [alarm for row in rows for alarm in _alarms(row)],
        "rollbacks": [
            {"iteration": row["iteration"], "to": row["rollback_to"], "lr_scale": row.get("lr_scale")}
            for row in rows
            if row.get("rollback_to") is not None
        ],
        "diverged": [
            {"iteration": row["iteration"], "who": who, "sentence": sentence}
            for row in rows
            for who, sentence in _mapping(row, "diverged").items()
        ],
        "failures": failures(rows),
    }


def failures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each reason ("who: reason") with how often, and the first and last iteration it was seen in; most often first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for reason, count in _mapping(row, "failures").items():
            seen = found.setdefault(reason, {"reason": reason, "count": 0, "first": row["iteration"]})
            seen["count"] += count
            seen["last"] = row["iteration"]
    return sorted(found.values(), key=lambda each: -each["count"])


def _alarms(row: Row) -> list[dict[str, Any]]:
    kinds = {kind: each for kind, each in _mapping(row, "health").items() if isinstance(each, Mapping)}
    return [
        {"iteration": row["iteration"], "kind": kind, "who": who, "value": value}
        for kind, each in kinds.items()
        for who, value in each.items()
    ]


def _mapping(row: Row, key: str) -> Mapping[str, Any]:
    found = row.get(key)
    return found if isinstance(found, Mapping) else {}
