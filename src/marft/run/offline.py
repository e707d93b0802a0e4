"""The game of a config without its data: who plays and who reads whom is known before anything is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from marft.config import Config, EnvironmentConfig
from marft.environments import known_environments
from marft.environments.reply import check_answerer
from marft.game import FlexMG, build_game
from marft.imports import import_object
from marft.types import MarftError
from marft.validation import validate


class Unfetched:
    """Stands where an environment would be, under its name and with its attempts; there is nothing to play in it."""

    def __init__(self, called: str, attempts: int = 1) -> None:
        self.name = called
        self.attempts = attempts

    def _missing(self, *_: Any) -> NoReturn:
        raise MarftError(f"environment '{self.name}' was not loaded, so nothing can be played in it")

    size = task = reset = observe = step = _missing


def source_of(config: EnvironmentConfig) -> str:
    """What a built-in environment would fetch through the `datasets` library; empty: it has all it needs here."""
    if config.name not in {known.name for known in known_environments()}:
        return ""
    given = config.parameters
    if given.get("path") is not None or given.get("heldout_path") is not None:
        return ""
    hub, benchmark = given.get("hub"), given.get("benchmark")
    if hub is not None:
        return "" if Path(str(hub)).is_dir() else f"'{hub}'"
    return "" if benchmark is None else f"the benchmark '{benchmark}'"


def offline_game(config: Config, source: str, whole: bool = False) -> FlexMG:
    """The game of a config, its world `Unfetched`; with `whole` only where making the world would fetch something.

    The environment's parameters are checked all the same. Raises `MarftError` naming `source` and the key.
    """
    given = config.environment
    if whole and not source_of(given):
        return build_game(config, source)
    attempts = 1
    found = next((known for known in known_environments() if known.name == given.name), None)
    if found is not None:
        checked = _checked(import_object(found.path, "environment").Parameters, given.parameters, source)
        attempts = int(getattr(checked, "attempts", 1))
        names = tuple(agent.name for agent in config.team.agents)
        try:
            check_answerer(getattr(checked, "answerer", None), names)
        except MarftError as error:
            raise MarftError(f"{source}: environment.{error}") from None
    elif ":" not in given.name:
        return build_game(config, source)  # the sentence about a name that nobody knows
    stand_in = EnvironmentConfig(name=f"{__name__}:Unfetched", called=given.name, attempts=attempts)
    return build_game(config.model_copy(update={"environment": stand_in}), source)


def _checked(model: type[BaseModel], given: Mapping[str, Any], source: str) -> BaseModel:
    return validate(model, given, source, prefix="environment")
