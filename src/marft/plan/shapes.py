"""What a model of a given shape takes: parameters, bytes and FLOPs, each by a formula that its docstring gives.

`element` is the bytes of one number of the frozen base (2: bfloat16, 4: float32). Adapters, their gradients and AdamW's
two moments are always float32. docs/plan.md says where each formula comes from and how well it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb

from marft.models.catalogue import Architecture

FLOAT = 4
MOMENTS = 2  # of AdamW
NF4 = 0.5 + FLOAT / 64  # bytes of a weight rounded to 4 bits, with its share of the scale of a block of 64
ROOM = 64  # a slot's room is a multiple of it
STACKS = 8  # mixtures of adapters whose factors play keeps side by side
READERS = (  # linear layers that read the same tensor, and are one product in play
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
PROJECTED = 128  # positions at a time through the vocabulary, in learning with a frozen projection
PROJECTED_TRAINED = 1024  # the same where the projection or the entropy needs a gradient
PASS = 2048  # new prompt tokens in one pass of the torch engine


@dataclass(frozen=True)
class Reading:
    """What one pass over all rows of an iteration computes, every shared prefix once per pack.

    `tokens` go through the layers, `projected` of them through the vocabulary; `pairs` are queries times the keys that
    they see. `copies`: how often a token of a full pack stands in a block of attention.
    """

    tokens: float
    projected: float
    pairs: float
    copies: float = 1.0


def adapted(shape: Architecture, targets: str | Sequence[str]) -> dict[str, int]:
    """The linear layers that get an adapter, by their name within a layer -> in how many layers, as peft matches names.

    A target is the whole name of a layer, or its end after a dot; `all-linear` is all but the vocabulary projection.
    """
    found = dict.fromkeys(shape.linear, 0)
    for layer in range(shape.layers):
        for name in shape.linear:
            full = f"model.layers.{layer}.{name}"
            if targets == "all-linear" or any(full == each or full.endswith(f".{each}") for each in targets):
                found[name] += 1
    return {name: count for name, count in found.items() if count}


def lora_parameters(shape: Architecture, r: int, targets: str | Sequence[str]) -> int:
    """Of one adapter: r (in + out) for each layer that gets one."""
    sizes = shape.linear
    return sum(count * r * sum(sizes[name]) for name, count in adapted(shape, targets).items())


def stack_bytes(shape: Architecture, r: int, targets: str | Sequence[str], element: int) -> int:
    """Of one adapter as it is played: r m (in + out of all) for each bundle of m layers that read the same tensor."""
    counts, total = adapted(shape, targets), 0
    for readers in READERS:
        mine = [name for name in readers if name in counts]
        if mine:
            inputs, outputs = shape.linear[mine[0]][0], sum(shape.linear[name][1] for name in mine)
            total += max(counts[name] for name in mine) * r * len(mine) * (inputs + outputs)
    return total * element


def stacked(adapters: int) -> int:
    """Adapters in all stacks together at most: the `STACKS` largest of the sets that can be formed of them."""
    sizes = [size for size in range(adapters, 0, -1) for _ in range(min(comb(adapters, size), STACKS))]
    return sum(sizes[:STACKS])


def weight_bytes(shape: Architecture, element: int, rounded: bool) -> int:
    """Of the base: parameters x element; rounded to 4 bits, the decoder's linear layers take 0.5625 bytes a weight."""
    if not rounded:
        return shape.parameters * element
    return round(shape.linear_parameters * NF4) + (shape.parameters - shape.linear_parameters) * element


def cached_bytes(shape: Architecture, element: int) -> int:
    """Keys and values of one token: 2 layers kv_heads head element."""
    return 2 * shape.layers * shape.kv_heads * shape.head * element


def slot_room(longest: int) -> int:
    """Positions of one slot of the torch engine: the longest prompt and reply, rounded up."""
    return ceil(longest / ROOM) * ROOM


def activation_bytes(
    shape: Architecture, tokens: float, element: int, low: int, copies: float = 1.0, attended: int | None = None
) -> float:
    """What one forward pass with gradients keeps for the backward pass, without checkpointing.

    For each token and layer, in bytes: 4 H for each norm (its float32 input), and 4 (Q + K) where heads are normalised;
    e (2 H + 4 I) for what the linear layers and the gate read; e `low` for the adapters' inner states (`low`: the ranks
    of all its adapted layers together); e' c (2 Q + 2 K) for queries, keys, values and what was seen, and 4 h for its
    normaliser; e Q more where rows share a pack (c > 1) or a layer has a window. e is `element`, e' `attended` (or e),
    Q = heads head, K = kv_heads head, c = `copies`. Masks, which all layers share, are left out.
    """
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    parted = 1.0 if copies > 1 else shape.windowed / shape.layers
    norms = FLOAT * (shape.norms * shape.hidden + shape.head_norms * (queries + keys) + 2)
    linear = element * (2 * shape.hidden + 4 * shape.inner + low + parted * queries)
    attention = copies * ((attended or element) * 2 * (queries + keys) + FLOAT * shape.heads)
    return tokens * shape.layers * (norms + linear + attention)


def score_bytes(shape: Architecture, pairs: float) -> float:
    """Attention's probabilities where no fused kernel takes the mask: 4 layers heads for each query and key.

    On CUDA torch shares keys among heads (`enable_gqa`) in its flash kernel, which takes no mask, and in its plain one,
    which computes in float32 and keeps what it computes.
    """
    return FLOAT * shape.layers * shape.heads * pairs if shape.kv_heads < shape.heads else 0.0


def learning_logits(shape: Architecture, trained: bool) -> int:
    """Logits at their peak: float32 values and log-probabilities of one chunk of positions, 8 V chunk bytes."""
    return 2 * FLOAT * shape.vocabulary * (PROJECTED_TRAINED if trained else PROJECTED)


def playing_logits(shape: Architecture, rows: float, element: int) -> float:
    """Logits of all rows of a step, and three float32 tensors as large (scaled, probabilities, their sums)."""
    return rows * shape.vocabulary * (element + 3 * FLOAT)


def pass_bytes(shape: Architecture, tokens: float, element: int) -> float:
    """What a pass without gradients holds at a time: a layer's norm (float32), states and the MLP's three tensors."""
    return tokens * (FLOAT * shape.hidden + element * (3 * shape.hidden + 3 * shape.inner))


def forward_flops(shape: Architecture, reading: Reading, lora: int) -> float:
    """2 (linear + LoRA weights) a token, 2 V H a projected position, 4 heads head a query and key in every layer.

    A layer with a window sees at most that many keys a token.
    """
    near = min(reading.pairs, reading.tokens * shape.window) if shape.windowed else 0.0
    pairs = (shape.layers - shape.windowed) * reading.pairs + shape.windowed * near
    weights = 2.0 * (shape.linear_parameters + lora) * reading.tokens
    return weights + 2.0 * shape.head_parameters * reading.projected + 4.0 * shape.heads * shape.head * pairs
