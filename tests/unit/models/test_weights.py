"""Adapters that are LoRA tensors, and adapters that are whole sets of weights: the same promises for both."""

import copy
import json

import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from builders import LETTERS, LORA, ask, base_of, letters_base, request, same, snapshot, stirred, tiny_base
from marft.config import LoraConfig
from marft.generate.torch_engine import TorchEngine
from marft.models import policy as module
from marft.models.critic import Critic
from marft.models.pack import pack
from marft.models.policy import Policy
from marft.models.tiny import build_tokenizer
from marft.models.weights import Weights
from marft.types import MarftError

ROWS = [[8, 9, 10, 3], [8, 9, 11, 11, 12, 3], [10, 9]]
STARTS = [2, 3, 1]


def base_with(tied, dtype=torch.float32):
    """A tiny Llama whose input embedding may be its head as well."""
    tokenizer = build_tokenizer(LETTERS)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    return base_of(LlamaForCausalLM(shape), tokenizer, dtype=dtype)


def full_of(base, *names, stir=True):
    """A policy with a whole set of weights per name, each moved its own way."""
    policy = Policy(base, LORA, names, tuning="full")
    generator = torch.Generator().manual_seed(1)
    for name in names if stir else ():
        for each in policy.parameters(name).values():
            each.data += 0.05 * torch.randn(each.shape, generator=generator)
    return policy


def policy_with(tuning, base, *names):
    """A policy of either kind, with something in its adapters."""
    return full_of(base, *names) if tuning == "full" else stirred(Policy(base, LORA, names))


def plain_model(base):
    """A copy of the base model as transformers computes it."""
    model = copy.deepcopy(base.model)
    model.set_attn_implementation("eager")
    return model


def plain_logprobs(base, tensors, rows=ROWS, starts=STARTS):
    """Log-probabilities by a plain transformers model with these weights, one row at a time, and the weights."""
    plain = plain_model(base)
    leaves = {name: each.detach().clone().requires_grad_() for name, each in tensors.items()}
    found = []
    for row, start in zip(rows, starts, strict=True):
        inputs = {"input_ids": torch.tensor([row]), "use_cache": False}
        logits = functional_call(plain, leaves, kwargs=inputs).logits[0, start - 1 : -1]
        found.append(torch.log_softmax(logits, -1).gather(1, torch.tensor([row[start:]]).T)[:, 0])
    return found, leaves


@torch.no_grad()
def logprobs_of(model, row, start):
    """Log-probabilities of a row's tokens from `start` on, by any causal language model."""
    logits = model(torch.tensor([row])).logits[0, start - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor([row[start:]]).T)[:, 0]


def bare_logprobs(base):
    """Of ROWS, by the base model alone."""
    return [logprobs_of(plain_model(base), row, start) for row, start in zip(ROWS, STARTS, strict=True)]


def loss_of(policy, name):
    return sum(policy.score(packed, STARTS, name, 1.0).logprobs.sum() for packed in pack(ROWS, 100))


def close(one, other):
    return torch.linalg.norm(one - other) <= 1e-5 * torch.linalg.norm(other)


# ---- whole sets of weights


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [2, 1000])
def test_the_gradient_of_a_full_score_is_the_plain_one(tied, chunk, monkeypatch):
    monkeypatch.setattr(module, "HEAD_CHUNK", chunk)  # 2: the head is computed again in the backward pass
    base = base_with(tied)
    policy = full_of(base, "one", "two")
    assert ("lm_head.weight" in policy.parameters("one")) != tied
    loss = loss_of(policy, "one")
    loss_of(policy, None)  # others act between a forward and its backward pass
    loss_of(policy, "two")
    loss.backward()
    theirs, leaves = plain_logprobs(base, policy.parameters("one"))
    torch.testing.assert_close(loss, sum(each.sum() for each in theirs), atol=1e-5, rtol=1e-5)
    sum(each.sum() for each in theirs).backward()
    for name, parameter in policy.parameters("one").items():
        assert close(parameter.grad, leaves[name].grad), name
    assert all(each.grad is None for each in policy.parameters("two").values())
    assert all(each.grad is None for each in base.model.parameters())


def test_full_sets_start_as_copies_of_the_base_and_the_base_never_changes():
    base = base_with(tied=True)
    original = {name: each.clone() for name, each in base.model.named_parameters()}
    policy = full_of(base, "one", "two", stir=False)
    assert same(snapshot(policy, "one"), original)
    before = policy.logprobs(ROWS, STARTS, None, 1.0, 100)
    for name in ("one", "two"):
        optimiser = torch.optim.AdamW(policy.parameters(name).values(), 1e-2)
        (-loss_of(policy, name)).backward()
        optimiser.step()
    assert same(dict(base.model.named_parameters()), original)
    assert not any(each.requires_grad for each in base.model.parameters())
    after = policy.logprobs(ROWS, STARTS, None, 1.0, 100)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for name in ("one", "two"):
        assert all(not torch.equal(original[key], each) for key, each in policy.parameters(name).items())


def test_a_full_step_of_one_moves_nobody_else():
    policy = full_of(base_with(tied=True), "one", "two")
    optimisers = {name: torch.optim.AdamW(policy.parameters(name).values(), 1e-2) for name in policy.adapters}
    for trained, other in (("one", "two"), ("two", "one")):
        before = {name: snapshot(policy, name) for name in policy.adapters}
        loss_of(policy, trained).backward()
        optimisers[trained].step()
        optimisers[trained].zero_grad()
        assert not same(before[trained], snapshot(policy, trained))
        assert same(before[other], snapshot(policy, other))


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_an_engine_speaks_with_every_agents_own_full_weights(slots):
    base = base_with(tied=True)
    policy = full_of(base, "one", "two")
    asked = [
        request([8, 9, 10, 11][: 1 + place % 4], name, seed=place, max_tokens=1 + place % 7)
        for place, name in enumerate(["one", "two", None] * 5)
    ]
    for each, reply in zip(asked, ask(TorchEngine(policy, slots), asked), strict=True):
        tensors = policy.parameters(each.adapter) if each.adapter else dict(base.model.named_parameters())
        start = len(each.prompt_ids)
        (theirs,), _ = plain_logprobs(base, tensors, [[*each.prompt_ids, *reply.token_ids]], [start])
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs.detach(), atol=1e-5, rtol=1e-5)


def test_a_critic_reads_through_full_weights_of_its_own():
    policy = full_of(base_with(tied=True), "one", "critic")
    critic = Critic(policy)
    critic.head.weight.data.fill_(0.3)
    before = snapshot(policy, "one")
    optimiser = torch.optim.AdamW(critic.parameters().values(), 1e-2)
    (packed,) = pack(ROWS, 100)
    _, first, _ = critic.values(packed, STARTS)
    (first - 1).square().sum().backward()
    optimiser.step()
    _, second, _ = critic.values(packed, STARTS)
    assert (second - 1).square().sum() < (first - 1).square().sum()
    assert same(before, snapshot(policy, "one"))


def test_full_needs_float32_weights():
    with pytest.raises(MarftError, match=r"model\.dtype: tiny is loaded as bfloat16.*dtype: float32"):
        full_of(base_with(tied=True, dtype=torch.bfloat16), "one")


# ---- both kinds


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_what_is_saved_comes_back_and_fits_nothing_else(tuning, tmp_path):
    policy = policy_with(tuning, base_with(tied=True), "one", "two")
    weights: Weights = policy.weights
    one, two = snapshot(policy, "one"), snapshot(policy, "two")
    weights.save("one", tmp_path / "one")
    weights.save("two", tmp_path / "two")
    weights.load("two", tmp_path / "one")
    assert same(snapshot(policy, "two"), one)
    weights.load("two", tmp_path / "two")
    assert same(snapshot(policy, "two"), two)
    other = policy_with(tuning, tiny_base(hidden=16), "one")
    before = snapshot(other, "one")
    with pytest.raises(MarftError, match="do not fit this model"):
        other.weights.load("one", tmp_path / "one")
    assert same(snapshot(other, "one"), before)
    with pytest.raises(MarftError, match="holds no"):
        weights.load("one", tmp_path / "nowhere")
    file = next(each for each in (tmp_path / "one").iterdir() if each.suffix == ".safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(MarftError, match="cannot be loaded"):
        weights.load("one", tmp_path / "one")
    assert same(snapshot(policy, "one"), one)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    policy = policy_with("lora", base_with(tied=True), "one")
    with pytest.raises(MarftError, match="cannot be written"):
        policy.weights.save("one", tmp_path / "file" / "one")


def test_a_saved_full_set_is_a_model_for_plain_transformers(tmp_path):
    base = base_with(tied=True)
    policy = full_of(base, "one")
    policy.weights.save("one", tmp_path / "one")
    assert json.loads((tmp_path / "one" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one", attn_implementation="eager")
    for row, start, ours in zip(ROWS, STARTS, policy.logprobs(ROWS, STARTS, "one", 1.0, 100), strict=True):
        torch.testing.assert_close(ours, logprobs_of(model, row, start), atol=1e-5, rtol=1e-5)


def test_a_saved_lora_adapter_is_one_for_plain_peft(tmp_path):
    from peft import PeftModel

    base = base_with(tied=False)
    policy = policy_with("lora", base, "one", "two")
    policy.weights.save("two", tmp_path / "two")
    model = PeftModel.from_pretrained(plain_model(base), tmp_path / "two")
    for row, start, ours in zip(ROWS, STARTS, policy.logprobs(ROWS, STARTS, "two", 1.0, 100), strict=True):
        torch.testing.assert_close(ours, logprobs_of(model, row, start), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_merged_model_is_plain_and_leaves_everything_as_it_was(tuning, tied):
    base = base_with(tied)
    policy = policy_with(tuning, base, "one", "two")
    before = policy.logprobs(ROWS, STARTS, "two", 1.0, 100), policy.logprobs(ROWS, STARTS, None, 1.0, 100)
    merged = policy.weights.merged("two")
    assert type(merged) is LlamaForCausalLM
    assert not any("lora" in name for name, _ in merged.named_parameters())
    for row, start, ours in zip(ROWS, STARTS, before[0], strict=True):
        torch.testing.assert_close(ours, logprobs_of(merged, row, start), atol=1e-5, rtol=1e-5)
    after = policy.logprobs(ROWS, STARTS, "two", 1.0, 100), policy.logprobs(ROWS, STARTS, None, 1.0, 100)
    assert all(torch.equal(a, b) for was, now in zip(before, after, strict=True) for a, b in zip(was, now, strict=True))


def test_targets_that_are_no_linear_layers_are_refused():
    with pytest.raises(MarftError, match=r"lora\.targets: .*embed_tokens of tiny \(Embedding\) is not linear"):
        Policy(base_with(tied=False), LoraConfig(targets=["q_proj", "embed_tokens"]), ["one"])


def test_targets_that_reach_the_head_are_refused():
    with pytest.raises(MarftError, match=r"lora\.targets: .*vocabulary projection of tiny"):
        Policy(base_with(tied=False), LoraConfig(targets=["q_proj", "lm_head"]), ["one"])


# ---- policies side by side


@pytest.mark.parametrize("first", ["lora", "full"])
@pytest.mark.parametrize("second", ["lora", "full"])
def test_policies_on_one_base_do_not_meet(first, second):
    base = base_with(tied=True)
    original = {name: each.clone() for name, each in base.model.named_parameters()}
    bare = bare_logprobs(base)
    alone = policy_with(first, base, "one", "critic")
    expected = alone.logprobs(ROWS, STARTS, "one", 1.0, 100)
    beside = policy_with(second, base, "one", "other")  # the same name, on purpose
    for parameter in beside.parameters("one").values():
        parameter.data += 0.1
    held = loss_of(alone, "one")
    loss_of(beside, "one").backward()
    again = alone.logprobs(ROWS, STARTS, "one", 1.0, 100)
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    assert all(each.grad is None for each in alone.parameters("one").values())
    held.backward()
    assert all(each.grad is not None and each.grad.any() for each in alone.parameters("one").values())
    assert same(dict(base.model.named_parameters()), original)  # the same names, too: no layer was wrapped
    for policy in (alone, beside):
        for ours, theirs in zip(policy.logprobs(ROWS, STARTS, None, 1.0, 100), bare, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_policies_share_the_frozen_weights():
    base = base_with(tied=False)
    policies = [policy_with("lora", base, "one"), policy_with("lora", base, "one")]
    wanted = {each.data_ptr() for each in base.model.parameters()}
    for policy in policies:
        held = {each.data_ptr() for name, each in policy.base.model.named_parameters() if "lora_" not in name}
        assert held == wanted


@pytest.mark.parametrize("tunings", [("lora", "lora"), ("lora", "full")])
def test_two_base_models_train_side_by_side(tunings):
    bases = [tiny_base(), letters_base("abc")]
    assert len({len(base.chat.tokenizer) for base in bases}) == 2
    rows = [ROWS, [[1, 2, 3, 0], [2, 2, 1, 1, 3, 0], [3, 1]]]
    policies = [policy_with(*pair, "one", "critic") for pair in zip(tunings, bases, strict=True)]
    plain = [policy.logprobs(each, STARTS, None, 1.0, 100) for policy, each in zip(policies, rows, strict=True)]
    before = [snapshot(policy, "one") for policy in policies]
    for policy, each in zip(policies, rows, strict=True):
        optimiser = torch.optim.SGD(policy.parameters("one").values(), 1e-2)
        (packed,) = pack(each, 100)
        policy.score(packed, STARTS, "one", 1.0).logprobs.sum().backward()
        optimiser.step()
        Critic(policy).values(packed, STARTS)
    for policy, each, was, bare in zip(policies, rows, before, plain, strict=True):
        assert not same(was, snapshot(policy, "one"))
        now = policy.logprobs(each, STARTS, None, 1.0, 100)
        assert all(torch.equal(one, other) for one, other in zip(bare, now, strict=True))


def test_a_policy_may_have_no_adapters_at_all():
    base = base_with(tied=True)
    policy = Policy(base, LORA, [])
    assert policy.adapters == ()
    for ours, theirs in zip(policy.logprobs(ROWS, STARTS, None, 1.0, 100), bare_logprobs(base), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ask(TorchEngine(policy), [request([8, 9], None, max_tokens=3)])[0].token_ids


def test_only_lora_rows_share_a_forward_pass():
    names = ["one", None, "two", "one"]
    base = base_with(tied=True)
    assert policy_with("lora", base, "one", "two").weights.routes().shares(names) == [[0, 1, 2, 3]]
    assert full_of(base, "one", "two").weights.routes().shares(names) == [[0, 3], [1], [2]]
