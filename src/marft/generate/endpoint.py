"""A frozen partner: an agent that is an OpenAI-compatible chat endpoint plays along and is never trained."""

from __future__ import annotations

import asyncio
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import httpx
import numpy as np

from marft.config import EndpointConfig, SamplingConfig
from marft.generate.base import Reply, Request, Usage
from marft.models.chat import Chat
from marft.types import MarftError

LONGEST_PAUSE = 30.0  # seconds between two tries, whatever doubling or the server asks for


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers: `url` is the base address, `key_env` the environment variable that holds the key.

    `timeout` is in seconds for one whole answer; after a failed connection, a timeout, a 429 or a 5xx it is asked
    again, at most `retries` times, after `pause` seconds and then twice as many each time, or as many as the server
    says. At most `concurrency` requests are under way at once. Raises `MarftError` for an address that is none.
    """

    url: str
    model: str
    key_env: str | None = None
    timeout: float = 60.0
    retries: int = 3
    concurrency: int = 8
    pause: float = 0.5
    # A rollout has an event loop of its own, and what waits belongs to one loop
    _turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise MarftError(f"endpoint.url: '{self.url}' is not an address such as https://host/v1")

    @property
    def place(self) -> str:
        """The endpoint in an error message: nothing of its address that may be secret."""
        shown = httpx.URL(self.url).copy_with(query=None, fragment=None, username=None, password=None)
        return f"endpoint {str(shown).rstrip('/')} (model {self.model})"

    def check_key(self) -> None:
        """Raise `MarftError` when there should be a key and there is none that a header can carry."""
        if self.key_env is None:
            return
        key = self._key()
        if not key:
            raise MarftError(f"endpoint.key_env: the environment variable {self.key_env} is not set")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise MarftError(f"endpoint.key_env: {self.key_env} holds something that cannot be a key")

    async def chat(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingConfig, greedy: bool, seed: int
    ) -> tuple[str, Literal["stop", "length"]]:
        """The model's answer to `messages` (`role` and `content` each) and how it ended.

        Raises `MarftError` when the endpoint cannot be reached, refuses, or answers something else.
        """
        self.check_key()
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(each) for each in messages],
            "max_tokens": sampling.max_tokens,
            "temperature": 0.0 if greedy else sampling.temperature,
            "seed": seed % 2**31,  # some servers keep it in 32 bits
        }
        body |= {name: value for name in ("top_p", "top_k") if (value := getattr(sampling, name)) is not None}
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))
        async with turns, httpx.AsyncClient(verify=_certificates(), timeout=None) as client:
            return self._read(await self._ask(client, body))

    async def _ask(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> httpx.Response:
        """The first answer that is no reason to try again."""
        address = httpx.URL(self.url)
        address = address.copy_with(path=address.path.rstrip("/") + "/chat/completions")
        headers = {"Authorization": f"Bearer {self._key()}"} if self.key_env else {}
        fault = ""
        for attempt in range(self.retries + 1):
            wait = min(self.pause * 2**attempt, LONGEST_PAUSE)
            try:
                async with asyncio.timeout(self.timeout):
                    response = await client.post(address, json=body, headers=headers)
            except TimeoutError:
                fault = f"gave no answer within {self.timeout:g} s"
            except httpx.TransportError as error:
                fault = f"could not be reached: {self._safe(str(error)) or type(error).__name__}"
            else:
                if response.status_code != 429 and response.status_code < 500:
                    return response
                fault = f"answered {response.status_code}{self._reason(response)}"
                wait = _asked_to_wait(response, wait)
            if attempt < self.retries:
                await asyncio.sleep(wait)
        raise MarftError(f"{self.place} {fault} (asked {self.retries + 1} times)")

    def _read(self, response: httpx.Response) -> tuple[str, Literal["stop", "length"]]:
        if response.status_code in (401, 403):  # the body may repeat the key
            key = f"the key in {self.key_env}" if self.key_env else "a request without a key; set endpoint.key_env"
            raise MarftError(f"{self.place} answered {response.status_code}: it refuses {key}")
        if response.status_code != 200:
            raise MarftError(f"{self.place} answered {response.status_code}{self._reason(response)}")
        try:
            choice = response.json()["choices"][0]
            text, ended = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError):
            text, ended = 0, None
        if text is None:  # a model that spent all its tokens on thinking, or called a tool, says nothing
            text = ""
        if not isinstance(text, str):
            start = self._safe(response.text)[:80]
            raise MarftError(f"{self.place} did not answer as a chat endpoint does: {start!r}; is endpoint.url right?")
        return text, "length" if ended == "length" else "stop"

    def _reason(self, response: httpx.Response) -> str:
        """What the server says is wrong, after a colon."""
        try:
            said = response.json()["error"]
            said = said["message"] if isinstance(said, dict) else said
        except (ValueError, LookupError, TypeError):
            said = response.text
        text = " ".join(self._safe(str(said)).split())
        return f": {text[:200]}" if text else ""

    def _safe(self, text: str) -> str:
        key = self._key()
        return text.replace(key, "***") if key else text

    def _key(self) -> str:
        return os.environ.get(self.key_env, "").strip() if self.key_env else ""


class EndpointGenerator:
    """A `Generator` whose words come from an endpoint, as ids of a chat format that others at the table read.

    The endpoint tells no log-probabilities: they are 0, and nobody trains on them.
    """

    def __init__(self, config: EndpointConfig, chat: Chat, limit: int) -> None:
        """`limit`: the tokens of a reply that the critic reads; the words themselves are never cut."""
        self.endpoint = Endpoint(**config.model_dump())
        self.endpoint.check_key()
        self.chat = chat
        self.limit = limit
        self._version = 0
        self._usage = Usage()

    @property
    def version(self) -> int:
        """The version of the adapters the others play with."""
        return self._version

    @property
    def usage(self) -> Usage:
        """Totals since it was made, in this chat format's tokens; no seconds, since nothing is computed here."""
        return self._usage

    @property
    def own_weights(self) -> bool:
        """Whatever answers there, the learner does not move it."""
        return True

    def hold(self, adapters: Sequence[str]) -> None:
        """Nothing to hold here."""

    def load(self, version: int) -> None:
        """The others' adapters now hold `version`."""
        self._version = version

    def rest(self) -> None:
        """Nothing to free here."""

    async def generate(self, request: Request) -> Reply:
        """Ask the endpoint, in messages, what the prompt asks. Raises `MarftError` when it does not answer."""
        version = self._version
        seed = int(np.random.SeedSequence(request.seed).generate_state(1)[0])
        text, stop = await self.endpoint.chat(self._messages(request), request.sampling, request.greedy, seed)
        ids = self.chat.encode(text)[: self.limit - 1]
        if stop == "stop" or not ids:  # an action has a token at least, also where the model said nothing
            ids = (*ids, self.chat.stop_ids[0])
        self._usage = replace(
            self._usage,
            prompt_tokens=self._usage.prompt_tokens + len(request.prompt_ids),
            sampled_tokens=self._usage.sampled_tokens + len(ids),
        )
        if request.on_token:
            for token in ids:
                request.on_token(token)
        return Reply(ids, (0.0,) * len(ids), stop, version, text.strip())

    def _messages(self, request: Request) -> list[dict[str, str]]:
        """What the agent heard, its own replies, and as a user's words the results of tools it called in its text."""
        messages = [{"role": "system", "content": request.profile}] if request.profile else []
        for exchange in request.exchanges:
            messages.append({"role": "user", "content": exchange.heard})
            if exchange.reply_ids is not None:
                messages.append({"role": "assistant", "content": self.chat.decode(exchange.reply_ids)})
        return messages


def _asked_to_wait(response: httpx.Response, otherwise: float) -> float:
    """The seconds of a Retry-After header; a date there, which few send, counts as none."""
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return otherwise
    return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else otherwise


@cache
def _certificates() -> Any:
    """Read once: it takes longer than a request to a neighbour."""
    return httpx.create_ssl_context()
