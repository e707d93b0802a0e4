"""What all competitors are given: the same questions, profiles and lengths, and a game whose rewards always differ.

Replies have lengths that are chosen beforehand: no token ends them (`endless`). A model that learns, or another draw of
the random numbers, can then not change how much work there is, and every competitor does exactly as much.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from marft.config import Config, ModelConfig
from marft.environments.base import Outcome
from marft.models.base import Base, load_base
from marft.types import Split, Task
from marft.validation import validate

PROFILES = {
    "planner": "You plan how to solve a word problem. Name the numbers that matter and the steps, in order.",
    "solver": "You solve a word problem with the help of a plan. End with the answer as one number.",
}
# What a role prompt of a real team says: who else is there, what to write, what not to
RULES = (
    "You are one of two agents that work on the same problem. The planner reads it first and writes a plan; the solver "
    "reads the problem and the plan and gives the answer. Nobody else reads what you write. Keep to these rules. Read "
    "the whole problem before you write anything. Write in plain English and in short sentences. Name every number of "
    "the problem that matters, together with what it counts or measures, and leave out those that do not matter. Say "
    "what is asked for. If the problem mentions units, keep them, and convert them only where two numbers with "
    "different units have to be added or compared. Put one step on one line and number the lines. A step is one "
    "addition, subtraction, multiplication or division of two numbers; when a step needs the result of an earlier one, "
    "say of which. Do not skip steps, do not repeat the problem, and do not apologise. When the other agent has made a "
    "mistake, say in one sentence what is wrong and go on with the right number. When something is missing that cannot "
    "be worked out, say so instead of guessing. Check each result once by working backwards. Do not use tables, "
    "headings, bold letters or formulas in any markup language, because the other agent reads plain text only."
)
NAMES = ("Ann", "Bob", "Cy", "Dora", "Eve", "Finn")
THINGS = ("apples", "books", "coins", "eggs", "pens", "tickets")
FOLLOW_UP = "Look at your work again. Correct it where it is wrong and give the final result."


@dataclass(frozen=True)
class Lengths:
    """Reply lengths in tokens: uniform between `low` and `high`, fixed by place, as whole-number draws of one seed."""

    low: int
    high: int

    def draw(self, episodes: int, agents: int) -> list[list[int]]:
        """`[episode][agent]`; the first ones stay as they are when more are asked for."""
        rng = random.Random("lengths")
        return [[rng.randint(self.low, self.high) for _ in range(agents)] for _ in range(episodes)]


def level(lengths: Sequence[Sequence[int]]) -> list[list[int]]:
    """As many replies and, per agent, as many tokens in all, but of lengths that differ by one token at most."""
    columns = []
    for column in zip(*lengths, strict=True):
        least, rest = divmod(sum(column), len(column))
        columns.append([least + (row < rest) for row in range(len(column))])
    return [list(row) for row in zip(*columns, strict=True)]


def question(number: int) -> str:
    """A word problem of about 30 tokens, another for every number."""
    rng = random.Random(f"question {number}")
    one, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    first, second, third = (rng.randint(2, 60) for _ in range(3))
    return (
        f"{one} has {first} {thing} and buys {second} more. {other} has {third} {thing} fewer. How many {thing} do "
        "they have together?"
    )


def profile(agent: str, characters: int) -> str:
    """An agent's role prompt: a line, followed by as much of the long rules as `characters` allow."""
    return f"{PROFILES[agent]} {RULES[:characters]}".strip()


def endless(base: Base) -> Base:
    """The same model, for which no token ends a reply: each runs to its `max_tokens`."""
    return replace(base, chat=replace(base.chat, stop_ids=()))


def checksum(text: str) -> float:
    """A reward in [0, 1) in which two texts tie only when they are equal, so that every reply has a gradient."""
    return zlib.crc32(text.encode()) / 2**32


@dataclass(frozen=True)
class Questions:
    """The game of the iteration benchmarks: word problems, one turn, each agent earns its words' `checksum`."""

    name: str = "benchmark questions"

    def size(self, split: Split) -> int | None:
        """Without end."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """The same question in both splits: nothing is evaluated here."""
        return Task(f"{split}-{index}", question(index), "benchmark")

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> Task:
        """The task is the state."""
        return task

    def observe(self, state: Task, agent: str) -> str:
        """Nothing besides the question."""
        return ""

    def step(self, state: Task, messages: Mapping[str, str]) -> Outcome:
        """The end."""
        return Outcome(state, {name: checksum(text) for name, text in messages.items()})


@dataclass(frozen=True)
class Size:
    """How large an iteration is: `agents` answer each of `tasks` x `samples` episodes with `tokens` tokens."""

    agents: int = 1
    tasks: int = 8
    samples: int = 4
    tokens: int = 48

    @property
    def replies(self) -> int:
        """All replies of an iteration."""
        return self.agents * self.tasks * self.samples


def experiment(size: Size, model: str, dtype: str, threads: int | None = None, **sections: Any) -> Config:
    """GRPO in marft: a group baseline, no critic, token-level ratios, one update; nothing but learning is written."""
    given = {
        "name": "benchmark",
        "threads": threads,
        "model": {"name": model, "dtype": dtype},
        "team": {"agents": [{"name": f"agent{number}"} for number in range(size.agents)], "dependency": "parallel"},
        "environment": {"name": "benchmarks.workload:Questions"},
        "rollout": {"tasks": size.tasks, "samples": size.samples, "sampling": {"max_tokens": size.tokens}},
        "credit": {"baseline": "group", "normalise": "agent"},
        "critic": {"kind": "none"},
        "update": {"level": "token", "lr": 1e-5},
        "evaluation": {"tasks": 0},
        "run": {"trackers": [], "save_every": 1000},
    }
    return validate(Config, given | sections, "benchmark")


def torch_dtype(name: str) -> torch.dtype:
    """`float32` or `bfloat16` as torch has it."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def resolve_dtype(name: str) -> str:
    """What `native` means on this machine, as `marft` itself decides."""
    base = load_base(ModelConfig(name="tiny", dtype=name), "cpu")
    return str(base.model.dtype).removeprefix("torch.")
