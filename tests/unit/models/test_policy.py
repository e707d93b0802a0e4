"""One frozen base, one adapter per agent: only the named adapter takes part, is scored, moves and is saved."""

import copy

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model, get_peft_model_state_dict
from torch import nn

from builders import LORA, Plain, policy_of, same, snapshot, tiny_base
from marft.config import LoraConfig
from marft.models import policy as module
from marft.models.attention import additive
from marft.models.pack import pack
from marft.models.policy import Policy
from marft.models.weights import overwrite
from marft.types import MarftError

ROWS = [[8, 9, 10, 3], [8, 9, 11, 11, 12, 3], [10, 9]]
STARTS = [2, 3, 1]


@pytest.fixture
def world():
    base = tiny_base()
    policy = policy_of(base, "one", "two", "critic")
    return policy, Plain(base.model)


def loss_of(policy, adapter, rows=ROWS, starts=STARTS):
    return sum(policy.score(packed, starts, adapter, 1.0).logprobs.sum() for packed in pack(rows, 100))


def gradients(policy, adapter):
    return {name: each.grad for name, each in policy.parameters(adapter).items()}


# ---- whose tensors


def test_an_adapter_owns_what_peft_would_make_for_it_and_nobody_elses(world):
    policy, plain = world
    settings = PeftConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM")
    theirs = get_peft_model_state_dict(get_peft_model(copy.deepcopy(plain.model), settings))
    owners = [id(each) for name in policy.adapters for each in policy.parameters(name).values()]
    assert len(set(owners)) == len(owners) == 3 * 2 * 7 * 2  # A and B, of q k v o gate up down, in 2 layers
    for adapter in policy.adapters:
        mine = policy.parameters(adapter)
        assert {name: each.shape for name, each in mine.items()} == {name: each.shape for name, each in theirs.items()}
    model = dict(policy.base.model.named_parameters())
    assert not set(owners) & {id(each) for each in model.values()}  # the model holds what is frozen, and only that
    assert not any(each.requires_grad for each in model.values())


@pytest.mark.parametrize(
    "names", [("0", "1"), ("mlp", "self_attn"), ("model", "lora_A"), ("ab", "aab"), ("weight", "B"), ("train", "type")]
)
def test_agents_may_be_called_like_parts_of_the_model(names):
    policy = Policy(tiny_base(), LORA, names)
    for name in names:
        assert len(policy.parameters(name)) == 28
        assert set(policy.parameters(name)) == set(Policy(tiny_base(), LORA, ["x"]).parameters("x"))
    owners = [id(each) for name in names for each in policy.parameters(name).values()]
    assert len(set(owners)) == len(owners)


def test_targets_that_are_not_there_are_refused_in_words():
    with pytest.raises(MarftError, match=r"lora\.targets"):
        Policy(tiny_base(), LoraConfig(targets=["nothing"]), ["one"])


def test_training_one_after_the_other_moves_each_and_nobody_else(world):
    policy, _ = world
    optimisers = {name: torch.optim.AdamW(policy.parameters(name).values(), 1e-2) for name in policy.adapters}
    frozen = {name: each.clone() for name, each in policy.base.model.named_parameters()}
    start = {name: snapshot(policy, name) for name in policy.adapters}
    for trained in ("one", "two"):
        before = {name: snapshot(policy, name) for name in policy.adapters}
        loss_of(policy, trained).backward()
        optimisers[trained].step()
        for name in policy.adapters:
            assert same(before[name], snapshot(policy, name)) == (name != trained)
        optimisers[trained].zero_grad()
    for name in ("one", "two"):
        after = snapshot(policy, name)
        assert all(not torch.equal(start[name][each], after[each]) for each in after)  # every tensor, not some
    assert same(frozen, dict(policy.base.model.named_parameters()))


@pytest.mark.parametrize("together", [False, True])
def test_two_forward_and_backward_passes_do_not_mix(world, together):
    policy, plain = world
    losses = {}
    for name in ("one", "two"):
        losses[name] = loss_of(policy, name)
        if not together:
            losses[name].backward()
    if together:  # both graphs are made before either is used
        loss_of(policy, None)
        for name in ("one", "two"):
            losses[name].backward()
    for name in ("one", "two"):
        leaves = {key: each.requires_grad_() for key, each in snapshot(policy, name).items()}
        sum(plain.logprobs(r[:s], r[s:], leaves).sum() for r, s in zip(ROWS, STARTS, strict=True)).backward()
        for key, found in gradients(policy, name).items():
            assert torch.linalg.norm(found - leaves[key].grad) <= 1e-5 * torch.linalg.norm(leaves[key].grad)
    assert all(each is None for each in gradients(policy, "critic").values())


def test_adapters_are_float32_on_a_bfloat16_base():
    policy = policy_of(tiny_base(dtype=torch.bfloat16), "one", "two")
    assert {each.dtype for name in policy.adapters for each in policy.parameters(name).values()} == {torch.float32}
    frozen = {each.dtype for each in policy.base.model.parameters()}
    assert frozen == {torch.bfloat16}
    before = snapshot(policy, "one")
    optimiser = torch.optim.SGD(policy.parameters("one").values(), 1e-5)
    loss_of(policy, "one").backward()
    optimiser.step()
    # A step this small would be lost in bfloat16
    assert not same(before, snapshot(policy, "one"))
    assert policy.score(pack(ROWS, 100)[0], STARTS, "one", 1.0).logprobs.dtype == torch.float32


# ---- starts, saving


def test_adapters_start_different_in_a_and_silent_in_b():
    policy = policy_of(tiny_base(), "one", "two", stir=False)
    one, two = snapshot(policy, "one"), snapshot(policy, "two")
    for name in one:
        if "lora_A" in name:
            assert not torch.equal(one[name], two[name])
        else:
            assert not one[name].any()
            assert not two[name].any()


def test_an_adapters_start_depends_on_the_seed_and_its_own_name_alone():
    alone = snapshot(Policy(tiny_base(), LORA, ["two"], seed=3), "two")
    beside = snapshot(Policy(tiny_base(), LORA, ["one", "two"], seed=3), "two")
    other = snapshot(Policy(tiny_base(), LORA, ["two"], seed=4), "two")
    assert same(alone, beside)
    assert not same(alone, other)


def test_making_a_policy_leaves_the_global_random_state_alone():
    base = tiny_base()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Policy(base, LORA, ["one"])
    assert torch.equal(torch.rand(3), expected)


def test_loaded_tensors_are_those_given_and_must_fit(world):
    policy, _ = world
    one, two = snapshot(policy, "one"), snapshot(policy, "two")
    overwrite("one", policy.parameters("one"), two)
    assert same(snapshot(policy, "one"), two)
    assert same(snapshot(policy, "two"), two)
    overwrite("one", policy.parameters("one"), one)
    assert same(snapshot(policy, "one"), one)
    with pytest.raises(MarftError, match="'one'"):
        overwrite("one", policy.parameters("one"), dict(list(one.items())[1:]))
    with pytest.raises(MarftError, match="'one'"):
        overwrite("one", policy.parameters("one"), {name: each[:1] for name, each in one.items()})
    assert same(snapshot(policy, "one"), one)


# ---- whose forward pass


def test_acting_as_nobody_is_the_bare_model(world):
    policy, plain = world
    for adapter in (None, "one", None, "two"):
        tensors = snapshot(policy, adapter) if adapter else None
        (packed,) = pack(ROWS[:1], 100)
        with torch.no_grad():
            logits = policy.base.head(policy.hidden(packed, adapter))
        torch.testing.assert_close(logits, plain.logits(ROWS[0], tensors), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "names",
    [
        ["one", "one", "two", "two", None],
        ["two", None, "one", None, "two"],
        ["two"] * 5,
        [None] * 5,
        [None, None, "critic", None, None],
    ],
)
def test_each_row_of_a_batch_goes_through_its_own_adapter(world, names):
    policy, plain = world
    ids = torch.randint(0, 16, (5, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = policy.weights.routes().hidden(
            [name for name in names for _ in range(6)],
            input_ids=ids,
            attention_mask=additive(torch.ones(6, 6).bool().tril()[None, None], torch.float32),
        )
    for row, name in enumerate(names):
        alone = plain.hidden(ids[row].tolist(), snapshot(policy, name) if name else None)
        torch.testing.assert_close(states[row], alone, atol=1e-5, rtol=1e-5)


def test_a_forward_pass_that_fails_leaves_no_routing_behind(world):
    policy, plain = world

    def fail(*_):
        raise RuntimeError("out of memory")

    handle = policy.base.backbone.layers[-1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        policy.weights.routes().hidden(["one", "two"], input_ids=torch.tensor([[8], [9]]))
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of(policy, "one")
    handle.remove()
    (bare,) = policy.logprobs(ROWS[:1], STARTS[:1], None, 1.0, 100)
    torch.testing.assert_close(bare, plain.logprobs(ROWS[0][:2], ROWS[0][2:]), atol=1e-5, rtol=1e-5)


def test_routes_keep_the_weights_they_were_made_with(world):
    policy, plain = world
    routes, before = policy.weights.routes(), snapshot(policy, "one")
    ids = [8, 9, 10]
    mask = additive(torch.ones(3, 3).bool().tril()[None, None], torch.float32)
    with torch.no_grad():
        for expected in (before, before, None):
            if expected is None:  # made anew, they are the present ones
                routes, expected = policy.weights.routes(), snapshot(policy, "one")
            states = routes.hidden(["one"] * 3, input_ids=torch.tensor([ids]), attention_mask=mask)[0]
            torch.testing.assert_close(states, plain.hidden(ids, expected), atol=1e-5, rtol=1e-5)
            for parameter in policy.parameters("one").values():
                parameter.add_(0.1)


# ---- scores


@pytest.mark.parametrize("adapter", [None, "one"])
@pytest.mark.parametrize("heat", [1.0, 0.5])
def test_scores_are_log_probabilities_of_the_actions_tokens(world, adapter, heat):
    policy, plain = world
    tensors = snapshot(policy, adapter) if adapter else None
    for budget in (4, 100):
        found = policy.logprobs(ROWS, STARTS, adapter, heat, budget)
        for row, start, ours in zip(ROWS, STARTS, found, strict=True):
            theirs = plain.logprobs(row[:start], row[start:], tensors, heat)
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def fixed_logits(policy, logits):
    """The policy with a vocabulary projection that gives the same logits everywhere."""
    head = nn.Linear(policy.base.head.weight.shape[1], len(logits))
    nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor(logits)
    policy.base.model.set_output_embeddings(head)
    return policy


def test_temperature_is_part_of_the_score(world):
    policy = fixed_logits(world[0], [2.0, 1.0, 0.0])
    rows = [[1, 0], [1, 1], [1, 2]]
    found = torch.cat(policy.logprobs(rows, [1, 1, 1], "one", 0.5, 100))
    torch.testing.assert_close(found, torch.tensor([-0.142932, -2.142932, -4.142932]), atol=1e-6, rtol=0)


def test_entropy_is_that_of_the_sampled_distribution(world):
    policy = fixed_logits(world[0], [2.0, 1.0, 0.0])
    (packed,) = pack([[1, 0]], 10)
    theirs = torch.distributions.Categorical(logits=torch.tensor([4.0, 2.0, 0.0])).entropy()
    torch.testing.assert_close(policy.score(packed, [1], "one", 0.5).entropy, theirs[None], atol=1e-6, rtol=0)
    assert not policy.score(packed, [1], "one", 0.5, entropy="none").entropy.any()


def test_chunked_projection_changes_neither_values_nor_gradients(world, monkeypatch):
    policy, _ = world
    rows = [[8, 9, *row, 3] for row in ([8], [9, 9], [10, 11, 12], [8, 9, 10, 11])]
    (packed,) = pack(rows, 100)

    def run():
        for each in policy.parameters("one").values():
            each.grad = None
        scores = policy.score(packed, [2, 3, 2, 1], "one", 0.7, "gradient")
        (scores.logprobs.sum() + 0.3 * scores.entropy.sum()).backward()
        return scores, {name: each.clone() for name, each in gradients(policy, "one").items()}

    whole, gradient = run()
    monkeypatch.setattr(module, "HEAD_CHUNK", 3)
    parts, again = run()
    torch.testing.assert_close(parts.logprobs, whole.logprobs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(parts.entropy, whole.entropy, atol=1e-6, rtol=1e-6)
    for name in gradient:
        assert torch.linalg.norm(again[name] - gradient[name]) <= 1e-5 * torch.linalg.norm(gradient[name])


def test_only_positions_before_an_action_token_are_projected(world):
    policy, _ = world
    projected = []
    handle = policy.base.head.register_forward_hook(lambda head, inputs, output: projected.append(inputs[0].shape[0]))
    rows = [[8, 9, 10, 11, 12, 3], [8, 9, 10, 11, 13, 3], [14] * 30]
    policy.logprobs(rows, [4, 4, 29], "one", 1.0, 100)
    handle.remove()
    # Two predict from the same token 11, then one each; the last row's one
    assert sum(projected) == 1 + 2 + 1
