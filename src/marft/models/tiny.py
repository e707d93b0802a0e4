"""A very small random Llama over single characters: real transformers classes, for tests and toy games."""

from __future__ import annotations

import string
from typing import Any

import torch

PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Whole words as single tokens, so that roles cost one position and word games have words to choose from
WORDS = ("system", "user", "assistant", "environment")


def build_tiny(
    seed: int = 0, characters: str = PRINTABLE, hidden: int = 64, layers: int = 2, template: str = TEMPLATE
) -> tuple[Any, Any]:
    """A random Llama and its tokenizer, one token per character. The same seed gives the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer(characters, template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # large enough that different contexts give visibly different distributions
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, tokenizer


def build_tokenizer(characters: str, template: str = TEMPLATE) -> Any:
    """A tokenizer with one token per character (unknown ones become `<unk>`) and `<|end|>` as end of turn."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<pad>", "<|start|>", "<|end|>"]
    vocabulary = {token: number for number, token in enumerate([*special, *WORDS, *dict.fromkeys(characters)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\b({'|'.join(WORDS)})\b|(.|\n)"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=["<|start|>"],
        chat_template=template,
    )
