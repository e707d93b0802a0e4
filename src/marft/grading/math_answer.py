r"""Grades of answers to mathematics: what is cheap is decided here, the rest by `math-verify` in a killable child.

The answer of a reply is its last `\boxed{…}` (or `\fbox`), else its last `<answer>…</answer>`, else what follows its
last `####`, else, where the config allows it, its last number. Nothing but the reply is read, never the prompt.

What counts as equal. Two plain numbers (`1,234`, `-.5`, `\frac12`, `1\frac{4}{5}`, with or without `$`, units or
degrees): exactly the same number, and where the right answer is a fraction without a finite decimal, also its decimal
rounded to six digits or more. Everything else: as `math-verify` says, except for what it would let pass although it
differs: brackets of another kind (\{1,2\} is not (1,2)), number bases (52_8 is not 52_7; 52 alone passes for
either), and decimals that agree in six places but not in six digits. Units are read over, never compared; `50\%`
equals both 50 and 0.5.

An answer that is too large to evaluate (a tower of powers, the factorial of a million, over 1000 characters) is wrong.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from marft.environments.reply import Reading, read_answer
from marft.grading.bounded import Pool, shared_pool
from marft.grading.math_text import can_be_read, plain_text, same_form

LONGEST = 1000  # characters of an answer; the longest right one in MATH-500 has 53
MOST_DIGITS = 10_000  # of a value that is still evaluated; 9^{9^9} has 370 million
DIGITS = 6  # from which on a rounded decimal stands for a fraction or a root
DEADLINE = 5.0  # seconds for one comparison

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_FRACTION = re.compile(r"([-+]?)(?:(?:([0-9]+) ?)?\\frac\{([-+]?[0-9]+)\}\{([0-9]+)\}|(?:([0-9]+) )?([0-9]+)/([0-9]+))")
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}


@dataclass(frozen=True)
class Grade:
    """Whether the answer is right, whether there is one, and its text in a form by which equal answers can vote."""

    right: bool
    answered: bool
    answer: str = ""


def read_math_answer(reply: str, plain_number: bool = False) -> str | None:
    """The answer that a reply gives, as it stands there; None when it gives none."""
    readings: tuple[Reading, ...] = ("boxed", "tag", "after_hashes")
    for reading in (*readings, "last_number") if plain_number else readings:
        answer = read_answer(reading, reply)
        if answer is not None:
            return answer
    return None


async def grade(answer: str | None, gold: str, pool: Pool | None = None, deadline: float = DEADLINE) -> Grade:
    """The grade of an answer (None: there is none) against the right one.

    Raises `GraderFailed` when the comparison takes longer than `deadline` seconds or crashes.
    """
    found = grade_without_algebra(answer, gold)
    if found is not None or answer is None:
        return found or Grade(False, False)
    right = await (pool or shared_pool()).run(equal_by_algebra, answer, gold, deadline=deadline)
    return Grade(right, True, canonical(answer))


def grade_without_algebra(answer: str | None, gold: str) -> Grade | None:
    """The grade where texts and exact numbers settle it, in microseconds; None where algebra is needed."""
    if answer is None:
        return Grade(False, False)
    if len(answer) > LONGEST:
        return Grade(False, True, canonical(answer))
    text, right = plain_text(answer), plain_text(gold)
    if text == right:
        return Grade(True, True, canonical(answer))
    number, right_number = exact_number(text.rstrip("%")), exact_number(right.rstrip("%"))
    if number is not None and right_number is not None:
        if text.endswith("%") == right.endswith("%"):
            equal = _stands_for(text.rstrip("%"), number, right_number)
        else:
            equal = right_number in (number, number / 100 if text.endswith("%") else number * 100)
        return Grade(equal, True, canonical(answer))
    return None if same_form(text, right) and can_be_read(text) else Grade(False, True, canonical(answer))


def canonical(answer: str) -> str:
    r"""The text by which answers vote: `\frac12`, `0.50` and `1/2` all become `1/2`; cut at 1000 characters."""
    text = plain_text(answer[:LONGEST])
    number = exact_number(text)
    return text if number is None else str(number)


def exact_number(text: str) -> Fraction | None:
    """The rational number that a plain text is as a whole, or None."""
    amount, _, scale = text.rpartition(" ")
    if scale in _SCALES:
        count = exact_number(amount)
        return None if count is None else count * _SCALES[scale]
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    sign = found[1]
    whole, above, below = (int(part or 0) for part in (found.groups()[1:4] if found[4] else found.groups()[4:7]))
    if not below or (whole and not 0 < above < below):  # `2\frac{3}{2}` is a product or a slip: not for this function
        return None
    number = whole + Fraction(above, below)
    return -number if sign == "-" else number


def equal_by_algebra(answer: str, gold: str) -> bool:
    """Whether `math-verify` finds the two equal. May take for ever: to be called in a child with a deadline.

    Its own deadlines are off: they are signals, which C code holds up.
    """
    import math_verify
    from sympy import Float

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its deadlines are off
    right, given = (_parse(math_verify, plain_text(text)) for text in (gold, answer))
    if right is None or given is None or max(_digits(right), _digits(given)) > MOST_DIGITS:
        return False
    try:
        equal = math_verify.verify(right, given, timeout_seconds=None, raise_on_error=True)
        if equal and (isinstance(right, Float) or isinstance(given, Float)):
            one, other = complex(right.doit()), complex(given.doit())
            equal = abs(one - other) <= 0.5 * 10 ** (1 - DIGITS) * abs(one)
    except MemoryError:
        raise
    except Exception:  # of two kinds of things that cannot be compared, so not equal
        return False
    return bool(equal)


def _parse(math_verify: Any, text: str) -> Any:
    """The text as a sympy object, or None. Units are already gone; math-verify would also take `4t` for 4 tonnes."""
    normal = math_verify.LatexNormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    extraction = math_verify.LatexExtractionConfig(normalization_config=normal)
    found = math_verify.parse(f"${text}$", [extraction], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _digits(expression: Any) -> float:
    """An upper bound of the decimal digits that evaluating the expression could need, without evaluating it."""
    from sympy import Add, Mul, Pow, Rational, binomial, factorial

    parts = [_digits(part) for part in getattr(expression, "args", ())]
    if isinstance(expression, Rational):
        return float(abs(expression.p).bit_length() + expression.q.bit_length()) * math.log10(2)
    if isinstance(expression, Pow):
        return max(1.0, parts[0]) * _most(expression.exp, parts[1])
    if isinstance(expression, factorial):
        return parts[0] * _most(expression.args[0], parts[0])
    if isinstance(expression, binomial):
        return parts[0] * min(_most(*each) for each in zip(expression.args, parts, strict=True))
    if isinstance(expression, Mul):
        return sum(parts)
    if isinstance(expression, Add):
        return max(parts) + len(parts)
    return max(parts, default=1.0)


def _most(expression: Any, digits: float) -> float:
    """An upper bound of the absolute value of an expression with so many digits; at least 1."""
    if digits > 300:  # beyond what a float can hold
        return math.inf
    return max(1.0, abs(float(expression))) if expression.is_Rational else 10.0**digits


def _stands_for(text: str, number: Fraction, right: Fraction) -> bool:
    """Equal, or the rounded decimal of a right answer that no decimal can state."""
    if number == right:
        return True
    rest = right.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    whole, point, decimals = text.lstrip("+-").partition(".")
    significant = len((whole + decimals).lstrip("0"))
    if rest == 1 or not point or not _NUMBER.fullmatch(text) or significant < DIGITS:
        return False
    return abs(number - right) <= Fraction(1, 2 * 10 ** len(decimals))
