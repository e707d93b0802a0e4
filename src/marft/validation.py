"""What is wrong with a config, in one sentence: the file, the key, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from marft.types import MarftError

ModelT = TypeVar("ModelT", bound=BaseModel)
OTHER_TYPE = 1000  # weighs more than any number of keys


def validate(model: type[ModelT], raw: Mapping[str, Any], source: str, prefix: str = "") -> ModelT:
    """Validate `raw` as `model`, turning the first fault into one sentence with file, key and suggestion."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise MarftError(f"{source}: {_first_fault(model, error, raw, prefix)}") from None


def _first_fault(model: type[BaseModel], error: ValidationError, raw: Mapping[str, Any], prefix: str) -> str:
    fault = max(_meant(error.errors(), raw), key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
    tags = _tags(fault, raw)
    spot = [str(part) for place, part in enumerate(fault["loc"]) if place not in tags]
    where = ".".join(([prefix] if prefix else []) + spot) or prefix or "config"
    if fault["type"] == "extra_forbidden":
        known = sorted(set(_keys_at(model, fault["loc"][:-1])))
        return f"unknown key '{where}'{suggestion(spot[-1], known)}"
    if fault["type"] == "missing":
        return f"'{where}' is missing"
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return message if not fault["loc"] else f"{where}: {message}"
    message = fault["msg"][0].lower() + fault["msg"][1:]
    known = re.findall(r"'([^']*)'", fault["ctx"]["expected"]) if fault["type"] == "literal_error" else []
    near = difflib.get_close_matches(str(fault["input"]), known, n=1)
    return f"'{where}': {message} (got {fault['input']!r}){suggestion(near[0], near) if near else ''}"


def _meant(faults: Sequence[Any], raw: Mapping[str, Any]) -> list[Any]:
    """The faults of what was meant: a union reports those of every member, and the likeliest is the one that fits best.

    A member whose keys are not those given fits badly, one of another type not at all.
    """
    misfits: dict[tuple[Any, ...], dict[Any, int]] = {}
    for fault in faults:
        location = fault["loc"]
        for place in _tags(fault, raw):
            key = len(location) == place + 2 and fault["type"] in ("extra_forbidden", "missing")
            other = len(location) == place + 1 and fault["type"] != "value_error"  # else: that type, ill made
            found = misfits.setdefault(location[:place], {})
            found[location[place]] = found.get(location[place], 0) + (OTHER_TYPE if other else int(key))
    best = {prefix: min(members, key=members.__getitem__) for prefix, members in misfits.items()}
    return [
        fault
        for fault in faults
        if all(best[fault["loc"][:place]] == fault["loc"][place] for place in _tags(fault, raw))
    ]


def _tags(fault: Any, raw: Any) -> list[int]:
    """Which parts of a fault's location are no keys of what was given: pydantic's names for the members of a union."""
    tags = []
    for place, part in enumerate(location := fault["loc"]):
        holds = isinstance(raw, Mapping) and part in raw
        lists = isinstance(raw, list | tuple) and isinstance(part, int) and part < len(raw)
        if holds or lists:
            raw = raw[part]
        elif place < len(location) - 1 or fault["type"] != "missing":
            tags.append(place)
    return tags


def _keys_at(model: type[BaseModel], location: Sequence[Any]) -> Iterator[str]:
    """The keys allowed at a location of the schema; entries of lists and mappings, and members of unions, lead on."""
    models: list[type[BaseModel]] = [model]
    for part in location:
        inner: list[type[BaseModel]] = []
        for each in models:
            field = each.model_fields.get(str(part))
            inner.extend([each] if field is None else _models_in(field.annotation))
        models = inner
    for each in models:
        yield from each.model_fields


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


def suggestion(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, else the list of what is known."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known here: {', '.join(known)}" if known else ""
