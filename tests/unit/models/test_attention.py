"""The attention that models are given equals transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.llama.modeling_llama import eager_attention_forward

from builders import LETTERS, tiny_base
from marft.models.attention import additive, attend
from marft.models.tiny import build_tiny


@pytest.mark.parametrize("queries", [1, 2, 7])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_attend_equals_eager(queries, heads):
    torch.manual_seed(queries)
    (of_query, of_key), keys, size = heads, 9, 8
    query, key, value = (torch.randn(3, n, length, size) for n, length in
                         ((of_query, queries), (of_key, keys), (of_key, keys)))  # fmt: skip
    visible = torch.rand(3, 1, queries, keys) < 0.6
    visible[..., 0] = True
    mask = additive(visible, torch.float32)
    module = SimpleNamespace(num_key_value_groups=of_query // of_key, training=False, layer_idx=0)
    theirs, _ = eager_attention_forward(module, query, key, value, mask, scaling=0.3)
    ours, _ = attend(module, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_without_a_mask_it_is_causal():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    causal = additive(torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(), torch.float32)
    module = SimpleNamespace(num_key_value_groups=1, training=False, layer_idx=0)
    theirs, _ = eager_attention_forward(module, query, key, value, causal, scaling=8**-0.5)
    torch.testing.assert_close(attend(module, query, key, value, None)[0], theirs, atol=1e-6, rtol=1e-5)


def test_who_keeps_keys_and_values_decides_what_is_attended_to():
    query, key, value = (torch.randn(1, 2, 3, 4) for _ in range(3))
    told = []

    class Store:
        def attend(self, layer, *given):
            told.append((layer, *given))
            return 2 * query

    module = SimpleNamespace(num_key_value_groups=1, training=False, layer_idx=3)
    ours, _ = attend(module, query, key, value, None, scaling=0.3, keys_values=Store(), sliding_window=7)
    assert told == [(3, query, key, value, 0.3, 7)]
    assert torch.equal(ours, 2 * query.transpose(1, 2))


def test_a_whole_model_computes_the_same_with_it():
    plain, _ = build_tiny(0, LETTERS, 32)
    plain.eval().set_attn_implementation("eager")
    base = tiny_base()
    ids = torch.tensor([[8, 9, 10, 8, 3]])
    causal = additive(torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(), torch.float32)
    with torch.no_grad():
        states = base.backbone(input_ids=ids, attention_mask=causal, use_cache=False).last_hidden_state
        torch.testing.assert_close(base.head(states), plain(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
