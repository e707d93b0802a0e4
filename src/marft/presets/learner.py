"""Ready-made learners: `learner` in a config names one, and what the config says itself goes over it.

Chosen on the command line, a learner goes over what the file says: the later word counts. Each says all that any of
them says, so that none of another one's keys stays behind.

Each is a YAML file in `learners/`, in the form of a config: its `credit`, `critic`, `update` and `rollout`. All of them
are choices of one code path; docs/algorithm.md has the equation and the source of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from marft.types import MarftError
from marft.validation import suggestion

NAMES = ("marft-a", "marft-t", "happo", "mappo", "ippo", "grpo", "rloo", "gspo", "dapo", "selfplay")


def learner_names() -> tuple[str, ...]:
    """The ready-made learners."""
    return NAMES


def learner_sections(name: str) -> dict[str, dict[str, Any]]:
    """The sections of a config that a learner fills in."""
    sections: dict[str, dict[str, Any]] = yaml.safe_load(_text(name))
    return sections


def learner_description(name: str) -> str:
    """What a learner is, in one line: the first of its file."""
    return _text(name).splitlines()[0].removeprefix("# ")


def expand_learner(raw: Mapping[str, Any], source: str, chosen: Any = None) -> dict[str, Any]:
    """`raw` with `learner` replaced by the keys it stands for; keys that `raw` has itself stay.

    `chosen`, if given, is used in its place, and its keys go over those of `raw`. Raises `MarftError` naming `source`
    for a learner there is not.
    """
    name = raw.get("learner") if chosen is None else chosen
    expanded = {key: value for key, value in raw.items() if key != "learner"}
    if name is None:
        return expanded
    if name not in NAMES:
        raise MarftError(f"{source}: learner: no learner '{name}'{suggestion(str(name), NAMES)}")
    for section, keys in learner_sections(name).items():
        given = raw.get(section) or {}
        if isinstance(given, Mapping):  # anything else is the schema's to refuse
            expanded[section] = {**keys, **given} if chosen is None else {**given, **keys}
    return expanded


@cache
def _text(name: str) -> str:
    return (files(__package__) / "learners" / f"{name}.yaml").read_text(encoding="utf8")
