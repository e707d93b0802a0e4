"""A tokenizer's chat template, and what probing shows of it: nothing is read out of its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from marft.models.tool_format import CALL_ID, HERMES, PROBE, ToolFormat, call_message, learn_format, until
from marft.tools.base import ToolSpec

ASKED = {"role": "user", "content": "probe_question"}
THOUGHTFUL = "<think>\nprobe_thought\n</think>\n\n probe_reply "


@dataclass(frozen=True)
class Template:
    """The chat template of a tokenizer; `ends` are the texts that end a turn."""

    tokenizer: Any
    ends: tuple[str, ...]

    def render(self, messages: Sequence[Any], tools: Sequence[ToolSpec] = (), opened: bool = True) -> str:
        """Messages as text, with the start of the next reply when `opened`; raises what the template raises."""
        schemas = [tool.schema() for tool in tools] or None
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=schemas, tokenize=False, add_generation_prompt=opened
            )
        )

    def attempt(self, messages: Sequence[Any], tools: Sequence[ToolSpec] = (), opened: bool = True) -> str | None:
        """As `render`; None where the template refuses."""
        try:
            return self.render(messages, tools, opened)
        except Exception:  # a template is a program of its own: it may raise anything
            return None

    @cached_property
    def has_system_role(self) -> bool:
        """Whether a system message reaches the model."""
        text = self.attempt([{"role": "system", "content": "probe_profile"}, ASKED])
        return text is not None and "probe_profile" in text

    @cached_property
    def has_own_profile(self) -> bool:
        """Whether the template puts a system prompt in where none is given."""
        bare, given = self.attempt([ASKED]), self.attempt([{"role": "system", "content": ""}, ASKED])
        return bare is not None and given is not None and len(bare) > len(given)

    @cached_property
    def rewrites_history(self) -> bool:
        """Whether the template would change earlier replies: drop their `<think>` parts, strip them, or hide them."""
        text = self.attempt([ASKED, {"role": "assistant", "content": THOUGHTFUL}, ASKED])
        return text is None or THOUGHTFUL not in text

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How calls are written."""
        return learn_format(self.attempt, self.ends)

    @cached_property
    def results_as(self) -> Literal["tool", "tool_after_call", "user"]:
        """How a result reaches the model: as a `tool` message, as one that must follow a call, or as a user message."""
        if self.tool_format is HERMES:
            return "user"
        ways: tuple[tuple[Literal["tool", "tool_after_call"], Any], ...] = (
            ("tool", {"role": "assistant", "content": "probe_reply"}),
            ("tool_after_call", call_message({"probe_key": "probe_reply"})),
        )
        for way, reply in ways:
            text = self.attempt([ASKED, reply, *_results(1, 2), reply, *_results(3)], [PROBE]) or ""
            wanted = ("probe_reply", "probe_result_1", "probe_result_2", "probe_reply", "probe_result_3")
            if _in_order(text, wanted):
                return way
        return "user"

    @cached_property
    def call_rest(self) -> str:
        """What the template writes between a call's only argument and the end of the turn; "" if no call is needed."""
        if self.results_as != "tool_after_call":
            return ""
        text = self.render([ASKED, call_message({"probe_key": "probe_reply"}), *_results(1)], [PROBE])
        return until(text.partition("probe_reply")[2], self.ends)


def tool_message(content: str, name: str = PROBE.name) -> dict[str, str]:
    """The result of a call of the tool `name`, in the form templates know."""
    return {"role": "tool", "name": name, "tool_call_id": CALL_ID, "content": content}


def _results(*numbers: int) -> list[dict[str, str]]:
    return [tool_message(f"probe_result_{number}") for number in numbers]


def _in_order(text: str, wanted: Sequence[str]) -> bool:
    for each in wanted:
        _, found, text = text.partition(each)
        if not found:
            return False
    return True
