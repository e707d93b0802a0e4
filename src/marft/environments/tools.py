"""Tools: questions that ask for a tool. Long arithmetic, and facts about invented people that no model can know.

The facts stand in a collection of documents, made from `collection_seed`, which the environment's own tool `search`
looks through: an agent that may use it lists `search` among its `tools`. What is held out: of arithmetic a tenth of all
questions, chosen by the question's hash; of look-ups the people whose number in the collection is divisible by 5, about
whom training never asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from marft.environments.base import Outcome
from marft.environments.question_answer import same_answer
from marft.environments.reply import answering_message, check_answerer, read_answer
from marft.section import NonNegative, Section, Unit
from marft.tools.base import Tool
from marft.tools.search import Search
from marft.types import Split, Task
from marft.validation import validate

Family = Literal["arithmetic", "lookup"]

ASIDE = 10  # one arithmetic question in so many is held out
PEOPLE_ASIDE = 5  # one person in so many is only asked about in held-out questions
LAST_LINE = "Put the answer alone on the last line."

SYLLABLES = ("ba", "dor", "el", "fen", "gar", "hal", "il", "jo", "ka", "lin", "mar", "no", "or", "pel", "qui", "ras")
TOWNS = ("Alderwick", "Brunmoor", "Caskerby", "Dunholt", "Eastvale", "Fennimore", "Grayhaven", "Hollin")
TRADES = ("baker", "carpenter", "dyer", "glazier", "miller", "potter", "saddler", "weaver")
THINGS = ("beehives", "goats", "clocks", "maps", "lanterns", "apple trees")


class Parameters(Section):
    """What the config's `environment` may say."""

    families: Annotated[list[Family], Field(min_length=1)] = Field(
        default=["arithmetic", "lookup"], description="kinds of questions, in turns"
    )
    digits: Annotated[int, Field(ge=1, le=50)] = Field(4, description="of each number in an arithmetic question")
    people: Annotated[int, Field(ge=20, le=4000)] = Field(200, description="documents in the collection, one a person")
    combined: Unit = Field(0.5, description="share of look-ups that need two documents and a calculation")
    results: Annotated[int, Field(gt=0)] = Field(3, description="passages that one search gives")
    collection_seed: NonNegative = Field(0, description="of the people and their documents")
    seed: NonNegative = Field(0, description="of the questions")
    answerer: str | None = Field(None, description="whose message is graded; default: the last to act")


@dataclass(frozen=True)
class Person:
    """An invented person, and the document that tells of them."""

    name: str
    town: str
    trade: str
    owned: Mapping[str, int]

    @property
    def document(self) -> str:
        """What the collection says."""
        *most, last = [f"{count} {thing}" for thing, count in self.owned.items()]
        return f"{self.name} lives in {self.town}, works as a {self.trade}, and owns {', '.join(most)} and {last}."


@dataclass(frozen=True)
class State:
    """One episode, before and after its only turn."""

    task: Task


class Tools:
    """One turn: reward 1 to the team when the last number, or the last line, of the answerer's message is right."""

    name = "tools"
    Parameters = Parameters

    def __init__(self, **parameters: Any) -> None:
        self.parameters = validate(Parameters, parameters, "tools")

    @property
    def tools(self) -> Mapping[str, Tool]:
        """`search`, where there are look-ups."""
        return {"search": self._search} if "lookup" in self.parameters.families else {}

    def size(self, split: Split) -> int | None:
        """Endless."""
        return None

    def task(self, split: Split, index: int) -> Task:
        """A pure function of the split and the index; questions may come twice, but never in both splits."""
        families = self.parameters.families
        family = families[index % len(families)]
        random = Random(f"{self.parameters.seed}/{split}/{index}")
        if family == "lookup":
            question, answer = self._lookup(random, split)
        else:
            question, answer = self._arithmetic(random, split)
        reading = "last_number" if answer.lstrip("-").isdigit() else "last_line"
        prompt = f"{question} {LAST_LINE}"
        return Task(f"{split}-{index}", prompt, family, {"answer": answer, "reading": reading})

    def reset(self, task: Task, agents: tuple[str, ...], seed: int) -> State:
        """Raises `MarftError` when the named answerer is not in the team."""
        check_answerer(self.parameters.answerer, agents)
        return State(task)

    def observe(self, state: State, agent: str) -> str:
        """Nothing besides the question."""
        return ""

    def step(self, state: State, messages: Mapping[str, str]) -> Outcome:
        """Grade the answerer's message; a turn in which the answerer does not act does not end the game."""
        message = answering_message(self.parameters.answerer, messages)
        if message is None:
            return Outcome(state, 0.0, terminated=False, metrics={"success": 0.0})
        answer = read_answer(state.task.data["reading"], message)
        right = float(answer is not None and same_answer(answer.rstrip("."), state.task.data["answer"]))
        metrics = {"success": right, "answered": float(answer is not None)}
        return Outcome(state, right, terminated=True, metrics=metrics, answer=(answer or "").rstrip(".").casefold())

    def _arithmetic(self, random: Random, split: Split) -> tuple[str, str]:
        """Drawn again until the question is of this split, which a question's hash decides."""
        while True:
            low, high = 10 ** (self.parameters.digits - 1), 10**self.parameters.digits - 1
            one, two, three = (random.randint(low, high) for _ in range(3))
            sign = random.choice("+-")
            question = f"What is {one} * {two} {sign} {three}?"
            if (_hash(question) % ASIDE == 0) == (split == "heldout"):
                return question, str(one * two + (three if sign == "+" else -three))

    def _lookup(self, random: Random, split: Split) -> tuple[str, str]:
        asked = [each for n, each in enumerate(self._people) if (n % PEOPLE_ASIDE == 0) == (split == "heldout")]
        one, two = random.sample(asked, 2)
        thing = random.choice(THINGS)
        if random.random() < self.parameters.combined:
            total = one.owned[thing] + two.owned[thing]
            return f"How many {thing} do {one.name} and {two.name} own together?", str(total)
        questions = (
            (f"In which town does {one.name} live?", one.town),
            (f"What does {one.name} work as?", one.trade),
            (f"How many {thing} does {one.name} own?", str(one.owned[thing])),
        )
        return random.choice(questions)

    @cached_property
    def _people(self) -> tuple[Person, ...]:
        random = Random(f"people/{self.parameters.collection_seed}")
        names: dict[str, None] = {}
        while len(names) < self.parameters.people:
            first, last = ("".join(random.sample(SYLLABLES, length)).capitalize() for length in (2, 3))
            names[f"{first} {last}"] = None
        return tuple(
            Person(
                name, random.choice(TOWNS), random.choice(TRADES), {thing: random.randint(2, 999) for thing in THINGS}
            )
            for name in names
        )

    @cached_property
    def _search(self) -> Search:
        documents = [(person.name, person.document) for person in self._people]
        about = "Searches a collection of documents about people: where they live, what they do and what they own."
        return Search(documents, self.parameters.results, description=about)


def _hash(text: str) -> int:
    """The same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
