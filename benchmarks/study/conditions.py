"""What is compared: conditions, each a few changes on one base config, gathered in experiments.

A change is a dotted key of an ordinary config and its value. On top of a config's own keys there are

    team.size, team.hidden, team.anonymous    a team of `benchmarks.nano.teams`
    team.adapters                             the adapter of each agent, by place; those that name the same one share it
    team.edges                                D as pairs of places (speaker, reader), from 0
    model.name: nano                          the small model of `benchmarks.nano`
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from benchmarks.nano.teams import team
from marft.config import Config, parse_config

MODEL = "nano"
# What says where and how fast a run is computed, and how it is called, but not what is learnt
ASIDE = ("name", "seed", "device", "threads", "run")


@dataclass(frozen=True)
class Condition:
    """A name, what it changes on the experiment's base, and the group within which it is compared."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""

    @property
    def key(self) -> str:
        """Its name within the experiment: `duo/ippo`, or `ippo` where there are no groups."""
        return f"{self.group}/{self.name}" if self.group else self.name


@dataclass(frozen=True)
class Contrast:
    """A question of several conditions: seed by seed, the sum of `plus` minus the sum of `minus` (keys)."""

    text: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """Conditions compared with one of them, the baseline, which stands in every group.

    `note` says what a reader must know. `seconds`: of one run, roughly, until runs were measured. `slow` experiments
    run only when they are named, over at most `seeds` seeds.
    """

    name: str
    question: str
    base: Mapping[str, Any]
    conditions: tuple[Condition, ...]
    baseline: str
    contrasts: tuple[Contrast, ...] = ()
    note: str = ""
    figure: Literal["curves", "retention", "budget"] = "curves"
    slow: bool = False
    seeds: int | None = None
    seconds: float = 40.0

    def __post_init__(self) -> None:
        keys = [each.key for each in self.conditions]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{self.name}: two conditions have the same name")
        named = [self.baseline_of(each) for each in self.conditions]
        named += [key for each in self.contrasts for key in (*each.plus, *each.minus)]
        for key in named:
            if key not in keys:
                raise ValueError(f"{self.name}: no condition '{key}'")

    def baseline_of(self, condition: Condition) -> str:
        """The key of what a condition is compared with."""
        return replace(condition, name=self.baseline).key

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups, as declared."""
        return tuple(dict.fromkeys(each.group for each in self.conditions))


@dataclass(frozen=True)
class Run:
    """One training: a condition of an experiment and a seed. `raw` is its config as a file may hold it.

    `settled` are all keys of the resolved config that decide what is learnt, `chosen` those that are not at the
    library's default.
    """

    experiment: str
    condition: str
    seed: int
    raw: Mapping[str, Any]
    settled: Mapping[str, Any]
    chosen: frozenset[str]

    @property
    def hash(self) -> str:
        """Of everything but the seed."""
        return hashlib.sha256(json.dumps(self.settled, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The name of its run directory: conditions of two experiments that are the same share their runs."""
        return f"{self.hash}-{self.seed}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.experiment}: {self.condition}, seed {self.seed}"


def runs_of(experiment: Experiment, seeds: int, overrides: Mapping[str, Any] | None = None) -> Iterator[Run]:
    """All runs of an experiment; `overrides` go over every condition. Raises `MarftError` for a bad condition."""
    for condition in experiment.conditions:
        raw = written({**experiment.base, **condition.changes, **(overrides or {})})
        config = parse_config(raw, f"{experiment.name}: {condition.key}")
        settled, chosen = resolved(config)
        for seed in range(seeds if experiment.seeds is None else min(seeds, experiment.seeds)):
            yield Run(experiment.name, condition.key, seed, {**raw, "seed": seed}, settled, chosen)


def ordered(runs: Sequence[Run]) -> list[Run]:
    """By seed first, so that stopping early leaves balanced tables; what two experiments share stands once."""
    unique = {(run.seed, run.hash): run for run in reversed(runs)}
    kept = {id(run) for run in unique.values()}
    return sorted((run for run in runs if id(run) in kept), key=lambda run: run.seed)


def written(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The config that dotted keys and values describe, with teams written out."""
    raw: dict[str, Any] = {}
    for key, value in changes.items():
        *path, last = key.split(".")
        place = raw
        for part in path:
            place = place.setdefault(part, {})
        place[last] = copy.deepcopy(value)
    if "size" in raw["team"]:
        raw["team"] = written_team(raw["team"])
    return raw


def written_team(given: Mapping[str, Any]) -> dict[str, Any]:
    """A team of the small model's, with the keys that go by place replaced by a config's own."""
    rest = dict(given)
    made = team(rest.pop("size"), rest.pop("hidden", True), rest.pop("anonymous", False))
    adapters, edges = rest.pop("adapters", None), rest.pop("edges", None)
    agents = made["agents"]
    if adapters is not None:
        agents = [{**each, "adapter": adapter} for each, adapter in zip(agents, adapters, strict=True)]
    if edges is not None:
        rest["dependency"] = {"edges": [[agents[one]["name"], agents[other]["name"]] for one, other in edges]}
    return {**made, "agents": agents, **rest}


def resolved(config: Config) -> tuple[dict[str, Any], frozenset[str]]:
    """(key -> value for all that decides what is learnt, the keys among them that are not at the schema's default)."""
    every = dict(flat({k: v for k, v in config.model_dump(mode="json").items() if k not in ASIDE}))
    if order_is_nothing(config):
        every |= {"update.schedule": "simultaneous", "update.order": "declared"}
    chosen = dict(flat(config.model_dump(mode="json", exclude_defaults=True)))
    if every["model.name"] == MODEL:
        every["model.name"] = small_model()
    return every, frozenset(every.keys() & chosen.keys())


@cache
def small_model() -> str:
    """The name of the small model as it is made now, which holds a hash of all that decides its weights."""
    from benchmarks.nano.train import Recipe  # loads torch

    return Recipe().name


def order_is_nothing(config: Config) -> bool:
    """Whether agents may be updated in any order, or all at once, with the same result: docs/algorithm.md, "Agent by
    agent". Conditions that differ in nothing else are one training, and are run once."""
    adapters = [agent.adapter_name for agent in config.team.agents]
    apart = len(set(adapters)) == len(adapters)
    return apart and config.update.carry == "none" and config.update.schedule != "alternate"


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested config as ("update.lr", 0.001); items of a list by their place. Empty lists and mappings stay whole."""
    items = value if isinstance(value, Mapping) else dict(enumerate(value)) if isinstance(value, list) else {}
    if not items:
        yield prefix, value
    for key, each in items.items():
        yield from flat(each, f"{prefix}.{key}" if prefix else str(key))


def same(recorded: Mapping[str, Any], run: Run) -> bool:
    """Whether a recorded config trains what a run would: keys that came since then must be at their default."""
    if any(key not in run.settled or run.settled[key] != value for key, value in recorded.items()):
        return False
    return not (run.settled.keys() - recorded.keys()) & run.chosen
