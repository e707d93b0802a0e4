"""What all experiments with the small model start from, and ways to write conditions down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.nano.teams import WORLD
from benchmarks.study.conditions import MODEL, Condition

BASE: Mapping[str, Any] = {
    "model.name": MODEL,
    "model.dtype": "float32",
    "threads": 1,
    "lora.r": 8,
    "lora.alpha": 16.0,
    "iterations": 25,
    "environment.name": WORLD,
    "environment.kinds": ["two_steps"],
    "environment.levels": [1],
    "learner": "marft-a",
    "rollout.tasks": 8,
    "rollout.samples": 8,
    "critic.warmup": 1,
    "critic.lr": 1e-3,
    "critic.head_lr": 3e-2,
    "update.lr": 2e-3,
    "update.epochs": 1,
    "update.micro_tokens": 8192,
    "evaluation.tasks": 128,
    "evaluation.samples": 2,
    "evaluation.influence": False,
    "run.trackers": [],
    "run.save_every": 13,
    "run.keep_last": 1,
    "run.episodes_every": 1000,
}
SIZES = {"duo": 2, "trio": 3, "quad": 4}
DUO = {**BASE, "team.size": 2}
TRIO = {**BASE, "team.size": 3}
EQUAL_TOKENS = (
    "`single` is one agent that solves the whole problem, with so many samples of each task that it samples about as "
    "many tokens in an iteration as the team; the true numbers are in the table."
)
# Samples of a task that cost one agent alone as many sampled tokens as 8 of a team's: an untrained agent alone says 19
# tokens an answer, a duo and a trio 21, a quad 33
ALONE = {"duo": 9, "trio": 9, "quad": 14}


def single(group: str) -> dict[str, Any]:
    """One agent that learns alone, on as many sampled tokens as a team."""
    return {"team.size": 1, "rollout.samples": ALONE[group]}


def in_each_size(**conditions: Mapping[str, Any]) -> tuple[Condition, ...]:
    """The same conditions for a duo, a trio and a quad; `_` in a name is written `-`."""
    return tuple(
        Condition(name.replace("_", "-"), {"team.size": size, **changes}, group)
        for group, size in SIZES.items()
        for name, changes in conditions.items()
    )


def plain(**conditions: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Conditions without groups; `_` in a name is a blank."""
    return tuple(Condition(name.replace("_", " "), changes) for name, changes in conditions.items())
