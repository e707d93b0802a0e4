"""How a model writes a call of a tool, and how calls are read out of its replies.

A chat template that knows tools writes them into the prompt itself, and the form of a call is learnt by letting it
write one. For a template that knows none (SmolLM2's), or whose calls are no JSON objects with a name and arguments,
the Hermes form is used: the system message describes the tools, and a result is a user message in `<tool_response>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.tools.base import Call, Malformed, ToolSpec

PROBE = ToolSpec(
    "probe_tool", "A probe.", {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": []}
)
CALL_ID = "call00000"  # some templates refuse an id that is not nine letters or digits


@dataclass(frozen=True)
class ToolFormat:
    """A call is `opening {"name": …, arguments_key: {…}} closing`; `listed`: the object stands in a JSON list of them.

    `native`: the template itself describes the tools. Both marks may be empty; then a reply that starts with such an
    object is a call.
    """

    native: bool
    opening: str
    closing: str
    arguments_key: str = "arguments"
    listed: bool = False

    def calls(self, text: str) -> tuple[Call | Malformed, ...]:
        """The calls in a reply (special tokens included, the end of turn left out), in order; () when it makes none.

        What the model only thinks, within `<think>…</think>`, calls nothing.
        """
        said = text.rpartition("</think>")[2].partition("<think>")[0]
        return self._marked_calls(said) if self.opening else self._bare_calls(said.strip())

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """What the system message says of the tools where the template says nothing."""
        shown = "\n".join(json.dumps(tool.schema()["function"], ensure_ascii=False) for tool in tools)
        return (
            f"You can call these tools:\n<tools>\n{shown}\n</tools>\n"
            f"To call one, write:\n{self.opening}\n{self._form}\n{self.closing}\n"
            "You then read its result in <tool_response></tool_response>, and go on."
        )

    @property
    def _form(self) -> str:
        return f'{{"name": "…", "{self.arguments_key}": {{…}}}}'

    def _marked_calls(self, said: str) -> tuple[Call | Malformed, ...]:
        found: list[Call | Malformed] = []
        position = said.find(self.opening)
        while position >= 0:
            start = position + len(self.opening)
            value, end, fault = _read_json(said, start)
            closed = said[end:].lstrip().startswith(self.closing)
            if fault:
                found.append(Malformed(f"the call is not valid JSON ({fault}); write {self._form}"))
                end = max(start, said.find(self.closing, start) if self.closing else len(said))
            elif not closed:
                found.append(Malformed(f"the call does not end with {self.closing}"))
            else:
                found += [self._call(each) for each in (value if self.listed and isinstance(value, list) else [value])]
            position = said.find(self.opening, end)
        return tuple(found)

    def _bare_calls(self, said: str) -> tuple[Call | Malformed, ...]:
        """Objects one after another, from the start on; an object that has nothing of a call is an answer in JSON."""
        found: list[Call | Malformed] = []
        position = 0
        while said.startswith("{", position):
            value, position, fault = _read_json(said, position)
            if fault:
                if re.search(rf'"(name|{self.arguments_key})"', said):
                    found.append(Malformed(f"the call is not valid JSON ({fault}); write {self._form}"))
                break
            if value and not {"name", self.arguments_key} & value.keys():
                break
            found.append(self._call(value))
            position += len(said[position:]) - len(said[position:].lstrip(" \n\t;,"))
        return tuple(found)

    def _call(self, value: Any) -> Call | Malformed:
        if not isinstance(value, dict):
            return Malformed(f"a call must be a JSON object; write {self._form}")
        if not isinstance(value.get("name"), str):
            return Malformed(f"the call has no name; write {self._form}")
        if not isinstance(value.get(self.arguments_key), dict):
            return Malformed(
                f"the call of '{value['name']}' has no object \"{self.arguments_key}\"; write {self._form}"
            )
        return Call(value["name"], value[self.arguments_key])


HERMES = ToolFormat(False, "<tool_call>", "</tool_call>")


def call_message(arguments: Mapping[str, str] | str) -> dict[str, Any]:
    """An assistant message that calls the probe."""
    call = {"id": CALL_ID, "type": "function", "function": {"name": PROBE.name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def learn_format(attempt: Callable[..., str | None], ends: Sequence[str]) -> ToolFormat:
    """The format of a template, from how it renders probes; `HERMES` where it has none that can be learnt.

    `attempt(messages, tools, opened)` gives the rendered text, or None where the template refuses; `opened`: with the
    start of the next reply. `ends` are the texts that end a turn.
    """
    asked = {"role": "user", "content": "probe_question"}
    if PROBE.name not in (attempt([asked], [PROBE], True) or ""):
        return HERMES
    plain = attempt([asked, {"role": "assistant", "content": "probe_reply"}], [PROBE], False) or ""
    value = {"probe_key": "probe_value"}
    for arguments in (value, json.dumps(value)):  # a few templates want the arguments as text
        shown = attempt([asked, call_message(arguments)], [PROBE], False)
        learnt = _read_format(shown or "", plain.partition("probe_reply")[0], ends)
        if learnt is not None:
            return learnt
    return HERMES


def _read_format(shown: str, header: str, ends: Sequence[str]) -> ToolFormat | None:
    """The format in a rendered call; `header` is how the text starts up to where a plain reply would stand."""
    start = next((at for at, (one, other) in enumerate(zip(shown, header, strict=False)) if one != other), len(header))
    first = shown.rfind("{", start, max(start, shown.find(PROBE.name, start)))
    if first < 0:
        return None
    value, last, fault = _read_json(shown, first)
    keys = [key for key, each in value.items() if each == {"probe_key": "probe_value"}] if not fault else []
    if not keys or value.get("name") != PROBE.name:
        return None
    opening, closing = shown[start:first].strip(), until(shown[last:], ends).strip()
    listed = opening.endswith("[") and closing.startswith("]")
    if listed:
        opening, closing = opening[:-1].strip(), closing[1:].strip()
    if "{" in opening or (not opening and (closing or listed)):
        return None  # an object within objects, a bare list, a mark at the end alone: no form that `calls` reads
    return ToolFormat(True, opening, closing, keys[0], listed)


def until(text: str, ends: Sequence[str]) -> str:
    """The text up to the first of the ends that stands in it."""
    return text[: min((text.find(end) for end in ends if end in text), default=len(text))]


def _read_json(text: str, start: int) -> tuple[Any, int, str]:
    """The JSON value at `start` (white space allowed before it), where it ends, and what is wrong with it."""
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse).raw_decode(text, start)
    except json.JSONDecodeError as error:
        return None, start, f"{error.msg} at character {error.pos - start}"
    except (ValueError, RecursionError) as error:  # a number too long to read, or brackets too deep
        return None, start, str(error).partition(";")[0]
    return value, end, ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
