"""A whole training iteration: `python -m benchmarks.iteration [--part NAME] [--quick] [--json FILE]`.

- trl: one agent, GRPO, in `marft`'s own training loop and in TRL's GRPOTrainer: the same model, questions, adapters,
  number and length of replies, and a reward in which no two replies tie, so that every one is learnt from. Each is a
  process of its own; they take turns, step by step, and report seconds and peak memory.
- share: which part of `marft`'s iteration is model compute, by phase. The run is an ordinary one: it writes metrics,
  episodes and checkpoints.
- growth: seconds of an iteration with more episodes, more agents and longer replies, and the exponents that fit them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import workload
from benchmarks.peers import TrlSetting, missing
from benchmarks.roofline import Roofline, Work, roofline
from benchmarks.side_by_side import Table, exponent, interleave, machine, options, publish, seconds, verdict
from benchmarks.stopwatch import KINDS, Stopwatch, watched
from benchmarks.turns import Child, Competitor, Watching
from benchmarks.workload import Size
from marft.learn.clock import Clock
from marft.learn.train import Training, iterate, train
from marft.models.base import Base, load_base
from marft.models.chat import Exchange
from marft.run.directory import RunDirectory
from marft.run.interrupt import GracefulStop
from marft.run.progress import Silent
from marft.team import build_team

STRICT = ("decoder", "head", "sampling", "backward", "optimiser")  # what the target counts as model compute


@dataclass(frozen=True)
class Scale:
    """How much is measured: against TRL (`size`), and where the growth starts from (`smallest`)."""

    size: Size
    smallest: Size
    rounds: int
    trl: Mapping[str, TrlSetting]
    warmups: int = 1
    times: tuple[int, ...] = (1, 2, 4)


ALL_AT_ONCE = {"TRL, 32 rows a pass": TrlSetting(32, checkpointing=False)}
VARIANTS = {
    **ALL_AT_ONCE,
    "TRL, 8 rows a pass": TrlSetting(8, checkpointing=False),
    "TRL, 32 rows a pass, checkpointing (its default)": TrlSetting(32),
}
FULL = Scale(Size(), Size(tasks=2, tokens=12), 3, VARIANTS)
QUICK = Scale(Size(tasks=2, tokens=4), Size(tasks=1, samples=2, tokens=2), 1, {"TRL": TrlSetting(8, False)}, 0, (1, 2))
TINY = Scale(Size(tasks=2, tokens=8), Size(tasks=1, samples=2, tokens=4), 1, {"TRL": TrlSetting(8, False)})


def against_trl(given: argparse.Namespace, dtype: str, scale: Scale) -> Table:
    """Seconds and peak memory of a step, whole processes in turn."""
    title = (
        f"One agent, GRPO: {scale.size.tasks} questions x {scale.size.samples} replies of {scale.size.tokens} tokens, "
        f"{dtype}"
    )
    reason = missing("trl")
    if reason:
        return Table(title, [], f"Not measured: {reason}.")
    ours = Competitor("marft", scale.size, given.model, dtype, torch.get_num_threads())
    with ExitStack() as stack:
        children = {"marft": stack.enter_context(Child(ours))}
        for name, setting in scale.trl.items():
            children[name] = stack.enter_context(Child(replace(ours, trainer="trl", setting=asdict(setting))))
        for child in children.values():
            child.ready()  # none may still be loading when the first is timed
        runs = {name: child.seconds for name, child in children.items()}
        found = interleave(runs, scale.rounds, warmups=scale.warmups)
    rows = []
    for number, (name, child) in enumerate(children.items()):
        work = {(each["replies"], each["reply_tokens"]) for each in child.reports}
        assert work == {(scale.size.replies, scale.size.replies * scale.size.tokens)}, f"{name} did other work: {work}"
        row: dict[str, Any] = {"trainer": name, "seconds a step": found.median(name), "peak MiB": child.peak_mib}
        if number:
            against = found.ratio("marft", name)
            row |= {"time, marft / it": str(against)}
            row |= verdict(against.median, at_most=0.45) if number == 1 else {}
            row |= {"memory, marft / it": children["marft"].peak_mib / child.peak_mib}
        rows.append(row)
    return Table(title, rows)


def share_tables(given: argparse.Namespace, dtype: str, scale: Scale, base: Base, limits: Roofline) -> Iterator[Table]:
    """Seconds of every kind of compute, by phase: the mean of some iterations of an ordinary run."""
    ordinary = {"iterations": 1 + scale.rounds, "run": {}}
    config = workload.experiment(scale.size, given.model, dtype, torch.get_num_threads(), **ordinary)
    team = build_team(config, "benchmark", base)
    watch = Stopwatch()
    ends: list[float] = []
    seen: list[Stopwatch] = []  # what the watch showed at the end of the latest iteration

    def step(metrics: Mapping[str, Any]) -> None:
        if not ends:
            watch.reset()  # the first iteration warms up
        ends.append(time.perf_counter())
        seen[:] = [watch.copy()]

    with tempfile.TemporaryDirectory() as folder, watched(team, watch):
        train(team, RunDirectory.create(config, Path(folder) / "run"), Watching(lambda: None, step), GracefulStop())
    (found,), count = seen, len(ends) - 1
    total = (ends[-1] - ends[0]) / count
    phases = {name: spent / count for name, spent in found.seconds.items()}
    phases["between"] = total - sum(phases.values())
    rows = []
    for phase, spent in [*phases.items(), ("whole iteration", total)]:
        kinds = {kind: each / count for kind, each in found.kinds(phase if phase in phases else None).items()}
        rest = spent - sum(kinds.values())
        rows.append(
            {"phase": phase, "seconds": spent, **kinds, "rest": rest, "of the iteration": f"{rest / total:.1%}"}
        )
    yield Table("Where an iteration's seconds go", rows)
    kinds = found.kinds()
    counts = {"all of the above": KINDS, "without log-softmax and entropy": STRICT}
    shares = {name: 1 - sum(kinds[kind] for kind in which) / count / total for name, which in counts.items()}
    rows = [{"model compute": name, "share that is not": f"{share:.1%}", **verdict(share, at_most=0.05)}
            for name, share in shares.items()]  # fmt: skip
    yield Table("Not model compute", rows)
    yield _ceilings(scale.size, base, phases, limits)


def _ceilings(size: Size, base: Base, phases: Mapping[str, float], limits: Roofline) -> Table:
    """FLOP/s of the phases, for the work of all rows without padding and without sharing prefixes."""
    work = Work.of(base.model)
    prompts = [len(base.chat.prompt("", [Exchange(workload.question(task))])) for task in range(size.tasks)]
    rows_of_task = size.agents * size.samples
    tokens = sum(prompt + size.tokens for prompt in prompts) * rows_of_task
    pairs = sum((prompt + size.tokens) * (prompt + size.tokens + 1) // 2 for prompt in prompts) * rows_of_task
    sampled = size.replies * size.tokens
    needed = {
        "rollout": work.forward(tokens, sampled, pairs),
        "score": work.forward(tokens, sampled, pairs),
        "update": work.lora_update(tokens, sampled, pairs),
    }
    rows = [
        {"phase": name, "GFLOP": flops / 1e9, "GFLOP/s": flops / phases[name] / 1e9,
         "of the ceiling": f"{flops / phases[name] / limits.flops:.1%}"}
        for name, flops in needed.items()
    ]  # fmt: skip
    return Table("", rows, f"{limits}. Work of the rows as they are, unpadded, each with its own prompt.")


def growth_table(given: argparse.Namespace, dtype: str, scale: Scale, base: Base) -> Table:
    """Seconds of an iteration with some times as many episodes, agents or tokens a reply."""
    small = scale.smallest
    axes: dict[str, Callable[[int], Size]] = {
        "episodes": lambda times: replace(small, tasks=small.tasks * times),
        "agents": lambda times: replace(small, agents=small.agents * times),
        "reply length": lambda times: replace(small, tokens=small.tokens * times),
    }
    sizes = list(dict.fromkeys(size(times) for size in axes.values() for times in scale.times))
    runs = {str(size): seconds(_iteration(given, dtype, size, base)) for size in sizes}
    found = interleave(runs, scale.rounds, warmups=scale.warmups)
    rows = []
    for name, size in axes.items():
        costs = [found.median(str(size(times))) for times in scale.times]
        fitted = exponent(scale.times, costs)
        row: dict[str, Any] = {"more": name}
        row |= {f"x{times} s": cost for times, cost in zip(scale.times, costs, strict=True)} | {"exponent": fitted}
        rows.append(row | (verdict(fitted, at_most=1.0) if name != "reply length" else {}))
    return Table(
        f"Growth from {small.agents} agent, {small.tasks * small.samples} episodes, {small.tokens} tokens", rows
    )


def _iteration(given: argparse.Namespace, dtype: str, size: Size, base: Base) -> Callable[[], None]:
    team = build_team(workload.experiment(size, given.model, dtype, torch.get_num_threads()), "benchmark", base)
    training = Training.of(team)
    done = 0

    def run() -> None:
        nonlocal done
        iterate(training, done, Clock(), Silent())
        done += 1
        team.load(done)

    return run


def tables(given: argparse.Namespace, dtype: str, limits: Roofline) -> Iterator[Table]:
    """All parts, or the one asked for."""
    scale = TINY if given.model == "tiny" else QUICK if given.quick else FULL
    scale = replace(scale, rounds=given.rounds or scale.rounds)
    if given.part in (None, "trl"):
        yield against_trl(given, dtype, scale)
    if given.part == "trl":
        return
    base = workload.endless(load_base(workload.experiment(scale.size, given.model, dtype).model, "cpu"))
    if given.part in (None, "share"):
        yield from share_tables(given, dtype, scale, base, limits)
    if given.part in (None, "growth"):
        yield growth_table(given, dtype, scale, base)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = options(__doc__, "fewer and shorter replies, one round, one setting of TRL")
    parser.add_argument("--part", choices=("trl", "share", "growth"), help="only this part")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = workload.resolve_dtype(given.dtype)
    limits = roofline(workload.torch_dtype(dtype))
    publish("iteration", machine(dtype, torch.get_num_threads()), tables(given, dtype, limits), given.json)


if __name__ == "__main__":
    main()
