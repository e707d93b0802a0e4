"""The machine's two ceilings, measured in the same run, and the work a model's passes need at least.

FLOPs (multiplications and additions count as one each):
- forward: 2 · (parameters of the decoder's linear layers) per token, 2 · (those of the vocabulary projection) per
  projected position, and 4 · layers · heads · head size per pair of a query and a key it attends to;
- update through LoRA: as much again for the gradients of activations. The weights are frozen, so their gradients are
  not computed; the adapters' own products (1 to 2 % of the weights) are left out, as is what is computed twice.

Bytes a decoding step must move: all weights once, whatever the number of rows, and each row's keys and values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

SIDE = 2048  # of the matrices: large enough that a product is nothing but arithmetic
COPIED = 2**28  # bytes: about the weights of a 135M model in bfloat16
TRIES = 7


@dataclass(frozen=True)
class Roofline:
    """FLOP/s of a large matrix product and bytes/s (read + written) of a large copy."""

    flops: float
    bytes: float

    def __str__(self) -> str:
        return f"ceilings: {self.flops / 1e9:.0f} GFLOP/s (matrix product), {self.bytes / 1e9:.1f} GB/s (copy)"


@dataclass(frozen=True)
class Work:
    """What passes of a model cost at least: FLOPs and bytes."""

    linear: int  # parameters of the decoder's linear layers
    head: int  # parameters of the vocabulary projection
    pair: int  # FLOPs of one query that attends to one key, over all layers
    weight_bytes: int  # of what every step reads
    cached_bytes: int  # of one token's keys and values

    @classmethod
    def of(cls, model: Any) -> Work:
        """Counted on a transformers model without adapters."""
        config = model.config
        decoder = model.get_decoder()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = [each.weight for each in decoder.modules() if isinstance(each, torch.nn.Linear)]
        head = model.get_output_embeddings().weight
        linear = sum(each.numel() for each in layers)
        return cls(
            linear=linear,
            head=head.numel(),
            pair=4 * config.num_hidden_layers * config.num_attention_heads * size,
            weight_bytes=sum(each.numel() * each.element_size() for each in [*layers, head]),
            cached_bytes=2 * config.num_hidden_layers * config.num_key_value_heads * size * head.element_size(),
        )

    def forward(self, tokens: float, projected: float, pairs: float = 0.0) -> float:
        """FLOPs of a forward pass over `tokens`, of which `projected` are taken to the vocabulary."""
        return 2.0 * (self.linear * tokens + self.head * projected) + self.pair * pairs

    def lora_update(self, tokens: float, projected: float, pairs: float = 0.0) -> float:
        """FLOPs of a forward pass and of the gradients of its activations."""
        return 2.0 * self.forward(tokens, projected, pairs)

    def decode(self, steps: float, cached: float) -> float:
        """Bytes of `steps` decoding steps that read `cached` tokens' keys and values, summed over steps and rows."""
        return self.weight_bytes * steps + self.cached_bytes * cached


def roofline(dtype: torch.dtype) -> Roofline:
    """Measure both ceilings with torch's present number of threads (about a second)."""
    matrix = torch.randn(SIDE, SIDE).to(dtype)
    product = _seconds(lambda: torch.mm(matrix, matrix))
    source = torch.ones(COPIED // dtype.itemsize, dtype=dtype)
    target = torch.empty_like(source)
    copy = _seconds(lambda: target.copy_(source))
    return Roofline(2.0 * SIDE**3 / product, 2.0 * COPIED / copy)


def _seconds(work: Any) -> float:
    work()
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times)
