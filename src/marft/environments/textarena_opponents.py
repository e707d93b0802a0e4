"""Fixed opponents for textarena's games: players that are no agent of the team and never learn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from marft.environments.randomness import own_randomness
from marft.environments.textarena_game import Line, Match
from marft.imports import import_object
from marft.types import MarftError
from marft.validation import suggestion

NOTHING_TO_SAY = "I have nothing to say."

# The last run of bracketed moves: in "vote in format [X]. Valid: [2], [4]" that is [2] and [4]
_LIST = re.compile(r"\[[^\[\]]+\](?:(?:\s|[',;/\"]|or|and)*\[[^\[\]]+\])*")
_MOVE = re.compile(r"\[[^\[\]]+\]")
_CHOICES = re.compile(r"Player ([01]) (cooperated|defected)")


@dataclass(frozen=True)
class Situation:
    """What an opponent knows when it must move.

    `heard`: all that its player was told, oldest first. `moves`: the legal moves that the game listed since the
    opponent's last accepted move, without those refused since; empty where the game listed none. `random`: for draws
    that are the same whenever the same position is reached in the same episode.
    """

    player: int
    heard: tuple[Line, ...]
    moves: tuple[str, ...]
    random: Random


Opponent = Callable[[Situation], str]


def listed_moves(lines: Sequence[Line]) -> tuple[str, ...]:
    """The moves, brackets included, in the latest line of the game's own that lists any (its rules aside)."""
    for line in reversed(lines):
        if line.sender < 0 and line.kind not in ("PROMPT", "GAME_ACTION_DESCRIPTION"):
            runs = _LIST.findall(line.text)
            if runs:
                return tuple(_MOVE.findall(runs[-1]))
    return ()


def draw(situation: Situation) -> str:
    """A uniformly random one of the listed moves."""
    return situation.random.choice(situation.moves) if situation.moves else NOTHING_TO_SAY


def first(situation: Situation) -> str:
    """The first listed move."""
    return situation.moves[0] if situation.moves else NOTHING_TO_SAY


def last(situation: Situation) -> str:
    """The last listed move."""
    return situation.moves[-1] if situation.moves else NOTHING_TO_SAY


def tit_for_tat(situation: Situation) -> str:
    """In the iterated prisoner's dilemma: cooperate first, then do what the other did in the round before.

    (Axelrod and Hamilton, 1981.)
    """
    if not situation.moves:
        return NOTHING_TO_SAY
    results = [line.text for line in situation.heard if line.sender < 0 and " results:" in line.text]
    if not results or "Both players cooperated" in results[-1]:
        return "[Cooperate]"
    if "Both players defected" in results[-1]:
        return "[Defect]"
    choices = dict(_CHOICES.findall(results[-1]))
    return "[Defect]" if choices[str(1 - situation.player)] == "defected" else "[Cooperate]"


BUILT_IN: dict[str, Opponent] = {"random": draw, "first": first, "last": last, "tit_for_tat": tit_for_tat}


def find_opponent(name: str, game: str) -> Opponent:
    """The opponent of that name, or the function at `module:function`; raises `MarftError` when there is none."""
    if name == "tit_for_tat" and not game.startswith("IteratedPrisonersDilemma"):
        raise MarftError(f"opponents: tit_for_tat plays IteratedPrisonersDilemma, not {game}")
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise MarftError(f"opponents: no opponent '{name}'{suggestion(name, [*BUILT_IN, 'module:function'])}")
    found = import_object(name, "opponent")
    if not callable(found):
        raise MarftError(f"opponents: '{name}' is a {type(found).__name__}, not a function")
    opponent: Opponent = found
    return opponent


def answer(name: str, match: Match, luck: int) -> None:
    """Let the opponent of that name make the move of the player whose turn it is; `luck` seeds its draws.

    Raises `MarftError` for a built-in opponent in a game that lists no moves: it would lose by breaking the rules.
    """
    player, heard = match.player, tuple(match.heard[match.player])
    moves = _without_refused(listed_moves(heard[match.answered[player] :]), match)
    random = Random(f"{luck}/{len(match.played)}")
    with own_randomness(random.getrandbits(32)):  # an opponent's draws must not move the game's
        text = find_opponent(name, match.game)(Situation(player, heard, moves, random))
    if not isinstance(text, str):
        raise MarftError(f"opponents: '{name}' gave a {type(text).__name__}, not a text")
    if match.move(text).refused and name in BUILT_IN and not moves:
        raise MarftError(
            f"opponents: '{name}' picks from the moves that a game lists, and {match.game} lists none; "
            "write an opponent as module:function"
        )


def _without_refused(moves: tuple[str, ...], match: Match) -> tuple[str, ...]:
    """The listed moves without those just refused: a list may be older than the elimination of a player on it."""
    refused = set()
    for move in reversed([move for move in match.played if move.player == match.player]):
        if not move.refused:
            break
        refused.add(move.text)
    return tuple(move for move in moves if move not in refused) or moves
