r"""The plain text of a mathematical answer: the same answer written in other ways becomes the same text.

Only spelling is touched: spaces, `\left`, `\dfrac`, `$`, thousands separators, units, `\text{…}`. All is linear in the
length of the answer.
"""

from __future__ import annotations

import re

# Words after a number that say what is counted. An open list would drop words that change the answer (`3 thousand`)
_UNITS = (
    "degrees?|radians?|dollars?|cents?|euros?|pounds?|rupees?|yuan|dimes?|nickels?|quarters?|pennies|"
    "inch(?:es)?|in|feet|foot|ft|yards?|miles?|meters?|metres?|(?:kilo|centi|milli)met(?:er|re)s?|km|cm|mm|"
    "acres?|hectares?|lit(?:er|re)s?|millilit(?:er|re)s?|ml|gallons?|cups?|ounces?|oz|lbs?|tons?|"
    "(?:kilo|milli)?grams?|kg|mg|seconds?|sec|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|mph|km/h|m/s|"
    "(?:square|sq|cubic|cu)\\.?|per|units?|points?|people|persons?|students?|children|girls?|boys?|men|women|"
    "ways?|times|items?|pieces?|apples?|eggs?|books?|pages?|cookies|coins?|marbles?|stamps?|tickets?|cards?|balls?|"
    "sides?|edges?|faces?|vertices|numbers?|integers?|digits?|solutions?"
)
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|mbox|mathrm|mathbf|mathit|rm|bf)\s*\{([^{}]*)\}")
_POWER = r"(?:\s*\^\s*(?:[23]|\{\s*[23]\s*\})|[²³])?"
_COUNTED = re.compile(rf"(.*?(?:[0-9}})]|\S\s))\s*(?:(?<![A-Za-z])(?:{_UNITS})(?![A-Za-z]){_POWER}[\s.]*)+", re.DOTALL)
# Within `\text{}` one letter after a number is a unit; outside it, `5 m` may be a product
_LETTER_UNIT = re.compile(rf"(?<=[0-9}})])\s*\\(?:text|mbox|mathrm)\s*\{{\s*[A-Za-z]\s*\}}{_POWER}\s*$")
_WHOLE_TEXT = re.compile(r"[A-Za-z][A-Za-z' -]{2,}")

_SPELLINGS = [
    (re.compile(r"\\(?:left|right|displaystyle|textstyle|limits)(?![A-Za-z])"), ""),
    (re.compile(r"\\[bB]igg?[lr]?(?![A-Za-z])"), ""),
    (re.compile(r"\\!\s*"), ""),
    (re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])|\s+"), " "),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\\$|\$|\\[()\[\]](?=\s*$)|^\s*\\[(\[]"), ""),
    (re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])|°"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{\s*,\s*\}"), ","),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"([_^])\s*\{\s*([0-9A-Za-z])\s*\}"), r"\1\2"),
]
_FRACTION_PARTS = [
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*([0-9])\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\frac\s*\{([^{}]*)\}\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}"), r"\\frac{\1}{\2}"),
]
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_ALONE = re.compile(r"\(([A-Z]|[-+]?[0-9]+(?:\.[0-9]+)?)\)")
_PERCENT = re.compile(r"(?<=[0-9}])\s*(?:percent|per cent|pct)\s*$")
_BASE = re.compile(r"[0-9A-F]+\s*_\s*\{?\s*([0-9]+)\s*\}?")
_SPACE = re.compile(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.])")  # all but those between words and numbers
_BINOMIAL, _LONG_NUMBER = re.compile(r"\\[dt]?binom"), re.compile(r"[0-9]{5}")
DEEPEST = 20  # brackets within brackets; the deepest right answer in MATH-500 has 3
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def plain_text(answer: str) -> str:
    r"""The answer without what only dresses it: `\$1,\!234 \text{ dollars}` becomes `1234`, `\text{(C)}` `C`."""
    text = answer
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = _PERCENT.sub("%", _TEXT.sub(r" \1 ", _LETTER_UNIT.sub("", text)))
    for pattern, spelling in _FRACTION_PARTS:
        text = pattern.sub(spelling, text)
    text = text.strip().removesuffix(".").strip()
    counted = _COUNTED.fullmatch(text)
    text = _SPACE.sub("", " ".join((counted[1] if counted else text).split()))
    while text.startswith("{") and _ends_at(text) == len(text) - 1:
        text = text[1:-1].strip()
    if _THOUSANDS.fullmatch(text):
        return text.replace(",", "")
    alone = _ALONE.fullmatch(text)
    if alone:
        return alone[1]
    return text.casefold() if _WHOLE_TEXT.fullmatch(text) else text


def same_form(one: str, other: str) -> bool:
    """False where both plain texts stand in brackets of different kinds, or in different number bases."""
    brackets = _brackets(one), _brackets(other)
    if all(brackets) and brackets[0] != brackets[1]:
        return False
    bases = _BASE.fullmatch(one), _BASE.fullmatch(other)
    return not (bases[0] and bases[1]) or bases[0][1] == bases[1][1]


def can_be_read(text: str) -> bool:
    """False where a parser would stumble, at length: brackets that do not match in number, or deeper than 20."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in _PAIRS) - (sign in _PAIRS.values())
        deepest = max(deepest, depth)
        if depth < 0:
            return False
    # The parser computes binomials at once, whatever their size
    return depth == 0 and deepest <= DEEPEST and not (_BINOMIAL.search(text) and _LONG_NUMBER.search(text))


def _brackets(text: str) -> str:
    r"""The pair of brackets around the whole text, such as `(]`; empty where there is none, as in `(a+1)(b+2)`."""
    bare = text.replace("\\{", "{").replace("\\}", "}")
    if bare[:1] not in _PAIRS or text[:1] == "{" or _ends_at(bare) != len(bare) - 1:
        return ""
    return bare[0] + bare[-1]


def _ends_at(text: str) -> int:
    """The place of the bracket that closes the first one, whatever its kind; -1 where none does."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in _PAIRS) - (sign in _PAIRS.values())
        if depth == 0:
            return place
    return -1
