"""textarena: two-player and team text games, between agents of the team (self-play) or against fixed opponents.

One turn is one move: the player whose turn it is speaks, by the dependency function `turn_order`. Under another D all
the same is played, and what agents of other seats say is not heard by the game; a turn in which nobody of the moving
seat speaks moves nothing. Several agents may hold one seat: the last of them to act makes the move, the others advise.

A state is the moves so far and what they led to; the live game behind it is found or made again (`textarena_game`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field, model_validator

from marft.environments.base import Outcome
from marft.environments.randomness import OwnRandomness
from marft.environments.reply import read_answer
from marft.environments.textarena_game import Line, Matches, Move, contained, make
from marft.environments.textarena_opponents import answer, find_opponent
from marft.game.dependency import Graph, chain
from marft.section import NonNegative, Positive, Section
from marft.types import MarftError, Split, Task
from marft.validation import suggestion, validate


class Parameters(Section):
    """What the config's `environment` may say."""

    game: str = Field(description="textarena's id, for example TicTacToe-v0")
    parameters: dict[str, Any] = Field(default_factory=dict, description="of the game itself")
    seats: dict[NonNegative, str | list[str]] = Field(
        default_factory=dict,
        description="seat -> agent, or agents (the last to act moves); default: the free seats in declared order",
    )
    opponents: dict[NonNegative, str] = Field(
        default_factory=dict,
        description="seat -> random, first, last (of the moves the game lists), tit_for_tat, or `module:function`",
    )
    alternate_seats: bool = Field(True, description="seat s is player (s + task index) mod players, so roles go round")
    reward: Literal["own", "team_mean", "winner"] = Field(
        "own",
        description="own: each seat its player's reward; winner: 1 for winning, .5 for a draw, 0 for losing; "
        "team_mean: one team reward, the mean over the team's seats (0 in zero-sum games that the team fills)",
    )
    success_of: str | None = Field(
        None, description="the agent whose winning is `success`; default: the first declared"
    )
    answer: Literal["whole", "last_line", "tag"] = Field("whole", description="what of a message the game gets to read")
    max_moves: Positive = Field(300, description="a game still going after so many moves is truncated")
    prompt: str = Field(
        "You play a game. When it is your turn, answer with your move in the form that the rules ask for.",
        description="what all read, besides the rules",
    )

    @model_validator(mode="after")
    def _seats_are_complete_and_single(self) -> Parameters:
        for seat in self.opponents:
            if seat in self.seats:
                raise ValueError(f"environment.opponents: seat {seat} is held by the team already")
        taken = {*self.seats, *self.opponents}
        if self.seats and taken != set(range(len(taken))):
            raise ValueError(f"environment.seats: with the opponents', they must be 0 to {len(taken) - 1}, each once")
        for seat in self.seats:
            if not self.seated(seat):
                raise ValueError(f"environment.seats: nobody sits on seat {seat}")
        for agent, times in Counter(agent for seat in self.seats for agent in self.seated(seat)).items():
            if times > 1:
                raise ValueError(f"environment.seats: '{agent}' sits twice; use two agents that share one adapter")
        return self

    def seated(self, seat: int) -> tuple[str, ...]:
        """The agents that `seats` names for a seat."""
        named = self.seats[seat]
        return (named,) if isinstance(named, str) else tuple(named)


@dataclass(frozen=True)
class Seat:
    """Who plays one player: agents of the team, or a fixed opponent."""

    agents: tuple[str, ...] = ()
    opponent: str = ""


@dataclass(frozen=True)
class State:
    """One episode: the game's own seed, the opponents', and who plays whom; then where the moves have led.

    `seats[p]` plays player p. `heard[p]` is all that player p was told up to its latest turn, and `read[a]` how much of
    that agent a had seen when it last spoke. `rewards[p]` is None until the game is over.
    """

    seed: int
    luck: int
    agents: tuple[str, ...]
    seats: tuple[Seat, ...]
    moves: tuple[Move, ...] = ()
    player: int = 0
    heard: tuple[tuple[Line, ...], ...] = ()
    read: Mapping[str, int] = field(default_factory=dict)
    rewards: tuple[float, ...] | None = None
    stuck: bool = False

    def player_of(self, agent: str) -> int:
        """The player that the agent plays, or helps to play."""
        return next(player for player, seat in enumerate(self.seats) if agent in seat.agents)


def turn_order(state: State, turn: int) -> Graph:
    """D of a textarena game: the agents of the moving seat act, one after another; the team's seats take turns.

    For a config: `team.dependency: {function: "marft.environments.textarena:turn_order"}`.
    """
    if not isinstance(state, State):
        raise MarftError("turn_order is the D of textarena games; in another world give the team another dependency")
    acting = state.seats[state.player].agents or state.agents[:1]
    return Graph(chain(acting).graph.edges, acting=acting)


class TextArena:
    """A textarena game. A seat's reward goes to the agent that made its last move, when the game is over."""

    name = "textarena"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "textarena")
        with contained(OwnRandomness(0)):
            make(self.parameters.game, self.parameters.parameters)
        self._matches = Matches(self.parameters.game, self.parameters.parameters)
        for name in self.parameters.opponents.values():
            find_opponent(name, self.parameters.game)

    def size(self, split: Split) -> int | None:
        """Endless."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """All tasks read the same: the rules and a player's own cards are observations."""
        data = {"index": index, "heldout": split == "heldout"}
        return Task(f"{split}-{index}", self.parameters.prompt, self.parameters.game, data)

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """A game dealt from the task alone; `seed` is the fixed opponents' luck. Opponents that begin have moved.

        With `alternate_seats`, as many tasks in a row as there are players share one deal, each from another chair.
        Raises `MarftError` when the team, the seats and the game do not fit.
        """
        judged = self.parameters.success_of
        if judged is not None and judged not in agents:
            raise MarftError(f"success_of: no agent '{judged}' in the team{suggestion(judged, agents)}")
        seats = self._seats(agents)
        index, players = task.data["index"], len(seats)
        shift = index % players if self.parameters.alternate_seats else 0
        deal = index // players if self.parameters.alternate_seats else index
        turned = tuple(seats[(player - shift) % players] for player in range(players))
        state = State(2 * deal + task.data["heldout"], seed, agents, turned)  # train deals are even, held-out ones odd
        return self._play(state, None)

    def observe(self, state: State, agent: str) -> str:
        """What the game told the agent's player since the agent last spoke; of several boards only the newest."""
        player = state.player_of(agent)
        alone = len(state.seats[player].agents) == 1  # then what its player said is in its conversation already
        lines = state.heard[player][state.read.get(agent, 0) :]
        boards = [place for place, line in enumerate(lines) if line.kind == "GAME_BOARD"]
        return "\n".join(
            f"[{line.speaker}] {line.text}"
            for place, line in enumerate(lines)
            if place not in boards[:-1] and not (alone and line.kind == "PLAYER_ACTION" and line.sender == player)
        )

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """One move of the seat whose turn it is, and then of all fixed opponents up to the team's next turn."""
        read = {**state.read, **{agent: len(state.heard[state.player_of(agent)]) for agent in messages}}
        after = replace(state, read=read)
        speakers = [agent for agent in messages if agent in state.seats[state.player].agents]
        if speakers and not self._is_over(state):
            text = read_answer(self.parameters.answer, messages[speakers[-1]]) or ""
            after = self._play(after, text, speakers[-1])
        return self._outcome(after)

    def sides(self, state: State) -> Mapping[str, str]:
        """Each seat plays for itself, unless one team reward makes all of the team play for the team."""
        together = self.parameters.reward == "team_mean"
        return {agent: "team" if together else f"player {state.player_of(agent)}" for agent in state.agents}

    def _seats(self, agents: tuple[str, ...]) -> tuple[Seat, ...]:
        """Who holds each seat, before they go round."""
        given = self.parameters
        if given.seats:
            held = {seat: Seat(given.seated(seat)) for seat in given.seats}
        else:
            free = [seat for seat in range(len(agents) + len(given.opponents)) if seat not in given.opponents]
            held = {seat: Seat((agent,)) for seat, agent in zip(free, agents, strict=False)}
        held |= {seat: Seat(opponent=name) for seat, name in given.opponents.items()}
        if sorted(held) != list(range(len(held))):
            raise MarftError(
                f"opponents: seat {max(held)} is too high for a game of {len(held)} players (0 is the first)"
            )
        seated = [agent for seat in held.values() for agent in seat.agents]
        for agent in seated:
            if agent not in agents:
                raise MarftError(f"seats: no agent '{agent}' in the team{suggestion(agent, agents)}")
        for agent in agents:
            if agent not in seated:
                raise MarftError(f"seats: agent '{agent}' has no seat")
        return tuple(held[seat] for seat in range(len(held)))

    def _play(self, state: State, text: str | None, agent: str = "") -> State:
        """The position after the agent's move, if any, and the opponents' answers to it."""
        match = self._matches.take(state.seed, len(state.seats), state.moves)
        with contained(match.randomness):
            if text is not None:
                match.move(text, agent)
            while match.rewards is None and not match.stuck and len(match.played) < self.parameters.max_moves:
                opponent = state.seats[match.player].opponent
                if not opponent:
                    break
                answer(opponent, match, state.luck)
        if match.rewards is None:
            self._matches.keep(match)
        return replace(
            state,
            moves=tuple(match.played),
            player=match.player,
            heard=tuple(tuple(lines) for lines in match.heard),
            rewards=match.rewards,
            stuck=match.stuck,
        )

    def _is_over(self, state: State) -> bool:
        return state.rewards is not None or state.stuck or len(state.moves) >= self.parameters.max_moves

    def _outcome(self, state: State) -> Outcome:
        over = state.rewards is not None
        return Outcome(
            state,
            self._rewards(state),
            terminated=over,
            truncated=self._is_over(state) and not over,
            metrics=self._metrics(state),
        )

    def _rewards(self, state: State) -> Mapping[str, float] | float:
        if state.rewards is None:
            return 0.0
        rewards = state.rewards
        if self.parameters.reward == "team_mean":
            team = [reward for reward, seat in zip(rewards, state.seats, strict=True) if seat.agents]
            return sum(team) / len(team)
        if self.parameters.reward == "winner":
            rewards = tuple(_won(rewards, player) for player in range(len(rewards)))
        last_movers = {move.player: move.agent for move in state.moves if move.agent}
        return {agent: rewards[player] for player, agent in last_movers.items()}

    def _metrics(self, state: State) -> dict[str, float]:
        counts = {
            "moves": float(len(state.moves)),
            "invalid_moves": float(sum(move.refused for move in state.moves if move.agent)),
        }
        if state.rewards is None:
            return {"success": 0.0, **counts}
        wins = {agent: _won(state.rewards, state.player_of(agent)) for agent in state.agents}
        success = wins[self.parameters.success_of or state.agents[0]]
        return {"success": success, **counts, **{f"win_{agent}": won for agent, won in wins.items()}}


def _won(rewards: Sequence[float], player: int) -> float:
    """In [0, 1]: textarena's -1, 0, 1 for losing, a draw and winning become 0, .5, 1 (of one player: 0 to 1 stay)."""
    worth = rewards[player] if len(rewards) == 1 else (rewards[player] + 1) / 2
    return min(1.0, max(0.0, worth))
