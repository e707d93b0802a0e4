"""Word problems of two or three steps, and the plans and calculations that solve them.

    tom has 3 apples gets 4 sells 2 how many ?      the question
    3 + 4 - 2                                       the plan: carried out from left to right, no sign binds closer
    3 + 4 = 7 - 2 = 5                               the calculation: every result is what the next step starts from

Numbers are 0 to 20, so that each can be one token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from zlib import crc32

from marft.types import Split

MOST = 20  # the largest number that occurs
NAMES = ("tom", "ann", "ben", "eva")
THINGS = ("apples", "pears", "nuts")
VERBS = {"+": ("gets", "finds", "buys"), "-": ("loses", "gives", "eats", "sells")}
SIGNS = ("+", "-", "*")
TIMES = {2: "doubles", 3: "triples"}
ASIDE = "sees"  # what it counts does not belong to the sum
KINDS = (
    "two_steps", "two_steps_aside", "two_steps_backwards",
    "three_steps", "three_steps_aside", "three_steps_backwards",
)  # fmt: skip
LIMITS = {1: 4, 2: 9, 3: 9}  # level -> the largest number in a question; level 3 also multiplies
HELD_OUT = 8  # one plan in so many belongs to the held-out split

Step = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """A number and what is done to it, step after step."""

    start: int
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        """`3 + 4 - 2`."""
        return " ".join([str(self.start), *(f"{sign} {number}" for sign, number in self.steps)])

    @property
    def results(self) -> tuple[int, ...]:
        """What stands after each step."""
        return tuple(accumulate(self.steps, apply, initial=self.start))[1:]

    @property
    def possible(self) -> bool:
        """Whether every result is a number that can be written."""
        return all(0 <= result <= MOST for result in self.results)

    @property
    def calculation(self) -> str:
        """`3 + 4 = 7 - 2 = 5`."""
        return written(self, self.results)


@dataclass(frozen=True)
class Problem:
    """A question and the plan that answers it; `aside` is a number in it that does not count."""

    kind: str
    level: int
    question: str
    plan: Plan
    aside: int | None = None

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.plan.results[-1]


def apply(value: int, step: Step) -> int:
    """One step."""
    sign, number = step
    return value + number if sign == "+" else value - number if sign == "-" else value * number


def written(plan: Plan, results: Sequence[int]) -> str:
    """A calculation with these results, right or wrong."""
    steps = zip(plan.steps, results, strict=True)
    return " ".join([str(plan.start), *(f"{sign} {number} = {result}" for (sign, number), result in steps)])


def read_plan(text: str) -> Plan | None:
    """The plan that a message is, as a whole; None when it is none."""
    words = text.split()
    signs, numbers = words[1::2], words[::2]
    if len(words) < 3 or len(words) % 2 == 0 or not all(sign in SIGNS for sign in signs):
        return None
    if not all(map(_is_number, numbers)):
        return None
    return Plan(int(numbers[0]), tuple(zip(signs, map(int, numbers[1:]), strict=True)))


def read_result(text: str) -> int | None:
    """What a message's calculation comes to: None when it holds none, or a step of it is wrong.

    A plan may stand before it (`PLAN : CALCULATION`), and the answer again after it (`CALCULATION so ANSWER`).
    """
    calculation, _, answer = text.rpartition(":")[2].partition(" so ")
    words = calculation.split()
    if len(words) < 5 or len(words) % 4 != 1 or not _is_number(words[0]):
        return None
    value = int(words[0])
    for place in range(1, len(words), 4):
        sign, number, equals, result = words[place : place + 4]
        if sign not in SIGNS or equals != "=" or not _is_number(number) or not _is_number(result):
            return None
        value = apply(value, (sign, int(number)))
        if value != int(result):
            return None
    return value if answer.strip() in ("", str(value)) else None


def split_of(plan: Plan) -> Split:
    """The one split whose problems have this plan."""
    return "heldout" if crc32(plan.text.encode()) % HELD_OUT == 0 else "train"


def draw_problem(
    draw: random.Random, split: Split, kinds: Sequence[str] = KINDS, levels: Sequence[int] = tuple(LIMITS)
) -> Problem:
    """A problem of a split."""
    kind, level = draw.choice(kinds), draw.choice(levels)
    count = 2 if kind.startswith("two") else 3
    while True:
        plan = Plan(draw.randint(1, LIMITS[level]), tuple(_draw_step(draw, level) for _ in range(count)))
        if plan.possible and split_of(plan) == split:
            break
    aside = draw.randint(1, LIMITS[level]) if kind.endswith("aside") else None
    return Problem(kind, level, _question(draw, kind, plan, aside), plan, aside)


def _draw_step(draw: random.Random, level: int) -> Step:
    if level == 3 and draw.random() < 0.3:
        return "*", draw.choice(tuple(TIMES))
    return draw.choice("+-"), draw.randint(1, LIMITS[level])


def _question(draw: random.Random, kind: str, plan: Plan, aside: int | None) -> str:
    who, what = draw.choice(NAMES), draw.choice(THINGS)
    clauses = [TIMES[number] if sign == "*" else f"{draw.choice(VERBS[sign])} {number}" for sign, number in plan.steps]
    if aside is not None:
        clauses.insert(draw.randint(0, len(clauses)), f"{ASIDE} {aside}")
    if kind.endswith("backwards"):
        return f"{who} {' '.join(clauses)} first had {plan.start} {what} how many ?"
    return f"{who} has {plan.start} {what} {' '.join(clauses)} how many ?"


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()
