"""How the answer is taken out of what an agent wrote, before anything judges it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Literal

from marft.types import MarftError
from marft.validation import suggestion

Reading = Literal["whole", "last_number", "last_line", "tag", "after_hashes", "boxed"]
Decide = Literal["answerer", "vote"]

# What a text lacks that a reading finds no answer in
NOWHERE: Mapping[Reading, str] = {
    "whole": "an empty answer",
    "after_hashes": "no `####` with an answer after it",
    "boxed": "no closed `\\boxed{…}`",
}

# A sign belongs to the number unless it stands after something it could be subtracted from: in "5-3" it does not
_NUMBER = re.compile(
    r"(?:(?<![\w).,%])[-+])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![0-9])(?=\.[0-9]))(?:\.[0-9]+)?"
)
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BOX = re.compile(r"\\+(?:boxed|fbox|framebox)\s*")
# What matters to where a box ends: its start, a box without braces, an escaped character, a brace
_BOXES = re.compile(
    rf"(?P<box>{_BOX.pattern}\{{)|{_BOX.pattern}(?P<bare>[-+]?[0-9][^\s{{}}$\\,;]*)|\\.|[{{}}]", re.DOTALL
)


def read_answer(reading: Reading, text: str) -> str | None:
    """The answer in `text`, stripped; None where the text holds none in the wanted place.

    `whole`: all of it. `last_line`: its last line that is not blank. `last_number`: its last number, without
    thousands separators. `tag`: inside the last `<answer>…</answer>`. `after_hashes`: the line after the last `####`.
    `boxed`: inside the last `\\boxed{…}` or `\\fbox{…}` that is closed and not empty. All are linear in the text.
    """
    return _READINGS[reading](text) or None


def number(text: str) -> Decimal | None:
    """The number that `text` is as a whole (thousands separators, `$`, `%` and a final full stop allowed), or None."""
    cleaned = text.replace("−", "-").strip().removesuffix(".").strip("$% \t\n")
    sign = cleaned[:1] if cleaned[:1] in "+-" else ""
    cleaned = sign + cleaned.removeprefix(sign).lstrip("$")
    return Decimal(cleaned.replace(",", "")) if _NUMBER.fullmatch(cleaned) else None


def check_answerer(answerer: str | None, agents: tuple[str, ...]) -> None:
    """Check that a named answerer is in the team; raises `MarftError` when it is not."""
    if answerer is not None and answerer not in agents:
        raise MarftError(f"answerer: no agent '{answerer}' in the team{suggestion(answerer, agents)}")


def answering_message(answerer: str | None, messages: Mapping[str, str]) -> str | None:
    """The message to grade: the answerer's, by default that of the last to act; None when the answerer did not act."""
    if answerer is None:
        return messages[next(reversed(list(messages)))] if messages else None
    return messages.get(answerer)


def deciding_answer(
    decide: Decide,
    answerer: str | None,
    messages: Mapping[str, str],
    read: Callable[[str], str | None],
    key: Callable[[str], str],
) -> tuple[bool, str | None]:
    """Whether the turn is an attempt, and the team's answer in it (None: there is none).

    `answerer`: what `answering_message` holds. `vote`: the answer that most of those who acted gave, where answers
    with equal `key` are one answer; among equally many the one given first, and those without an answer do not vote.
    """
    if decide == "answerer":
        message = answering_message(answerer, messages)
        return message is not None, None if message is None else read(message)
    answers = [answer for answer in map(read, messages.values()) if answer is not None]
    if not answers:
        return bool(messages), None
    votes = Counter(map(key, answers))  # in the order in which they were given, which `max` keeps among equals
    winner = max(votes, key=votes.__getitem__)
    return True, next(answer for answer in answers if key(answer) == winner)


def _last_number(text: str) -> str:
    found: list[str] = _NUMBER.findall(text.replace("−", "-"))
    return found[-1].replace(",", "").removeprefix("+") if found else ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _tag(text: str) -> str:
    found, start = "", None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            found, start = text[start : tag.start()], None
    return found.strip()


def _boxed(text: str) -> str:
    """The box that ends last; what it stands in, or what is open around it, does not matter."""
    found = ""
    opened: list[int | None] = []  # of every open brace: where the content of its box starts, or None
    for mark in _BOXES.finditer(text):
        content = mark["bare"] or ""
        if mark["box"]:
            opened.append(mark.end())
        elif mark[0] == "{":
            opened.append(None)
        elif mark[0] == "}" and opened:
            start = opened.pop()
            content = text[start : mark.start()].strip() if start is not None else ""
        found = content or found
    return _BOX.sub("", found)


def _after_hashes(text: str) -> str:
    _, hashes, rest = text.rpartition("####")
    return rest.strip().splitlines()[0].strip() if hashes and rest.strip() else ""


_READINGS: Mapping[str, Callable[[str], str]] = {
    "whole": str.strip,
    "last_number": _last_number,
    "last_line": _last_line,
    "tag": _tag,
    "after_hashes": _after_hashes,
    "boxed": _boxed,
}
