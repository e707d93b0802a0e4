"""The shapes of models: how many parameters, layers and heads, from a `config.json` or a table, without any weights.

The table holds what the models' published config.json say (https://huggingface.co/NAME/blob/main/config.json), read in
Lightning-AI/litgpt's litgpt/config.py, which repeats them; each gives the published number of parameters exactly
(`tests/unit/models/test_catalogue.py`). Other models are read from a folder, or from a file that somebody names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marft.types import MarftError

KINDS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
)  # `model_type` of the decoders whose parts are counted here
SUFFIXES = ("-instruct", "-it", "-base", "-pt")  # what a tuned model's name has behind that of its base


@dataclass(frozen=True)
class Architecture:
    """A decoder of Llama's kind: q, k, v and o projections, a gated MLP of three, and RMS norms.

    `inner` is the MLP's width, `head` the size of one head; `norms` stand in each layer over the hidden state, and with
    `head_norms` two more over the heads of q and k. `windowed` layers see only the nearest `window` tokens. With `tied`
    the vocabulary projection is the input embedding.
    """

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    context: int
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    head_norms: bool = False
    window: int = 0
    windowed: int = 0

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """The linear layers of one decoder layer: name as transformers has it -> (inputs, outputs)."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        return {
            "self_attn.q_proj": (self.hidden, queries),
            "self_attn.k_proj": (self.hidden, keys),
            "self_attn.v_proj": (self.hidden, keys),
            "self_attn.o_proj": (queries, self.hidden),
            "mlp.gate_proj": (self.hidden, self.inner),
            "mlp.up_proj": (self.hidden, self.inner),
            "mlp.down_proj": (self.inner, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of all decoder layers' linear layers, without biases."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear.values())

    @property
    def head_parameters(self) -> int:
        """Weights of the vocabulary projection."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tensor that is both embedding and projection counts once.

        V H (twice if not tied) + layers (linear layers + biases + norms) + H of the last norm.
        """
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        biases = self.qkv_bias * (queries + 2 * keys) + self.out_bias * self.hidden
        biases += self.mlp_bias * (2 * self.inner + self.hidden)
        norms = self.norms * self.hidden + self.head_norms * 2 * self.head
        embeddings = self.head_parameters * (1 if self.tied else 2)
        return embeddings + self.linear_parameters + self.layers * (biases + norms) + self.hidden

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise MarftError(f"a model of {self.heads} heads cannot share {self.kv_heads} keys among them")


def read_architecture(given: Mapping[str, Any], source: str) -> Architecture:
    """The shape in the keys of a `config.json`. Raises `MarftError` naming `source` for another kind of model."""
    kind = given.get("model_type")
    if kind not in KINDS:
        raise MarftError(
            f"{source}: model_type is {kind!r}; the planner counts the parts of {', '.join(KINDS)} models only"
        )
    try:
        heads, layers = int(given["num_attention_heads"]), int(given["num_hidden_layers"])
        shape = Architecture(
            vocabulary=int(given["vocab_size"]),
            hidden=int(given["hidden_size"]),
            inner=int(given["intermediate_size"]),
            layers=layers,
            heads=heads,
            kv_heads=int(given.get("num_key_value_heads") or heads),
            head=int(given.get("head_dim") or given["hidden_size"] // heads),
            context=int(given["max_position_embeddings"]),
            tied=bool(given.get("tie_word_embeddings", kind == "gemma3_text")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MarftError(f"{source}: does not give the model's shape: {error}") from None
    bias = bool(given.get("attention_bias", False))
    window, windowed = _windowed(given, layers)
    return replace(
        shape,
        qkv_bias=kind == "qwen2" or bias,
        out_bias=bias and kind != "qwen2",
        mlp_bias=bool(given.get("mlp_bias", False)),
        norms=4 if kind == "gemma3_text" else 2,
        head_norms=kind in ("qwen3", "gemma3_text"),
        window=window,
        windowed=windowed,
    )


def find_architecture(name: str, file: str | None = None) -> Architecture:
    """The shape of a model by the name a config gives it: a folder, a built-in or a hub id.

    `file` is a config.json for a model that is none of these. Raises `MarftError` that says how to name one.
    """
    folder = Path(name).expanduser() / "config.json"
    known = CATALOGUE.get(_plain(name))
    if folder.is_file():
        return _from_file(folder)
    if known is not None:
        return known
    if file is not None:
        return _from_file(Path(file))
    raise MarftError(
        f"model.name: the shape of '{name}' is not known here; name its config.json with --shape FILE, or set "
        "model.name to a folder that holds it"
    )


def is_known(name: str) -> bool:
    """Whether the shape of a model can be found without a file."""
    return _plain(name) in CATALOGUE or (Path(name).expanduser() / "config.json").is_file()


def _from_file(path: Path) -> Architecture:
    try:
        given = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise MarftError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise MarftError(f"{path}: must hold a mapping, as a model's config.json does")
    return read_architecture(given, str(path))


def _windowed(given: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The window in tokens, and how many layers have it."""
    window = given.get("sliding_window")
    if not window or given.get("use_sliding_window") is False:
        return 0, 0
    kinds = given.get("layer_types")
    if kinds:
        return int(window), sum(each == "sliding_attention" for each in kinds)
    every = given.get("sliding_window_pattern")  # of so many layers the last sees everything
    return int(window), layers - layers // int(every) if every else layers


def _plain(name: str) -> str:
    lowered = name.casefold()
    for suffix in SUFFIXES:
        lowered = lowered.removesuffix(suffix)
    return lowered


def _qwen(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, tied: bool) -> Architecture:
    vocabulary = 151_936 if tied else 152_064
    return Architecture(
        vocabulary, hidden, inner, layers, heads, kv_heads, hidden // heads, 32_768, tied, qkv_bias=True
    )


def _llama(hidden: int, inner: int, layers: int, heads: int, tied: bool, context: int = 131_072) -> Architecture:
    return Architecture(128_256, hidden, inner, layers, heads, 8, hidden // heads, context, tied)


def _smollm2(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> Architecture:
    return Architecture(49_152, hidden, inner, layers, heads, kv_heads, hidden // heads, 8_192, True)


def _gemma3(hidden: int, inner: int, layers: int) -> Architecture:
    return Architecture(
        262_144, hidden, inner, layers, 4, 1, 256, 32_768, True, norms=4, head_norms=True, window=512,
        windowed=layers - layers // 6,
    )  # fmt: skip


CATALOGUE: Mapping[str, Architecture] = {
    "qwen/qwen2.5-0.5b": _qwen(896, 4_864, 24, 14, 2, True),
    "qwen/qwen2.5-1.5b": _qwen(1_536, 8_960, 28, 12, 2, True),
    "qwen/qwen2.5-3b": _qwen(2_048, 11_008, 36, 16, 2, True),
    "qwen/qwen2.5-7b": _qwen(3_584, 18_944, 28, 28, 4, False),
    "qwen/qwen2.5-14b": _qwen(5_120, 13_824, 48, 40, 8, False),
    "qwen/qwen2.5-32b": _qwen(5_120, 27_648, 64, 40, 8, False),
    "meta-llama/meta-llama-3-8b": _llama(4_096, 14_336, 32, 32, False, 8_192),
    "meta-llama/llama-3.1-8b": _llama(4_096, 14_336, 32, 32, False),
    "meta-llama/llama-3.1-70b": _llama(8_192, 28_672, 80, 64, False),
    "meta-llama/llama-3.2-1b": _llama(2_048, 8_192, 16, 32, True),
    "meta-llama/llama-3.2-3b": _llama(3_072, 8_192, 28, 24, True),
    "meta-llama/llama-3.3-70b": _llama(8_192, 28_672, 80, 64, False),
    "huggingfacetb/smollm2-135m": _smollm2(576, 1_536, 30, 9, 3),
    "huggingfacetb/smollm2-360m": _smollm2(960, 2_560, 32, 15, 5),
    "huggingfacetb/smollm2-1.7b": _smollm2(2_048, 8_192, 24, 32, 32),
    "smollm2-135m": _smollm2(576, 1_536, 30, 9, 3),
    "google/gemma-3-270m": _gemma3(640, 2_048, 18),
    "google/gemma-3-1b": _gemma3(1_152, 6_912, 26),
    "gemma3-270m": _gemma3(640, 2_048, 18),
    "tiny": Architecture(104, 64, 128, 2, 4, 2, 16, 1_024, False),
}
