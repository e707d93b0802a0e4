"""Question and answer: rows of a file or a `datasets` source, each with one right answer (GSM8K and the like).

Numbers are compared as exact decimals, anything else as text without regard to case and spacing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marft.environments.base import Outcome
from marft.environments.reply import NOWHERE, Decide, check_answerer, deciding_answer, number, read_answer
from marft.environments.rows import Columns, Row, Source
from marft.environments.splits import Splits
from marft.section import Section
from marft.types import MarftError, Split, Task
from marft.validation import validate


class Parameters(Section):
    """What the config's `environment` may say; the source is `path` (a file) or `hub` (a `datasets` id or folder)."""

    path: str | None = Field(None, description="a JSONL, JSON, CSV or Parquet file, relative to the current folder")
    heldout_path: str | None = Field(None, description="a second file to hold out")
    hub: str | None = Field(None, description="a `datasets` id, or a local folder of one")
    subset: str | None = Field(None, description="the configuration of a `datasets` source, such as `main`")
    split_train: str = Field("train", description="the split of `hub` to train on")
    split_heldout: str | None = Field(None, description="the split of `hub` to hold out, such as `test`")
    heldout_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="held out when no other source is named"
    )
    question: str = Field("question", description="the column of questions")
    answer: str = Field("answer", description="the column of right answers")
    final_answer: Literal["whole", "after_hashes", "boxed"] = Field(
        "whole", description="where the right answer stands in it"
    )
    reply: Literal["last_number", "whole", "last_line", "tag", "after_hashes", "boxed"] = Field(
        "last_number", description="what of the reply is compared with it"
    )
    answerer: str | None = Field(None, description="whose message is graded; default: the last to act")
    decide: Decide = Field("answerer", description="vote: the answer that most of those who acted gave is graded")

    @model_validator(mode="after")
    def _has_one_source(self) -> Parameters:
        if (self.path is None) == (self.hub is None):
            raise ValueError("environment.path: give either `path` (a file) or `hub` (a `datasets` source)")
        if self.path is None and self.heldout_path is not None:
            raise ValueError("environment.heldout_path: goes with `path`; with `hub`, name a `split_heldout`")
        if self.hub is None and (self.split_heldout is not None or self.subset is not None):
            raise ValueError(
                "environment.split_heldout, environment.subset: go with `hub`; with `path`, name a `heldout_path`"
            )
        if self.decide == "vote" and self.answerer is not None:
            raise ValueError("environment.answerer: with `decide: vote` all who act answer; leave it out")
        return self


@dataclass(frozen=True)
class State:
    """One episode, before and after its only turn."""

    task: Task


class QuestionAnswer:
    """One turn: reward 1 to the team when the answerer's reply holds the right answer.

    A training row whose question is also held out is left out of training; `dropped` counts them.
    """

    name = "question_answer"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "question_answer")
        given = self.parameters
        names = ("path", "heldout_path", "hub", "subset", "split_train", "split_heldout", "heldout_share")
        source = Source(**{name: getattr(given, name) for name in names})
        train, heldout = source.rows(Columns(given.question, given.answer))
        self._splits = Splits.of(
            str(source), [self._task("train", row) for row in train], [self._task("heldout", row) for row in heldout]
        )
        self.dropped = self._splits.dropped

    def size(self, split: Split) -> int | None:
        """The rows of the split."""
        return self._splits.size(split)

    def task(self, split: Split, index: int) -> Task:
        """The index-th row; its id is its place in the source, counted from 1."""
        return self._splits.task(split, index)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the named answerer is not in the team."""
        check_answerer(self.parameters.answerer, agents)
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        """Nothing besides the question."""
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Grade the answerer's message; a turn in which the answerer does not act does not end the game."""
        given = self.parameters
        acted, answer = deciding_answer(given.decide, given.answerer, messages, self._read, same_text)
        if not acted:
            return Outcome(state, 0.0, terminated=False, metrics={"success": 0.0})
        right = float(answer is not None and same_answer(answer, state.task.data["answer"]))
        metrics = {"success": right, "answered": float(answer is not None)}
        return Outcome(state, right, terminated=True, metrics=metrics, answer=same_text(answer or ""))

    def _read(self, message: str) -> str | None:
        return read_answer(self.parameters.reply, message)

    def _task(self, split: Split, row: Row) -> Task:
        answer = read_answer(self.parameters.final_answer, row.answer)
        if answer is None:
            where = NOWHERE[self.parameters.final_answer]
            raise MarftError(f"{row.place}: '{self.parameters.answer}' has {where}; see final_answer")
        if self.parameters.reply == "last_number" and number(answer) is None:
            raise MarftError(
                f"{row.place}: the answer {shorten(answer, 40)!r} is no number; see `final_answer` and `reply`"
            )
        return Task(f"{split}-{row.number}", row.question, "question_answer", {"answer": answer})


def same_answer(given: str, right: str) -> bool:
    """Equal as exact decimals where both are numbers (`1,000` = `1000.0`), else as text up to case and spacing."""
    return same_text(given) == same_text(right)


def same_text(answer: str) -> str:
    """The text that all spellings of an answer share: a number's shortest decimal, else lower case, single spaces."""
    found = number(answer)
    if found is None:
        return " ".join(answer.casefold().split())
    text = f"{found:f}" if found else "0"  # a decimal knows a zero with a sign
    return text.rstrip("0").rstrip(".") if "." in text else text
