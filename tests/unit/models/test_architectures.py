"""Models of other families, sliding windows among them: packed, prefilled and decoded as transformers computes them."""

import copy

import pytest
import torch
from torch.func import functional_call
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from builders import LETTERS, LORA, ask, request, stirred
from marft.config import ModelConfig
from marft.generate.torch_engine import TorchEngine
from marft.models.base import load_base
from marft.models.pack import pack
from marft.models.policy import Policy
from marft.models.tiny import build_tokenizer
from marft.types import MarftError

TOKENIZER = build_tokenizer(LETTERS)
SHAPE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None,
    "eos_token_id": TOKENIZER.eos_token_id, "pad_token_id": TOKENIZER.pad_token_id, "initializer_range": 0.2,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen2-windows": (
        Qwen2ForCausalLM,
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=5, layer_types=MIXED),
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=5)),
    "deepseek3": (  # keys and values differ in size
        DeepseekV3ForCausalLM,
        DeepseekV3Config(
            **SHAPE | {"num_key_value_heads": 4},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            first_k_dense_replace=3,
        ),
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**SHAPE, head_dim=16, query_pre_attn_scalar=20, sliding_window=5, layer_types=MIXED),
    ),
}
ROWS = [
    [8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 3],
    [8, 9, 10, 11, 12, 13, 14, 8, 8, 8],
    [8, 9, 10],
    [12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14],
]
STARTS = [7, 2, 1, 10]


@pytest.fixture(scope="module", params=FAMILIES)
def world(request, tmp_path_factory):
    """(a model of the family, a policy on the same model as `load_base` reads it from its folder)."""
    kind, config = FAMILIES[request.param]
    torch.manual_seed(0)
    model = kind(copy.deepcopy(config)).eval()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    model.set_attn_implementation("eager")
    base = load_base(ModelConfig(name=str(folder)), "cpu")
    return model, base


def plain_logprobs(model, row, start, weights=None):
    logits = functional_call(model, weights or {}, kwargs={"input_ids": torch.tensor([row])}).logits[0, start - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor([row[start:]]).T)[:, 0]


@pytest.mark.parametrize("budget", [12, 1000])
def test_packed_scores_are_the_models_own(world, budget):
    model, base = world
    policy = Policy(base, LORA, ["one"])
    for row, start, ours in zip(ROWS, STARTS, policy.logprobs(ROWS, STARTS, None, 1.0, budget), strict=True):
        torch.testing.assert_close(ours, plain_logprobs(model, row, start).detach(), atol=2e-5, rtol=1e-4)


def test_packed_gradients_are_the_models_own(world):
    model, base = world
    policy = Policy(base, LORA, ["one"], tuning="full")
    for packed in pack(ROWS, 1000):
        policy.score(packed, STARTS, "one", 1.0).logprobs.sum().backward()
    leaves = {name: each.detach().clone().requires_grad_() for name, each in model.named_parameters()}
    sum(plain_logprobs(model, row, start, leaves).sum() for row, start in zip(ROWS, STARTS, strict=True)).backward()
    for name, parameter in policy.parameters("one").items():
        difference = torch.linalg.norm(parameter.grad - leaves[name].grad)
        assert difference <= 2e-5 * torch.linalg.norm(leaves[name].grad) + 1e-6, name


def test_prefill_and_decoding_are_the_models_own(world):
    model, base = world
    policy = stirred(Policy(base, LORA, ["one", "two"]))
    merged = {name: policy.weights.merged(name) for name in policy.adapters} | {None: model}
    asked = [
        request(row[:start], name, seed=7 * place + start, max_tokens=10)
        for place, name in enumerate(["one", "two", None])
        for row, start in zip(ROWS, STARTS, strict=True)
    ]
    replies = ask(TorchEngine(policy, 5), asked)
    assert max(len(each.prompt_ids) + len(reply.token_ids) for each, reply in zip(asked, replies, strict=True)) > 12
    for each, reply in zip(asked, replies, strict=True):
        row = [*each.prompt_ids, *reply.token_ids]
        with torch.no_grad():
            theirs = plain_logprobs(merged[each.adapter], row, len(each.prompt_ids))
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs, atol=5e-5, rtol=1e-4)


def test_the_window_is_seen_and_left_as_it_was(world):
    model, base = world
    assert base.window == model.config.sliding_window if hasattr(model.config, "sliding_window") else not base.window
    if base.window:
        long, short = pack([ROWS[0]], 100)[0], pack([ROWS[2]], 100)[0]
        for packed, cut_off in ((long, True), (short, False)):
            (block,) = packed.inputs(base.device, base.model.dtype, base.window)["keys_values"].blocks
            assert (block.windowed is not block.mask) == cut_off


@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=16, final_logit_softcapping=1.0)),
        lambda: BloomForCausalLM(BloomConfig(vocab_size=len(TOKENIZER), hidden_size=32, n_layer=2, n_head=4)),
    ],
    ids=["capped logits", "attention of its own"],
)
def test_a_model_that_cannot_be_reproduced_is_refused_in_words(model, tmp_path):
    model().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(MarftError, match=r"does not reproduce \((Gemma2|Bloom)ForCausalLM.*choose a Llama"):
        load_base(ModelConfig(name=str(tmp_path)), "cpu")
