"""From a YAML file and overrides to a config; every error names the file and the key."""

from __future__ import annotations

import contextlib
import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from marft.config.experiment import Config
from marft.presets import expand_preset
from marft.presets.learner import expand_learner
from marft.types import MarftError
from marft.validation import validate

Given = str | Path | Mapping[str, Any] | Config
"""What a config may be given as: the path of a YAML file, what such a file holds, or a config."""

Overrides = Sequence[str] | Mapping[str, Any]
"""Changes to a config: `["update.lr=0.001"]` as on the command line, or `{"update.lr": 0.001}`."""


def read_config(given: Given, overrides: Overrides = ()) -> tuple[Config, str]:
    """A config from a YAML file, a mapping or a config, with overrides; and what to call it in errors.

    Raises `MarftError` with one sentence naming the file and the key.
    """
    if isinstance(given, str | Path):
        return load_config(given, overrides), str(given)
    if not isinstance(given, Config | Mapping):
        raise MarftError(f"a config is a path, a mapping or a marft.Config, not a {type(given).__name__}")
    raw = given.model_dump(mode="json") if isinstance(given, Config) else given
    return parse_config(raw, "config", overrides), "config"


def load_config(path: str | Path, overrides: Overrides = ()) -> Config:
    """Read a YAML config and apply `key.path=value` overrides (values are YAML), or a mapping of key paths to values.

    Raises `MarftError` with one sentence naming the file and the key.
    """
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise MarftError(f"{path}: there is no such config file{_nearby(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MarftError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise MarftError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise MarftError(f"{path}: must hold a mapping of keys such as `team:` and `environment:`")
    return parse_config(raw, str(path), overrides)


def parse_config(raw: Mapping[str, Any], source: str = "config", overrides: Overrides = ()) -> Config:
    """Validate a mapping with overrides as `load_config` takes them, its `team.preset` and `learner` written out first.

    `source` names its origin in errors.
    """
    changed = _overridden(raw, _pairs(overrides), source) if overrides else raw
    return validate(Config, expand_learner(expand_preset(changed, source), source), source)


def dump_config(config: Config) -> str:
    """The resolved config as YAML, loadable by `load_config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _pairs(overrides: Overrides) -> list[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    if isinstance(overrides, str):  # a sequence too, of letters
        raise MarftError(f"override '{overrides}': give a list of them, as in [{overrides!r}]")
    return [_pair(override) for override in overrides]


def _pair(override: str) -> tuple[str, Any]:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise MarftError(f"override '{override}': write it as key=value, for example update.lr=0.001")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise MarftError(f"override '{override}': the value is not valid YAML") from None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text; a person means the number
        with contextlib.suppress(ValueError):
            value = float(value)
    return key, value


def _overridden(given: Mapping[str, Any], pairs: Sequence[tuple[str, Any]], source: str) -> dict[str, Any]:
    """A copy in which every key has its new value."""
    raw = copy.deepcopy(dict(given))
    # What a preset is made of can be overridden like anything written out, so the choice of preset comes first
    first = ("team.preset", "team.anonymous", "learner")
    written = raw.get("learner")
    for key, value in pairs:
        if key in first:
            _put(raw, key, value)
    chosen = None
    if any(key == "learner" for key, _ in pairs):
        written, chosen = None, raw.get("learner")  # `learner=null`: none, whatever the file says
    raw = expand_learner({**expand_preset(raw, source), "learner": written}, source, chosen)
    for key, value in pairs:
        if key not in first:
            _put(raw, key, value)
    return raw


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    override = f"{key}={value}"
    *path, last = key.split(".")
    place: Any = raw
    for part in path:
        place = _item(place, part, override)
    if isinstance(place, list):
        place[_index(place, last, override)] = value
    else:
        place[last] = value


def _item(place: Any, part: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, override)]
    if place.get(part) is None:
        place[part] = {}
    if not isinstance(place[part], dict | list):
        raise MarftError(f"override '{override}': '{part}' is a value, not a section")
    return place[part]


def _index(place: list[Any], part: str, override: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in place]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(place):
        return int(part)
    raise MarftError(f"override '{override}': '{part}' names no entry; there are {', '.join(map(str, names))}")


def _nearby(path: Path) -> str:
    folder = path.parent
    names = [each.name for each in folder.glob("*.y*ml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean '{folder / near[0]}'?" if near else ""
