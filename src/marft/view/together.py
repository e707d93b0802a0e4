"""Several runs side by side: the keys of their configs that differ, and names that tell them apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """[{"key", "values"}]: keys whose value is not the same in all configs; None where a config has no such key."""
    flat = [dict(_values(config)) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    found = [{"key": key, "values": [each.get(key) for each in flat]} for key in keys]
    return [each for each in found if len(set(each["values"])) > 1]


def _values(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of a config as ("update.lr", "0.001"); members of a list stand under their names, if they have any."""
    for key, value in config.items():
        if isinstance(value, list) and value and all(isinstance(each, Mapping) and "name" in each for each in value):
            value = {each["name"]: {**each, "place": place} for place, each in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, default=str)


def names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart, at least the folder's own name."""
    ends = [path.resolve().parts for path in paths]
    lengths = [1] * len(paths)
    while True:
        found = ["/".join(parts[-length:]) for parts, length in zip(ends, lengths, strict=True)]
        twice = {name for name, count in Counter(found).items() if count > 1}
        longer = [
            min(length + 1, len(parts)) if name in twice else length
            for name, length, parts in zip(found, lengths, ends, strict=True)
        ]
        if longer == lengths:
            return found
        lengths = longer
