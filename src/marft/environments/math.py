r"""Math: problems with one right answer, from your own files or from well-known sets, graded as mathematics.

The answer of a reply is read and compared as `marft.grading.math_answer` says. Comparing happens in a child process
with a deadline: a comparison that hangs fails its episode, which is then not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import shorten
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marft.environments.attempts import State, judge, without_verdict
from marft.environments.base import Outcome
from marft.environments.math_benchmarks import BENCHMARKS, BenchmarkName, FinalAnswer
from marft.environments.reply import NOWHERE, Decide, check_answerer, deciding_answer, read_answer
from marft.environments.rows import Columns, Row, Source
from marft.environments.splits import Splits
from marft.grading.math_answer import DEADLINE, canonical, grade, read_math_answer
from marft.section import Positive, Rate, Section
from marft.types import MarftError, Split, Task
from marft.validation import validate


class Parameters(Section):
    """What the config's `environment` may say; the source is `benchmark`, `path` (a file) or `hub`.

    `path` and `heldout_path` beside `benchmark` read its problems from local files. A `heldout_path` or
    `split_heldout` with nothing to train on makes tasks for evaluation only.
    """

    benchmark: BenchmarkName | None = Field(None, description="a well-known set, by name")
    path: str | None = Field(None, description="a JSONL, JSON, CSV or Parquet file, relative to the current folder")
    heldout_path: str | None = Field(None, description="a second file, to hold out")
    hub: str | None = Field(None, description="a `datasets` id, or a local folder of one")
    subset: str | None = Field(None, description="the configuration of a `datasets` source, such as `main`")
    split_train: str | None = Field("train", description="the split of `hub` to train on; null: none")
    split_heldout: str | None = Field(None, description="the split of `hub` to hold out, such as `test`")
    heldout_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="held out when no other source is named"
    )
    question: str | None = Field(None, description="the column of problems; default: the benchmark's, or `question`")
    answer: str | None = Field(None, description="the column of right answers; default: the benchmark's, or `answer`")
    final_answer: FinalAnswer | None = Field(None, description="where the right answer stands in it; default: `whole`")
    id: str | None = Field(None, description="a column that names every problem; without one, its line does")
    kind: str | None = Field(None, description="a column (level, subject) by which reports are split up")
    instruction: str = Field("Put your final answer in \\boxed{}.", description="stands under every problem")
    plain_number: bool = Field(False, description="without box, tag or `####`, the reply's last number is its answer")
    answerer: str | None = Field(None, description="whose message is graded; default: the last to act")
    decide: Decide = Field("answerer", description="vote: the answer that most of those who acted gave is graded")
    attempts: Positive = Field(1, description="turns in which the team may answer")
    feedback: Literal["none", "verdict"] = Field("none", description="verdict: all read that the last answer was wrong")
    deadline: Rate = Field(DEADLINE, description="seconds after which a comparison has failed")

    @model_validator(mode="after")
    def _has_one_source(self) -> Parameters:
        files = self.path is not None or self.heldout_path is not None
        if (files or self.benchmark is not None) == (self.hub is not None):
            raise ValueError(
                "environment.path: give either `benchmark`, `path` (a file) or `hub` (a `datasets` source)"
            )
        if self.hub is None and (self.subset, self.split_train, self.split_heldout) != (None, "train", None):
            raise ValueError(
                "environment.subset, environment.split_…: go with `hub`; with `path`, name a `heldout_path`"
            )
        if self.hub is not None and self.split_train is None and self.split_heldout is None:
            raise ValueError("environment.split_train: without it, name a `split_heldout` to evaluate on")
        if self.decide == "vote" and self.answerer is not None:
            raise ValueError("environment.answerer: with `decide: vote` all who act answer; leave it out")
        return self

    @property
    def source(self) -> Source:
        """Where the rows come from."""
        if self.path is not None or self.heldout_path is not None:
            return Source(path=self.path, heldout_path=self.heldout_path, heldout_share=self.heldout_share)
        if self.benchmark is not None:
            known = BENCHMARKS[self.benchmark]
            splits = {"split_train": known.train, "split_heldout": known.heldout}
            return Source(hub=known.hub, subset=known.subset, **splits, heldout_share=self.heldout_share)
        splits = {"split_train": self.split_train, "split_heldout": self.split_heldout}
        return Source(hub=self.hub, subset=self.subset, **splits, heldout_share=self.heldout_share)

    @property
    def columns(self) -> Columns:
        """What the config says, else what the benchmark says, else `question` and `answer`."""
        known = BENCHMARKS[self.benchmark] if self.benchmark is not None else None
        return Columns(
            question=self.question or (known.question if known else "question"),
            answer=self.answer or (known.answer if known else "answer"),
            answer_else=known.answer_else if known and self.answer is None else None,
            id=self.id or (known.id if known else None),
            kind=self.kind or (known.kind if known else None),
            lists=True,
        )

    @property
    def place_of_answer(self) -> FinalAnswer:
        """Where in its column the right answer stands: a column that the config names is not the benchmark's."""
        if self.final_answer is not None or self.benchmark is None or self.answer is not None:
            return self.final_answer or "whole"
        return BENCHMARKS[self.benchmark].final_answer


class Math:
    """The team solves a problem; a right answer is worth 1.

    A training problem that is also held out is left out of training; `dropped` counts them.
    """

    name = "math"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "math")
        source = self.parameters.source
        train, heldout = source.rows(self.parameters.columns)
        self._splits = Splits.of(
            str(source),
            None if source.evaluation_only else [self._task("train", row) for row in train],
            [self._task("heldout", row) for row in heldout],
        )
        self.dropped = self._splits.dropped

    @property
    def attempts(self) -> int:
        """The turns in which the team may answer."""
        return self.parameters.attempts

    def size(self, split: Split) -> int | None:
        """The problems of the split; raises `MarftError` for the training split of a set that has none."""
        return self._splits.size(split)

    def task(self, split: Split, index: int) -> Task:
        """The index-th problem; its id is that of the id column, else its place in the source, counted from 1."""
        return self._splits.task(split, index)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the named answerer is not in the team."""
        check_answerer(self.parameters.answerer, agents)
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        """With `feedback: verdict`, that the last answer was wrong: never what it was, which D may hide."""
        return state.attempts.news

    async def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Grade the team's answer; a turn in which the answerer does not act is no attempt.

        Raises `GraderFailed` when the comparison hangs or crashes.
        """
        given = self.parameters
        acted, answer = deciding_answer(given.decide, given.answerer, messages, self._read, canonical)
        if not acted:
            return Outcome(state, 0.0, terminated=False, metrics={"success": 0.0})
        found = await grade(answer, state.task.data["answer"], deadline=given.deadline)
        judged = judge(state.attempts, given.feedback, given.attempts, float(found.right), found.right)
        return Outcome(
            State(state.task, judged.attempts),
            judged.reward,
            terminated=judged.over,
            metrics={
                "success": float(found.right),
                "answered": float(found.answered),
                "first_attempt": float(judged.attempts.first_right),
            },
            answer=found.answer,
        )

    def without_verdict(self) -> Math:
        """The same problems without being told whether an answer was right; itself where nobody is told anyway."""
        return without_verdict(self)

    def _read(self, message: str) -> str | None:
        return read_math_answer(message, self.parameters.plain_number)

    def _task(self, split: Split, row: Row) -> Task:
        place = self.parameters.place_of_answer
        answer = read_answer(place, row.answer)
        if answer is None:
            column = self.parameters.columns.answer
            raise MarftError(
                f"{row.place}: '{column}' has {NOWHERE[place]} in {shorten(row.answer, 40)!r}; see final_answer"
            )
        prompt = f"{row.question}\n\n{self.parameters.instruction}".strip()
        return Task(f"{split}-{row.id or row.number}", prompt, row.kind or "math", {"answer": answer})
