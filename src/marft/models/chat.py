"""The only room that turns text into tokens: prompts through the chat template, and the critic's joint view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from marft.types import MarftError

# Stands for a reply while the template is rendered; unlikely in any text, and free of characters templates escape
PLACEHOLDER = "\u241eREPLY{}\u241e"


@dataclass(frozen=True)
class Exchange:
    """What an agent read, and the exact ids it answered with (None: it is about to answer, or reads on first).

    `role` `tool`: what it read is the result of a tool it called.
    """

    heard: str
    reply_ids: tuple[int, ...] | None = None
    role: Literal["user", "tool"] = "user"


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template and the ids that end a turn."""

    tokenizer: Any
    stop_ids: tuple[int, ...]

    def prompt(self, profile: str, exchanges: Sequence[Exchange]) -> tuple[int, ...]:
        """The prompt [P] for the last exchange. Earlier replies enter as the ids that were sampled, never re-encoded.

        An empty `profile` leaves the system message out (a template may then put its own default in).
        """
        messages = [{"role": "system", "content": profile}] if profile else []
        replies = []
        for number, exchange in enumerate(exchanges):
            messages.append({"role": exchange.role, "content": exchange.heard})
            if exchange.reply_ids is not None:
                messages.append({"role": "assistant", "content": PLACEHOLDER.format(number)})
                replies.append((PLACEHOLDER.format(number), exchange.reply_ids))
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = []
        for placeholder, reply in replies:
            before, found, text = text.partition(placeholder)
            if not found:
                raise MarftError(
                    "model.name: the chat template does not repeat replies as they are; choose another model"
                )
            ids += self.encode(before)
            ids += reply
            if reply and reply[-1] in self.stop_ids:
                text = text.removeprefix(self._stop_text(reply[-1]))
        return tuple(ids + list(self.encode(text)))

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

    @cached_property
    def _encode(self) -> Any:
        # The same profiles, tasks and messages return many times an iteration
        return lru_cache(maxsize=65536)(lambda text: tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    def _stop_text(self, token: int) -> str:
        return str(self.tokenizer.decode([token], skip_special_tokens=False))
