"""Shapes of models against the published numbers of parameters, and against transformers' own models."""

import json

import pytest
import torch
from transformers import (
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

from marft.models.catalogue import CATALOGUE, find_architecture, is_known, read_architecture
from marft.models.tiny import build_tiny
from marft.types import MarftError

# "Model size" of each model's page on the hub, counted from its safetensors
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "meta-llama/Meta-Llama-3-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "smollm2-135m-instruct": 134_515_008,
    "google/gemma-3-270m-it": 268_098_176,
    "google/gemma-3-1b-it": 999_885_952,
    "gemma3-270m": 268_098_176,
}
SMALL = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "llama, tied, with biases": (
        LlamaForCausalLM,
        LlamaConfig(**SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SMALL, head_dim=8)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=16)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8)),
}


def count(model):
    return sum(each.numel() for each in model.parameters())


def test_every_published_number_of_parameters_is_met_exactly():
    assert {name: find_architecture(name).parameters for name in PUBLISHED} == PUBLISHED
    assert {name.casefold().removesuffix("-instruct").removesuffix("-it") for name in PUBLISHED} | {
        "tiny"
    } == CATALOGUE.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_transformers_own_model(kind):
    model, config = KINDS[kind]
    shape = read_architecture(config.to_dict(), "config.json")
    with torch.device("meta"):
        made = model(config)
    assert shape.parameters == count(made)
    linear = [layer for name, layer in made.named_modules() if isinstance(layer, torch.nn.Linear) and name != "lm_head"]
    assert shape.linear_parameters == sum(each.weight.numel() for each in linear)
    assert shape.head_parameters == made.get_output_embeddings().weight.numel()


def test_layers_with_a_window_are_counted():
    shape = read_architecture(Gemma3TextConfig(**{**SMALL, "num_hidden_layers": 13}).to_dict(), "c")
    assert (shape.window, shape.windowed) == (4096, 11)  # transformers' default window; every sixth layer sees it all
    assert find_architecture("google/gemma-3-1b").windowed == 22
    assert read_architecture({**Qwen2Config(**SMALL).to_dict(), "sliding_window": 4096}, "c").windowed == 0
    assert read_architecture(MistralConfig(**SMALL, sliding_window=16).to_dict(), "c").windowed == 3


def test_the_full_size_shapes_are_those_transformers_builds():
    """Of the models in examples/paper, on the meta device: nothing is allocated."""
    for name, hidden, inner, layers, heads, kv, vocabulary, tied in (
        ("Qwen/Qwen2.5-3B-Instruct", 2048, 11008, 36, 16, 2, 151936, True),
        ("Qwen/Qwen2.5-7B-Instruct", 3584, 18944, 28, 28, 4, 152064, False),
    ):
        config = Qwen2Config(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv, tie_word_embeddings=tied, max_position_embeddings=32768,
        )  # fmt: skip
        assert read_architecture(config.to_dict(), name) == find_architecture(name)
        with torch.device("meta"):
            assert count(Qwen2ForCausalLM(config)) == find_architecture(name).parameters


def test_tiny_is_what_it_says():
    model, _ = build_tiny()
    assert read_architecture(model.config.to_dict(), "tiny") == find_architecture("tiny")
    assert count(model) == find_architecture("tiny").parameters


def test_a_folder_and_a_named_file_give_the_shape(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LlamaConfig(**SMALL).to_dict()))
    assert find_architecture(str(tmp_path)) == read_architecture(LlamaConfig(**SMALL).to_dict(), "c")
    assert find_architecture("somebody/else", str(file)) == find_architecture(str(tmp_path))
    assert (is_known(str(tmp_path)), is_known("somebody/else"), is_known("qwen/QWEN2.5-7b")) == (True, False, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"model_type": "gpt2"}', "model_type is 'gpt2'; the planner counts the parts of llama"),
        ('{"model_type": "llama", "num_attention_heads": 2}', "does not give the model's shape: 'num_hidden_layers'"),
        ("[]", "must hold a mapping"),
        ("{", "cannot be read"),
    ],
)
def test_what_is_no_shape_is_named(tmp_path, content, words):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(MarftError, match=words) as caught:
        find_architecture(str(tmp_path))
    assert str(file) in str(caught.value)


def test_an_unknown_model_says_how_to_name_its_shape():
    with pytest.raises(MarftError, match=r"model.name: the shape of 'a/b' is not known here; .* --shape FILE"):
        find_architecture("a/b")
