"""What is wrong with a config, in one sentence: the file, the key, and what was probably meant."""

from __future__ import annotations

import difflib
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
        raise MarftError(f"{source}: {_first_fault(model, error, prefix)}") from None


def _first_fault(model: type[BaseModel], error: ValidationError, prefix: str) -> str:
    fault = max(_meant(error.errors()), key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
    location = fault["loc"]
    if location[:1] == ("tools",):  # pydantic puts the entry's `kind`, which tells its model, after its name
        location = (*location[:2], *location[3:])
    spot = [str(part) for part in location if not _is_union_tag(str(part))]
    where = ".".join(([prefix] if prefix else []) + spot) or prefix or "config"
    if fault["type"] == "extra_forbidden":
        known = sorted(set(_keys_at(model, fault["loc"][:-1])))
        return f"unknown key '{where}'{suggestion(str(fault['loc'][-1]), known)}"
    if fault["type"] == "missing":
        return f"'{where}' is missing"
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return message if not fault["loc"] else f"{where}: {message}"
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return f"'{where}': {message} (got {fault['input']!r})"


def _meant(faults: Sequence[Any]) -> list[Any]:
    """The faults of what was meant: a union reports those of every member, and the likeliest is the one that fits best.

    A member whose keys are not those given fits badly, one of another type not at all.
    """
    misfits: dict[tuple[Any, ...], dict[Any, int]] = {}
    for fault in faults:
        for place, part in enumerate(location := fault["loc"]):
            if _is_union_tag(str(part)):
                key = len(location) == place + 2 and fault["type"] in ("extra_forbidden", "missing")
                other = len(location) == place + 1 and fault["type"] != "value_error"  # else: that type, ill made
                found = misfits.setdefault(location[:place], {})
                found[part] = found.get(part, 0) + (OTHER_TYPE if other else int(key))
    best = {prefix: min(members, key=members.__getitem__) for prefix, members in misfits.items()}
    return [
        fault
        for fault in faults
        if all(best.get(fault["loc"][:place], part) == part for place, part in enumerate(fault["loc"]))
    ]


def _is_union_tag(part: str) -> bool:
    return part.endswith("Config") or part.startswith(("literal[", "list[", "tuple[", "function-"))


def _keys_at(model: type[BaseModel], location: Sequence[Any]) -> Iterator[str]:
    """The keys allowed at a location of the schema, through lists and unions."""
    models: list[type[BaseModel]] = [model]
    for part in location:
        inner: list[type[BaseModel]] = []
        for each in models:
            if isinstance(part, int) or _is_union_tag(str(part)):
                inner.append(each)
            elif part in each.model_fields:
                inner.extend(_models_in(each.model_fields[str(part)].annotation))
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
