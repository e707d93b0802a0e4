"""What a team said to a question, for reading in a terminal or a notebook."""

from __future__ import annotations

import string
from dataclasses import dataclass

from marft.types import Episode


@dataclass(frozen=True)
class Answer:
    """A team's answer: `text` is the last message, `messages` are all of them as (agent, text) in the order spoken.

    Replies that only called tools are in `episode`, not among the messages. `str(answer)` is for people; a notebook
    shows it with the agents' names in bold.
    """

    text: str
    messages: tuple[tuple[str, str], ...]
    episode: Episode

    @classmethod
    def of(cls, episode: Episode) -> Answer:
        """The answer that an episode without failure ended in."""
        messages = tuple((each.agent, each.text) for each in episode.actions if not each.tool_results)
        return cls(messages[-1][1], messages, episode)

    def __str__(self) -> str:
        return "\n".join(f"{agent}: {text}" for agent, text in self.messages)

    def _repr_markdown_(self) -> str:
        return "\n\n".join(f"**{_literal(agent)}:** {_literal(text)}" for agent, text in self.messages)


def _literal(text: str) -> str:
    """Text that Markdown shows as it is: what a model writes is never markup, nor mathematics."""
    marks = {ord(mark): f"&#{ord(mark)};" for mark in string.punctuation}
    lines = text.replace("\r\n", "\n").replace("\r", "\n").translate(marks).split("\n")
    return "<br>".join(lines)
