"""vLLM behind the `Generator` protocol: the base in vLLM's own processes, the adapters as files that it reloads.

Written against vLLM's documented asynchronous engine (`AsyncLLM`, `AsyncEngineArgs`, `LoRARequest`, sleep mode,
custom logits processors).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import importlib.util
import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from marft.config import VllmConfig
from marft.generate.base import Reply, Request, Usage, check_fits
from marft.generate.vllm_adapters import Adapters
from marft.generate.vllm_host import ENVIRONMENT, Clock, Host
from marft.models.base import BUILT_IN, Base, quiet
from marft.models.policy import Policy
from marft.models.weights import FullWeights
from marft.types import MarftError

DRAW = "marft.generate.vllm_sampling"
UNBOUNDED = 2**31  # the context of a base that names none


@dataclass(frozen=True)
class Drawn:
    """What vLLM made of one request; `cached`: prompt tokens it did not compute."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int


class VllmEngine:
    """A `Generator` that starts vLLM at the first request. `base` is the model as loaded, before any adapter.

    With `settings.sleep`, `rest` frees vLLM's GPU memory until the next request.
    """

    def __init__(self, policy: Policy, base: Base, slots: int, settings: VllmConfig) -> None:
        _check(policy, base, settings)
        self.policy = policy
        self.settings = settings
        self._base, self._slots = base, slots
        self._files = tempfile.TemporaryDirectory(prefix="marft-vllm-")
        self._host = Host()
        self._up: concurrent.futures.Future[None] | None = None  # None: not started, or asleep
        self._adapters = Adapters(policy, self._host, Path(self._files.name))
        self._names = (f"marft-{number}" for number in itertools.count())
        self._version = 0
        self._usage = Usage()
        self._running = 0  # requests, with those that wait for vLLM to start
        self._clock = Clock()
        self._closing = weakref.finalize(self, _close, self._host, self._files)

    @property
    def version(self) -> int:
        """The adapters' version, stamped on a request when it is dispatched."""
        return self._version

    @property
    def usage(self) -> Usage:
        """Totals of answered requests (cancelled ones are not counted), and the seconds in which any was under way."""
        return replace(self._usage, seconds=self._clock.total)

    @property
    def own_weights(self) -> bool:
        """Yes, unless it sleeps while the learner works."""
        return not self.settings.sleep

    def hold(self, adapters: Sequence[str]) -> None:
        """Give vLLM these adapters now (those of them that are its policy's), not when a request first needs one."""
        self._host.run(self._ready())
        for name in adapters:
            if name in self.policy.adapters:
                self._adapters.of(name)

    def load(self, version: int) -> None:
        """The adapters now hold `version`; none may be in use."""
        if self._running:
            raise RuntimeError("adapters changed while replies were being generated")
        self._version = version
        self._adapters.announce(version)

    def rest(self) -> None:
        """Free the GPU for the learner, if the settings ask for it; the next request wakes vLLM up."""
        if self._running:
            raise RuntimeError("vLLM cannot sleep while replies are being generated")
        if self.settings.sleep and self._up is not None:
            self._host.run(self._host.llm.sleep(level=1))  # weights to the CPU's memory, keys and values forgotten
            self._up = None

    def close(self) -> None:
        """End vLLM's processes; also done when the engine is dropped, and at exit."""
        self._closing()

    async def generate(self, request: Request) -> Reply:
        """Hand a request to vLLM and wait for its reply. Raises `MarftError` when it cannot fit the context."""
        check_fits(request, self._base.context)
        version = self._version
        self._running += 1  # from here on no adapter may change
        try:
            await self._ready()
            with self._clock:
                drawn = await self._draw(request, self._adapters.of(request.adapter))
        finally:
            self._running -= 1
        self._usage = replace(
            self._usage,
            prompt_tokens=self._usage.prompt_tokens + len(request.prompt_ids),
            prompt_tokens_computed=self._usage.prompt_tokens_computed + len(request.prompt_ids) - drawn.cached,
            sampled_tokens=self._usage.sampled_tokens + len(drawn.tokens),
        )
        stop: Literal["stop", "length"] = "stop" if drawn.tokens[-1] in self._base.chat.stop_ids else "length"
        return Reply(drawn.tokens, drawn.logprobs, stop, version)

    async def _ready(self) -> None:
        """Have vLLM started, or woken, once for all who wait."""
        if self._up is None:
            self._up = self._host.submit(self._start() if self._host.llm is None else self._host.llm.wake_up())
        await asyncio.shield(asyncio.wrap_future(self._up))

    async def _start(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            args = AsyncEngineArgs(**self._arguments())
            second = args.create_engine_config().use_v2_model_runner
            args.logits_processors = [f"{DRAW}:{'DrawV2' if second else 'DrawV1'}"]
            self._host.llm = AsyncLLM.from_engine_args(args)
            atexit.register(self._closing)  # anew: it must run before Python ends the processes that it has started
        except (RuntimeError, ValueError, OSError) as error:
            raise MarftError(
                f"rollout.engine: vLLM did not start with {self._base.name}: {' '.join(str(error).split())} "
                "(often it is memory: see rollout.vllm.gpu_memory_utilization, rollout.vllm.cache_gib, model.context)"
            ) from error

    def _arguments(self) -> dict[str, Any]:
        own = self.settings
        found: dict[str, Any] = {
            "model": weights_of(self._base, Path(self._files.name) / "base"),
            "dtype": str(self._base.model.dtype).removeprefix("torch."),
            "skip_tokenizer_init": True,  # ids in, ids out
            "logprobs_mode": "processed_logits",  # what `vllm_sampling` leaves there
            "enable_prefix_caching": True,
            "async_scheduling": False,  # the draw of a token needs the count of those before it
            "max_num_seqs": self._slots,
            "gpu_memory_utilization": own.gpu_memory_utilization,
            "tensor_parallel_size": own.tensor_parallel_size,
            "enforce_eager": own.enforce_eager,
            "enable_sleep_mode": own.sleep,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if self._base.context < UNBOUNDED:
            found["max_model_len"] = self._base.context
        if own.cache_gib is not None:
            found["kv_cache_memory_bytes"] = int(own.cache_gib * 2**30)
        return found | self._adapters.arguments(own.max_loras)

    async def _draw(self, request: Request, lora: Any) -> Drawn:
        """vLLM's answer, awaited from the caller's loop; leaving early aborts it there."""
        loop = asyncio.get_running_loop()
        failed: list[Exception] = []

        def hear(token: int) -> None:
            try:
                if request.on_token and not failed:
                    request.on_token(token)
            except Exception as error:  # the listener's own: it ends this request, as soon as the loop can
                failed.append(error)
                task.cancel()

        tell = (lambda token: loop.call_soon_threadsafe(hear, token)) if request.on_token else None
        task = asyncio.wrap_future(self._host.submit(self._stream(request, lora, tell)))
        drawn = None
        try:
            drawn = await task
        except asyncio.CancelledError:
            if not failed:
                raise
        if failed or drawn is None:
            raise failed[0]
        return drawn

    async def _stream(self, request: Request, lora: Any, tell: Callable[[int], object] | None) -> Drawn:
        """On vLLM's loop: one request from its first token to its last."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineGenerateError

        rule = {
            "seed": list(request.seed), "greedy": request.greedy, "sampling": request.sampling.model_dump(),
        }  # fmt: skip
        params = SamplingParams(
            temperature=0.0,  # takes what `vllm_sampling` drew
            max_tokens=request.sampling.max_tokens,
            stop_token_ids=list(self._base.chat.stop_ids),
            ignore_eos=True,  # only the chat's own tokens end a turn
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if tell else RequestOutputKind.FINAL_ONLY,
            extra_args={"marft": rule},
        )
        tokens: list[int] = []
        logprobs: list[float] = []
        cached, reason = 0, None
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        try:
            async for output in self._host.llm.generate(prompt, params, next(self._names), lora_request=lora):
                (part,) = output.outputs
                cached, reason = max(cached, output.num_cached_tokens or 0), part.finish_reason
                for token, found in zip(part.token_ids, part.logprobs or (), strict=True):
                    tokens.append(token)
                    logprobs.append(float(found[token].logprob))
                    if tell:
                        tell(token)
        except EngineGenerateError as error:  # a wrapper without words
            raise error.__cause__ or error from None
        if reason not in ("stop", "length"):
            raise MarftError(f"rollout.engine: vLLM ended a reply of its own accord ({reason})")
        return Drawn(tuple(tokens), tuple(logprobs), cached)


def _close(host: Host, files: tempfile.TemporaryDirectory[str]) -> None:
    host.stop()
    files.cleanup()


def _check(policy: Policy, base: Base, settings: VllmConfig) -> None:
    """Raise `MarftError` for what this engine cannot do, before anything is started."""
    if isinstance(policy.weights, FullWeights):
        raise MarftError("rollout.engine: vllm is given adapters only, not model.tuning: full; use engine: torch")
    if base.quantised:
        raise MarftError(
            "rollout.engine: vllm cannot be given the rounded weights of model.quantise; use engine: torch"
        )
    if settings.sleep and base.device.type != "cuda":
        raise MarftError(f"rollout.vllm.sleep: frees the memory of a GPU, and the model is on {base.device}; set false")
    if importlib.util.find_spec("vllm") is None:
        raise MarftError("rollout.engine: vllm is not installed; run: pip install 'marft[vllm]', or use engine: torch")


def weights_of(base: Base, folder: Path) -> str:
    """Where vLLM finds the very weights of `base`: its own folder or hub id, or a copy written to `folder`."""
    path = Path(base.name).expanduser()
    if base.name not in BUILT_IN and (path / "config.json").is_file():
        return str(path)
    if base.name not in BUILT_IN and base.name.count("/") == 1:
        return base.name
    with quiet():
        base.model.save_pretrained(folder)
    return str(folder)
