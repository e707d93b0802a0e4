"""The Generator protocol: what rollout asks for, and what an engine returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from marft.config import SamplingConfig
from marft.models.chat import Exchange
from marft.types import MarftError


@dataclass(frozen=True)
class Request:
    """One reply wanted. `seed` alone decides its random draws, so no neighbour in the batch can change them.

    `order` fixes the place in the admission queue (episode, agent, turn); `greedy` overrides the sampling temperature.
    `adapter` None means the bare base model. `speaker` (the agent's name) and `on_token`, told each id as it is drawn,
    are for those who listen; neither changes the reply. `profile` and `exchanges` are what the prompt was made of,
    for generators that take messages instead of ids.
    """

    prompt_ids: tuple[int, ...]
    adapter: str | None
    sampling: SamplingConfig
    seed: tuple[int, ...]
    order: tuple[int, ...] = ()
    greedy: bool = False
    speaker: str = ""
    on_token: Callable[[int], None] | None = None
    profile: str = ""
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True)
class Reply:
    """Token ids as drawn (the end-of-turn token included), each with its log-probability as it was sampled.

    `text`: the words themselves, from generators whose own tokens these are not; None: what the ids say.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Literal["stop", "length"]
    policy_version: int
    text: str | None = None


@dataclass(frozen=True)
class Usage:
    """Running totals of an engine: prompt tokens asked for and computed, tokens sampled, seconds spent computing."""

    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    sampled_tokens: int = 0
    seconds: float = field(default=0.0)

    def __add__(self, other: Usage) -> Usage:
        """Totals of two engines."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.prompt_tokens_computed + other.prompt_tokens_computed,
            self.sampled_tokens + other.sampled_tokens,
            self.seconds + other.seconds,
        )


class Generator(Protocol):
    """Anything that can answer requests: all coroutines of all episodes and all agents share one."""

    @property
    def version(self) -> int:
        """The policy version stamped on a request when it is dispatched."""
        ...

    @property
    def usage(self) -> Usage:
        """Totals since the engine was made."""
        ...

    @property
    def own_weights(self) -> bool:
        """Whether it can generate while the learner works: after `hold`, with weights that learning does not move."""
        ...

    async def generate(self, request: Request) -> Reply:
        """One reply. Raises `MarftError` when prompt + max_tokens cannot fit the context."""
        ...

    def load(self, version: int) -> None:
        """Announce that the adapters now hold `version`: anything computed with older weights is dropped."""
        ...

    def hold(self, adapters: Sequence[str]) -> None:
        """Generate with these adapters as they are now until the next `load`, whatever the learner does meanwhile.

        Raises RuntimeError where weights are not its own.
        """
        ...

    def rest(self) -> None:
        """Nothing is asked for a while: give the memory that only play needs to the learner.

        Raises RuntimeError while replies are being generated.
        """
        ...


def check_fits(request: Request, context: int) -> None:
    """Raise `MarftError` unless a request's prompt and longest reply fit into `context` tokens."""
    longest = len(request.prompt_ids) + request.sampling.max_tokens
    if longest > context:
        raise MarftError(
            f"a prompt of {len(request.prompt_ids)} tokens and a reply of {request.sampling.max_tokens} exceed the "
            f"context of {context}; shorten the task, lower max_tokens, or set rollout.context_policy: truncate_history"
        )
    if not request.prompt_ids:
        raise MarftError("the prompt is empty; check the chat template")
