"""Split: what a right answer needs is divided between agents, so that it can be given only if the right ones are heard.

`combine`: each of the first k declared agents privately reads one symbol, and the answerer, who reads none, must say
all of them in order. It needs an edge of D from every one of them. `ask`: each of k knowers privately knows the symbol
of its own topic, and only the asker reads which topic is wanted. It has to hear, or call, the one that knows.

All tasks read the same, and each part is drawn independently of the others. If the messages of the agents that hold
the parts in M never reach the answerer, the best possible success over symbols S_1 … S_k is therefore

    combine: product over i in M of 1/|S_i|        ask: 1/k (k - |M| + sum over i in M of 1/|S_i|)

which `chance(M)` gives. With no messages at all `combine` stays at 1/∏|S_i|; with one edge missing at 1/|S_i|; always
asking the same agent gives 1/k + (1 - 1/k)/|S| where all topics have |S| symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marft.environments.base import Outcome
from marft.environments.reply import answering_message, check_answerer
from marft.section import Section
from marft.types import MarftError, Split, Task
from marft.validation import suggestion, validate

MOST_COMBINATIONS = 100_000

PROMPTS = {
    "combine": "Some of you see one part of a secret each. The last of you must say all parts in order, nothing else.",
    "ask": "One of you reads which topic is asked about. Each other one knows the answer of one topic. Say the answer.",
}
HINTS = {"combine": "Your part is {symbol}.", "ask": "The answer of topic {topic} is {symbol}."}


class Parameters(Section):
    """What the config's `environment` may say."""

    mode: Literal["combine", "ask"] = Field(
        "combine", description="combine: the answer needs all parts; ask: one part, and who asks must choose whom"
    )
    parts: Annotated[int, Field(ge=2)] = Field(2, description="k, how many agents hold a part")
    symbols: list[str] | list[list[str]] = Field(
        default_factory=lambda: ["red", "blue", "green", "gold"],
        description="the symbols of every part, or one list for each part",
    )
    join: str = Field("", description="combine: what stands between the symbols of the answer")
    answer: Literal["whole", "symbols"] = Field(
        "whole", description="what of the reply must be right: all of it, or the symbols it names, in order"
    )
    topics: list[str] = Field(default_factory=list, description="ask: the parts' names; default: 1, 2, …")
    asker: str | None = Field(None, description="ask: who reads the question; default: the first declared agent")
    answerer: str | None = Field(
        None, description="whose message is graded; default: combine: the last declared agent; ask: the last to act"
    )
    prompt: str = Field("", description="what all read; default: one sentence for each mode")
    hint: str = Field("", description="what a holder of a part reads; must contain {symbol}, and may contain {topic}")
    question: str = Field("The question is about topic {topic}.", description="ask: what the asker reads")

    @model_validator(mode="after")
    def _answers_can_be_told_apart(self) -> Parameters:
        lists = self.alphabets
        if len(lists) != self.parts:
            raise ValueError(f"environment.symbols: {len(lists)} lists for {self.parts} parts")
        for each in lists:
            if len(each) < 2 or len(set(each)) < len(each) or not all(each):
                raise ValueError("environment.symbols: a part needs two or more, all different and none empty")
        combinations = prod(map(len, lists))
        if combinations > MOST_COMBINATIONS:
            raise ValueError(f"environment.symbols: {combinations} combinations, more than {MOST_COMBINATIONS}")
        if self.mode == "combine" and len({self.join.join(each) for each in product(*lists)}) < combinations:
            raise ValueError("environment.join: two combinations read the same; put something between the symbols")
        if len(set(self.names)) < len(self.names) or len(self.names) != self.parts or not all(self.names):
            raise ValueError(f"environment.topics: needs {self.parts} different names")
        if self.mode == "combine" and self.asker is not None:
            raise ValueError("environment.asker: only `mode: ask` has one")
        if self.hint and "{symbol}" not in self.hint:
            raise ValueError("environment.hint: must contain {symbol}")
        if "{topic}" not in self.question:
            raise ValueError("environment.question: must contain {topic}")
        return self

    @property
    def alphabets(self) -> tuple[tuple[str, ...], ...]:
        """The symbols of each part."""
        lists = [each for each in self.symbols if isinstance(each, list)]
        one = [each for each in self.symbols if isinstance(each, str)]
        return tuple(tuple(symbol.strip() for symbol in each) for each in lists or [one] * self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The topic of each part."""
        return tuple(self.topics) or tuple(str(part + 1) for part in range(self.parts))


@dataclass(frozen=True)
class State:
    """One episode: what each agent reads from the world, the answer that is right, and who asks (`ask`)."""

    seen: Mapping[str, str]
    answer: tuple[str, ...]
    answerer: str | None
    asker: str | None = None


class SplitInformation:
    """Reward 1 to the team when the answerer's message is the right answer, else 0.

    With `answer: symbols` the symbols that the message names, without regard to case, must be the right ones and no
    others: naming them all is wrong.
    """

    name = "split"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "split")

    def chance(self, missing: Iterable[int] = ()) -> float:
        """The best possible success when the parts `missing` (numbered from 0) never reach the answerer.

        For `combine` the answerer may also know nothing else; for `ask` it is told the topic.
        """
        guesses = [1 / len(self.parameters.alphabets[part]) for part in sorted(set(missing))]
        if self.parameters.mode == "combine":
            return prod(guesses)
        return (self.parameters.parts - len(guesses) + sum(guesses)) / self.parameters.parts

    def size(self, split: Split) -> int | None:
        """Endless."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """Combinations go round: any ∏|S_i| tasks in a row (`ask`: k ∏|S_i|, with topics) hold each exactly once."""
        given = self.parameters
        topic, rest = (index % given.parts, index // given.parts) if given.mode == "ask" else (0, index)
        symbols = []
        for alphabet in given.alphabets:
            rest, place = divmod(rest, len(alphabet))
            symbols.append(alphabet[place])
        return Task(
            f"{split}-{index}", given.prompt or PROMPTS[given.mode], "split", {"symbols": symbols, "topic": topic}
        )

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the team has not the agents that the mode needs."""
        given = self.parameters
        symbols, topic = task.data["symbols"], task.data["topic"]
        check_answerer(given.answerer, agents)
        if given.mode == "combine":
            answerer = given.answerer or agents[-1]
            seen = self._hints(agents[: given.parts], symbols)
            if answerer in seen or len(seen) < given.parts:
                raise MarftError(
                    f"split: {given.parts} agents, the first declared, hold a part, and another one answers; "
                    f"the team is {', '.join(agents)}, the answerer {answerer}"
                )
            return State(seen, tuple(symbols), answerer)
        asker = given.asker or agents[0]
        if asker not in agents:
            raise MarftError(f"asker: no agent '{asker}' in the team{suggestion(asker, agents)}")
        knowers = tuple(agent for agent in agents if agent not in (asker, given.answerer))
        if len(knowers) != given.parts:
            raise MarftError(
                f"split: {given.parts} parts need as many agents besides the asker and a named answerer; "
                f"the team has {len(knowers)}"
            )
        question = given.question.replace("{topic}", given.names[topic])
        return State({asker: question, **self._hints(knowers, symbols)}, (symbols[topic],), given.answerer, asker)

    def observe(self, state: State, agent: str) -> str:
        """An agent's own part, or the question, for whoever has one."""
        return state.seen.get(agent, "")

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Reward 1 when the answerer's message holds the answer; an answerer that does not act is wrong.

        So is an asker that nobody else answered: who calls nobody can only guess, and guessing must not be learnt.
        """
        said = (answering_message(state.answerer, messages) or "").strip()
        answer = self.parameters.join.join(state.answer)
        if self.parameters.answer == "symbols":
            said = self.parameters.join.join(self._symbols.findall(said.casefold()))
            answer = answer.casefold()
        right = float(said == answer and messages.keys() != {state.asker})
        return Outcome(state, right, terminated=True, metrics={"success": right}, answer=said)

    @cached_property
    def _symbols(self) -> re.Pattern[str]:
        """Any symbol as a word of its own, the longest first."""
        known = {symbol.casefold() for alphabet in self.parameters.alphabets for symbol in alphabet}
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(known, key=len, reverse=True)))})(?!\w)")

    def _hints(self, knowers: tuple[str, ...], symbols: list[str]) -> dict[str, str]:
        """What each holder of a part reads."""
        hint = self.parameters.hint or HINTS[self.parameters.mode]
        parts = zip(knowers, self.parameters.names, symbols, strict=False)  # a team that is too small is refused above
        return {agent: hint.replace("{topic}", topic).replace("{symbol}", symbol) for agent, topic, symbol in parts}
