"""The small model's shape, its vocabulary of whole words, and its chat format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.nano.corpus import ROLES
from benchmarks.nano.problems import ASIDE, MOST, NAMES, THINGS, TIMES, VERBS

SPECIAL = ("<unk>", "<pad>", "<|system|>", "<|user|>", "<|reply|>", "<|end|>")
AGENTS = ("planner", "solver", "calculator", "checker", "answerer", "agent")
WORDS = (
    *map(str, range(MOST + 1)), *"+-*=:?", "so", "\n\n", "\n", *NAMES, *THINGS, *VERBS["+"], *VERBS["-"],
    *TIMES.values(), ASIDE, "has", "had", "first", "how", "many", *ROLES, *AGENTS, "environment", "to", "end",
)  # fmt: skip
# One token opens a message; only a reply needs one that ends it
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|reply|>{{ message['content'] }}<|end|>"
    "{% elif message['role'] == 'system' %}<|system|>{{ message['content'] }}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|reply|>{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The size of the Llama."""

    hidden: int = 256
    intermediate: int = 640
    layers: int = 3
    heads: int = 4
    key_value_heads: int = 2
    context: int = 256


def build_model(shape: Shape, seed: int) -> tuple[Any, Any]:
    """A random Llama of a shape, and its tokenizer. The same seed gives the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, tokenizer


def build_tokenizer() -> Any:
    """One token per word, number or sign (an unknown one becomes `<unk>`); `<|end|>` ends a turn."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[ \t]+"), "removed"),
            pre_tokenizers.Split(Regex(r"\n\n|\n|[A-Za-z]+|[0-9]+|[^A-Za-z0-9\n]"), "isolated"),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|reply|>"],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,  # words are joined by single blanks, which is how they were written
    )
