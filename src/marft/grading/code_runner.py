"""Programs and tests -> what each test came to.

The untrusted program only computes. Where tests compare standard output, the comparison is here; where they call a
function, they run in a second sandbox and reach the program through plain values (`test_side.py`, `program_side.py`).
So there is no verdict that a program could print, patch, read or exit its way into.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

from marft.grading.bounded import GraderFailed
from marft.grading.isolation import Walls, check_walls
from marft.grading.sandbox import MEGABYTE, PARTS, Ending, Job, Limits, Reason, Stop, run_sandboxed

T = TypeVar("T")
Verdict = Literal["passed", "failed", "error", "timeout", "missing"]

TOLERANCE = 1e-6  # relative and absolute, where an expected number is written as a float
TEST_SIDE_MEMORY_MB = 1024
SHOWN = 500  # characters of an input or output that a report quotes
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class StdioTests:
    """Pairs of what the program reads and what it must print (LiveCodeBench, DeepCoder, CodeForces)."""

    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CallTests:
    """Pairs of JSON arguments and the JSON result of `entry`, a function or a method of class `Solution`."""

    entry: str
    cases: tuple[tuple[list[Any], Any], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each test as a line of Python."""
        return tuple(f"assert {self.entry}({', '.join(map(repr, given))}) == {out!r}" for given, out in self.cases)


@dataclass(frozen=True)
class CodeTests:
    """Test code with `assert` statements about the functions `names` (HumanEval, MBPP).

    `setup` runs before it, with the data's own definitions. With `check`, the test code defines `check(candidate)`, and
    the candidate is the first of `names`.
    """

    names: tuple[str, ...]
    test: str
    setup: str = ""
    check: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Each `assert` statement, in the order of the text."""
        return tuple(_assertions(ast.parse(self.test)))


def _assertions(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            yield ast.unparse(child)
        else:
            yield from _assertions(child)


Tests = StdioTests | CallTests | CodeTests


@dataclass(frozen=True)
class TestOutcome:
    """One test: its text (a call, an assertion, an input), what it came to, and what the program gave instead."""

    __test__ = False  # not a test of pytest's

    test: str
    verdict: Verdict
    got: str = ""
    expected: str = ""


@dataclass(frozen=True)
class CodeReport:
    """What the tests came to, in the data's order. A test that never ran is `missing`, which is not passed."""

    outcomes: tuple[TestOutcome, ...]

    @property
    def share(self) -> float:
        """The share of tests that passed."""
        return sum(each.verdict == "passed" for each in self.outcomes) / len(self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether all did."""
        return all(each.verdict == "passed" for each in self.outcomes)

    def first(self, tests: int) -> CodeReport:
        """The report of the first `tests` tests alone."""
        return CodeReport(self.outcomes[:tests])


@dataclass(frozen=True)
class Execution:
    """One run of a program: what it printed, why it ended, and its exit code (negative: the signal that ended it)."""

    stdout: str
    stderr: str
    reason: Reason
    code: int
    seconds: float


class CodeRunner:
    """Runs programs in sandboxes, at most one per processor core at a time; usable from any event loop and thread."""

    def __init__(self, limits: Limits | None = None, sandbox: Walls = "auto") -> None:
        """Raises `MarftError` naming what is missing when `sandbox` asks for more than this system allows."""
        check_walls(sandbox)
        self.limits = limits or Limits()
        self.sandbox = sandbox
        self._parts = PARTS if sandbox == "auto" else ()

    async def run(self, program: str, tests: Tests) -> CodeReport:
        """What the tests come to; a cancelled call ends the program. Raises `GraderFailed` when the grader fails.

        After a test that ran out of time (or of another limit of the sandbox), the rest is `missing`.
        """
        if isinstance(tests, StdioTests):
            return await _in_thread(partial(self._run_stdio, program, tests))
        return await _in_thread(partial(self._run_calls, program, tests))

    async def execute(self, source: str, stdin: str = "") -> Execution:
        """Run one program to its end. Raises `GraderFailed` when the sandbox fails."""
        job = _program(source, stdin, self.limits)
        [ending] = await _in_thread(lambda stop: run_sandboxed([job], self._parts, stop))
        return Execution(
            ending.stdout.decode(errors="replace"),
            ending.stderr.decode(errors="replace"),
            ending.reason,
            ending.code,
            ending.seconds,
        )

    def _run_stdio(self, program: str, tests: StdioTests, stop: Stop) -> CodeReport:
        outcomes: list[TestOutcome] = []
        for given, expected in tests.cases:
            [ending] = run_sandboxed([_program(program, given, self.limits)], self._parts, stop)
            outcomes.append(_stdio_outcome(given, expected, ending))
            if ending.reason != "exit":
                break
        missing = [TestOutcome(given, "missing", "", out) for given, out in tests.cases[len(outcomes) :]]
        return CodeReport((*outcomes, *missing))

    def _run_calls(self, program: str, tests: CallTests | CodeTests, stop: Stop) -> CodeReport:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            given = json.dumps({**_for_test_side(tests), "most": self.limits.output_mb * MEGABYTE})
            test_files = {"tests.json": given, **_side("test_side.py")}
            program_files = {"program.py": program, **_side("program_side.py")}
            # Its deadline passes after the program's, so that it can say which test the program was in
            patient = replace(self.limits, seconds=self.limits.seconds + 1, memory_mb=TEST_SIDE_MEMORY_MB)
            test_job = Job("test_side.py", test_files, patient, channel=ours)
            program_job = Job("program_side.py", program_files, self.limits, channel=theirs)
            endings = run_sandboxed([test_job, program_job], self._parts, stop)
        return _report(tests, *endings)


async def _in_thread(work: Callable[[Stop], T]) -> T:
    stop = Stop()
    try:
        return await asyncio.wrap_future(_threads().submit(work, stop))
    finally:
        stop.end()  # the caller may have been cancelled


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="marft-code")


@cache
def _module(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf8")


def _side(name: str) -> dict[str, str]:
    """The files of one side: itself and what it imports of marft."""
    imported = {f"marft/grading/{each}": _module(each) for each in ("wire.py", "program_start.py")}
    return {"marft/__init__.py": "", "marft/grading/__init__.py": "", **imported, name: _module(name)}


def _program(source: str, stdin: str, limits: Limits) -> Job:
    """A program that reads and prints."""
    files = {"start.py": _module("program_start.py"), "program.py": source}
    return Job("start.py", files, limits, stdin.encode(errors="surrogatepass"))


def _for_test_side(tests: CallTests | CodeTests) -> dict[str, Any]:
    if isinstance(tests, CallTests):
        return {"entry": tests.entry, "cases": tests.cases}
    return {"names": tests.names, "test": tests.test, "setup": tests.setup, "check": tests.check}


# --- what functions came to -------------------------------------------------------------------------------------------


def _report(tests: CallTests | CodeTests, testing: Ending, program: Ending) -> CodeReport:
    """From what the test side told, line by line, and how both sides ended."""
    lines = [json.loads(line) for line in testing.stdout.splitlines(keepends=True) if line.endswith(b"}\n")]
    broken = next((line["broken"] for line in lines if "broken" in line), None)
    if broken is not None:
        raise GraderFailed(f"the tests of the data do not run: {broken}")
    if not lines or testing.reason == "output" or (testing.reason == "exit" and "done" not in lines[-1]):
        said = " ".join(testing.stderr.decode(errors="replace").split())[-SHOWN:]
        raise GraderFailed(f"the tests ended ({testing.reason}, exit code {testing.code}) without a report: {said}")
    stopped = next((each.reason for each in (program, testing) if each.reason in _STOPPED), None)
    why = _STOPPED[stopped] if stopped is not None else str(lines[-1].get("why", ""))
    told = {line["site"]: line for line in lines if "site" in line}
    outcomes = []
    for site, name in enumerate(lines[0]["tests"]):
        line = told.get(site, {"outcome": "missing", "got": why})
        verdict: Verdict = line["outcome"]
        if not lines[-1].get("done") and site == max(told, default=None):
            verdict = (
                "timeout" if stopped == "timeout" else "error"
            )  # whatever it came to in an earlier round of a loop
        expected = json.dumps(tests.cases[site][1]) if isinstance(tests, CallTests) else ""
        outcomes.append(TestOutcome(name, verdict, line["got"] or ("" if verdict == "passed" else why), expected))
    return CodeReport(tuple(outcomes))


_STOPPED = {
    "timeout": "out of time",
    "memory": "out of memory",
    "processes": "too many processes",
    "output": "too much output",
}


# --- what was printed -------------------------------------------------------------------------------------------------


def _stdio_outcome(given: str, expected: str, ending: Ending) -> TestOutcome:
    got = ending.stdout.decode(errors="replace")
    if ending.reason == "timeout":
        return TestOutcome(given, "timeout", "out of time", expected)
    if ending.reason != "exit":
        return TestOutcome(given, "error", _STOPPED.get(ending.reason, ending.reason), expected)
    if ending.code != 0:
        last = ending.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return TestOutcome(given, "error", last[0][:SHOWN] if last else f"exit code {ending.code}", expected)
    return TestOutcome(given, "passed" if same_output(got, expected) else "failed", got[:SHOWN], expected)


def same_output(got: str, expected: str) -> bool:
    """Equal line by line and word by word, whatever the spacing and blank lines at the end.

    Where the expected word is written as a float (`0.5`, `1e-3`), the other may differ by `TOLERANCE`.
    """
    lines = zip_longest(got.rstrip().splitlines(), expected.rstrip().splitlines())
    return all(one is not None and two is not None and _same_line(one.split(), two.split()) for one, two in lines)


def _same_line(got: Sequence[str], expected: Sequence[str]) -> bool:
    return len(got) == len(expected) and all(map(_same_word, got, expected))


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not (_FLOAT.fullmatch(expected) and _NUMBER.fullmatch(got)):
        return False
    return math.isclose(float(got), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
