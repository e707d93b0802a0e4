"""Whole processes that are measured side by side: each holds a trainer and makes one step whenever it is told to.

A process of its own per competitor keeps their memory apart; the ones that wait use no processor. The parent writes
one line per step to a child's standard input and reads one JSON object back: the seconds of the step, the process's
peak resident memory so far (what the operating system counted), and what else the trainer reports.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.workload import Size
from marft.types import Episode


@dataclass(frozen=True)
class Competitor:
    """Who steps, at what: `trainer` is marft or trl.

    `setting` is what else trl (`peers.TrlSetting`) or marft (sections of its config) is to be told.
    """

    trainer: str
    size: Size
    model: str
    dtype: str
    threads: int | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)


class Child:
    """A competitor in a process of its own; use as a context manager, which ends the process."""

    def __init__(self, competitor: Competitor) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the child)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.turns", json.dumps(asdict(competitor))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        self.reports: list[dict[str, Any]] = []

    def ready(self) -> None:
        """Return when it has loaded everything and waits for its first step; until then it computes."""
        self._answer()

    def step(self) -> dict[str, Any]:
        """Let it make one step; what it reports."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        self.reports.append(self._answer())
        return self.reports[-1]

    def seconds(self) -> float:
        """A competitor for `interleave`."""
        return float(self.step()["seconds"])

    @property
    def peak_mib(self) -> float:
        """Peak resident memory of the process up to its last step."""
        return float(self.reports[-1]["peak_mib"])

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            self._process.communicate()  # closes its input, which ends it
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"a competitor failed:\n{self._log.read()[-4000:]}")
        found: dict[str, Any] = json.loads(line)
        return found


def peak_mib() -> float:
    """This process's peak resident memory so far."""
    status = Path("/proc/self/status")
    if status.is_file():  # what `getrusage` says on Linux counts the parent's memory at the time of the fork
        (line,) = (line for line in status.read_text(encoding="utf8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Over(BaseException):
    """The parent wants no more steps; not an `Exception`, which a trainer might catch."""


class Turns:
    """The child's side: `wait` before every step, `report` after it."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands, self._answers = commands, answers
        self._started: float | None = None

    def wait(self) -> None:
        """Sleep until the parent wants a step; the first time, tell it that all is loaded. Raises `Over` at the end."""
        if self._started is None:
            self._say({"ready": True})
        if not self._commands.readline():
            raise Over
        self._started = time.perf_counter()

    def report(self, **values: Any) -> None:
        """Say that the step is done."""
        assert self._started is not None
        spent = time.perf_counter() - self._started
        self._say({"seconds": spent, "peak_mib": peak_mib(), **values})

    def _say(self, values: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(values) + "\n")
        self._answers.flush()


class Watching:
    """Follows a `marft` run as its display would: calls `begin` when it starts, `step` after every iteration."""

    def __init__(self, begin: Callable[[], None], step: Callable[[Mapping[str, Any]], None]) -> None:
        self._begin, self._step = begin, step

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """The run begins."""
        self._begin()

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """An iteration is over."""
        self._step(metrics)

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Nothing."""

    def episode(self, episode: Episode) -> None:
        """Nothing."""

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


def train_with_marft(competitor: Competitor, turns: Turns) -> None:
    """Run `marft`'s own training loop until the parent has seen enough."""
    from benchmarks.workload import endless, experiment
    from marft.learn.train import train
    from marft.models.base import load_base
    from marft.run.directory import RunDirectory
    from marft.run.interrupt import GracefulStop
    from marft.team import build_team

    sections = {"iterations": 100_000, **competitor.setting}
    config = experiment(competitor.size, competitor.model, competitor.dtype, competitor.threads, **sections)
    team = build_team(config, "benchmark", endless(load_base(config.model, "cpu")))

    def stepped(metrics: Mapping[str, Any]) -> None:
        play, episodes = metrics["play"].values(), metrics["episodes"]
        tokens = sum(each["reply_tokens"] * each["replies"] for each in play) * episodes
        turns.report(reply_tokens=round(tokens), replies=round(sum(each["replies"] for each in play) * episodes))
        turns.wait()

    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(config, Path(folder) / "run")
        train(team, run, Watching(turns.wait, stepped), GracefulStop())


def main() -> None:
    """The child: standard output belongs to the parent, whatever libraries print goes to standard error."""
    import torch

    from benchmarks.peers import TrlSetting, train_with_trl

    given = json.loads(sys.argv[1])
    competitor = Competitor(**{**given, "size": Size(**given["size"])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if competitor.threads:
        torch.set_num_threads(competitor.threads)
    turns = Turns(sys.stdin, answers)
    with suppress(Over):
        if competitor.trainer == "marft":
            train_with_marft(competitor, turns)
        else:
            setting = TrlSetting(**competitor.setting)
            train_with_trl(competitor.size, competitor.model, competitor.dtype, setting, turns.wait, turns.report)


if __name__ == "__main__":
    main()
