"""The only room that turns text into tokens: prompts through the chat template, and the critic's joint view."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from marft.models.template import Template, tool_message
from marft.models.tool_format import call_message
from marft.tools.base import Call, Malformed, ToolSpec
from marft.types import MarftError

Message = dict[str, Any]  # in the form chat templates take

# Stands for a reply while the template is rendered; unlikely in any text, and free of characters templates escape
PLACEHOLDER = "\u241eREPLY{}\u241e"


@dataclass(frozen=True)
class Exchange:
    """What an agent read, and the exact ids it answered with (None: it is about to answer, or reads on first).

    `role` `tool`: what it read is the result of the `tool` it called.
    """

    heard: str
    reply_ids: tuple[int, ...] | None = None
    role: Literal["user", "tool"] = "user"
    tool: str = ""


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template and the ids that end a turn."""

    tokenizer: Any
    stop_ids: tuple[int, ...]

    def prompt(self, profile: str, exchanges: Sequence[Exchange], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """The prompt [P] for the last exchange, which has no reply yet.

        It grows: the ids of an earlier prompt, the ids that were sampled (never re-encoded), and what the template
        puts between that reply and the next. So an agent reads its own earlier replies whole, `<think>` parts
        included, even where the template would drop or strip them: what is trained on is what was sampled.
        An empty `profile` leaves the system message out (a template may then put its own default in); without a system
        role, the profile opens the first user message. Messages in a row are joined by a blank line.
        Raises `MarftError` for a template that hides the last reply, or refuses the conversation.
        """
        if tools and not self.template.tool_format.native:
            profile = _paragraphs(profile, self.template.tool_format.describe(tools))
        messages = [{"role": "system", "content": profile}] if profile and self.template.has_system_role else []
        opening = "" if messages else profile
        ids: list[int] = []
        placeholder = ""  # of the reply before what is heard
        reply: tuple[int, ...] = ()
        for number, exchange in enumerate(exchanges):
            messages = self._hear(messages, exchange, opening)
            opening = ""
            if exchange.reply_ids is not None or number == len(exchanges) - 1:
                text = self._render(messages, tools)
                ids += self.encode(self._after(placeholder, reply, text) if placeholder else text)
            if exchange.reply_ids is not None:
                placeholder, reply = PLACEHOLDER.format(number), exchange.reply_ids
                ids += reply
                messages.append({"role": "assistant", "content": placeholder})
        return tuple(ids)

    def calls(self, reply_ids: Sequence[int]) -> tuple[Call | Malformed, ...]:
        """The tool calls in a reply, in the template's own format; () when it makes none."""
        stopped = bool(reply_ids) and reply_ids[-1] in self.stop_ids
        return self.template.tool_format.calls(self.show(reply_ids[:-1] if stopped else reply_ids))

    def joint_view(self, task: str, said: Sequence[tuple[str, str]], speaker: str) -> tuple[int, ...]:
        """What the critic reads before `speaker` acts: the task and all (speaker, text) so far.

        Encoded piece by piece, so that a later view starts with exactly the tokens of an earlier one.
        """
        pieces = [task, *(f"\n{who}: {text}" for who, text in said), f"\n{speaker}:"]
        return tuple(token for piece in pieces for token in self.encode(piece))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without anything a tokenizer would add on its own."""
        ids: tuple[int, ...] = self._encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """A reply as text for people: special tokens left out, white space around it removed."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def show(self, ids: Sequence[int]) -> str:
        """Ids as text with every special token visible, for records."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text that each id adds to those before it, special tokens visible, for records.

        A character that takes several tokens stands at its last one.
        """
        found: list[str] = []
        start = told = 0  # a token's text may depend on the one before it, so each is decoded behind that one
        for end in range(1, len(ids) + 1):
            before, now = self.show(ids[start:told]), self.show(ids[start:end])
            if now.endswith("\ufffd") and end < len(ids):  # its character is not complete yet
                found.append("")
                continue
            found.append(now[len(before) :])
            start, told = told, end
        return tuple(found)

    @cached_property
    def template(self) -> Template:
        """The tokenizer's chat template."""
        return Template(self.tokenizer, tuple(map(self._stop_text, self.stop_ids)))

    @cached_property
    def _encode(self) -> Any:
        # The same profiles, tasks and messages return many times an iteration
        return lru_cache(maxsize=65536)(lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    @cached_property
    def _special(self) -> re.Pattern[str]:
        added = [each.content for each in self.tokenizer.added_tokens_decoder.values() if each.special]
        spelt = {each for each in [*added, *self.tokenizer.all_special_tokens] if len(each) > 1}
        longest_first = sorted({*spelt, PLACEHOLDER.partition("{")[0]}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def _stop_text(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def _hear(self, messages: Sequence[Message], exchange: Exchange, opening: str) -> list[Message]:
        """The messages with what the exchange says put after them; `opening` comes first in it."""
        *earlier, last = messages or [{}]
        said = self._harmless(exchange.heard)
        # A result whose call was cut off with the history's beginning is told as any other news
        if exchange.role == "tool" and last.get("role") in ("assistant", "tool") and self.template.results_as != "user":
            if last["role"] == "assistant" and self.template.results_as == "tool_after_call":
                messages = [*earlier, call_message({"reply": last["content"]})]
            return [*messages, tool_message(said, exchange.tool)]
        heard = f"<tool_response>\n{said}\n</tool_response>" if exchange.role == "tool" else said
        if last.get("role") == "user":
            return [*earlier, {"role": "user", "content": _paragraphs(last["content"], heard)}]
        return [*messages, {"role": "user", "content": _paragraphs(opening, heard)}]

    def _harmless(self, heard: str) -> str:
        """What was heard, unable to end a turn or open another: special tokens spelt out in it are broken in two."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", heard)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        try:
            return self.template.render(messages, tools if self.template.tool_format.native else ())
        except Exception as error:  # a template is a program of its own: it may raise anything
            raise MarftError(f"model.name: the chat template refuses this conversation: {error}") from error

    def _after(self, placeholder: str, reply: tuple[int, ...], text: str) -> str:
        """What the template writes after a reply."""
        _, found, rest = text.partition(placeholder)
        if not found:
            raise MarftError("model.name: the chat template does not repeat replies as they are; choose another model")
        rest = rest.removeprefix(self.template.call_rest)
        if reply and reply[-1] in self.stop_ids:
            rest = rest.removeprefix(self._stop_text(reply[-1]))
        return rest


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
