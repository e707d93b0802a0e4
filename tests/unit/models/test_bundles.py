"""Play's way through low-rank layers gives what the layers give one by one, whatever shares an input."""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from builders import LETTERS, LORA, SCALING, base_of, stirred, tiny_base
from marft.config import LoraConfig
from marft.generate.torch_engine import rounded
from marft.models import bundles as module
from marft.models.attention import additive
from marft.models.bundles import find_bundles
from marft.models.policy import Policy
from marft.models.tiny import build_tokenizer

NAMES = ["two", "one", None, "one", "two", None]


def biased_base():
    """A tiny Qwen 2: q, k and v have a bias, o has none."""
    tokenizer = build_tokenizer(LETTERS)
    shape = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=3, initializer_range=0.3, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(shape)
    for layer in model.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.bias)
    return base_of(model, tokenizer)


def bundles_of(policy):
    weights = policy.weights
    return find_bundles(policy.base.backbone, weights._switch, weights._shapes)


def names_of(bundle):
    return tuple(place.rpartition(".")[2] for place in bundle.places)


def test_layers_that_read_the_same_tensor_are_one_bundle():
    found = bundles_of(Policy(tiny_base(), LORA, ["one"]))
    kinds = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)]
    assert [names_of(bundle) for bundle in found] == kinds * 2
    some = bundles_of(Policy(tiny_base(), LoraConfig(r=4, targets=["v_proj", "up_proj"]), ["one"]))
    assert [names_of(bundle) for bundle in some] == [("v_proj",), ("up_proj",)] * 2


@pytest.mark.parametrize("build", [tiny_base, biased_base])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bundle_multiplies_as_its_layers_do(build, dtype):
    base = build()
    base = replace(base, model=base.model.to(dtype))
    policy = Policy(base, LORA, ["one"])
    layers = {each.place: each for each in policy.base.model.modules() if hasattr(each, "place")}
    for bundle in bundles_of(policy):
        inputs = torch.randn(5, layers[bundle.places[0]].base_layer.in_features).to(dtype)
        expected = torch.cat([layers[place].base_layer(inputs) for place in bundle.places], dim=1)
        assert bundle.widths == tuple(layers[place].base_layer.out_features for place in bundle.places)
        torch.testing.assert_close(bundle.product(inputs), expected)


def test_weights_are_reordered_only_where_that_is_fast(monkeypatch):
    copies = []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda *given: copies.append(given) or reorder(*given)
    )
    bundles_of(Policy(tiny_base(), LORA, ["one"]))
    assert not copies
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        bundles_of(Policy(tiny_base(dtype=torch.bfloat16), LORA, ["one"]))
        assert len(copies) == 8  # four bundles in each of two layers


def slow(policy, names, ids):
    """Hidden states [n, H], each row through its own adapter as learning computes it."""
    mask = additive(torch.ones(ids.shape[1], ids.shape[1]).bool().tril()[None, None], policy.base.model.dtype)
    rows = []
    for name, row in zip(names, ids, strict=True):
        with policy.acting_as(name) as backbone, torch.no_grad():
            rows.append(backbone(input_ids=row[None], attention_mask=mask, use_cache=False).last_hidden_state)
    return torch.cat(rows)


@pytest.mark.parametrize("build", [tiny_base, biased_base])
@pytest.mark.parametrize("names", [NAMES, ["two"] * 6, [None] * 6, ["one", None, None, None, None, None]])
@pytest.mark.parametrize("targets", ["all-linear", ["k_proj", "down_proj", "gate_proj"]])
def test_rows_of_many_adapters_are_what_learning_computes(build, names, targets):
    policy = stirred(Policy(build(), LoraConfig(r=4, alpha=8, targets=targets), ["one", "two"]))
    ids = torch.randint(4, 16, (6, 5), generator=torch.Generator().manual_seed(0))
    mask = additive(torch.ones(5, 5).bool().tril()[None, None], torch.float32)
    with torch.no_grad():
        found = policy.weights.routes().hidden(
            [name for name in names for _ in range(5)], input_ids=ids, attention_mask=mask
        )
    torch.testing.assert_close(found, slow(policy, names, ids), atol=1e-5, rtol=1e-5)


def test_more_mixtures_than_are_kept():
    names = [f"agent{number}" for number in range(12)]
    policy = stirred(Policy(tiny_base(), LORA, names))
    routes = policy.weights.routes()
    ids = torch.tensor([[8, 9, 10]])
    mask = additive(torch.ones(3, 3).bool().tril()[None, None], torch.float32)
    for name in [*names, *names]:
        with torch.no_grad():
            found = routes.hidden([name] * 3, input_ids=ids, attention_mask=mask)
        torch.testing.assert_close(found, slow(policy, [name], ids), atol=1e-5, rtol=1e-5)


def test_one_layer_worked_by_hand():
    """W = 2, A = 3, B = 5, x = 7: W x + s B A x is 14 + s 105 for who has the adapter, and 14 for who has not."""
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    policy = Policy(tiny_base(), LORA, ["one"])
    place, shape = next(iter(policy.weights._shapes.items()))
    down, up = torch.full((LORA.r, 1), 3.0 / LORA.r), torch.full((1, LORA.r), 5.0)
    pair = module.Pair(torch.nn.Parameter(down), torch.nn.Parameter(up))
    shape = replace(shape, inputs=1, outputs=1)
    bundle = module.Bundle((place,), (1,), layer)
    stack = module.Stack(["one"], {"one": {place: pair}}, {place: shape}, [bundle], torch.float32)
    wrapped = module.LowRankLayer(place, layer, module.Switch())
    with torch.no_grad():
        found = stack.compute(["one", None])(wrapped, torch.full((1, 2, 1), 7.0))
    assert found.flatten().tolist() == pytest.approx([14 + SCALING * 105, 14])


def test_lengths_of_passes_are_few_and_never_too_short():
    lengths = {tokens: rounded(tokens) for tokens in range(1, 2049)}
    assert all(tokens <= length <= max(tokens + 3, tokens * 1.25) for tokens, length in lengths.items())
    assert len(set(lengths.values())) < 45
