"""How the answer is taken out of what an agent wrote, before anything judges it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Literal

from marft.types import MarftError
from marft.validation import suggestion

Reading = Literal["whole", "last_number", "last_line", "tag", "after_hashes"]

# A sign belongs to the number unless it stands after something it could be subtracted from: in "5-3" it does not
_NUMBER = re.compile(
    r"(?:(?<![\w).,%])[-+])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<![0-9])(?=\.[0-9]))(?:\.[0-9]+)?"
)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def read_answer(reading: Reading, text: str) -> str | None:
    """The answer in `text`, stripped; None where the text holds none in the wanted place.

    `whole`: all of it. `last_line`: its last line that is not blank. `last_number`: its last number, without
    thousands separators. `tag`: inside the last `<answer>…</answer>`. `after_hashes`: the line after the last `####`.
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


def _last_number(text: str) -> str:
    found: list[str] = _NUMBER.findall(text.replace("−", "-"))
    return found[-1].replace(",", "").removeprefix("+") if found else ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _tag(text: str) -> str:
    found: list[str] = _TAG.findall(text)
    return found[-1].strip() if found else ""


def _after_hashes(text: str) -> str:
    _, hashes, rest = text.rpartition("####")
    return rest.strip().splitlines()[0].strip() if hashes and rest.strip() else ""


_READINGS: Mapping[str, Callable[[str], str]] = {
    "whole": str.strip,
    "last_number": _last_number,
    "last_line": _last_line,
    "tag": _tag,
    "after_hashes": _after_hashes,
}
