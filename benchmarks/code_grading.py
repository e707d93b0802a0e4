"""How fast programs are graded, and whether rightly: `python -m benchmarks.code_grading [--data FILE] [--quick]`.

Programs a second with one per processor core at a time, and the time that one alone takes (p50, p99), for each way of
testing. With `--data HumanEval.jsonl.gz`, the canonical solutions must all pass, and three that do nothing must fail.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft.environments.code_problems import Columns, read_problem
from marft.grading.code_runner import CallTests, CodeRunner, CodeTests, StdioTests, Tests
from marft.grading.isolation import isolation

KINDS: dict[str, tuple[str, Tests]] = {
    "reads and prints, 1 test": ("print(int(input()) + 1)", StdioTests((("1\n", "2\n"),))),
    "function, 3 assertions": ("def f(x):\n    return x + 1", CodeTests(("f",), "assert f(1) == 2\n" * 3)),
    "function, 3 JSON calls": ("def f(x):\n    return x + 1", CallTests("f", (([1], 2), ([2], 3), ([3], 4)))),
}
BODIES = {
    "canonical": None,
    "pass": "    pass\n",
    "return None": "    return None\n",
    "os._exit(0)": "    import os; os._exit(0)\n",
}


async def speed(runner: CodeRunner, program: str, tests: Tests, count: int) -> dict[str, float]:
    """Programs a second of `count` at once, and the milliseconds of one at a time."""
    begun = time.perf_counter()
    reports = await asyncio.gather(*(runner.run(program, tests) for _ in range(count)))
    rate = count / (time.perf_counter() - begun)
    assert all(report.passed for report in reports)
    alone = []
    for _ in range(count):
        begun = time.perf_counter()
        await runner.run(program, tests)
        alone.append(1000 * (time.perf_counter() - begun))
    alone.sort()
    return {"per_second": rate, "p50_ms": alone[len(alone) // 2], "p99_ms": alone[int(0.99 * (len(alone) - 1))]}


async def acceptance(runner: CodeRunner, rows: Sequence[dict[str, Any]], body: str | None) -> dict[str, Any]:
    """How many of HumanEval's problems a body (None: the canonical one) passes, and in what time."""
    problems = [read_problem("humaneval", row, row["task_id"], Columns()) for row in rows]
    programs = [row["prompt"] + (row["canonical_solution"] if body is None else body) for row in rows]
    begun = time.perf_counter()
    pairs = zip(programs, problems, strict=True)
    reports = await asyncio.gather(*(runner.run(program, problem.tests) for program, problem in pairs if problem))
    passed = [row["task_id"] for row, report in zip(rows, reports, strict=True) if report.passed]
    return {"passed": len(passed), "of": len(rows), "seconds": time.perf_counter() - begun}


def main() -> None:
    """Print the tables; exit with an error when a grade is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="HumanEval.jsonl.gz")
    parser.add_argument("--quick", action="store_true", help="a tenth of the programs")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    chosen = parser.parse_args()
    runner = CodeRunner(sandbox="limits-only" if isolation().missing else "auto")
    print(f"{len(os.sched_getaffinity(0))} cores, sandbox {runner.sandbox}\n")
    print("| program | programs/s | p50 ms | p99 ms |\n|---|---|---|---|")
    found: dict[str, Any] = {"sandbox": runner.sandbox, "speed": {}, "humaneval": {}}
    for name, (program, tests) in KINDS.items():
        row = asyncio.run(speed(runner, program, tests, 10 if chosen.quick else 100))
        found["speed"][name] = row
        print(f"| {name} | {row['per_second']:.1f} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} |", flush=True)
    wrong = False
    if chosen.data is not None:
        with gzip.open(chosen.data, "rt", encoding="utf8") as file:
            rows = [json.loads(line) for line in file][: 16 if chosen.quick else None]
        print("\n| HumanEval body | passed | seconds |\n|---|---|---|")
        for name, body in BODIES.items():
            result = asyncio.run(acceptance(runner, rows, body))
            found["humaneval"][name] = result
            wrong = wrong or result["passed"] != (len(rows) if body is None else 0)
            print(f"| {name} | {result['passed']} of {result['of']} | {result['seconds']:.1f} |", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1), encoding="utf8")
    if wrong:
        raise SystemExit("a grade is wrong")


if __name__ == "__main__":
    main()
