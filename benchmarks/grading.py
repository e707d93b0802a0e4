"""How fast and how right mathematical answers are graded: `python -m benchmarks.grading [--quick] [--data FOLDER]`.

Without `--data`, answers are generated: plain numbers, which need no algebra, and surds, polynomials and tuples, which
do. With `--data`, a folder that holds gsm8k_test.jsonl, math500.jsonl and aime2024.json, the right answers of all three
are also graded against themselves, the solutions of MATH-500 against their answers, and every distinct answer against
itself by algebra alone (which equal texts never need). Pairs of a set's different answers are graded too, and every
one that is graded right is listed, since two problems may have equal answers in different texts.
`--json FILE` writes header and numbers. Grades run as in training: coroutines, one pool, as many at once as it has
workers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import Table, machine, publish
from marft.environments.reply import read_answer
from marft.environments.rows import file_records
from marft.grading.bounded import GraderFailed, Pool
from marft.grading.math_answer import equal_by_algebra, grade, grade_without_algebra, read_math_answer

Pair = tuple[str, str]  # a reply and the right answer
SEED = 0


def generated(count: int, algebra: bool) -> list[Pair]:
    """Replies with a boxed answer, half of them right; `algebra`: none that numbers and texts alone can settle."""
    rng = random.Random(SEED)
    pairs = []
    for index in range(count):
        a, b, off = rng.randint(2, 60), rng.randint(2, 60), index % 2
        forms = [
            (rf"\sqrt{{{a * a * b}}}", rf"{a + off}\sqrt{{{b}}}"),
            (rf"(x+{a})(x-{b})", rf"x^2+{a - b + off}x-{a * b}".replace("+-", "-")),
            (rf"\left(\frac{{{a}}}{{2}}, \sqrt{{{b}}}\right)", rf"({a + off}/2, {b}^{{1/2}})"),
            (rf"\frac{{{a}}}{{\sqrt{{{b}}}}}", rf"\frac{{{a + off}\sqrt{{{b}}}}}{{{b}}}"),
        ]
        gold, answer = forms[index // 2 % len(forms)] if algebra else (str(a * b), f"{a * b + off}.0")
        pairs.append((rf"We get \boxed{{{answer}}}.", gold))
    return pairs


async def measure(pool: Pool, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Grades a second, the tail of their latencies in ms, and how many were right or failed."""
    waiting = iter(pairs)
    seconds: list[float] = []
    right = failed = 0

    async def take() -> None:
        nonlocal right, failed
        for reply, gold in waiting:
            start = time.perf_counter()
            try:
                found = await grade(read_math_answer(reply), gold, pool)
                right += found.right
            except GraderFailed:
                failed += 1
            seconds.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(take() for _ in range(pool.workers)))
    total = time.perf_counter() - start
    seconds.sort()
    tail = {f"p{part}_ms": 1e3 * seconds[min(len(seconds) - 1, len(seconds) * part // 100)] for part in (50, 90, 99)}
    return {"grades": len(pairs), "right": right, "failed": failed, "grades_per_s": len(pairs) / total, **tail,
            "max_ms": 1e3 * seconds[-1]}  # fmt: skip


async def accept(pool: Pool, name: str, golds: Sequence[str], wrong: int) -> dict[str, Any]:
    """A set's right answers against themselves, and `wrong` pairs of different answers that were graded right."""
    boxed = [rf"The answer is \boxed{{{gold}}}." for gold in golds]
    itself = await measure(pool, list(zip(boxed, golds, strict=True)))
    rng = random.Random(SEED)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < wrong:
        one, other = rng.sample(range(len(golds)), 2)
        if golds[one] != golds[other]:
            pairs.append((one, other))
    start = time.perf_counter()
    grades = await asyncio.gather(*(grade(read_math_answer(boxed[one]), golds[other], pool) for one, other in pairs))
    distinct = sorted(set(golds))
    alone = await asyncio.gather(*(pool.run(equal_by_algebra, gold, gold) for gold in distinct))
    equal = [(golds[one], golds[other]) for (one, other), found in zip(pairs, grades, strict=True) if found.right]
    return {"set": name, "itself": itself, "distinct": len(distinct), "by_algebra_alone": sum(alone),
            "wrong_pairs": wrong, "wrong_pairs_seconds": time.perf_counter() - start,
            "graded_right": sorted(set(equal))}  # fmt: skip


async def acceptance(pool: Pool, folder: Path, wrong: int) -> list[dict[str, Any]]:
    """The three sets, and MATH-500's solutions."""
    gsm8k = [each.content["answer"] for each in file_records(str(folder / "gsm8k_test.jsonl"))]
    math500 = [each.content for each in file_records(str(folder / "math500.jsonl"))]
    aime = [each.content["final_answer"] for each in file_records(str(folder / "aime2024.json"))]
    math_golds = [row["answer"] for row in math500]
    found = [
        await accept(pool, "GSM8K test", [read_answer("after_hashes", text) or "" for text in gsm8k], wrong),
        await accept(pool, "MATH-500", math_golds, wrong),
        await accept(pool, "AIME 2024", aime, wrong),
    ]
    solutions = await measure(pool, [(row["solution"], row["answer"]) for row in math500])
    algebra = sum(grade_without_algebra(read_math_answer(row["solution"]), row["answer"]) is None for row in math500)
    return [*found, {"set": "MATH-500 solutions", "itself": solutions, "needed_algebra": algebra}]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the generated answers")
    parser.add_argument("--data", type=Path, help="a folder of benchmark files")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--workers", type=int, help="child processes at once (default: one per core, at most 8)")
    parser.add_argument("--wrong", type=int, default=500, help="wrong pairs per set")
    given = parser.parse_args()
    pool = Pool(workers=given.workers)
    publish("grading", machine(), tables(given, pool), given.json)
    pool.close()


def tables(given: argparse.Namespace, pool: Pool) -> Iterator[Table]:
    """Speed on generated answers and on those of the sets; what each set says of being right."""
    scale = 1 if given.quick else 10
    start = time.perf_counter()
    pool.call(len, "")
    ready = time.perf_counter() - start
    numbers = asyncio.run(measure(pool, generated(2000 * scale, algebra=False)))
    algebra = asyncio.run(measure(pool, generated(100 * scale, algebra=True)))
    found = asyncio.run(acceptance(pool, given.data, given.wrong)) if given.data else []
    rows = [{"answers": "generated, numbers", **numbers}, {"answers": "generated, algebra", **algebra}]
    rows += [{"answers": f"{each['set']}, against itself", **each["itself"]} for each in found]
    yield Table("Speed", rows, f"{pool.workers} workers, the first ready after {ready:.2f} s")
    rows = [{key: value for key, value in each.items() if key != "itself"} for each in found]
    if rows:
        yield Table("Right answers against themselves by algebra alone, and shuffled pairs", rows)


if __name__ == "__main__":
    main()
