"""One run, in a process of its own: `python -m benchmarks.study.one CONFIG RUN`, or forked by the study.

Trains as `marft train CONFIG --run RUN` does, or goes on with what is in RUN, and writes RUN/result.json in the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study.results import RESULT, gather, read_result
from marft.run import checkpoint, launch
from marft.run.directory import RunDirectory, to_json, write_text
from marft.run.progress import Silent, Watcher
from marft.types import MarftError

SECONDS = "seconds.txt"


def main(arguments: Sequence[str] | None = None, log: str | None = None) -> None:
    """Exits with 0 when the run is complete, 128 + n when signal n stopped it; what is wrong is said in one sentence.

    With a `log`, the process leaves its parent's session and writes there whatever it prints.
    """
    if log is not None:
        os.setsid()
        with open(log, "wb") as file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), stream.fileno())
    config, folder = arguments or sys.argv[1:]
    try:
        code = train(config, Path(folder), Silent())
    except MarftError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def train(config: str, folder: Path, watcher: Watcher) -> int:
    """Start or resume, and gather what came of it; the exit code. A run that left its result is complete."""
    if read_result(folder) is not None:
        return 0
    started = time.perf_counter()
    if (folder / "config.yaml").is_file() and checkpoint.iterations(RunDirectory(folder)):
        outcome = launch.resume(None, [], str(folder), watcher)
    else:  # what was stopped before its first checkpoint has nothing to go on from
        shutil.rmtree(folder, ignore_errors=True)
        outcome = launch.start(config, [], str(folder), watcher)
    spent = _seconds(folder) + time.perf_counter() - started
    write_text(folder / SECONDS, f"{spent:.1f}\n")
    evaluations = outcome.run.read_evaluations()
    if outcome.done == outcome.iterations and outcome.iterations in evaluations:
        write_text(folder / RESULT, to_json(gather(outcome.run, spent)) + "\n")
        return 0  # even where a signal came at the very end
    return outcome.exit_code or 1


def _seconds(folder: Path) -> float:
    """What earlier processes spent on the run."""
    file = folder / SECONDS
    return float(file.read_text(encoding="utf8")) if file.is_file() else 0.0


if __name__ == "__main__":
    main()
