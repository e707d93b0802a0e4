"""Peak memory of training: `python -m benchmarks.memory [--part NAME] [--quick] [--json FILE]`.

- agents: one frozen base serves all agents, so more agents should cost their adapters and optimiser states and little
  else. Both teams give 32 replies an iteration (32 episodes of one agent, 8 of four who act at once), with a critic.
- trl: one agent, GRPO, beside TRL's GRPOTrainer, in the setting of `benchmarks.iteration`.

Each competitor is a process of its own that makes two steps; peak resident memory is what the system counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.iteration import FULL, QUICK, TINY
from benchmarks.peers import missing
from benchmarks.side_by_side import Table, machine, options, publish, verdict
from benchmarks.turns import Child, Competitor
from benchmarks.workload import Size, resolve_dtype

WITH_CRITIC = {"credit": {}, "critic": {"warmup": 0}, "update": {}}
STEPS = 2


def peak(competitor: Competitor) -> float:
    """MiB after two steps."""
    with Child(competitor) as child:
        child.ready()
        for _ in range(STEPS):
            child.step()
        return child.peak_mib


def agents_table(given: argparse.Namespace, dtype: str) -> Table:
    """Four agents against one."""
    tokens, tasks = (8, 4) if given.quick else (32, 8)
    peaks = {}
    for agents in (1, 4):
        size = Size(agents, tasks // agents, 4, tokens)
        peaks[agents] = peak(Competitor("marft", size, given.model, dtype, torch.get_num_threads(), WITH_CRITIC))
    rows: list[dict[str, Any]] = [{"agents": agents, "peak MiB": found} for agents, found in peaks.items()]
    against = peaks[4] / peaks[1]
    rows[1] |= {"four / one": against, **verdict(against, at_most=1.15)}
    return Table(f"Four agents against one: {4 * tasks} replies of {tokens} tokens, a critic, {dtype}", rows)


def trl_table(given: argparse.Namespace, dtype: str) -> Table:
    """`marft` against TRL."""
    scale = TINY if given.model == "tiny" else QUICK if given.quick else FULL
    title = f"One agent, GRPO: {scale.size.replies} replies of {scale.size.tokens} tokens, {dtype}"
    reason = missing("trl")
    if reason:
        return Table(title, [], f"Not measured: {reason}.")
    ours = Competitor("marft", scale.size, given.model, dtype, torch.get_num_threads())
    mine = peak(ours)
    rows: list[dict[str, Any]] = [{"trainer": "marft", "peak MiB": mine}]
    for number, (name, setting) in enumerate(scale.trl.items()):
        theirs = peak(replace(ours, trainer="trl", setting=asdict(setting)))
        row = {"trainer": name, "peak MiB": theirs, "marft / it": mine / theirs}
        rows.append(row | (verdict(mine / theirs, at_most=0.7) if number == 0 else {}))
    return Table(title, rows)


def tables(given: argparse.Namespace, dtype: str) -> Iterator[Table]:
    """Both parts, or the one asked for."""
    if given.part in (None, "agents"):
        yield agents_table(given, dtype)
    if given.part in (None, "trl"):
        yield trl_table(given, dtype)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = options(__doc__, "fewer and shorter replies, one setting of TRL", rounds=False)
    parser.add_argument("--part", choices=("agents", "trl"), help="only this part")
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = resolve_dtype(given.dtype)
    publish("memory", machine(dtype, torch.get_num_threads()), tables(given, dtype), given.json)


if __name__ == "__main__":
    main()
