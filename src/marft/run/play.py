"""Ask a team a question and hear each agent as it speaks; nothing is graded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from marft.environments.base import Outcome
from marft.game.dependency import Static
from marft.game.flexmg import FlexMG
from marft.game.organisation import Debate, Orchestrated
from marft.generate.base import Generator, Reply, Request, Usage
from marft.models.chat import Chat
from marft.rollout import Plan, rollout
from marft.run.answer import Answer
from marft.run.trace import played
from marft.running import result_of
from marft.team import Team
from marft.types import Episode, MarftError, Split, Task

QUESTION_SEED = 2  # first number of the seed: draws that neither training nor evaluation makes


@dataclass(frozen=True)
class Asked:
    """The question, and the turn (from 0)."""

    task: Task
    turn: int = 0


class Conversation:
    """An environment that only listens: the question is the task, and no answer is right or wrong."""

    name = "conversation"

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def size(self, split: Split) -> int | None:
        """None: questions come from a person."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """There is no list of questions."""
        raise MarftError("a conversation has no tasks of its own")

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> Asked:
        """The question, in the first turn."""
        return Asked(task)

    def observe(self, state: Asked, agent: str) -> str:
        """Nothing but the question."""
        return ""

    def step(self, state: Asked, messages: Mapping[str, str]) -> Outcome:
        """The next turn, without reward."""
        after = Asked(state.task, state.turn + 1)
        return Outcome(after, 0.0, terminated=after.turn == self._turns)


class Listener(Protocol):
    """Anyone who hears a team speak."""

    def token(self, speaker: str, token: int) -> None:
        """One more token of a message."""
        ...

    def finished(self, speaker: str, reply: Reply) -> None:
        """A message is complete."""
        ...


class Overheard:
    """A `Generator` that tells of every token and every finished reply, with the name of the speaker."""

    def __init__(self, inner: Generator, listener: Listener) -> None:
        self._inner, self._listener = inner, listener

    @property
    def version(self) -> int:
        """The inner generator's version."""
        return self._inner.version

    @property
    def usage(self) -> Usage:
        """The inner generator's totals."""
        return self._inner.usage

    async def generate(self, request: Request) -> Reply:
        """The inner generator's reply."""
        reply = await self._inner.generate(replace(request, on_token=partial(self._listener.token, request.speaker)))
        self._listener.finished(request.speaker, reply)
        return reply

    @property
    def own_weights(self) -> bool:
        """As the inner generator says."""
        return self._inner.own_weights

    def hold(self, adapters: Sequence[str]) -> None:
        """Passed on."""
        self._inner.hold(adapters)

    def load(self, version: int) -> None:
        """Passed on."""
        self._inner.load(version)

    def rest(self) -> None:
        """Passed on."""
        self._inner.rest()


class Voices:
    """What a person sees: finished messages stay, and in a terminal those being spoken grow underneath."""

    def __init__(self, console: Console, chats: Mapping[str, Chat]) -> None:
        self._console = console
        self._chats = chats
        self._speaking: dict[str, list[int]] = {}
        self.refresh: Callable[[], None] = lambda: None  # draws the panel anew, where there is one

    def token(self, speaker: str, token: int) -> None:
        """One more token of a message."""
        self._speaking.setdefault(speaker, []).append(token)

    def finished(self, speaker: str, reply: Reply) -> None:
        """A message is complete: print it for good."""
        self._speaking.pop(speaker, None)
        self.refresh()  # else the unfinished message would stand below the finished one for a moment
        cut = "" if reply.stop == "stop" else f" (cut off at {len(reply.token_ids)} tokens)"
        self._console.print(self._message(speaker, reply.token_ids, cut), soft_wrap=True)

    def panel(self) -> RenderableType:
        """The messages being spoken."""
        # A list first: tokens arrive while the display's own thread draws
        return Group(*(self._message(who, ids, " …") for who, ids in list(self._speaking.items())))

    def _message(self, speaker: str, ids: Sequence[int], end: str) -> Text:
        return Text.assemble((f"{speaker}: ", "bold"), self._chats[speaker].decode(ids), (end, "dim"))


def ask(team: Team, question: str, console: Console, number: int = 0, greedy: bool = True, turns: int = 0) -> Episode:
    """`answer`, showing who says what as it is said, and who read whom; returns the episode."""
    voices = Voices(console, {name: seat.chat for name, seat in team.seats.items()})
    if console.is_terminal:
        with Live(console=console, get_renderable=voices.panel, refresh_per_second=12, transient=True) as live:
            voices.refresh = live.refresh
            episode = answer(team, question, number, greedy, turns, voices).episode
    else:
        episode = answer(team, question, number, greedy, turns, voices).episode
    lines = played(episode)
    for turn, line in enumerate(lines, start=1):
        when = f" in turn {turn}" if len(lines) > 1 else ""
        console.print(f"who read whom{when}: {line}", style="dim", markup=False, highlight=False, soft_wrap=True)
    return episode


def answer(
    team: Team, question: str, number: int = 0, greedy: bool = True, turns: int = 0, listener: Listener | None = None
) -> Answer:
    """Play one episode on `question`; `number` varies the draws of sampled play, `listener` hears it as it is said.

    `turns` 0 lets `natural_turns` decide. Raises `MarftError` naming the agent that could not speak.
    """
    if not isinstance(question, str):
        raise MarftError(f"a question is a text, not a {type(question).__name__}")
    turns = turns or natural_turns(team.game)
    game = replace(team.game, environment=Conversation(turns), turns=turns)
    seats = team.seats
    if listener is not None:
        seats = {name: replace(seat, generator=Overheard(seat.generator, listener)) for name, seat in seats.items()}
    stage = replace(team.stage, game=game, seats=seats)
    plan = Plan(Task("question", question), 0, (QUESTION_SEED, team.config.seed, number, 0), 0, greedy)
    (episode,) = result_of(rollout(stage, [plan]))
    if episode.error:
        raise MarftError(f"{episode.error.who} could not answer: {episode.error.reason}")
    return Answer.of(episode)


def natural_turns(game: FlexMG) -> int:
    """The game's turns when agents recall earlier ones or D may change, else 1.

    Otherwise a later turn would bring an agent nothing new, because here no environment speaks between turns.
    """
    if isinstance(game.dependency, Static) and not game.dependency.graph.recall:
        return 1
    return 1 if isinstance(game.dependency, Debate | Orchestrated) else game.turns
