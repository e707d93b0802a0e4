"""The Tool protocol: what an agent may call within its turn, and what it reads back.

Whatever goes wrong with a call is told to the model, which may try again; the episode goes on. Only a `MarftError`
(a mistake of the user's, such as a sandbox this system cannot make) and a cancellation end it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from marft.types import MarftError
from marft.validation import suggestion

LIMIT = 4000  # most characters of a result that reach the model


class ToolError(Exception):
    """What the model reads when its call did not work: one sentence, for the model."""


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told of a tool: its name, what it does, and a JSON schema (of type object) of its arguments.

    A call that takes longer than `seconds` is given up.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    seconds: float = 30.0

    def schema(self) -> dict[str, Any]:
        """The form chat templates and model APIs take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Call:
    """A call as a model wrote it: not checked yet against any tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Malformed:
    """Something meant as a call that is none, and why: the model reads the reason."""

    reason: str


class Tool(Protocol):
    """Something agents may call. It must not block the event loop, and holds no state of any episode."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told of it."""
        ...

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The result for the model; `arguments` fit the spec. Raises `ToolError` with a message for the model."""
        ...


async def answer(tools: Mapping[str, Tool], call: Call | Malformed, limit: int = LIMIT) -> str:
    """What the model reads after a call: the result, or `error: …`; never longer than `limit` and a note of the cut."""
    try:
        text = await _result(tools, call)
    except ToolError as error:
        text = f"error: {error}"
    # JSON can spell half of a surrogate pair, which no tokenizer can encode
    return cut(text.encode("utf8", "replace").decode("utf8"), limit)


async def _result(tools: Mapping[str, Tool], call: Call | Malformed) -> str:
    if isinstance(call, Malformed):
        raise ToolError(call.reason)
    tool = tools.get(call.name)
    if tool is None:
        raise ToolError(f"there is no tool '{call.name}'{suggestion(call.name, list(tools))}")
    check_arguments(tool.spec, call.arguments)
    try:
        async with asyncio.timeout(tool.spec.seconds) as deadline:
            return await tool.call(call.arguments)
    except (ToolError, MarftError):
        raise
    except Exception as error:  # a tool may be the user's own, and fail in any way
        if deadline.expired():
            raise ToolError(f"{call.name} did not finish within {tool.spec.seconds:g} seconds") from error
        raise ToolError(f"{call.name} failed: {type(error).__name__}: {error}") from error


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolError` for a missing argument, an unknown one, or one of the wrong JSON type.

    What a schema says beyond `required`, `type` and `enum` of each argument is left to the tool itself.
    """
    known: Mapping[str, Any] = spec.parameters.get("properties", {})
    for key in spec.parameters.get("required", ()):
        if key not in arguments:
            raise ToolError(f"{spec.name}: the argument '{key}' is missing")
    for key, value in arguments.items():
        if key not in known:
            if spec.parameters.get("additionalProperties"):
                continue
            raise ToolError(f"{spec.name}: there is no argument '{key}'{suggestion(key, list(known))}")
        kinds = known[key].get("type", ())
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        if kinds and not any(_is_a(value, kind) for kind in kinds):
            raise ToolError(f"{spec.name}: '{key}' must be of type {' or '.join(kinds)}, not {_shown(value)}")
        if value not in known[key].get("enum", [value]):
            raise ToolError(f"{spec.name}: '{key}' must be one of {_shown(known[key]['enum'])}, not {_shown(value)}")


def _is_a(value: Any, kind: str) -> bool:
    """JSON's types: a bool is no number, and 3.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and kind == "integer":
        return value.is_integer()
    types: dict[str, Any] = {
        "string": str, "integer": int, "number": (int, float), "array": list, "object": Mapping, "null": type(None)
    }  # fmt: skip
    return kind in types and isinstance(value, types[kind])


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"


def cut(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a line that says so."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: the first {limit} of {len(text)} characters]"
