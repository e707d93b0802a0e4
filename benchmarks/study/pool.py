"""Runs in processes of their own, several at a time, until all are done or somebody wants to stop."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from benchmarks.study import one
from benchmarks.study.conditions import MODEL, Run
from benchmarks.study.results import RESULT, read_result
from marft.run.directory import write_text

ROOT = Path(__file__).parents[2]
# What takes seconds to import, and stands ready in the process that runs are forked from
LIBRARIES = [
    "benchmarks.study.one",
    "peft",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
]


class Job(Protocol):
    """A run under way."""

    def poll(self) -> int | None:
        """Its exit code; None while it goes on."""
        ...

    def stop(self) -> None:
        """Ask it to save and end."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...

    def result(self) -> dict[str, Any]:
        """What came of it, once it exited with 0."""
        ...

    def clear(self) -> None:
        """Its result was recorded: remove what nobody needs any more."""
        ...

    def complaint(self) -> str:
        """What it said last, for when it failed."""
        ...


@dataclass(frozen=True)
class Runner:
    """Starts runs below a folder. `threads` of torch for each; `keep` leaves checkpoints in place."""

    folder: Path
    threads: int = 1
    keep: bool = False

    def __call__(self, run: Run) -> Job:
        """Write the run's config and start its process."""
        raw: dict[str, Any] = {**run.raw, "name": "study", "threads": self.threads}
        if raw["model"]["name"] == MODEL:
            from benchmarks.nano.train import nano_model

            raw["model"] = {**raw["model"], "name": str(nano_model())}
        configs, logs = self.folder / "configs", self.folder / "logs"
        for each in (configs, logs, self.folder / "runs"):
            each.mkdir(parents=True, exist_ok=True)
        config = write_text(configs / f"{run.folder}.yaml", f"# {run.title}\n{yaml.safe_dump(raw, sort_keys=False)}")
        return Process(self, config, self.folder / "runs" / run.folder, logs / f"{run.folder}.log")


class Process:
    """`benchmarks.study.one` in a process of its own, forked from one that holds the libraries already.

    It has a session of its own: Ctrl-C reaches the study, which asks it to stop.
    """

    def __init__(self, runner: Runner, config: Path, folder: Path, log: Path) -> None:
        self._runner, self._folder, self._log = runner, folder, log
        for name, value in environment(runner.threads).items():  # what forks the runs inherits it when it starts
            os.environ[name] = value
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        self._process = context.Process(target=one.main, args=([str(config), str(folder)], str(log)))
        self._process.start()

    def poll(self) -> int | None:
        """Its exit code."""
        return self._process.exitcode

    def stop(self) -> None:
        """It ends after the update under way, and is resumed another time."""
        if self._process.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """At once; what it has not saved is lost."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def result(self) -> dict[str, Any]:
        """Read from its folder."""
        found = read_result(self._folder)
        if found is None:
            raise RuntimeError(f"{self._folder}: the run ended well and left no result")
        return found

    def clear(self) -> None:
        """Its checkpoints; and its result, which would otherwise stand for a run that somebody wants again."""
        (self._folder / RESULT).unlink()
        if not self._runner.keep:
            shutil.rmtree(self._folder / "checkpoints", ignore_errors=True)

    def complaint(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(encoding="utf8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} ({self._log})"


def environment(threads: int) -> dict[str, str]:
    """Threads that sleep while they wait: two processes whose threads spin slow each other down ten-fold."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@dataclass(frozen=True)
class Ended:
    """A run that is over: its result, or what it complained of; both None when it was stopped."""

    run: Run
    result: dict[str, Any] | None
    complaint: str | None
    seconds: float


def work(
    runs: Iterable[Run],
    start: Callable[[Run], Job],
    workers: int,
    stopping: Callable[[], bool],
    ended: Callable[[Ended], None],
    pause: float = 0.2,
) -> None:
    """Run everything in the given order, `workers` at a time; once `stopping`, what is under way is asked to end.

    An exception (a second Ctrl-C) kills what is under way: nothing outlives this function.
    """
    waiting = list(runs)
    under_way: dict[str, tuple[Run, Job, float]] = {}
    asked = False
    try:
        while under_way or (waiting and not stopping()):
            while waiting and len(under_way) < workers and not stopping():
                run = waiting.pop(0)
                under_way[run.folder] = (run, start(run), time.monotonic())
            if stopping() and not asked:
                asked = True
                for _, job, _ in under_way.values():
                    job.stop()
            for folder, (run, job, since) in list(under_way.items()):
                code = job.poll()
                if code is not None:
                    del under_way[folder]
                    ended(_ended(run, job, code, time.monotonic() - since, asked))
                    if code == 0:
                        job.clear()
            if under_way:
                time.sleep(pause)
    finally:
        for _, job, _ in under_way.values():
            job.kill()


def _ended(run: Run, job: Job, code: int, seconds: float, asked: bool) -> Ended:
    if code == 0:
        return Ended(run, job.result(), None, seconds)
    if asked:  # stopped, or ended by its own fault just now: it will be seen when it is resumed
        return Ended(run, None, None, seconds)
    return Ended(run, None, job.complaint(), seconds)
