"""What is wrong with a config, in one sentence: the file, the key, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from marft.types import MarftError

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], raw: Mapping[str, Any], source: str, prefix: str = "") -> ModelT:
    """Validate `raw` as `model`, turning the first fault into one sentence with file, key and suggestion."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise MarftError(f"{source}: {_first_fault(model, error, prefix)}") from None


def _first_fault(model: type[BaseModel], error: ValidationError, prefix: str) -> str:
    # A union reports a fault per member; the deepest location is the one the user wrote
    fault = max(error.errors(), key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
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


def _is_union_tag(part: str) -> bool:
    return part.endswith("Config") or part.startswith(("literal[", "list["))


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
