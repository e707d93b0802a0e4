"""Train teams under many conditions, over several seeds, and report what came of it.

    python -m benchmarks.study --list                    the experiments, and what is done of each
    python -m benchmarks.study [NAME ...]                run what is missing (Ctrl-C stops; the same command goes on)
    python -m benchmarks.study --report                  write docs/evidence.md and its figures from docs/evidence/

A finished run is one line of docs/evidence/runs.jsonl and is never made again, unless its condition changes (it is then
`stale`) or `--forget` takes it away. Run directories are kept outside the repository, in marft's cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.study.conditions import MODEL, Experiment, Run, ordered, runs_of
from benchmarks.study.experiments import EXPERIMENTS, QUICK
from benchmarks.study.pool import ROOT, Ended, Runner, work
from benchmarks.study.records import Records
from marft.run.interrupt import GracefulStop
from marft.types import MarftError
from marft.validation import suggestion

EVIDENCE = ROOT / "docs" / "evidence"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 when runs failed, 2 for a mistake of the user's, 128 + n after signal n."""
    given = options().parse_args(arguments)
    try:
        return obey(given)
    except MarftError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def options() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments [default: all that are not slow]")
    parser.add_argument("--list", action="store_true", help="name the experiments and say what is done of each")
    parser.add_argument("--report", action="store_true", help="write the report from what was recorded")
    parser.add_argument("--prune", action="store_true", help="take away records that count for nothing any more")
    parser.add_argument("--forget", action="store_true", help="take away the records of the NAMEd experiments")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1 of each condition [5]")
    parser.add_argument("--workers", type=int, default=2, help="runs at the same time [2]")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run [1]")
    parser.add_argument("--quick", action="store_true", help="one seed, three iterations of a tiny random model")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints of finished runs")
    parser.add_argument("--study", type=Path, help="where run directories go [marft's cache]")
    parser.add_argument("--evidence", type=Path, help="where records and figures are [docs/evidence]")
    return parser


def obey(given: argparse.Namespace) -> int:
    """Do what was asked for."""
    for option in ("seeds", "workers", "threads"):
        if getattr(given, option) < 1:
            raise MarftError(f"--{option} {getattr(given, option)}: must be at least 1")
    study = (given.study or default_folder()) / ("quick" if given.quick else "")
    records = Records(given.evidence or (study / "evidence" if given.quick else EVIDENCE))
    seeds, overrides = (1, QUICK) if given.quick else (given.seeds, None)
    if given.report:
        return write(records, overrides)
    if given.prune:
        return prune(records, overrides)
    if given.forget:
        return forget(choose(given.names), records, overrides, named=bool(given.names))
    chosen = choose(given.names, everything=given.list)
    runs = {each.name: list(runs_of(each, seeds, overrides)) for each in chosen}
    if given.list:
        show_list(chosen, runs, records, given.workers)
        return 0
    every = [run for found in runs.values() for run in found]
    return run_all(every, records, Runner(study, given.threads, given.keep), given.workers)


def write(records: Records, overrides: Mapping[str, Any] | None) -> int:
    """The report of all experiments, with every seed there is."""
    from benchmarks.study.report import write_report  # loads matplotlib

    runs = {name: list(runs_of(each, all_seeds(records), overrides)) for name, each in EXPERIMENTS.items()}
    print(write_report(list(EXPERIMENTS.values()), runs, records))
    return 0


def prune(records: Records, overrides: Mapping[str, Any] | None) -> int:
    """Take away what counts for no condition of any experiment."""
    every = [run for each in EXPERIMENTS.values() for run in runs_of(each, all_seeds(records), overrides)]
    print(f"{records.prune(every)} records dropped")
    return 0


def forget(chosen: Sequence[Experiment], records: Records, overrides: Mapping[str, Any] | None, named: bool) -> int:
    """Take away the records of named experiments, for when what they measured was changed or wrong."""
    if not named:
        raise MarftError("--forget: name the experiments whose runs are to be made again")
    every = [run for each in chosen for run in runs_of(each, all_seeds(records), overrides)]
    print(f"{records.forget(every)} records dropped")
    return 0


def all_seeds(records: Records) -> int:
    """So many seeds include every recorded one."""
    return 1 + max((row["seed"] for row in records.rows), default=0)


def choose(names: Sequence[str], everything: bool = False) -> list[Experiment]:
    """The experiments of these names; without names all, or all that are not slow. Raises `MarftError`."""
    for name in names:
        if name not in EXPERIMENTS:
            raise MarftError(f"there is no experiment '{name}'{suggestion(name, tuple(EXPERIMENTS))}")
    return [each for name, each in EXPERIMENTS.items() if (name in names if names else everything or not each.slow)]


def default_folder() -> Path:
    """Outside the repository."""
    from marft.models.packaged import cache_folder  # loads torch

    return cache_folder() / "study"


def show_list(chosen: Sequence[Experiment], runs: dict[str, list[Run]], records: Records, workers: int) -> None:
    """One line per experiment: runs in all, done, stale, missing, and about how long the missing ones take."""
    print(f"{'experiment':<15} {'runs':>5} {'done':>5} {'stale':>5} {'missing':>7}  time left (of {workers} workers)")
    total = 0.0
    counted: set[str] = set()
    for each in chosen:
        states = [records.state(run) for run in runs[each.name]]
        left = [run for run in ordered(runs[each.name]) if records.state(run) != "done"]
        seconds = sum(expected(run, records) for run in left)
        total += sum(expected(run, records) for run in left if run.folder not in counted and not each.slow)
        counted |= {run.folder for run in left}
        print(f"{each.name:<15} {len(states):>5} {states.count('done'):>5} {states.count('stale'):>5} "
              f"{states.count('missing'):>7}  {duration(seconds / workers):<9} "
              f"{each.question}{' (slow: only when named)' if each.slow else ''}")  # fmt: skip
    print(f"all that is missing and not slow, what experiments share counted once: {duration(total / workers)}")


def expected(run: Run, records: Records) -> float:
    """Seconds of a run: as measured for its condition, else its experiment, else all not slow, else as stated."""
    stated = EXPERIMENTS[run.experiment]
    mine = [row for row in records.rows if row["experiment"] == run.experiment]
    same = [row for row in mine if row["condition"] == run.condition]
    others = [] if stated.slow else [row for row in records.rows if not is_slow(row["experiment"])]
    measured = [row["seconds"]["all"] for row in same or mine or others]
    return fmean(measured) if measured else stated.seconds


def is_slow(name: str) -> bool:
    """Whether an experiment, which need not exist any more, is a slow one."""
    return name in EXPERIMENTS and EXPERIMENTS[name].slow


def run_all(runs: Sequence[Run], records: Records, runner: Runner, workers: int) -> int:
    """Run what is missing and record it, saying how far it got."""
    missing = [run for run in ordered(runs) if records.state(run) != "done"]
    print(
        f"{len(ordered(runs))} runs, {len(ordered(runs)) - len(missing)} of them done; run directories: {runner.folder}"
    )
    if any(run.raw["model"]["name"] == MODEL for run in missing):
        prepare_model()
    log = Log(missing, records, workers)
    with GracefulStop() as stop:
        try:
            work(missing, runner, workers, lambda: stop.requested, log)
        except KeyboardInterrupt:
            return 130
    return stop.exit_code or (1 if log.failed else 0)


def prepare_model() -> None:
    """Before any run starts, so that two of them do not train it at the same time."""
    from benchmarks.nano.train import nano_model

    def progress(step: int, loss: float) -> None:
        if step % 100 == 0:
            print(f"training the small model: step {step}, loss {loss:.2f}", flush=True)

    nano_model(progress=progress)


class Log:
    """Records each run that ends, and prints a line with the time that is left."""

    def __init__(self, runs: Sequence[Run], records: Records, workers: int) -> None:
        self._left = {run.folder: expected(run, records) for run in runs}
        self._records, self._workers, self._all = records, workers, len(runs)
        self.failed: list[Run] = []
        self._guessed = self._spent = 0.0

    def __call__(self, ended: Ended) -> None:
        """What became of a run."""
        self._guessed += self._left.pop(ended.run.folder)
        self._spent += ended.seconds
        if ended.result is not None:
            self._records.add(ended.run, ended.result)
            after = ended.result["evaluations"][max(ended.result["evaluations"], key=int)]
            what = f"success {after['sampled']:.2f} sampled, {after['greedy']:.2f} greedy"
        elif ended.complaint is not None:
            self.failed.append(ended.run)
            what = f"FAILED: {ended.complaint}"
        else:
            what = "stopped; the same command goes on from here"
        left = sum(self._left.values()) * self._spent / self._guessed / self._workers  # guesses err alike
        print(f"{time.strftime('%H:%M:%S')} {self._all - len(self._left)}/{self._all} {ended.run.title}: {what} "
              f"({ended.seconds:.0f} s; {duration(left)} left)", flush=True)  # fmt: skip


def duration(seconds: float) -> str:
    """`2 h 5 min`."""
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


if __name__ == "__main__":
    raise SystemExit(main())
