"""Reasoning: questions from reasoning-gym's generators, graded by each generator's own scorer.

Scorers parse and evaluate what a model wrote, so they run in child processes with a deadline. A scorer that raises on
an answer is counted (`unscorable`, score 0); one that hangs or crashes fails its episode, which is not trained on.

Which questions are held out. The held-out set is drawn first, from `heldout_seed`: distinct questions, at most
`heldout_size`, and never more than half of the distinct ones found (a small generator repeats itself). Training draws
from `train_seed` and skips every question that is held out. Seeds alone would not keep them apart: in reasoning-gym
the question at (seed, index) is the one at (seed + 1, index - 1).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import cached_property, lru_cache
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marft.environments.attempts import State, judge, without_verdict
from marft.environments.base import Outcome
from marft.environments.generator import Question, QuestionStream
from marft.environments.reply import Decide, check_answerer, deciding_answer, read_answer
from marft.grading.bounded import shared_pool
from marft.section import NonNegative, Positive, Rate, Section
from marft.types import MarftError, Split, Task
from marft.validation import validate

SEARCH = 8  # draws, in multiples of heldout_size, that building the held-out set may cost per generator
SKIPS = 1000  # draws in a row that may be held out before training gives up
SKIP_STRIDE = 1_000_003  # far from the indices in use, so that a skipped question is not the next task's


class DatasetConfig(Section):
    """One generator of a mix, drawn in proportion to `weight`."""

    dataset: str = Field(description="a reasoning-gym generator")
    parameters: dict[str, Any] = Field(default_factory=dict, description="of the generator")
    weight: Rate = Field(1.0, description="how often it is drawn, beside the others")


class Parameters(Section):
    """What the config's `environment` may say: `dataset` and `parameters`, or `datasets`."""

    dataset: str | None = Field(None, description="a reasoning-gym generator, such as chain_sum")
    parameters: dict[str, Any] = Field(default_factory=dict, description="of the generator")
    datasets: list[DatasetConfig] = Field(default_factory=list, description="several generators, mixed by weight")
    train_seed: NonNegative = Field(0, description="of the endless training questions")
    heldout_seed: NonNegative = Field(1_000_000_000, description="of the held-out questions")
    heldout_size: Positive = Field(256, description="how many questions are held out, and so never trained on")
    answer: Literal["whole", "last_number", "last_line", "tag", "boxed"] = Field(
        "whole", description="what the scorer is given"
    )
    answerer: str | None = Field(None, description="whose message is graded; default: the last to act")
    decide: Decide = Field("answerer", description="vote: the answer that most of those who acted gave is graded")
    reward: Literal["score", "success"] = Field("score", description="success: 1 for a right answer and else 0")
    success_at: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="the score from which an answer is right")
    attempts: Positive = Field(1, description="turns in which the team may answer")
    feedback: Literal["none", "verdict"] = Field("none", description="verdict: all read that the last answer was wrong")
    deadline: Rate = Field(20.0, description="seconds after which scoring an answer has failed")

    @model_validator(mode="after")
    def _names_its_questions_once(self) -> Parameters:
        if (self.dataset is None) == (not self.datasets):
            raise ValueError("environment.dataset: give either `dataset` or a list `datasets`")
        if self.datasets and self.parameters:
            raise ValueError("environment.parameters: with `datasets`, each entry has its own `parameters`")
        if self.train_seed == self.heldout_seed:
            raise ValueError("environment.heldout_seed: must differ from train_seed")
        if self.decide == "vote" and self.answerer is not None:
            raise ValueError("environment.answerer: with `decide: vote` all who act answer; leave it out")
        return self

    @property
    def mix(self) -> tuple[DatasetConfig, ...]:
        """The generators, one or many."""
        return tuple(self.datasets or [DatasetConfig(dataset=self.dataset or "", parameters=self.parameters)])


class Reasoning:
    """The team answers a question; the score of its last answer is its reward.

    With `feedback: verdict` an attempt pays what it adds to the best score so far, so that an episode never earns more
    than its best answer's score, and repeating a half-right answer earns nothing.
    """

    name = "reasoning"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "reasoning")
        mix = self.parameters.mix
        self._train = [QuestionStream(each.dataset, each.parameters, self.parameters.train_seed) for each in mix]
        self._fresh = [QuestionStream(each.dataset, each.parameters, self.parameters.heldout_seed) for each in mix]

    @property
    def attempts(self) -> int:
        """The turns in which the team may answer."""
        return self.parameters.attempts

    def size(self, split: Split) -> int | None:
        """Training is endless; held out are at most `heldout_size` questions."""
        return None if split == "train" else len(self._heldout)

    def task(self, split: Split, index: int) -> Task:
        """Held-out: the index-th of a fixed list. Training: a pure function of the index, questions may come twice."""
        if split == "heldout":
            return self._heldout[index]
        weights = [each.weight for each in self.parameters.mix]
        part = Random(f"{self.parameters.train_seed}/{index}").choices(range(len(weights)), weights)[0]
        for skip in range(SKIPS):
            question = self._train[part].draw(index + skip * SKIP_STRIDE)
            if question.text not in self._heldout_texts:
                return _task(f"train-{index}", question, part)
        raise MarftError(f"{self._train[part].name}: {SKIPS} draws in a row are held out; lower heldout_size")

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the named answerer is not in the team."""
        check_answerer(self.parameters.answerer, agents)
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        """With `feedback: verdict`, that the last answer was wrong: never what it was, which D may hide."""
        return state.attempts.news

    async def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Grade the team's answer; a turn in which the answerer does not act is no attempt.

        Raises `GraderFailed` when the scorer hangs or crashes.
        """
        given = self.parameters
        acted, answer = deciding_answer(given.decide, given.answerer, messages, self._read, _one_spelling)
        if not acted:
            return Outcome(state, 0.0, terminated=False, metrics={"success": 0.0})
        score, unscorable = (0.0, False) if answer is None else await self._score(answer, state.task)
        right = score >= given.success_at
        worth = float(right) if given.reward == "success" else score
        judged = judge(state.attempts, given.feedback, given.attempts, worth, right)
        return Outcome(
            State(state.task, judged.attempts),
            judged.reward,
            terminated=judged.over,
            metrics={
                "success": float(right),
                "score": score,
                "answered": float(answer is not None),
                "unscorable": float(unscorable),
                "first_attempt": float(judged.attempts.first_right),
            },
            answer=_one_spelling(answer or ""),
        )

    def without_verdict(self) -> Reasoning:
        """The same questions without being told whether an answer was right; itself where nobody is told anyway."""
        return without_verdict(self)

    def _read(self, message: str) -> str | None:
        return read_answer(self.parameters.answer, message)

    async def _score(self, answer: str, task: Task) -> tuple[float, bool]:
        stream = pickle.dumps(self._train[task.data["part"]])
        return await shared_pool().run(_score, stream, answer, task.data["entry"], deadline=self.parameters.deadline)

    @cached_property
    def _heldout_texts(self) -> frozenset[str]:
        return frozenset(task.prompt for task in self._heldout)

    @cached_property
    def _heldout(self) -> tuple[Task, ...]:
        """The parts take turns in proportion to their weights, so that any first few are a fair sample of the mix."""
        quotas = _quotas([each.weight for each in self.parameters.mix], self.parameters.heldout_size)
        taken: set[str] = set()
        placed: list[tuple[float, int, Question]] = []
        for part, quota in enumerate(quotas):
            questions = _distinct(self._fresh[part], quota, taken)
            taken.update(question.text for question in questions)
            placed += [((place + 0.5) / quota, part, question) for place, question in enumerate(questions)]
        placed.sort(key=lambda each: each[:2])
        return tuple(_task(f"heldout-{index}", question, part) for index, (_, part, question) in enumerate(placed))


@lru_cache(maxsize=128)
def _stream(pickled: bytes) -> QuestionStream:
    """Made once in each child: some generators take seconds to make."""
    stream: QuestionStream = pickle.loads(pickled)
    return stream


def _score(stream: bytes, answer: str, entry: Mapping[str, Any]) -> tuple[float, bool]:
    """In a child: the score, and whether the scorer broke on the answer."""
    return _stream(stream).score(answer, entry)


def _one_spelling(answer: str) -> str:
    return " ".join(answer.split())


def _task(name: str, question: Question, part: int) -> Task:
    return Task(name, question.text, question.kind, {"entry": question.entry, "part": part})


def _distinct(stream: QuestionStream, quota: int, taken: set[str]) -> list[Question]:
    """At most `quota` distinct questions that are not `taken`, and at most half of the distinct ones found."""
    found: dict[str, Question] = {}
    for index in range(SEARCH * quota):
        question = stream.draw(index)
        if question.text not in taken:
            found.setdefault(question.text, question)
        if len(found) == 2 * quota:
            break
    if quota and len(found) < 2:
        raise MarftError(
            f"{stream.name}: fewer than 2 distinct questions, so none can be held out; widen its parameters"
        )
    return list(found.values())[: min(quota, len(found) // 2)]


def _quotas(weights: list[float], size: int) -> list[int]:
    """`size` shared out by weight, by largest remainder."""
    exact = [weight * size / sum(weights) for weight in weights]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda part: quotas[part] - exact[part])
    for part in by_remainder[: size - sum(quotas)]:
        quotas[part] += 1
    return quotas
