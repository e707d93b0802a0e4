"""What the small model is taught from: who is told what, hears what, and says what, with many mistakes in it.

Reinforcement can only choose among things that a model says anyway. So a share of the plans in the corpus is wrong,
and a share of the calculations slips: the model learns to say right and wrong things side by side.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.nano.problems import MOST, Plan, Problem, apply, draw_problem, written

# What an agent is told to do: its system prompt, one word
ROLES = {"plan": 0.28, "solve": 0.22, "calculate": 0.13, "check": 0.12, "answer": 0.09, "alone": 0.16}


@dataclass(frozen=True)
class Noise:
    """Shares of what is taught: mistakes, and the ways in which agents can be spoken to."""

    wrong_plans: float = 0.35
    slips: float = 0.30
    wrong_answers: float = 0.12
    repeats: float = 0.25  # a checker that copies what it reads, right or wrong
    own_plans: float = 0.30  # of those who read the question beside a plan: they solve the question itself
    hidden: float = 0.6  # later agents that do not read the question
    anonymous: float = 0.25  # prompts without a system prompt


@dataclass(frozen=True)
class Lesson:
    """One reply: the system prompt (empty: none), what was heard, and what is said."""

    profile: str
    heard: str
    reply: str


def lessons(draw: random.Random, noise: Noise) -> Iterator[Lesson]:
    """The corpus, without end. Its problems are all of the training split."""
    roles, weights = tuple(ROLES), tuple(ROLES.values())
    while True:
        problem = draw_problem(draw, "train")
        (role,) = draw.choices(roles, weights)
        anonymous = draw.random() < noise.anonymous
        heard, reply = _spoken(draw, noise, problem, role, anonymous)
        yield Lesson("" if anonymous else role, heard, reply)


def _spoken(draw: random.Random, noise: Noise, problem: Problem, role: str, anonymous: bool) -> tuple[str, str]:
    """What an agent with a role hears and says; agents without roles hear each other in more forms."""
    plan = said_plan(draw, noise, problem)
    if role == "plan":
        return problem.question, plan.text
    if role == "alone":
        return problem.question, f"{plan.text} : {said_calculation(draw, noise, plan)}"
    visible = draw.random() >= noise.hidden
    followed = problem.plan if visible and draw.random() < noise.own_plans else plan
    calculation = said_calculation(draw, noise, plan)
    messages = [plan.text]
    if anonymous and draw.random() < noise.anonymous:
        messages = [f"{plan.text} : {said_calculation(draw, noise, plan)}"]
    if role in ("solve", "calculate"):
        reply = said_calculation(draw, noise, followed)
        if role == "solve":
            reply += f" so {said_answer(draw, noise, reply)}"
    else:
        messages.append(_with_answer(draw, noise, calculation, anonymous))
        reply = said_check(draw, noise, calculation, followed)
        if role == "answer":
            if draw.random() < 0.5:  # a checker spoke in between
                messages.append(_with_answer(draw, noise, reply, anonymous))
            reply = said_answer(draw, noise, messages[-1])
    return "\n\n".join([problem.question] * visible + messages), reply


def said_plan(draw: random.Random, noise: Noise, problem: Problem) -> Plan:
    """The right plan or, often enough, another one."""
    return wrong_plan(draw, problem) if draw.random() < noise.wrong_plans else problem.plan


def wrong_plan(draw: random.Random, problem: Problem) -> Plan:
    """A plan with one mistake that readers make: a wrong sign or number, a step left out, or one that is none."""
    start, steps = problem.plan.start, problem.plan.steps
    while True:
        place = draw.randrange(len(steps))
        sign, number = steps[place]
        changed = list(steps)
        mistake = draw.choice(("sign", "sign", "number", "start", "missing", "aside"))
        if mistake == "sign":
            changed[place] = (draw.choice("+-*"), number)
        elif mistake == "number":
            changed[place] = (sign, draw.randint(1, 9))
        elif mistake == "missing" and len(steps) > 2:
            del changed[place]
        elif mistake == "aside" and problem.aside is not None:
            changed[place] = (draw.choice("+-"), problem.aside)
        plan = Plan(draw.randint(1, 9) if mistake == "start" else start, tuple(changed))
        if plan != problem.plan and plan.possible:
            return plan


def said_calculation(draw: random.Random, noise: Noise, plan: Plan) -> str:
    """The plan's calculation; with a slip, one result is wrong and those after it follow from it."""
    slip = draw.randrange(len(plan.steps)) if draw.random() < noise.slips else None
    value, results = plan.start, []
    for place, step in enumerate(plan.steps):
        value = within(apply(value, step))
        if place == slip:
            value = near(draw, value)
        results.append(value)
    return written(plan, results)


def said_check(draw: random.Random, noise: Noise, calculation: str, plan: Plan) -> str:
    """The calculation as it was heard, or done again."""
    return calculation if draw.random() < noise.repeats else said_calculation(draw, noise, plan)


def said_answer(draw: random.Random, noise: Noise, calculation: str) -> str:
    """The last number of a calculation, or one near it."""
    last = int(calculation.split()[-1])
    return str(near(draw, last) if draw.random() < noise.wrong_answers else last)


def near(draw: random.Random, value: int) -> int:
    """Another number, at most 2 away."""
    return draw.choice([each for each in range(value - 2, value + 3) if each != value and 0 <= each <= MOST])


def within(value: int) -> int:
    """What comes after a slip can leave the numbers that exist; it stops at the last one."""
    return max(0, min(MOST, value))


def _with_answer(draw: random.Random, noise: Noise, calculation: str, anonymous: bool) -> str:
    """A calculation as agents without roles may say it: half of the time with the answer named again."""
    if anonymous and draw.random() < 0.5:
        return f"{calculation} so {said_answer(draw, noise, calculation)}"
    return calculation
