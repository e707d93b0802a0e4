"""Finding and loading base models: what works, and what is said when it does not."""

import copy
import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders import LORA, base_of, stirred, tiny_base
from marft.config import ModelConfig
from marft.models.base import load_base, resolve_device
from marft.models.chat import Exchange
from marft.models.pack import pack
from marft.models.policy import Policy
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


def test_positions_stay_exact_in_bfloat16(folder):
    loaded = load_base(ModelConfig(name=str(folder), dtype="bfloat16"), "cpu")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert {each.dtype for each in loaded.model.parameters()} == {torch.bfloat16}
    assert torch.equal(loaded.backbone.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
    assert loaded.backbone.rotary_emb.inv_freq.dtype == torch.float32


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


# ---- 4-bit weights

BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not BITSANDBYTES, reason="bitsandbytes is not installed")


def unrounded(model):
    """A plain copy of a 4-bit model, its weights written out by bitsandbytes itself."""
    from bitsandbytes.functional import dequantize_4bit

    state = {}
    for name, module in model.named_modules():
        for key, each in module.named_parameters(recurse=False):
            written = dequantize_4bit(each.data, each.quant_state) if hasattr(each, "quant_state") else each
            state[f"{name}.{key}"] = written.detach().float()
    config = copy.deepcopy(model.config)
    del config.quantization_config
    plain = type(model)(config).eval()
    plain.load_state_dict(state)
    plain.set_attn_implementation("eager")
    return plain


@needs_bitsandbytes
@pytest.mark.parametrize("source", ["built-in", "folder", "folder of rounded weights"])
def test_a_4bit_base_computes_with_its_rounded_weights_in_training_and_in_play(source, folder, tmp_path):
    base = load_base(ModelConfig(name="tiny" if source == "built-in" else str(folder), quantise="4bit"), "cpu")
    if source == "folder of rounded weights":
        base.model.save_pretrained(tmp_path)
        base.chat.tokenizer.save_pretrained(tmp_path)
        base = load_base(ModelConfig(name=str(tmp_path)), "cpu")
    assert base.quantised
    assert base.model.dtype == torch.float32
    plain = unrounded(base.model)
    policy = stirred(Policy(base, LORA, ["one"]))
    assert not policy.weights.base.model.training
    rows, starts = [[8, 9, 10, 10, 3], [8, 9, 5, 5, 6, 3]], [2, 3]
    for row, start, ours in zip(rows, starts, policy.logprobs(rows, starts, None, 1.0, 100), strict=True):
        logits = plain(torch.tensor([row])).logits[0, start - 1 : -1]
        theirs = torch.log_softmax(logits, -1).gather(1, torch.tensor([row[start:]]).T)[:, 0]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    # The same weights with gradients: after passes without, which is when bitsandbytes may reorder them
    (packed,) = pack(rows, 100)
    twin = stirred(Policy(base_of(plain, base.chat.tokenizer), LORA, ["one"]))
    for each in (policy, twin):
        each.score(packed, starts, "one", 1.0).logprobs.sum().backward()
    for name, parameter in policy.parameters("one").items():
        theirs = twin.parameters("one")[name]
        assert torch.equal(parameter, theirs)
        assert torch.linalg.norm(parameter.grad - theirs.grad) <= 1e-5 * torch.linalg.norm(theirs.grad), name


@needs_bitsandbytes
def test_4bit_weights_are_fewer_bytes_and_cannot_be_trained_or_merged_into():
    small, large = (load_base(ModelConfig(name="tiny", quantise=each), "cpu") for each in ("4bit", "none"))
    sizes = [base.backbone.layers[0].mlp.up_proj.weight.untyped_storage().nbytes() for base in (small, large)]
    assert sizes[0] * 8 == sizes[1]
    assert not large.quantised
    with pytest.raises(MarftError, match=r"model\.quantise: the rounded weights of tiny cannot be trained"):
        Policy(small, LORA, ["one"], tuning="full")
    with pytest.raises(MarftError, match="export the adapter itself"):
        Policy(small, LORA, ["one"]).weights.merged("one")


@needs_bitsandbytes
def test_4bit_in_bfloat16():
    base = load_base(ModelConfig(name="tiny", quantise="4bit", dtype="bfloat16"), "cpu")
    assert base.model.dtype == torch.bfloat16
    policy = stirred(Policy(base, LORA, ["one"]))
    assert all(each.dtype == torch.float32 for each in policy.parameters("one").values())
    assert policy.logprobs([[8, 9, 10]], [1], "one", 1.0, 100)[0].dtype == torch.float32


def test_4bit_without_bitsandbytes_names_the_command(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else find(name))
    with pytest.raises(MarftError, match=r"model\.quantise: .*pip install 'marft\[quantised\]'"):
        load_base(ModelConfig(name="tiny", quantise="4bit"), "cpu")
