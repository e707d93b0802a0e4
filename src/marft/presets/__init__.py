"""Ready-made teams: `team.preset` in a config names one, and what the config says itself goes over it.

Each is a YAML file beside this module, in the form of a config's `team`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from marft.types import MarftError
from marft.validation import suggestion


def preset_names() -> tuple[str, ...]:
    """The ready-made teams, smallest first."""
    return ("duo", "trio", "quad", "checked", "proposers", "debate", "debate-vote", "coder-tester", "orchestrator")


def preset_team(name: str, anonymous: bool = False) -> dict[str, Any]:
    """The `team` section of a preset; `anonymous` takes role names and system prompts away.

    Raises `MarftError` when there is no such preset, or it cannot do without names.
    """
    if name not in preset_names():
        raise MarftError(f"team.preset: no team '{name}'{suggestion(name, preset_names())}")
    team: dict[str, Any] = yaml.safe_load(_text(name))
    return _anonymous(team, name) if anonymous else team


def description(name: str) -> str:
    """What a preset is, in one line: the first of its file."""
    return _text(name).splitlines()[0].removeprefix("# ")


def expand_preset(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`raw` with `team.preset` (and `team.anonymous`) replaced by what they stand for; without a preset, as it is.

    Keys of the given `team` replace the preset's. `agents` may be a mapping of names to the keys that change: the
    preset's other agents and keys stay. Raises `MarftError` naming `source`.
    """
    team = raw.get("team")
    if not isinstance(team, Mapping) or not {"preset", "anonymous"} & set(team):
        return dict(raw)
    given = dict(team)
    name, anonymous = given.pop("preset", None), given.pop("anonymous", False)
    if name is None:
        raise MarftError(f"{source}: team.anonymous: goes with `preset`; without one, leave the profiles empty")
    if not isinstance(anonymous, bool):
        raise MarftError(f"{source}: team.anonymous: must be true or false, not {anonymous!r}")
    try:
        ready = preset_team(str(name), anonymous)
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from None
    if isinstance(given.get("agents"), Mapping):
        given["agents"] = _changed(ready["agents"], given["agents"], source)
    return {**raw, "team": {**ready, **given}}


def _changed(agents: list[dict[str, Any]], changes: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    names = [each["name"] for each in agents]
    for name, change in changes.items():
        if name not in names:
            raise MarftError(f"{source}: team.agents: the preset has no agent '{name}'{suggestion(str(name), names)}")
        if not isinstance(change, Mapping):
            raise MarftError(f"{source}: team.agents.{name}: must hold the keys that change, not {change!r}")
    return [{**each, **changes.get(each["name"], {})} for each in agents]


def _anonymous(team: dict[str, Any], name: str) -> dict[str, Any]:
    dependency = team.get("dependency", "chain")
    if isinstance(dependency, Mapping) and "orchestrator" in dependency:
        raise MarftError(f"team.anonymous: the team '{name}' calls its members by name; choose another preset")
    number = {each["name"]: f"agent-{place}" for place, each in enumerate(team["agents"], start=1)}
    agents = [{**each, "name": number[each["name"]], "profile": ""} for each in team["agents"]]
    return {**team, "agents": agents, "dependency": _renamed(dependency, number)}


def _renamed(value: Any, number: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, number) for each in value]
    return number.get(value, value) if isinstance(value, str) else value


@cache
def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf8")
