"""The world of word problems: a team reads a question, and its last agent must say the answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from benchmarks.nano.problems import KINDS, LIMITS, Plan, draw_problem, read_plan, read_result
from marft.environments.base import Outcome
from marft.environments.reply import read_answer
from marft.section import Section
from marft.types import Split, Task
from marft.validation import suggestion, validate

Level = Annotated[int, Field(ge=min(LIMITS), le=max(LIMITS))]


class Parameters(Section):
    """What the config's `environment` may say."""

    kinds: Annotated[list[str], Field(min_length=1)] = Field(
        default_factory=lambda: list(KINDS), description="what is asked, in equal shares"
    )
    levels: Annotated[list[Level], Field(min_length=1)] = Field(
        default_factory=lambda: list(LIMITS),
        description="1: numbers to 4; 2: numbers to 9; 3: also doubles and triples; in equal shares",
    )
    pay: Literal["team", "each"] = Field(
        "team", description="team: 1 for the right answer; each: 1 to every agent whose own part is right"
    )

    @model_validator(mode="after")
    def _kinds_are_known(self) -> Parameters:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"environment.kinds: no kind '{kind}'{suggestion(kind, KINDS)}")
        for key, values in (("kinds", self.kinds), ("levels", self.levels)):
            if len(set(values)) < len(values):
                raise ValueError(f"environment.{key}: names one twice")
        return self


@dataclass(frozen=True)
class State:
    """One episode: the team in declared order, and the right plan."""

    agents: tuple[str, ...]
    plan: Plan


class WordProblems:
    """Reward 1 to the team when the last number that the last declared agent says is the answer.

    With `pay: each`, every agent is paid 1 for its own part of a right solution: the first, if another one follows, for
    a plan of the right numbers that comes to the answer; the last for the answer; those between for a calculation that
    is right in every step and comes to the answer. `success` stays the team's. The metrics `plan` and `calculation` say
    whether these parts were right (a lone agent's: 0 where its reply is no plan, or holds no whole calculation).
    """

    name = "word_problems"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "word_problems")

    def size(self, split: Split) -> int | None:
        """Endless."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """The same problem for the same index; no plan stands in both splits."""
        draw = random.Random(f"word problems/{split}/{index}")
        problem = draw_problem(draw, split, self.parameters.kinds, self.parameters.levels)
        data = {"plan": problem.plan.text, "answer": problem.answer, "level": problem.level}
        return Task(f"{split}-{index}", problem.question, problem.kind, data)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Any number of agents can play."""
        plan = read_plan(task.data["plan"])
        assert plan is not None, "a task's own plan can be read"
        return State(agents, plan)

    def observe(self, state: State, agent: str) -> str:
        """Nothing: the question says all."""
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """The only turn."""
        first, *between, last = state.agents if len(state.agents) > 1 else ("", *state.agents)
        right = state.plan.results[-1]
        answer = read_answer("last_number", messages.get(last, "")) or ""
        success = float(answer == str(right))
        planned = float(_plans(messages.get(first or last, "").partition(" :")[0], state.plan))
        calculated = {name: float(read_result(messages.get(name, "")) == right) for name in between or (last,)}
        metrics = {"success": success, "plan": planned, "calculation": next(iter(calculated.values()))}
        parts = {first: planned, **(calculated if between else {}), last: success}
        rewards = {name: part for name, part in parts.items() if name in messages}
        each = self.parameters.pay == "each"
        return Outcome(state, rewards if each else success, metrics=metrics, answer=answer)


def _plans(message: str, plan: Plan) -> bool:
    """Whether a message is a plan of the same numbers, in any order, that comes to the same."""
    said = read_plan(message)
    return said is not None and said.results[-1] == plan.results[-1] and _numbers(said) == _numbers(plan)


def _numbers(plan: Plan) -> list[int]:
    return sorted([plan.start, *(number for _, number in plan.steps)])
