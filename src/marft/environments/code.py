"""Code: programming problems, graded by running the team's program against tests in a sandbox.

Benchmarks by name (HumanEval, MBPP, LiveCodeBench, DeepCoder, CodeForces) from the hub or from local files in the same
columns, or one's own problems. The first `public_tests` tests of a problem are public: a team may read them, and what
became of them; the others are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marft.environments.attempts import Feedback, State, judge, without_verdict
from marft.environments.base import Outcome
from marft.environments.code_problems import SOURCES, Columns, Format, Problem, Source, read_problem, read_program
from marft.environments.reply import answering_message, check_answerer
from marft.environments.rows import Record, Row, file_records, hub_records, share_out
from marft.environments.splits import Splits
from marft.grading.code_runner import CodeReport, CodeRunner, CodeTests, StdioTests, TestOutcome
from marft.grading.sandbox import Limits
from marft.section import NonNegative, Positive, Rate, Section
from marft.types import MarftError, Split, Task
from marft.validation import validate

SHOWN = 300  # characters of an input, an output or an error that an agent reads
SHOWN_TESTS = 5  # failed public tests that an agent reads about


Numbered = tuple[int, Problem]  # the number of its row, and the problem


class ColumnNames(Section):
    """What the columns of your own data are called."""

    question: str = "question"
    tests: str = "tests"
    entry_point: str = "entry_point"
    start: str = "start"


class Parameters(Section):
    """What the config's `environment` may say; the source is `benchmark`, `path` (a file) or `hub`.

    `path`, `heldout_path` or `hub` beside `benchmark` hold problems in its columns. A held-out source with nothing to
    train on makes tasks for evaluation only.
    """

    benchmark: Literal["humaneval", "humanevalplus", "mbpp", "livecodebench", "deepcoder", "codeforces"] | None = Field(
        None, description="a set by name: its source on the hub, or with `path` or `hub` the columns of those"
    )
    path: str | None = Field(
        None, description="a JSONL, JSON or CSV file (also .gz) or a Parquet file, relative to the current folder"
    )
    heldout_path: str | None = Field(None, description="a second file to hold out")
    hub: str | None = Field(None, description="a `datasets` id, or a local folder of one")
    subset: str | None = Field(None, description="the configuration of a `datasets` source")
    split_train: str | None = Field(None, description="the split to train on; default: the benchmark's, or `train`")
    split_heldout: str | None = Field(None, description="the split to hold out; default: the benchmark's, or none")
    heldout_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="held out when no other source is named"
    )
    columns: ColumnNames = Field(default_factory=ColumnNames, description="your own data's, without `benchmark`")
    answerer: str | None = Field(None, description="whose message is graded; default: the last to act")
    reward: Literal["share", "all"] = Field("share", description="share of tests passed, or 1 for all and else 0")
    public_tests: NonNegative = Field(0, description="the first so many tests of a problem are public")
    show_public_tests: bool = Field(False, description="the public tests stand in the task's prompt")
    attempts: Positive = Field(1, description="turns in which the team may answer")
    feedback: Feedback = Field("none", description="what all read after an attempt that does not end the episode")
    sandbox: Literal["auto", "limits-only"] = Field(
        "auto", description="limits-only: run even where the system allows no isolation; only for programs you trust"
    )
    seconds: Rate = Field(10.0, description="time of one program, or of one test that reads and prints")
    memory_mb: Positive = Field(512, description="memory of one program")
    disk_mb: Positive = Field(16, description="files that one program may write")
    output_mb: Positive = Field(4, description="what one program may print or return")
    processes: Positive = Field(8, description="processes and threads of one program")

    @model_validator(mode="after")
    def _has_one_source(self) -> Parameters:
        files = self.path is not None or self.heldout_path is not None
        if files and self.hub is not None:
            raise ValueError("environment.path: give either `path` (a file) or `hub` (a `datasets` source)")
        if not files and self.hub is None and self.benchmark is None:
            raise ValueError("environment.benchmark: give a `benchmark`, a `path` or a `hub`")
        if files and (self.subset, self.split_train, self.split_heldout) != (None, None, None):
            raise ValueError("environment.subset, environment.split_…: go with `hub`, not with `path`")
        if (self.feedback == "public-tests" or self.show_public_tests) and not self.public_tests:
            raise ValueError("environment.public_tests: must be above 0 where public tests are shown or fed back")
        return self

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(self.seconds, self.memory_mb, self.disk_mb, self.output_mb, self.processes)


class Code:
    """The team writes a program; the tests it passes are the team's reward.

    A training row whose question is also held out is left out of training; `dropped` counts them. `ungradable` counts
    rows that only a checker of their own could grade.
    """

    name = "code"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "code")
        self.runner = CodeRunner(self.parameters.limits, self.parameters.sandbox)
        self.ungradable = 0
        train, heldout = self._problems()
        self._splits = Splits.of(
            self._source,
            None if train is None else [self._task("train", *each) for each in train],
            [self._task("heldout", *each) for each in heldout],
            f" ({self.ungradable} cannot be graded)",
        )
        self.dropped = self._splits.dropped

    def without_verdict(self) -> Code:
        """The same problems, without the oracle that says whether a program was right."""
        return without_verdict(self)

    @property
    def attempts(self) -> int:
        """The turns in which the team may answer."""
        return self.parameters.attempts

    def size(self, split: Split) -> int | None:
        """The problems of the split; raises `MarftError` for the training split of a set that has none."""
        return self._splits.size(split)

    def task(self, split: Split, index: int) -> Task:
        """The index-th problem; its id is its place in the source, counted from 1."""
        return self._splits.task(split, index)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the named answerer is not in the team."""
        check_answerer(self.parameters.answerer, agents)
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        """What all read after an attempt: nothing, that it was wrong, or which public tests failed."""
        return state.attempts.news

    async def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Run the answerer's program; a turn in which the answerer does not act is no attempt.

        Raises `GraderFailed` when the sandbox or the tests themselves fail.
        """
        message = answering_message(self.parameters.answerer, messages)
        if message is None:
            return Outcome(state, 0.0, terminated=False, metrics={"success": 0.0})
        given = self.parameters
        problem: Problem = state.task.data["problem"]
        program = read_program(message, problem)
        report = await self.runner.run(program, problem.tests) if program else None
        share = report.share if report is not None else 0.0
        right = report is not None and report.passed
        public = report.first(given.public_tests) if report is not None and given.public_tests else None
        judged = judge(
            state.attempts,
            given.feedback,
            given.attempts,
            share if given.reward == "share" else float(right),
            right,
            public is not None and public.passed,
            _news(public, problem) if public is not None else "Your answer held no program.",
        )
        metrics = {"success": float(right), "share": share, "answered": float(bool(program))}
        metrics["first_attempt"] = float(judged.attempts.first_right)
        if given.public_tests:
            metrics["public"] = public.share if public is not None else 0.0
        answer = "\n".join(line.rstrip() for line in program.split("\n") if line.strip())
        return Outcome(State(state.task, judged.attempts), judged.reward, judged.over, metrics=metrics, answer=answer)

    @property
    def _source(self) -> str:
        given = self.parameters
        return given.path or given.heldout_path or given.hub or SOURCES[given.benchmark or ""].hub

    def _problems(self) -> tuple[list[Numbered] | None, list[Numbered]]:
        """The problems to train on (None: the source has no such part) and those held out."""
        given = self.parameters
        train = heldout = None
        if given.path is not None or given.heldout_path is not None:
            train = self._read(file_records(given.path)) if given.path is not None else None
            heldout = self._read(file_records(given.heldout_path)) if given.heldout_path is not None else None
        else:
            known = SOURCES[given.benchmark] if given.benchmark and not given.hub else Source("", None, "train", None)
            hub, subset = given.hub or known.hub, given.subset or known.subset
            splits = given.split_train or known.train, given.split_heldout or known.heldout
            train, heldout = (self._read(hub_records(hub, subset, each)) if each else None for each in splits)
        if heldout is not None:
            return train, heldout
        train = train or []
        _, out = share_out([Row(number, "", each.question, "") for number, each in train], given.heldout_share)
        held = {row.question for row in out}
        return [each for each in train if each[1].question not in held], [
            each for each in train if each[1].question in held
        ]

    def _read(self, records: Iterable[Record]) -> list[Numbered]:
        form: Format = self.parameters.benchmark or "own"
        columns = Columns(**self.parameters.columns.model_dump())
        problems = []
        for record in records:
            if not isinstance(record.content, Mapping):
                raise MarftError(f"{record.place}: is not a mapping of columns")
            problem = read_problem(form, record.content, record.place, columns)
            if problem is not None:
                problems.append((record.number, problem))
            else:
                self.ungradable += 1
        return problems

    def _task(self, split: Split, number: int, problem: Problem) -> Task:
        shown = _public_tests(problem, self.parameters.public_tests) if self.parameters.show_public_tests else ""
        kind = self.parameters.benchmark or "code"
        return Task(f"{split}-{number}", problem.question + shown, kind, {"problem": problem})


def _public_tests(problem: Problem, count: int) -> str:
    """The first tests as a team reads them before its first attempt."""
    tests = problem.tests
    if isinstance(tests, StdioTests):
        return "".join(f"\n\nInput:\n{given}\nOutput:\n{expected}" for given, expected in tests.cases[:count])
    lines = [_called(line, problem) for line in tests.texts[:count]]
    return "\n\nIt must pass:\n\n```python\n" + "\n".join(lines) + "\n```" if lines else ""


def _called(line: str, problem: Problem) -> str:
    """A line of test code under the function's own name: `candidate` is one that only `check(candidate)` knows."""
    tests = problem.tests
    if isinstance(tests, CodeTests) and tests.check:
        return re.sub(r"\bcandidate\b", lambda _: tests.names[0], line)
    return line


def _news(public: CodeReport, problem: Problem) -> str:
    """What became of the public tests, as all agents read it."""
    failed = [each for each in public.outcomes if each.verdict != "passed"]
    passed = len(public.outcomes) - len(failed)
    head = f"The program passed {passed} of {len(public.outcomes)} public tests."
    return "\n\n".join([head, *(_told(each, problem) for each in failed[:SHOWN_TESTS])])


def _told(outcome: TestOutcome, problem: Problem) -> str:
    lines = [f"Test: {_cut(_called(outcome.test, problem))}"]
    lines += [f"Expected: {_cut(outcome.expected)}"] if outcome.expected else []
    lines += [f"Got: {_cut(outcome.got)}"] if outcome.got else []
    return "\n".join([*lines, f"Result: {outcome.verdict}"])


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
