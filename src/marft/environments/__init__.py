"""The worlds teams play in: what is built in, and how a config's `environment` becomes one.

Nothing here imports an environment before it is asked for: some need packages that take seconds to load.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from marft.config import EnvironmentConfig
from marft.environments.base import Environment, Outcome
from marft.imports import import_object
from marft.types import MarftError
from marft.validation import suggestion, validate

__all__ = ["Environment", "KnownEnvironment", "Outcome", "build_environment", "known_environments"]

METHODS = ("size", "task", "reset", "observe", "step")


@dataclass(frozen=True)
class KnownEnvironment:
    """A built-in environment: its import path, what it is in one line, and what it needs besides `marft` itself."""

    name: str
    path: str
    description: str
    needs: str = "nothing else"


_BUILT_IN = (
    KnownEnvironment(
        "reasoning",
        "marft.environments.reasoning:Reasoning",
        "questions from any reasoning-gym generator, graded by its own scorer",
        "the package reasoning-gym (installed with marft)",
    ),
    KnownEnvironment(
        "question_answer",
        "marft.environments.question_answer:QuestionAnswer",
        "questions with one right answer from a file or a `datasets` source (GSM8K and the like)",
        "your data; for `hub` the extra marft[datasets]",
    ),
    KnownEnvironment(
        "math",
        "marft.environments.math:Math",
        "mathematical problems from your files or well-known sets (GSM8K, MATH, AIME, …), graded as mathematics",
        "your data; for hub sets the extra marft[datasets]",
    ),
    KnownEnvironment(
        "code",
        "marft.environments.code:Code",
        "programming problems (HumanEval, MBPP, LiveCodeBench, DeepCoder, CodeForces, your own), run in a sandbox",
        "Linux with user namespaces (else `sandbox: limits-only`); for hub sets the extra marft[datasets]",
    ),
    KnownEnvironment(
        "tools",
        "marft.environments.tools:Tools",
        "questions that ask for a tool: long arithmetic, and facts in a collection of documents to search",
    ),
    KnownEnvironment(
        "textarena",
        "marft.environments.textarena:TextArena",
        "text games of two or more players: self-play, teams on one seat, or fixed opponents",
        "the extra marft[games]",
    ),
    KnownEnvironment(
        "split",
        "marft.environments.split:SplitInformation",
        "what the answer needs is split between agents: D, or whom an orchestrator asks, decides what can be won",
    ),
    KnownEnvironment(
        "relay",
        "marft.environments.relay:Relay",
        "the first agent sees a symbol, the last must say it: only a message can carry it",
    ),
    KnownEnvironment(
        "matrix",
        "marft.environments.matrix:Matrix",
        "a cooperative matrix game over one-word actions, with a known optimum",
    ),
)


def known_environments() -> tuple[KnownEnvironment, ...]:
    """What is built in, in the order to show it."""
    return _BUILT_IN


def build_environment(config: EnvironmentConfig, source: str = "config") -> Environment:
    """The environment a config names, by built-in name or `module:Class`, made with its parameters.

    Raises `MarftError` naming `source` and the key when there is no such environment or a parameter is wrong.
    """
    made_of = _find_class(config.name, source)
    parameters = _check_parameters(made_of, config, source)
    try:
        environment = made_of(**parameters)
    except MarftError as error:
        raise MarftError(f"{source}: environment '{config.name}': {error}") from error.__cause__
    missing = [name for name in METHODS if not callable(getattr(environment, name, None))]
    if missing or not isinstance(getattr(environment, "name", None), str):
        lacks = f"no method `{missing[0]}`" if missing else "no `name`"
        raise MarftError(f"{source}: environment.name: '{config.name}' is not an environment: it has {lacks}")
    built: Environment = environment
    return built


def _find_class(name: str, source: str) -> Any:
    if ":" in name:
        try:
            found = import_object(name, "environment")
        except MarftError as error:
            raise MarftError(f"{source}: environment.name: {error}") from error.__cause__
        if not callable(found):
            raise MarftError(f"{source}: environment.name: '{name}' is a {type(found).__name__}, not a class")
        return found
    for known in _BUILT_IN:
        if known.name == name:
            return import_object(known.path, "environment")
    names = [known.name for known in _BUILT_IN]
    raise MarftError(f"{source}: environment.name: no environment '{name}'{suggestion(name, names)}")


def _check_parameters(made_of: Any, config: EnvironmentConfig, source: str) -> dict[str, Any]:
    """Through the class's own `Parameters` model where it has one, else against its signature."""
    model = getattr(made_of, "Parameters", None)
    if isinstance(model, type) and issubclass(model, BaseModel):
        checked = validate(model, config.parameters, source, prefix="environment")
        return {key: getattr(checked, key) for key in [*model.model_fields, *(checked.model_extra or {})]}
    try:
        inspect.signature(made_of).bind(**config.parameters)
    except TypeError as error:
        raise MarftError(f"{source}: environment: '{config.name}' cannot be made with these keys: {error}") from None
    return config.parameters
