"""What training remembers from one iteration to the next, besides weights and optimisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from marft.learn.curriculum import Record
from marft.types import Action, Episode, Failure, Task

IDS = ("prompt_ids", "joint_ids", "token_ids")


@dataclass(frozen=True)
class Round:
    """What an iteration played that may be learnt from: neither failed episodes nor groups that were dropped."""

    iteration: int
    episodes: tuple[Episode, ...]


@dataclass
class Memory:
    """Part of every checkpoint, so that a resumed run goes on as it would have.

    `running` is the running mean of returns per agent (`credit.baseline: running`). `lr_scale` is what the guard left
    of the learning rates after `rollbacks` rollbacks. `rounds` were played and wait to be learnt from, for the first
    time (`rollout.staleness`) or once more (`rollout.reuse`), oldest first. `record` is what choosing tasks goes by.
    """

    running: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    rollbacks: int = 0
    rounds: tuple[Round, ...] = ()
    record: Record = field(default_factory=Record)

    def due(self, iteration: int, staleness: int, reuse: int) -> list[Round]:
        """What iteration `iteration` learns from, the newest first; empty while there is only play to wait for."""
        newest = iteration - staleness
        return (
            [each for each in reversed(self.rounds) if newest - reuse <= each.iteration <= newest]
            if newest >= 0
            else []
        )

    def add(self, played: Round) -> None:
        """Keep what was just played."""
        self.rounds = (*self.rounds, played)

    def forget(self, iteration: int, staleness: int, reuse: int) -> None:
        """Drop what nothing after iteration `iteration` learns from."""
        self.rounds = tuple(each for each in self.rounds if each.iteration > iteration - staleness - reuse)

    def state(self) -> dict[str, Any]:
        """Everything as plain values and tensors, for `checkpoint.save_state`."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        rounds = [{"iteration": each.iteration, **packed(each.episodes)} for each in self.rounds]
        return {**plain, "rounds": rounds, "record": self.record.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        for each in fields(self):
            setattr(self, each.name, state[each.name])
        self.rounds = tuple(Round(each["iteration"], unpacked(each)) for each in state["rounds"])
        self.record = Record.of(state["record"])


def packed(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Episodes as plain values, every token id in one tensor and every log-probability in another: as values of their
    own they would not fit into the header of a large checkpoint. `Task.data`, the grader's, is left out."""
    ids: list[int] = []
    logprobs: list[float] = []
    rows = []
    for episode in episodes:
        actions = []
        for action in episode.actions:
            row = _shallow(action)
            for name in IDS:
                ids += row[name]
                row[name] = len(row[name])
            logprobs += action.logprobs
            actions.append({**row, "logprobs": len(action.logprobs)})
        views = {name: len(view) for name, view in episode.final_joint_ids.items()}
        ids += [each for view in episode.final_joint_ids.values() for each in view]
        rows.append(
            _shallow(episode)
            | {"task": {**_shallow(episode.task), "data": {}}, "actions": actions, "final_joint_ids": views}
            | {"metrics": dict(episode.metrics), "error": _shallow(episode.error) if episode.error else None}
        )
    return {
        "episodes": rows,
        "ids": torch.tensor(ids, dtype=torch.int64),
        "logprobs": torch.tensor(logprobs, dtype=torch.float64),  # what a Python number is
    }


def unpacked(state: Mapping[str, Any]) -> tuple[Episode, ...]:
    """The episodes that `packed` took, but for `Task.data`."""
    ids, logprobs = iter(state["ids"].tolist()), iter(state["logprobs"].tolist())
    episodes = []
    for row in state["episodes"]:
        actions = []
        for given in row["actions"]:
            own = {name: tuple(next(ids) for _ in range(given[name])) for name in IDS}
            drawn = tuple(next(logprobs) for _ in range(given["logprobs"]))
            actions.append(Action(**{**given, **own, "logprobs": drawn}))
        views = {name: tuple(next(ids) for _ in range(length)) for name, length in row["final_joint_ids"].items()}
        error = Failure(**row["error"]) if row["error"] else None
        whole = {"task": Task(**row["task"]), "actions": tuple(actions), "final_joint_ids": views, "error": error}
        episodes.append(Episode(**{**row, **whole}))
    return tuple(episodes)


def _shallow(value: Any) -> dict[str, Any]:
    """A dataclass as a dict of its fields, as they are."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
