"""How fast a model learns: `python -m benchmarks.update [--quick] [--dtype NAME] [--json FILE]`.

Tokens a second through forward and backward passes of the same rows: real tokens, so that one in a prefix shared by
eight rows counts eight times. `marft` packs the rows as an update does and computes a shared prefix once. Its peers are
transformers itself with peft's LoRA on the same layers: all rows are of one length and stacked, so they pad nothing.
One peer projects the replies' tokens alone to the vocabulary; the other has the model compute its own loss, as trainers
do, which projects the prompts too. Every competitor starts with no gradients and ends with those of its adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.peers import plain_model
from benchmarks.roofline import Roofline, Work, roofline
from benchmarks.side_by_side import Table, interleave, machine, options, publish, seconds, verdict
from benchmarks.workload import resolve_dtype, torch_dtype
from marft.config import LoraConfig, ModelConfig, UpdateConfig
from marft.models.base import load_base, quiet
from marft.models.pack import pack
from marft.models.policy import Policy

LORA = LoraConfig(r=16, alpha=32.0)
IGNORED = -100  # the label of tokens that transformers' own loss leaves out


@dataclass(frozen=True)
class Rows:
    """`tasks` x `samples` replies of `reply` random tokens: a role prompt, a task and a reply each, all of one length.

    With `shared`, all rows have one role prompt and the samples of a task one task; else no two rows share a token.
    """

    shared: bool
    tasks: int = 4
    samples: int = 8
    role: int = 64
    task: int = 32
    reply: int = 48

    @property
    def start(self) -> int:
        """Where replies begin."""
        return self.role + self.task

    @property
    def tokens(self) -> int:
        """Real tokens of all rows."""
        return self.tasks * self.samples * (self.start + self.reply)

    @property
    def replies(self) -> int:
        """Tokens of all replies."""
        return self.tasks * self.samples * self.reply

    def draw(self, vocabulary: int) -> list[list[int]]:
        """The rows' token ids."""
        random = np.random.default_rng(0)

        def ids(count: int) -> list[int]:
            drawn: list[int] = random.integers(0, vocabulary, count).tolist()
            return drawn

        rows = []
        role = ids(self.role)
        for _ in range(self.tasks):
            task = ids(self.task)
            for _ in range(self.samples):
                prompt = role + task if self.shared else ids(self.start)
                rows.append(prompt + ids(self.reply))
        return rows


FULL, QUICK, TINY = (4, 8), (1, 4), (2, 2)  # tasks and samples


class Ours:
    """A policy's own pass over packed rows."""

    def __init__(self, model: str, dtype: str) -> None:
        base = load_base(ModelConfig(name=model, dtype=dtype), "cpu")
        self.work = Work.of(base.model)
        self.vocabulary = base.head.weight.shape[0]
        self.policy = Policy(base, LORA, ["agent"])

    def step(self, rows: list[list[int]], start: int) -> None:
        """Minus the log-probability of all replies, and its gradient."""
        for each in self.policy.parameters("agent").values():
            each.grad = None
        for packed in pack(rows, UpdateConfig().micro_tokens):
            scores = self.policy.score(packed, [start] * len(rows), "agent", 1.0, "none")
            (-scores.logprobs.sum()).backward()  # type: ignore[no-untyped-call]


class Bare:
    """transformers and peft as they come."""

    def __init__(self, model: str, dtype: str) -> None:
        from peft import LoraConfig as PeftConfig
        from peft import get_peft_model

        plain, _ = plain_model(model, dtype)
        plain.set_attn_implementation("sdpa")
        settings = PeftConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM")
        with quiet():
            # In the base's dtype, which is faster than peft's default of float32 adapters on any base
            self.model: Any = get_peft_model(plain, settings, adapter_name="agent", autocast_adapter_dtype=False)
        self.decoder, self.head = plain.get_decoder(), plain.get_output_embeddings()

    def replies_only(self, rows: list[list[int]], start: int) -> None:
        """Cross-entropy of the replies, whose positions alone are projected."""
        self.model.zero_grad(set_to_none=True)
        ids = torch.tensor(rows)
        states = self.decoder(input_ids=ids, use_cache=False).last_hidden_state[:, start - 1 : -1].flatten(0, 1)
        cross_entropy(self.head(states).float(), ids[:, start:].flatten(), reduction="sum").backward()  # type: ignore[no-untyped-call]

    def whole_logits(self, rows: list[list[int]], start: int) -> None:
        """The loss the model computes for labels, prompts masked out."""
        self.model.zero_grad(set_to_none=True)
        ids = torch.tensor(rows)
        labels = ids.clone()
        labels[:, :start] = IGNORED
        self.model(input_ids=ids, labels=labels, use_cache=False).loss.backward()


def table(ours: Ours, bare: Bare, rows: Rows, rounds: int, limits: Roofline) -> Table:
    """Tokens a second of all competitors on the same rows, and the arithmetic they need at least over the time."""
    ids = rows.draw(ours.vocabulary)
    steps: dict[str, Callable[[list[list[int]], int], None]] = {
        "marft": ours.step,
        "bare model, replies projected": bare.replies_only,
        "bare model, its own loss": bare.whole_logits,
    }
    found = interleave(
        {name: seconds(lambda step=step: step(ids, rows.start)) for name, step in steps.items()}, rounds
    )  # fmt: skip
    packs = pack(ids, UpdateConfig().micro_tokens)
    distinct = sum(len(each.tokens) for each in packs)
    length = rows.start + rows.reply
    pairs = rows.tasks * rows.samples * length * (length + 1) / 2
    projected = {"marft": rows.replies, "bare model, its own loss": rows.tokens}
    lines = []
    for name in steps:
        tokens = distinct if name == "marft" else rows.tokens
        # Shared prefixes do not attend twice either, but pairs are the smallest part of the work
        flops = ours.work.lora_update(tokens, projected.get(name, rows.replies), pairs * tokens / rows.tokens)
        speed = flops / found.median(name)
        line: dict[str, Any] = {
            "competitor": name,
            "tokens/s": rows.tokens / found.median(name),
            "tokens computed": tokens,
            "GFLOP/s": speed / 1e9,
            "of the ceiling": speed / limits.flops,
        }
        if name != "marft":
            faster = found.ratio(name, "marft")
            line |= {"marft / it": str(faster)}
            line |= verdict(faster.median, at_least=1.5 if rows.shared else 0.85)
        lines.append(line)
    title = "Shared prefixes" if rows.shared else "Nothing shared"
    size = f"{rows.tasks} tasks x {rows.samples} samples, {rows.start} prompt and {rows.reply} reply tokens a row"
    return Table(title, lines, f"{size}; {limits}")


def tables(given: Any, dtype: str, limits: Roofline) -> Iterator[Table]:
    """Without and with shared prefixes."""
    tasks, samples = TINY if given.model == "tiny" else QUICK if given.quick else FULL
    ours, bare = Ours(given.model, dtype), Bare(given.model, dtype)
    for shared in (False, True):
        yield table(ours, bare, Rows(shared, tasks, samples), given.rounds or (1 if given.quick else 3), limits)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = options(__doc__, "4 rows, one round").parse_args(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    dtype = resolve_dtype(given.dtype)
    limits = roofline(torch_dtype(dtype))
    publish("update", machine(dtype, torch.get_num_threads()), tables(given, dtype, limits), given.json)


if __name__ == "__main__":
    main()
