"""The test that every environment must pass, shipped for users' own.

`check_environment(MyEnvironment())` plays a few short episodes with scripted messages and raises `EnvironmentFault`
naming the first rule that does not hold.
"""

from __future__ import annotations

import inspect
import math
import pickle
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from marft.environments.base import Environment, Outcome
from marft.running import result_of
from marft.types import MarftError, Split, Task

SPLITS: tuple[Split, Split] = ("train", "heldout")
ODD_MESSAGES = ("", "\n \t", "yes", "42", "<answer>1</answer>", '{"name":', "[" * 200, "9" * 400, "\\boxed{", "\x00ï💥")
MOST_TURNS = 8


class EnvironmentFault(MarftError):
    """A rule of environments that this one breaks."""


def check_environment(
    environment: Environment,
    agents: tuple[str, ...] = ("a", "b"),
    tasks: int = 12,
    messages: Sequence[str] = (),
    one_prompt: bool = False,
    seconds: float = math.inf,
) -> None:
    """Raise `EnvironmentFault` unless the environment keeps the rules of the protocol.

    `agents`: a team that fits the game. `tasks`: how many of each split are looked at. `messages`: more replies to
    play, right answers above all. `one_prompt`: all tasks are meant to read the same, because what differs is hidden.
    `seconds`: no further episode is begun after this time (one of each split is played in any case).
    """
    started = time.monotonic()
    split_tasks = {split: _check_tasks(environment, split, tasks) for split in SPLITS}
    _check_apart(split_tasks["train"], split_tasks["heldout"], one_prompt)
    lines = (*messages, *ODD_MESSAGES)
    for found in split_tasks.values():
        for index, task in enumerate(found[:3]):
            for line in range(len(lines)):
                if (index or line) and time.monotonic() - started > seconds:
                    break
                _check_episode(environment, task, agents, lines[line:] + lines[:line], seed=index)


def _check_tasks(environment: Environment, split: Split, tasks: int) -> list[Task]:
    size = environment.size(split)
    _require(
        size is None or (isinstance(size, int) and size > 0), f"size('{split}') must be None or above 0, not {size!r}"
    )
    found = []
    for index in range(tasks if size is None else min(size, tasks)):
        task = environment.task(split, index)
        where = f"task('{split}', {index})"
        _require(isinstance(task, Task), f"{where} must be a Task, not a {type(task).__name__}")
        for key in ("id", "prompt", "kind"):
            text = getattr(task, key)
            _require(
                isinstance(text, str) and _is_utf8(text), f"{where}.{key} must be a text that JSON can hold: {text!r}"
            )
        _require(task.id != "", f"{where}.id must not be empty")
        copy = _pickled(task, f"{where} cannot be pickled, so episodes could not be sent to workers")
        again = environment.task(split, index)
        _require(_pickled(again, where) == copy or again == task, f"{where} gives another task the second time")
        found.append(task)
    ids = [task.id for task in found]
    _require(len(set(ids)) == len(ids), f"two tasks of '{split}' have one id")
    return found


def _check_apart(train: list[Task], heldout: list[Task], one_prompt: bool) -> None:
    shared = {task.id for task in train} & {task.id for task in heldout}
    _require(not shared, f"the task id {min(shared, default='')!r} stands in both splits")
    prompts = {task.prompt for task in train}, {task.prompt for task in heldout}
    if one_prompt:
        _require(len(prompts[0] | prompts[1]) == 1, "one_prompt: the tasks do not all read the same")
    else:
        both = prompts[0] & prompts[1]
        _require(
            not both, f"the prompt {min(both, default='')!r} stands in both splits, so held-out play could be memory"
        )


def _check_episode(env: Environment, task: Task, agents: tuple[str, ...], lines: tuple[str, ...], seed: int) -> None:
    first = _play(env, task, agents, lines, seed)
    second = _play(env, task, agents, lines, seed)
    _require(first == second, f"task {task.id}: the same task, seed and messages gave another episode the second time")


def _play(env: Environment, task: Task, agents: tuple[str, ...], lines: tuple[str, ...], seed: int) -> list[Any]:
    """The transcript of one scripted episode of at most `MOST_TURNS` turns."""
    task_before = _pickled(task, f"task {task.id} cannot be pickled")
    state = env.reset(task, agents, seed)
    transcript: list[Any] = []
    for turn in range(MOST_TURNS):
        seen = _observe(env, state, agents)
        said = {agent: lines[(turn + place) % len(lines)] for place, agent in enumerate(agents)}
        before = _fingerprint(state)
        outcome = _step(env, state, said)
        _check_outcome(outcome, agents, said)
        _require(
            _fingerprint(state) == before and _observe(env, state, agents) == seen,
            f"task {task.id}: step changed the state it was given; it must return a new one",
        )
        _require(_pickled(task, "") == task_before, f"task {task.id}: playing it changed the task")
        transcript.append((seen, outcome.rewards, outcome.terminated, outcome.truncated, dict(outcome.metrics)))
        state = outcome.state
        if outcome.terminated or outcome.truncated:
            break
    return transcript


def _observe(env: Environment, state: Any, agents: tuple[str, ...]) -> list[str]:
    try:
        seen = [env.observe(state, agent) for agent in agents]
    except Exception as error:
        raise EnvironmentFault(f"observe failed: {error!r}") from error
    for agent, text in zip(agents, seen, strict=True):
        _require(isinstance(text, str), f"observe(state, '{agent}') must be a text, not a {type(text).__name__}")
    return seen


def _step(env: Environment, state: Any, said: Mapping[str, str]) -> Outcome:
    async def wait(outcome: Any) -> Any:
        return await outcome

    try:
        outcome = env.step(state, dict(said))
        if inspect.isawaitable(outcome):
            outcome = result_of(wait(outcome))
    except Exception as error:
        raise EnvironmentFault(f"step failed on the messages {dict(said)!r}: {error!r}") from error
    _require(isinstance(outcome, Outcome), f"step must return an Outcome, not a {type(outcome).__name__}")
    return outcome


def _check_outcome(outcome: Outcome, agents: tuple[str, ...], said: Mapping[str, str]) -> None:
    rewards = outcome.rewards if isinstance(outcome.rewards, Mapping) else {"the team": outcome.rewards}
    if isinstance(outcome.rewards, Mapping):
        strangers = [str(agent) for agent in rewards if agent not in agents]
        _require(not strangers, f"a reward for '{strangers[0] if strangers else ''}', who is not in the team")
    for agent, reward in rewards.items():
        _require(
            _is_finite(reward), f"the reward of {agent} must be a finite number, not {reward!r} (said: {dict(said)!r})"
        )
    _require(not (outcome.terminated and outcome.truncated), "an outcome is both terminated and truncated")
    for name, value in outcome.metrics.items():
        _require(_is_finite(value), f"the metric '{name}' must be a finite number, not {value!r}")
    success = outcome.metrics.get("success", 0.0)
    _require(0 <= success <= 1, f"the metric 'success' must lie in [0, 1], not {success!r}")


def _fingerprint(state: Any) -> bytes:
    """The state's bytes; a state that cannot be pickled (a live simulator) is watched through `observe` alone."""
    try:
        return pickle.dumps(state)
    except Exception:
        return b""


def _pickled(task: Task, fault: str) -> bytes:
    try:
        copy = pickle.dumps(task)
        pickle.loads(copy)
        return copy
    except Exception as error:
        raise EnvironmentFault(f"{fault}: {error}") from error


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf8")
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise EnvironmentFault(fault)
