"""One live textarena game: made, seeded, moved and listened to, without its prints, downloads or random draws escaping.

A textarena game is a mutable object over Python's global random generator. What identifies a position here is its seed
and its moves; `Matches` keeps live games to go on with, and plays the moves again where it has none at that position.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.environments.randomness import OwnRandomness
from marft.types import MarftError
from marft.validation import suggestion

MOST_LIVE = 256  # games kept: more episodes at once than that play some of their moves again


@dataclass(frozen=True)
class Line:
    """Something a player was told: by another player (its number) or the game (-1); `kind` is textarena's own name."""

    sender: int
    speaker: str
    text: str
    kind: str


@dataclass(frozen=True)
class Move:
    """One move as it was played; `agent` is empty for an opponent's; `refused`: the game called it invalid."""

    player: int
    text: str
    agent: str
    refused: bool


class Match:
    """A live game, to be made and moved inside `contained(randomness)`.

    `played` are the moves so far; `heard[p]` is all that player p was told up to its latest turn, and `answered[p]` how
    much of it when it made its last accepted move. `rewards` stays None until the game is over.
    Raises `MarftError` when the game cannot be set up.
    """

    def __init__(
        self, game: str, parameters: Mapping[str, Any], seed: int, players: int, randomness: OwnRandomness
    ) -> None:
        self.game, self.seed, self.randomness = game, seed, randomness
        self._env = make(game, parameters)
        try:
            self._env.reset(num_players=players, seed=seed)
        except Exception as error:  # a game checks its number of players, or loads what it needs, in its own ways
            raise MarftError(f"{_cannot(game, error)} (with {players} players)") from error
        self.played: list[Move] = []
        self.heard: list[list[Line]] = [[] for _ in range(players)]
        self.answered = [0] * players
        self.rewards: tuple[float, ...] | None = None
        self._listen()

    @property
    def player(self) -> int:
        """Whose turn it is."""
        return int(self._env.state.current_player_id)

    @property
    def stuck(self) -> bool:
        """Whether the game goes on although at most one player is left in it.

        textarena would look for the next player in a loop without end once nobody is.
        """
        out = set(getattr(self._env.state, "elimination_order", ()))
        return self.rewards is None and len(out) >= max(1, len(self.heard) - 1)

    def move(self, text: str, agent: str = "") -> Move:
        """Play one move of the player whose turn it is."""
        player, heard = self.player, len(self.heard[self.player])
        errors, fatal = self._errors(player)
        over, _ = self._env.step(text)
        errors_now, fatal_now = self._errors(player)
        move = Move(player, text, agent, refused=errors_now > errors or fatal_now != fatal)
        self.played.append(move)
        if not move.refused:
            self.answered[player] = heard
        if over:
            self.rewards = self._final_rewards()
        else:
            self._listen()
        return move

    def _errors(self, player: int) -> tuple[int, bool]:
        """Invalid moves in a row that were forgiven, and whether one was not."""
        state = self._env.state
        return getattr(state, "error_count", 0), bool(state.game_info[player]["invalid_move"])

    def _final_rewards(self) -> tuple[float, ...]:
        rewards, _ = self._env.close()
        players = range(len(self.heard))
        for player in players:
            if player not in (rewards or {}):
                raise MarftError(f"{self.game} ended without a reward for player {player}")
        return tuple(float(rewards[player]) for player in players)

    def _listen(self) -> None:
        # The bare game's observations: a wrapper would give them as one text, with all earlier ones again
        bare = self._env
        while isinstance(bare, _textarena().Wrapper):
            bare = bare.env
        player, lines = bare.get_observation()
        for sender, text, kind in lines:
            speaker = bare.state.role_mapping.get(sender, f"Player {sender}")
            self.heard[player].append(Line(sender, str(speaker), str(text), kind.name))


class Matches:
    """The matches of one game, each at the position that its seed, number of players and moves have led to."""

    def __init__(self, game: str, parameters: Mapping[str, Any]) -> None:
        self._game, self._parameters = game, parameters
        self._live: OrderedDict[Any, Match] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return Matches, (self._game, self._parameters)  # live games cannot be pickled, nor need they be

    def take(self, seed: int, players: int, moves: Sequence[Move]) -> Match:
        """A match at that position, for the caller alone: live if there is one, else played again from the start."""
        live = self._live.pop((seed, players, tuple(moves)), None)
        if live is not None:
            return live
        randomness = OwnRandomness(seed)
        with contained(randomness):
            match = Match(self._game, self._parameters, seed, players, randomness)
            for move in moves:
                match.move(move.text, move.agent)
        return match

    def keep(self, match: Match) -> None:
        """Have a match at hand for whoever goes on from its position."""
        self._live[match.seed, len(match.heard), tuple(match.played)] = match
        while len(self._live) > MOST_LIVE:
            self._live.popitem(last=False)


@contextlib.contextmanager
def contained(randomness: OwnRandomness) -> Iterator[None]:
    """Around all of textarena's code: random draws from its own stream, no prints, no nltk downloads."""
    nltk: Any = _import("nltk")
    download = nltk.download
    nltk.download = lambda *_, **__: False  # several games download word lists as they are imported
    try:
        with randomness.lent(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        nltk.download = download


def make(game: str, parameters: Mapping[str, Any]) -> Any:
    """A fresh textarena game by its id, in textarena's default wrappers; to be called inside `contained`.

    Raises `MarftError` for an unknown game or parameter, and for what this machine lacks to play it.
    """
    registry = _textarena().envs.registration.ENV_REGISTRY
    if game not in registry:
        known = sorted(name for name in registry if name.endswith("-v0"))
        hint = suggestion(game, known)
        raise MarftError(
            f"game: textarena has no '{game}'{hint if 'did you mean' in hint else '; write it as TicTacToe-v0'}"
        )
    try:
        return _textarena().make(game, **parameters)
    except Exception as error:
        unknown = _unknown_parameter(registry[game].entry_point, parameters) if isinstance(error, TypeError) else None
        raise MarftError(unknown or _cannot(game, error)) from error


def _unknown_parameter(entry_point: str, parameters: Mapping[str, Any]) -> str | None:
    module, _, name = entry_point.partition(":")
    accepted = list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
    for key in parameters:
        if key not in accepted:
            return f"parameters: {name.removesuffix('Env')} has no '{key}'{suggestion(key, accepted)}"
    return None


def _cannot(game: str, error: Exception) -> str:
    """Why a game cannot be played here, and what would help."""
    reason = " ".join(str(error).split())
    if type(error) is LookupError:  # how nltk says that its data are missing; KeyError and IndexError are others
        return f"{game} needs word lists: run `python -m nltk.downloader words averaged_perceptron_tagger_eng`"
    if isinstance(error, SyntaxError):
        return f"{game} needs Python 3.12 or later"
    if "API key" in reason:
        return f"{game} has a hosted model as judge or player: {reason}"
    return f"{game} cannot be set up: {reason or type(error).__name__}"


def _textarena() -> Any:
    return _import("textarena")


def _import(module: str) -> Any:
    """textarena, or nltk which comes with it: imported when first needed, for it takes a second."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MarftError("textarena is not installed; install marft[games]") from error
