"""Engines that might generate for us, one after the other: `python -m benchmarks.engines [--engine NAME] [--quick]`.

Every engine answers the same number of prompts of the same length with replies of one length at temperature 1: no
token ends them. The number in a name is how many LoRA adapters (r 16, every linear layer) the rows are spread over;
none: the bare model. `vllm` and `marft` are asked through `Generator`, with log-probabilities; `vllm own` is vLLM by
itself, with its own sampling. An engine that is not installed is named with the reason: vLLM and transformers of
today want environments of their own, so a whole table takes a run in each. vLLM runs without compilation, which on two
cores takes a minute and more.

Each engine is a process of its own. `start` is the time from a loaded model to the first token of a reply, memory the
sum of the peaks of that process and its children, which for vLLM includes the learner's copy of the model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.peers import plain_model
from benchmarks.side_by_side import Table, machine, options, publish
from benchmarks.workload import resolve_dtype, torch_dtype
from marft.config import LoraConfig, ModelConfig, SamplingConfig, VllmConfig
from marft.generate.base import Generator, Request
from marft.generate.torch_engine import TorchEngine
from marft.generate.vllm import VllmEngine, weights_of
from marft.models.base import load_base, quiet
from marft.models.chat import Chat
from marft.models.policy import Policy
from marft.run.evaluate import NEUTRAL_TEXT

Answer = Callable[[list[list[int]], int], None]  # prompts, tokens of each reply


@dataclass(frozen=True)
class Load:
    """What is asked: `rows` prompts of `prompt` tokens, `tokens` new ones each."""

    rows: int
    prompt: int
    tokens: int


FULL, QUICK = Load(64, 64, 64), Load(8, 16, 8)


def ours(kind: str, adapters: int, model: str, dtype: str, rows: int) -> tuple[Answer, Any]:
    """An engine behind `Generator`, rows spread over `adapters`; and the tokenizer."""
    base = load_base(ModelConfig(name=model, dtype=dtype), "cpu")
    tokenizer = base.chat.tokenizer
    base = replace(base, chat=Chat(tokenizer, ()))  # no token ends a reply
    names = [f"agent-{number}" for number in range(adapters)]
    policy = Policy(base, LoraConfig(), names)
    engine: Generator = TorchEngine(policy, rows)
    if kind == "vllm":
        engine = VllmEngine(policy, base, rows, VllmConfig(cache_gib=2, enforce_eager=True))

    def answer(prompts: list[list[int]], tokens: int) -> None:
        asked = [
            Request(tuple(prompt), names[row % adapters] if names else None, SamplingConfig(max_tokens=tokens), (row,))
            for row, prompt in enumerate(prompts)
        ]

        async def together() -> int:
            replies = await asyncio.gather(*(engine.generate(each) for each in asked))
            return sum(len(reply.token_ids) for reply in replies)

        check(asyncio.run(together()), prompts, tokens)

    return answer, tokenizer


def vllm_own(model: str, dtype: str, rows: int) -> tuple[Answer, Any]:
    """vLLM's offline engine with its own sampling and log-probabilities, no adapters."""
    from vllm import LLM, SamplingParams

    base = load_base(ModelConfig(name=model, dtype=dtype), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        engine = LLM(
            weights_of(base, Path(folder)), dtype=dtype, max_num_seqs=rows, max_model_len=base.context,
            kv_cache_memory_bytes=2 * 2**30, enforce_eager=True, logprobs_mode="processed_logprobs",
            skip_tokenizer_init=True,
        )  # fmt: skip

    def answer(prompts: list[list[int]], tokens: int) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        check(sum(len(each.outputs[0].token_ids) for each in outputs), prompts, tokens)

    return answer, base.chat.tokenizer


def transformers_own(kind: str, adapters: int, model: str, dtype: str) -> tuple[Answer, Any]:
    """transformers' `generate`, or its continuous batching, with at most one adapter active for all rows."""
    plain, tokenizer = plain_model(model, dtype)
    if adapters:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

        wanted = LoraConfig()
        settings = PeftConfig(r=wanted.r, lora_alpha=wanted.alpha, target_modules=wanted.targets, task_type="CAUSAL_LM")
        plain = get_peft_model(plain, settings).to(torch_dtype(dtype)).eval().base_model.model
    settings = {"do_sample": True, "temperature": 1.0, "top_k": None, "top_p": None, "eos_token_id": -1}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    @torch.no_grad()
    def lock_step(prompts: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(prompts)
        with quiet():
            found = plain.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=pad, **settings
            )
        check(found[:, ids.shape[1] :].numel(), prompts, tokens)

    @torch.no_grad()
    def continuous(prompts: list[list[int]], tokens: int) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        wanted = GenerationConfig(max_new_tokens=tokens, pad_token_id=pad, **settings)
        room = ContinuousBatchingConfig(return_logprobs=True, num_blocks=512, max_batch_tokens=1024, page_size=32)
        with quiet():
            found = plain.generate_batch(prompts, generation_config=wanted, continuous_batching_config=room)
        check(sum(len(each.generated_tokens) for each in found.values()), prompts, tokens)

    return (continuous if kind == "continuous" else lock_step), tokenizer


def check(found: int, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """An engine that answered with less than it was asked for would look fast."""
    if found != len(prompts) * tokens:
        raise RuntimeError(f"{found} tokens came back, not {len(prompts)} x {tokens}")


ENGINES: dict[str, tuple[str, Callable[[str, str, int], tuple[Answer, Any]]]] = {  # name -> the package, the engine
    "vllm": ("vllm", lambda model, dtype, rows: ours("vllm", 0, model, dtype, rows)),
    "vllm 1": ("vllm", lambda model, dtype, rows: ours("vllm", 1, model, dtype, rows)),
    "vllm 4": ("vllm", lambda model, dtype, rows: ours("vllm", 4, model, dtype, rows)),
    "vllm own": ("vllm", vllm_own),
    "continuous": ("transformers", lambda model, dtype, rows: transformers_own("continuous", 0, model, dtype)),
    "continuous 1": ("transformers", lambda model, dtype, rows: transformers_own("continuous", 1, model, dtype)),
    "generate": ("transformers", lambda model, dtype, rows: transformers_own("generate", 0, model, dtype)),
    "generate 1": ("transformers", lambda model, dtype, rows: transformers_own("generate", 1, model, dtype)),
    "marft": ("torch", lambda model, dtype, rows: ours("marft", 0, model, dtype, rows)),
    "marft 1": ("torch", lambda model, dtype, rows: ours("marft", 1, model, dtype, rows)),
    "marft 4": ("torch", lambda model, dtype, rows: ours("marft", 4, model, dtype, rows)),
}


def measure(name: str, model: str, dtype: str, load: Load, runs: int) -> dict[str, Any]:
    """One engine in this process: start, speed and memory."""
    answer, tokenizer = ENGINES[name][1](model, dtype, load.rows)
    words = tokenizer(NEUTRAL_TEXT)["input_ids"]

    def prompts(seed: int) -> list[list[int]]:
        """No two alike, so that nothing kept from another helps."""
        rng = random.Random(seed)
        return [rng.choices(words, k=load.prompt) for _ in range(load.rows)]

    started = time.perf_counter()
    answer(prompts(0)[:1], 1)
    start = time.perf_counter() - started
    answer(prompts(1), 4)  # whatever is compiled or reserved for a full batch
    rates = []
    for run in range(runs):
        begun = time.perf_counter()
        answer(prompts(2 + run), load.tokens)
        rates.append(load.rows * load.tokens / (time.perf_counter() - begun))
    return {"tokens/s": median(rates), "start s": start, "peak MiB": peak_mib()}


def peak_mib() -> float:
    """The peaks of this process and of its children as they are now (Linux), added."""
    import psutil

    mine = psutil.Process()
    total = 0
    for each in (mine, *mine.children(recursive=True)):
        lines = Path(f"/proc/{each.pid}/status").read_text(encoding="utf8").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 1024


def load_of(given: argparse.Namespace) -> Load:
    """What the command line asks for."""
    load = QUICK if given.quick else FULL
    return Load(given.rows or load.rows, given.prompt or load.prompt, given.tokens or load.tokens)


def apart(name: str, given: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """One engine in a process of its own; what went wrong there stands in the row."""
    command = [sys.executable, "-m", "benchmarks.engines", "--alone", name, "--model", given.model, "--dtype", dtype]
    load = load_of(given)
    for key, value in (("rounds", given.rounds or 2), *asdict(load).items()):
        command += [f"--{key}", str(value)]
    command += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        said = [line for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
        words = said[-1] if said else f"exit status {done.returncode}"
        return {"engine": name, "note": f"failed: {words[:200]}"}
    found: dict[str, Any] = {"engine": name, **json.loads(last[0])}
    return found


def tables(given: argparse.Namespace, dtype: str) -> Iterator[Table]:
    """One row per engine."""
    load = load_of(given)
    rows = []
    for name in given.engine or ENGINES:
        package = ENGINES[name][0]
        if importlib.util.find_spec(package) is None:
            rows.append({"engine": name, "note": f"{package} is not installed here"})
        else:
            rows.append(apart(name, given, dtype))
    yield Table(f"{load.rows} prompts of {load.prompt} tokens, {load.tokens} new ones each, {dtype}", rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = options(__doc__, "few and short replies; vLLM's start alone takes longer, so name others with --engine")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only this one (may be repeated)")
    for key, what in (("rows", "prompts"), ("prompt", "tokens of a prompt"), ("tokens", "tokens of a reply")):
        parser.add_argument(f"--{key}", type=int, help=f"{what} (default {getattr(FULL, key)})")
    parser.add_argument("--alone", choices=list(ENGINES), help=argparse.SUPPRESS)  # what `apart` calls
    given = parser.parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = resolve_dtype(given.dtype)
    if given.alone:
        found = measure(given.alone, given.model, dtype, load_of(given), given.rounds or 2)
        print(f"\n{json.dumps(found)}", flush=True)
        return
    publish("engines", machine(dtype, torch.get_num_threads()), tables(given, dtype), given.json)


if __name__ == "__main__":
    main()
