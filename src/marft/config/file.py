"""From a YAML file and overrides to a config; every error names the file and the key."""

from __future__ import annotations

import contextlib
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


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML config and apply `key.path=value` overrides (values are YAML).

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
    # What a preset is made of can be overridden like anything written out, so the choice of preset comes first
    first = [each for each in overrides if each.startswith(("team.preset=", "team.anonymous=", "learner="))]
    written = raw.get("learner")
    for override in first:
        _apply_override(raw, override)
    chosen = None
    if any(each.startswith("learner=") for each in first):
        written, chosen = None, raw.get("learner")  # `learner=null`: none, whatever the file says
    raw = expand_learner({**expand_preset(raw, str(path)), "learner": written}, str(path), chosen)
    for override in overrides:
        if override not in first:
            _apply_override(raw, override)
    return parse_config(raw, source=str(path))


def parse_config(raw: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a mapping, its `team.preset` and `learner` written out first; `source` names its origin in errors."""
    return validate(Config, expand_learner(expand_preset(raw, source), source), source)


def dump_config(config: Config) -> str:
    """The resolved config as YAML, loadable by `load_config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply_override(raw: dict[str, Any], override: str) -> None:
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
