"""Run directories made by hand, for tests of the viewer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

CONFIG: dict[str, Any] = {
    "name": "duo",
    "seed": 0,
    "iterations": 4,
    "model": {"name": "tiny"},
    "team": {
        "agents": [
            {"name": "planner", "profile": "Plan.", "adapter": None, "model": None, "tools": ["calculator"]},
            {"name": "solver", "profile": "", "sees_task": False, "trainable": False, "adapter": "shared"},
        ],
        "dependency": "chain",
    },
    "rollout": {"staleness": 0, "reuse": 0},
    "update": {"level": "action", "lr": 0.001},
}


def action(agent: str, text: str = "words", parents: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    """One reply, as `episode_record` writes it."""
    usual = {"turn": 0, "step": 0, "reward": 0.0, "stop": "stop", "tokens": 3, "mean_logprob": -0.5}
    return {"agent": agent, "parents": list(parents), "prompt": "read this", "text": text, **usual, **more}


def episode(task: str = "t0", reward: float = 0.0, **more: Any) -> dict[str, Any]:
    """One record; a planner and a solver who reads it speak unless `actions` are given."""
    usual = {
        "task": {"id": task, "kind": "sums", "prompt": f"What is {task}?"},
        "group": f"0-{task}",
        "sample": 0,
        "reward": reward,
        "success": float(reward > 0),
        "terminated": True,
        "truncated": False,
        "error": None,
        "answer": "",
        "metrics": {},
        "actions": [action("planner"), action("solver", parents=[0])],
    }
    return {**usual, **more}


def write_run(
    path: Path,
    config: Mapping[str, Any] = CONFIG,
    rows: Sequence[Mapping[str, Any]] = (),
    evaluations: Mapping[int, Mapping[str, Any]] | None = None,
    episodes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    learnt: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """A run directory that holds these things and nothing else; returns its path."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    if rows:
        (path / "metrics.jsonl").write_text(lines(rows))
    for iteration, report in (evaluations or {}).items():
        write(path / "evaluations" / f"{iteration:06d}.json", json.dumps(report))
    for name, records in (episodes or {}).items():
        write(path / "episodes" / f"{name}.jsonl", lines(records))
    for iteration, traces in (learnt or {}).items():
        write(path / "learnt" / f"{iteration:06d}.jsonl", lines(traces))
    return path


def write(path: Path, text: str) -> None:
    """Write a file, its folder made where it is missing."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf8", errors="backslashreplace")


def lines(records: Sequence[Mapping[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
