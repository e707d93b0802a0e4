"""Attention plugged into transformers, so that packs and caches need none of a model's own code.

transformers hands every keyword it does not know down to the attention function: `backbone(..., keys_values=store)`
gives all of attention to a store that knows who sees whom, the blocks of a pack (learning) or a step of the engine.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "marft"


class KeysValues(Protocol):
    """Something that keeps each layer's keys and values and says what a query attends to."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
    ) -> Tensor:
        """Take in new keys and values [b, h_kv, q, d]; return what the queries [b, h, q, d] see of all, alike."""
        ...


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    keys_values: KeysValues | None = None,
    sliding_window: int | None = None,
    windowed_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention: query [b, h, q, d], key/value [b, h_kv, k, d], masks [b or 1, 1, q, k].

    With `keys_values` the store attends. Without, masks say who sees whom: slow, and what stores are tested against.
    A layer that says it has a `sliding_window` goes by `windowed_mask`, where one is given: only the caller knows the
    positions of packed tokens. Without one, nothing lies outside the window.
    """
    if keys_values is not None:
        seen = keys_values.attend(module.layer_idx, query, key, value, scaling, sliding_window)
        return seen.transpose(1, 2).contiguous(), None
    if sliding_window is not None and windowed_mask is not None:
        attention_mask = windowed_mask
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    causal = attention_mask is None and query.shape[2] > 1
    seen = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, is_causal=causal)
    return seen.transpose(1, 2).contiguous(), None


def use(model: Any) -> None:
    """Make a transformers model attend through `attend`. Masks must then be given as [b or 1, 1, q, k]."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask (True: may be seen) as 0 and -inf, converted once instead of once per layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
