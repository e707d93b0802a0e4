"""Competitors measured side by side in one run: interleaved rounds, medians, ratios pair by pair, tables, JSON.

A benchmark is a function that yields `Table`s; `publish` prints them under a header that says on what they were
measured. Machines drift, so nothing is compared across runs: in every round each competitor runs once, in an order
that turns round by one place, and a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

ISA = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16", "avx512f": "AVX512", "avx2": "AVX2", "asimd": "NEON"}
PACKAGES = ("torch", "transformers", "peft", "trl", "math-verify")
Cell = str | float | int | bool | None


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, the smallest and the largest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Measured:
    """What every competitor's rounds gave; value i of all of them stems from round i."""

    values: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """A competitor's median over the rounds."""
        return median(self.values[name])

    def ratio(self, over: str, under: str) -> Ratio:
        """`over` / `under`, round by round."""
        return ratio(self.values[over], self.values[under])


@dataclass(frozen=True)
class Table:
    """One table of a report: rows of columns by name (a row may lack some), and what is to be said below it."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """The ratio of two measurements, pair by pair."""
    pairs = [one / other for one, other in zip(over, under, strict=True)]
    return Ratio(median(pairs), min(pairs), max(pairs))


def interleave(competitors: Mapping[str, Callable[[], float]], rounds: int, warmups: int = 1) -> Measured:
    """Run all competitors in turn, `rounds` times, after `warmups` rounds whose values are forgotten.

    A competitor does its work and returns what it measured (seconds, tokens a second, …). Each round starts with
    another one, so that none always runs on the heels of the same.
    """
    names = list(competitors)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmups, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            value = competitors[name]()
            if number >= 0:
                values[name].append(value)
    return Measured({name: tuple(found) for name, found in values.items()})


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    """A competitor that does `work` and returns the wall-clock seconds it took."""

    def timed() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return timed


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The b of cost = a · size^b that fits best in logarithms (least squares): 1 is linear growth."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread


def verdict(value: float, *, at_least: float | None = None, at_most: float | None = None) -> dict[str, str]:
    """The columns `target` and `met` of a row."""
    met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    bounds = [f"≥ {at_least:g}"] if at_least is not None else []
    bounds += [f"≤ {at_most:g}"] if at_most is not None else []
    return {"target": " and ".join(bounds), "met": "yes" if met else "no"}


def options(description: str | None, quick: str, rounds: bool = True) -> argparse.ArgumentParser:
    """The options benchmarks share. `quick`: what --quick leaves out; `rounds`: whether it can be measured anew."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a built-in model or a folder")
    parser.add_argument("--dtype", default="native", choices=("native", "float32", "bfloat16"))
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's own choice)")
    parser.add_argument("--quick", action="store_true", help=f"a short version: {quick}")
    if rounds:
        parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--json", type=Path, help="write header and numbers to this file")
    return parser


def machine(dtype: str | None = None, threads: int | None = None) -> dict[str, Any]:
    """The header: what the numbers below it were measured on. `dtype` and `threads` where torch computes."""
    found: dict[str, Any] = {
        "cpu": _processor(),
        "isa": _instructions(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **_versions()},
    }
    if dtype is not None:
        found |= {"dtype": dtype, "threads": threads}
    return found


def show_machine(found: Mapping[str, Any]) -> str:
    """The header in two lines."""
    torch = f"; {found['dtype']}, {found['threads']} threads" if "dtype" in found else ""
    isa = f" ({', '.join(found['isa'])})" if found["isa"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"{found['cpu']}{isa}, {found['cores']} cores, {found['memory_gib']} GiB{torch}\n{versions}; {found['date']}"


def publish(name: str, header: Mapping[str, Any], tables: Iterable[Table], json_file: Path | None) -> None:
    """Print the header and each table as soon as it is there; write all of it to `json_file` in the end."""
    print(f"# {name}\n\n{show_machine(header)}", flush=True)
    started, done = time.perf_counter(), []
    for table in tables:
        print(f"\n{markdown(table)}", flush=True)
        done.append(table)
    spent = time.perf_counter() - started
    print(f"\nMeasured in {spent:.0f} s.")
    if json_file is not None:
        report = {"benchmark": name, "machine": header, "seconds": spent, "tables": [asdict(table) for table in done]}
        text = json.dumps(report, indent=2, ensure_ascii=False, default=_plain)
        json_file.write_text(text + "\n", encoding="utf8")


def markdown(table: Table) -> str:
    """A table as documents hold it."""
    columns = list(dict.fromkeys(column for row in table.rows for column in row))
    lines = [f"## {table.title}", ""] if table.title else []
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(_cell(row.get(column)) for column in columns) + " |" for row in table.rows]
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def _instructions() -> list[str]:
    flags = set((_cpuinfo().get("flags") or _cpuinfo().get("Features") or "").split())
    return [name for flag, name in ISA.items() if flag in flags]


def _cpuinfo() -> dict[str, str]:
    file = Path("/proc/cpuinfo")
    if not file.is_file():
        return {}
    first = file.read_text(encoding="utf8").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
