"""How much a reply says again: a language that decays often decays into loops."""

from __future__ import annotations

LENGTH = 4


def repeated(text: str) -> float:
    """Share of a text's runs of four words that occurred before in it; 0 where it has no such run.

    Words are what white space parts, without regard to case (as rep-n of Welleck et al., arXiv 1908.04319, one reply
    at a time).
    """
    words = text.casefold().split()
    runs = [tuple(words[start : start + LENGTH]) for start in range(len(words) - LENGTH + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
