"""Several attempts at one task: what the team hears in between, what ends the episode, and which attempt pays.

A judge that says "wrong, try again" is an oracle: it knows the answer. Only `verdict` has one; under `none` every
attempt is played and the last one counts, and `public-tests` tells what the team could have found out by itself.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from marft.types import Task

WorldT = TypeVar("WorldT", bound=Any)

Feedback = Literal["none", "verdict", "public-tests"]

WRONG = "The last answer was wrong. Try again."


@dataclass(frozen=True)
class Attempts:
    """Of one episode: attempts made, the best score among them, what all read before the next, and was the first right?

    What the first attempt achieved is what the team can do without any feedback.
    """

    made: int = 0
    best: float = 0.0
    news: str = ""
    first_right: bool = False


@dataclass(frozen=True)
class State:
    """One episode: the task, and what came of the attempts so far."""

    task: Task
    attempts: Attempts = field(default_factory=Attempts)


@dataclass(frozen=True)
class Judged:
    """What one attempt led to: the state after it, the team's reward, and whether the episode is over."""

    attempts: Attempts
    reward: float
    over: bool


def judge(
    attempts: Attempts,
    feedback: Feedback,
    limit: int,
    score: float,
    right: bool,
    passed_public: bool = False,
    news: str = "",
) -> Judged:
    """Count one attempt that scored `score` (>= 0) and was `right` or not; `limit` attempts are allowed.

    `verdict`: a right answer ends the episode, and an attempt pays what it adds to the best score so far, so that an
    episode earns its best answer's score, once. `public-tests`: passing them ends it, `news` (their results) is what
    all read, and the last attempt's score pays. `none`: all attempts are played, and the last one's score pays.
    """
    made = attempts.made + 1
    ends = {"none": False, "verdict": right, "public-tests": passed_public}[feedback]
    over = ends or made >= limit
    best = max(attempts.best, score)
    if feedback == "verdict":
        news = "" if right else WRONG
        reward = best - attempts.best
    else:
        news = news if feedback == "public-tests" else ""
        reward = score if over else 0.0
    first_right = right if attempts.made == 0 else attempts.first_right
    return Judged(Attempts(made, best, "" if over else news, first_right), reward, over)


def without_verdict(world: WorldT) -> WorldT:
    """The same world, without the oracle that says whether an answer was right; itself where nobody is told anyway.

    A world here is an environment whose `parameters` have a `feedback`.
    """
    if world.parameters.feedback != "verdict":
        return world
    silent = copy.copy(world)
    silent.parameters = world.parameters.model_copy(update={"feedback": "none"})
    return silent
