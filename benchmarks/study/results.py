"""What is kept of a run: a compact result, gathered from its directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.side_by_side import machine
from marft.run.directory import RunDirectory
from marft.run.metrics import read_metrics

RESULT = "result.json"
PACKAGES = ("marft", "torch", "transformers", "peft")


def gather(run: RunDirectory, seconds: float) -> dict[str, Any]:
    """The compact result: nothing in it says on whose machine or where it was computed."""
    rows = read_metrics(run.path)
    evaluations = {str(number): compact(report) for number, report in sorted(run.read_evaluations().items())}
    config = run.config()
    return {
        "agents": len(config.team.agents),
        "curve": [round(row["success"], 3) for row in rows],
        "evaluations": evaluations,
        "tokens": tokens(rows),
        "reply_tokens": reply_tokens(rows),
        "diagnosis": diagnosis(rows),
        "iterations": len(rows),
        "seconds": {"training": round(sum(row["seconds"] for row in rows), 1), "all": round(seconds, 1)},
        "threads": config.threads,
        "processor": machine()["cpu"],
        "versions": {**{name: version(name) for name in PACKAGES}, "commit": commit()},
    }


def compact(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the study needs of an evaluation."""
    sampled = report["sampled"]
    found: dict[str, Any] = {
        "sampled": sampled["success"]["mean"],
        "greedy": report["greedy"]["success"]["mean"],
        "answer_tokens": sampled["tokens"],
        "failed": sampled["failed"] + report["greedy"]["failed"],
        "majority": sampled.get("maj_at", {}),
        "influence": {name: worth["drop"] for name, worth in report.get("influence", {}).items()},
        "kl": {name: kept["kl"] for name, kept in report.get("retention", {}).items()},
        "perplexity": {
            name: kept["perplexity"] / kept["base_perplexity"] for name, kept in report.get("retention", {}).items()
        },
    }
    return {name: rounded(value) for name, value in found.items() if value != {}}


def tokens(rows: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Totals over training: sampled (of episodes that did not fail), read as prompts, and trained.

    A row gives rates, and mean lengths of replies: multiplied out again, they are the counts. None: no row says it.
    """
    sampled = sum(
        agent["reply_tokens"] * agent["replies"] * (row["episodes"] - row["failed"])
        for row in rows for agent in row["play"].values()
    )  # fmt: skip
    trained = sum(
        row["update_tokens_per_second"] * row["seconds"] * row["share"]["update"]
        for row in rows if "update_tokens_per_second" in row
    )  # fmt: skip
    read = [row["tokens"]["prompt"] for row in rows if "tokens" in row]
    return {
        "sampled": round(sampled),
        "trained": round(trained),
        "prompt": sum(read) if len(read) == len(rows) else None,
    }


def reply_tokens(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Agent -> mean tokens of a reply in the first and the last tenth of training."""
    tenth = max(1, len(rows) // 10)
    names = dict.fromkeys(name for row in rows for name in row["play"])
    return {
        name: [
            round(fmean(row["play"][name]["reply_tokens"] for row in part if name in row["play"]), 2)
            for part in (rows[:tenth], rows[-tenth:]) if any(name in row["play"] for row in part)
        ]
        for name in names
    }  # fmt: skip


def diagnosis(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What helps to find out why a run went as it did: means over the second half of training, and in how many
    iterations of all of it the guard raised an alarm or went back."""
    half = rows[len(rows) // 2 :]
    updates = [found for row in half for found in row.get("update", {}).values()]
    critics = [found for row in half for name, found in row.items() if name.split("-")[0] == "critic"]
    found: dict[str, float] = {}
    for key in ("kl", "clip_share", "grad_norm", "reference_kl"):
        values = [each[key] for each in updates if each.get(key) is not None]
        if values:
            found[key] = fmean(values)
    if critics:
        found["explained_variance"] = fmean(each["explained_variance"] for each in critics)
    entropies = [value for row in half for value in row.get("entropy", {}).values() if value is not None]
    if entropies:
        found["entropy"] = fmean(entropies)
    alarms = sum(bool(at(row, "health", "alarms")) for row in rows)
    rollbacks = sum("rollback_to" in row for row in rows)
    return {
        **rounded(found),
        **({"alarms": alarms} if alarms else {}),
        **({"rollbacks": rollbacks} if rollbacks else {}),
    }


def at(record: Any, *path: str) -> Any:
    """What stands at a path of keys; None where there is no such key."""
    for key in path:
        if not isinstance(record, Mapping) or key not in record:
            return None
        record = record[key]
    return record


def rounded(value: Any, digits: int = 3) -> Any:
    """Numbers within a value, rounded."""
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return round(value, digits) if isinstance(value, float) else value


def commit() -> str:
    """The commit of the working tree, `-dirty` where it holds other changes; `unknown` without git."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a run's folder; None while there is none."""
    file = folder / RESULT
    return json.loads(file.read_text(encoding="utf8")) if file.is_file() else None
