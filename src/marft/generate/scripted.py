"""A generator that answers from a list or a function: for tests, and for trying out an environment without a model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from marft.generate.base import Reply, Request, Usage
from marft.models.chat import Chat

Answer = str | Sequence[int]
"""Text (encoded, with the end-of-turn token after it) or the token ids themselves."""


class Scripted:
    """A `Generator` without a model: `answers` in the order of arrival, or as a function of the request.

    The function may be async, and what it raises reaches the one who asked. An answer longer than the request's
    `max_tokens` is cut there, as a sampled one would be. Log-probabilities are 0. `requests` keeps what was asked.
    """

    def __init__(self, chat: Chat, answers: Iterable[Answer] | Callable[[Request], Answer | Awaitable[Answer]]) -> None:
        self.requests: list[Request] = []
        self._chat = chat
        self._answers = answers if callable(answers) else iter(answers)
        self._version = 0
        self._usage = Usage()

    @property
    def version(self) -> int:
        """The version last announced."""
        return self._version

    @property
    def usage(self) -> Usage:
        """Totals since the start; nothing is ever computed."""
        return self._usage

    @property
    def own_weights(self) -> bool:
        """It has none that could move."""
        return True

    def hold(self, adapters: Sequence[str]) -> None:
        """Nothing to hold."""

    def load(self, version: int) -> None:
        """Note the version."""
        self._version = version

    def rest(self) -> None:
        """Nothing to free."""

    async def generate(self, request: Request) -> Reply:
        """The next answer as a reply. Raises IndexError when a list of answers has come to its end."""
        version = self._version
        self.requests.append(request)
        answer = self._answers(request) if callable(self._answers) else next(self._answers, None)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            raise IndexError("the scripted generator has no answer left")
        whole = (*self._chat.encode(answer), self._chat.stop_ids[0]) if isinstance(answer, str) else tuple(answer)
        ids = whole[: request.sampling.max_tokens]
        self._usage = replace(
            self._usage,
            prompt_tokens=self._usage.prompt_tokens + len(request.prompt_ids),
            sampled_tokens=self._usage.sampled_tokens + len(ids),
        )
        stopped = bool(ids) and ids[-1] in self._chat.stop_ids
        return Reply(ids, (0.0,) * len(ids), "stop" if stopped else "length", version)
