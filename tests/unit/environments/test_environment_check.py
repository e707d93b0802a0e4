"""check_environment: a good environment passes, and each rule can fail."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from marft.environments.base import Outcome
from marft.environments.check import EnvironmentFault, check_environment
from marft.environments.relay import Relay
from marft.types import MarftError, Task


@dataclass(frozen=True)
class Hand:
    task: Task
    agents: tuple[str, ...]
    seed: int
    turn: int = 0
    heard: list[str] = field(default_factory=list)


class Good:
    """Two turns; each agent earns 1 for a digit."""

    name = "good"

    def size(self, split):
        return 5 if split == "heldout" else None

    def task(self, split, index):
        return Task(f"{split}-{index}", f"{split} question {index}", "good", {"index": index})

    def reset(self, task, agents, seed):
        return Hand(task, agents, seed)

    def observe(self, state, agent):
        return f"{agent} turn {state.turn} {len(state.heard)}"

    def step(self, state, messages):
        after = replace(state, turn=state.turn + 1, heard=[*state.heard, *messages.values()])
        rewards = {agent: float(text.isdigit()) for agent, text in messages.items()}
        success = sum(rewards.values()) / len(rewards)
        return Outcome(after, rewards, terminated=after.turn == 2, metrics={"success": success})


def broken(method):
    """Good with one method replaced; `method(good, ...)` gets the good environment first."""
    name = method.__name__.removeprefix("_")
    return type(method.__qualname__, (Good,), {name: method})()


def changed(**fields):
    """Good whose outcomes have these fields replaced; a callable is given the messages."""

    def step(self, state, messages):
        outcome = Good().step(state, messages)
        return replace(outcome, **{key: value(messages) if callable(value) else value for key, value in fields.items()})

    return broken(step)


def task_with(**fields):
    def task(self, split, index):
        good = Good().task(split, index)
        return replace(good, **{key: value(good) if callable(value) else value for key, value in fields.items()})

    return broken(task)


class Lottery(Good):
    """Every episode has another reward."""

    def __init__(self):
        self.ticket = count()

    def step(self, state, messages):
        return replace(Good().step(state, messages), rewards=float(next(self.ticket)))


class Moody(Good):
    """The same index gives another prompt the next time."""

    def __init__(self):
        self.mood = count()

    def task(self, split, index):
        return Task(f"{split}-{index}", f"{split} {index} {next(self.mood)}")


class Mutable(Good):
    def step(self, state, messages):
        state.heard.extend(messages.values())
        return Outcome(state, 0.0)


class QuietlyMutable(Mutable):
    """Its observations do not show that the state was changed."""

    def observe(self, state, agent):
        return ""


class Simulator(Good):
    """Its state is alive (a lock cannot be pickled) and step changes it in place."""

    def reset(self, task, agents, seed):
        return {"turn": 0, "alive": threading.Lock()}

    def observe(self, state, agent):
        return str(state["turn"])

    def step(self, state, messages):
        state["turn"] += 1
        return Outcome(state, 0.0)


class SafeSimulator(Simulator):
    def step(self, state, messages):
        return Outcome({**state, "turn": state["turn"] + 1}, 0.0)


class Scribbler(Good):
    def task(self, split, index):
        return Task(f"{split}-{index}", f"{split} {index}", data={"said": []})

    def step(self, state, messages):
        outcome = Outcome(replace(state, turn=1, task=state.task), 0.0)
        state.task.data["said"].append("x")
        return outcome


class BackDoor(Good):
    """Keeps hold of the task's data and writes to it."""

    def task(self, split, index):
        return Task(f"{split}-{index}", f"{split} {index}", data={"said": []})

    def reset(self, task, agents, seed):
        self.said = task.data["said"]
        return 0

    def observe(self, state, agent):
        return ""

    def step(self, state, messages):
        self.said.append("x")
        return Outcome(state, 0.0)


class OneWay:
    """Can be pickled but not read back."""

    def __reduce__(self):
        return int, ("not a number",)


class Asynchronous(Good):
    async def step(self, state, messages):
        return Good().step(state, messages)


class Stubborn(Good):
    """Never ends, as a game may: the horizon is the team's."""

    def step(self, state, messages):
        return replace(Good().step(state, messages), terminated=False)


class Deaf(Good):
    def step(self, state, messages):
        return replace(Good().step(state, messages), rewards=float(1 / len(messages["a"])))


class OddlyDeaf(Good):
    async def step(self, state, messages):
        return Outcome(state, float(int(messages["a"] or "0")))


@pytest.mark.parametrize(
    "world", [Good(), Asynchronous(), SafeSimulator(), Stubborn(), changed(rewards=0.5, metrics={})]
)
def test_good_environments_pass(world):
    check_environment(world)
    check_environment(world, agents=("a", "b", "c"), tasks=2, messages=["7"])


def observe_number(self, state, agent):
    return None if state.turn else ""


def observe_crash(self, state, agent):
    return {}[agent]


def size_zero(self, split):
    return 0


def size_text(self, split):
    return "many"


def task_of_nothing(self, split, index):
    return {"id": index}


for function, name in (
    (observe_number, "observe"),
    (observe_crash, "observe"),
    (size_zero, "size"),
    (size_text, "size"),
    (task_of_nothing, "task"),
):
    function.__name__ = name


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (broken(size_zero), r"size\('train'\) must be None or above 0, not 0"),
        (broken(size_text), "must be None or above 0, not 'many'"),
        (broken(task_of_nothing), r"task\('train', 0\) must be a Task, not a dict"),
        (task_with(id=3), r"task\('train', 0\).id must be a text"),
        (task_with(id=""), "id must not be empty"),
        (task_with(prompt=None), "prompt must be a text"),
        (task_with(prompt=lambda good: good.prompt + "\ud800"), "prompt must be a text that JSON can hold"),
        (task_with(kind=("a",)), "kind must be a text"),
        (task_with(data={"grade": lambda text: 1.0}), "cannot be pickled"),
        (task_with(data={"grader": OneWay()}), "cannot be pickled"),
        (BackDoor(), "task train-0: playing it changed the task"),
        (task_with(id=lambda good: good.id.split("-")[0]), "two tasks of 'train' have one id"),
        (task_with(id=lambda good: good.id.split("-")[1]), "the task id '0' stands in both splits"),
        (task_with(prompt=lambda good: good.prompt.split()[2]), "the prompt '0' stands in both splits"),
        (Moody(), r"task\('train', 0\) gives another task the second time"),
        (Lottery(), "gave another episode the second time"),
        (Mutable(), "step changed the state it was given"),
        (QuietlyMutable(), "step changed the state it was given"),
        (Simulator(), "step changed the state it was given"),
        (Scribbler(), "step changed the state it was given|changed the task"),
        (broken(observe_number), r"observe\(state, 'a'\) must be a text, not a NoneType"),
        (broken(observe_crash), "observe failed: KeyError"),
        (Deaf(), r"step failed on the messages .*ZeroDivisionError"),
        (OddlyDeaf(), r"step failed on the messages .*ValueError"),
        (changed(rewards={"stranger": 1.0}), "a reward for 'stranger', who is not in the team"),
        (changed(rewards={"a": float("nan")}), "the reward of a must be a finite number, not nan"),
        (changed(rewards=float("inf")), "the reward of the team must be a finite number, not inf"),
        (changed(rewards={"b": "1"}), "the reward of b must be a finite number, not '1'"),
        (changed(rewards=None), "the reward of the team must be a finite number, not None"),
        (changed(terminated=True, truncated=True), "both terminated and truncated"),
        (changed(metrics={"success": 1.5}), r"'success' must lie in \[0, 1\], not 1.5"),
        (changed(metrics={"success": -0.1}), r"'success' must lie in \[0, 1\]"),
        (changed(metrics={"length": float("nan")}), "the metric 'length' must be a finite number, not nan"),
    ],
)
def test_every_rule_can_fail(world, says):
    with pytest.raises(EnvironmentFault, match=says):
        check_environment(world)


def test_a_step_that_returns_no_outcome():
    with pytest.raises(EnvironmentFault, match="step must return an Outcome, not a tuple"):
        check_environment(type("Gym", (Good,), {"step": lambda self, state, messages: (state, 0.0, True)})())


def test_a_fault_that_only_right_answers_show_needs_the_right_answer():
    def prize(messages: Mapping[str, str]) -> float:
        return float("inf") if "open sesame" in messages.values() else 0.0

    check_environment(changed(rewards=prize))
    with pytest.raises(EnvironmentFault, match="the reward of the team must be a finite number"):
        check_environment(changed(rewards=prize), messages=["open sesame"])


def test_one_prompt_is_a_promise_too():
    check_environment(task_with(prompt="Play."), one_prompt=True)
    with pytest.raises(EnvironmentFault, match=r"the prompt 'Play\.' stands in both splits"):
        check_environment(task_with(prompt="Play."))
    with pytest.raises(EnvironmentFault, match="the tasks do not all read the same"):
        check_environment(Good(), one_prompt=True)


def test_a_team_that_does_not_fit_is_the_callers_mistake():
    def reset(self, task, agents, seed):
        raise MarftError("needs 4 agents")

    with pytest.raises(MarftError, match="needs 4 agents"):
        check_environment(broken(reset))


def test_a_slow_world_is_tried_a_little():
    played = []

    class Slow(Relay):
        def reset(self, task, agents, seed):
            played.append(task.id)
            return super().reset(task, agents, seed)

    check_environment(Slow(), one_prompt=True, seconds=0.0)
    assert sorted(set(played)) == ["heldout-0", "train-0"]  # one episode of each split, twice
    assert len(played) == 4
