"""The formulas against what torch, peft and the engine really allocate and compute, on small models."""

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from builders import ask, base_of, request, tiny_base
from marft.config import LoraConfig
from marft.generate import torch_engine
from marft.generate.slots import Slots
from marft.generate.torch_engine import TorchEngine
from marft.models import policy as policies
from marft.models import projection, weights
from marft.models.catalogue import find_architecture, read_architecture
from marft.models.pack import pack
from marft.models.policy import Policy
from marft.models.tiny import PRINTABLE, build_tokenizer
from marft.plan import shapes
from marft.plan.shapes import Reading

SMALL = {
    "vocab_size": 104,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
    ),
}
R = 4


def model_of(kind):
    made, config, extra = KINDS[kind]
    torch.manual_seed(0)
    model = made(config(**SMALL, **extra))
    return model, read_architecture(model.config.to_dict(), kind)


def test_the_numbers_that_the_code_uses_are_those_planned_with():
    assert shapes.ROOM == Slots.STEP
    assert shapes.STACKS == weights.MOST_STACKS
    assert shapes.PASS == torch_engine.PREFILL_BUDGET
    assert shapes.PROJECTED == projection.CHUNK
    assert shapes.PROJECTED_TRAINED == policies.HEAD_CHUNK


@pytest.mark.parametrize(
    "targets", ["all-linear", ["q_proj", "v_proj"], ["self_attn.o_proj"], ["model.layers.1.mlp.down_proj", "k_proj"]]
)
@pytest.mark.parametrize("name", ["tiny", "smollm2-135m-instruct", "Qwen/Qwen2.5-7B-Instruct"])
def test_an_adapter_has_as_many_parameters_as_peft_trains(name, targets):
    shape = find_architecture(name)
    made, config = (Qwen2ForCausalLM, Qwen2Config) if shape.qkv_bias else (LlamaForCausalLM, LlamaConfig)
    settings = config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
    )  # fmt: skip
    with torch.device("meta"):
        model = made(settings)
        wrapped = get_peft_model(model, PeftConfig(r=32, target_modules=targets, task_type="CAUSAL_LM"))
    trainable = sum(each.numel() for each in wrapped.parameters() if each.requires_grad)
    assert shapes.lora_parameters(shape, 32, targets) == trainable
    assert sum(shapes.adapted(shape, targets).values()) == sum(
        ".lora_A." in each for each, _ in wrapped.named_parameters()
    )


def test_targets_that_name_nothing_adapt_nothing():
    assert shapes.adapted(find_architecture("tiny"), ["proj", "lm_head"]) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2])
def test_factors_side_by_side_take_what_play_builds(dtype, count):
    base = tiny_base(hidden=64, dtype=dtype)
    names = ["ann", "bob"][:count]
    policy = Policy(base, LoraConfig(r=R, alpha=8.0), names)
    routes = policy.weights.routes()
    stack = routes._stack(tuple(names))
    built = sum(each.nbytes for held in (stack._down, stack._up) for each in held.values())
    shape = read_architecture(base.model.config.to_dict(), "tiny")
    assert built == count * shapes.stack_bytes(shape, R, "all-linear", dtype.itemsize)


@pytest.mark.parametrize(
    ("adapters", "expected"),
    # two: {a,b}, {a}, {b}; three: 3 + 3 x 2 + 3 x 1; four: the 8 largest are 4, four of 3 and three of 2
    [(0, 0), (1, 1), (2, 4), (3, 12), (4, 22), (8, 8 + 7 * 7)],
)
def test_stacks_of_all_mixtures(adapters, expected):
    assert shapes.stacked(adapters) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_take_what_the_engine_s_cache_takes(dtype):
    base = tiny_base(hidden=64, dtype=dtype)
    policy = Policy(base, LoraConfig(r=R, alpha=8.0), ["ann"])
    engine = TorchEngine(policy, slots=3, prefix_tokens=50)
    ask(engine, [request([5] * prompt, "ann", seed=prompt, max_tokens=9) for prompt in (4, 70, 61)])
    shape = read_architecture(base.model.config.to_dict(), "tiny")
    each = shapes.cached_bytes(shape, dtype.itemsize)
    held = sum(part.nbytes for part in (*engine._slots.keys, *engine._slots.values))
    assert held == 3 * shapes.slot_room(70 + 9) * each
    tree = engine._prefixes
    room = tree.keys[0].shape[1]
    assert sum(part.nbytes for part in (*tree.keys, *tree.values)) == room * each


@pytest.mark.parametrize("rows", [(1, 0, 300), (4, 64, 96), (8, 20, 200)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_what_autograd_keeps(kind, dtype, rows):
    """Every storage that a forward pass saves for its backward pass, once, without weights; masks are added by hand."""
    count, shared, own = rows
    model, shape = model_of(kind)
    base = base_of(model, build_tokenizer(PRINTABLE), 512, dtype)
    policy = Policy(base, LoraConfig(r=R, alpha=8.0), ["ann"])
    drawn = torch.randint(10, 90, (count * own + shared,), generator=torch.Generator().manual_seed(0)).tolist()
    ids = [drawn[:shared] + drawn[shared + row * own : shared + (row + 1) * own] for row in range(count)]
    (packed,) = pack(ids, 10**6)
    frozen = [*base.model.parameters(), *base.model.buffers(), *policy.parameters("ann").values()]
    known = {each.untyped_storage().data_ptr() for each in frozen}
    kept, alive = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # else its place could be given to another
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.score(packed, [shared + own - 1] * count, "ann", 1.0, "none")
    end, tokens, element = shared + own, len(packed.tokens), dtype.itemsize
    attended = 4 if end * end <= 65_536 else element  # short rows are attended to in float32 on a CPU
    copies = count * end / tokens if count > 1 else 1.0
    expected = shapes.activation_bytes(shape, tokens, element, 7 * R, copies, attended)
    expected += element * shapes.lora_parameters(shape, R, "all-linear") if element < 4 else 0
    expected += count * end**2 * attended * ((count > 1) + (shape.windowed > 0))
    assert expected == pytest.approx(sum(kept.values()), rel=0.04)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_flops_are_those_torch_counts(kind):
    """torch counts all queries against all keys; a decoder projects every position."""
    model, shape = model_of(kind)
    model.set_attn_implementation("eager")
    tokens = 20
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=False)
    reading = Reading(tokens, tokens, tokens**2)
    assert shapes.forward_flops(shape, reading, 0) == counter.get_total_flops()


def test_an_adapter_s_products_are_counted_and_a_window_bounds_what_is_seen():
    shape = find_architecture("tiny")
    bare, adapted = (shapes.forward_flops(shape, Reading(10, 0, 0), lora) for lora in (0, 7))
    assert adapted - bare == 2 * 7 * 10
    gemma = find_architecture("google/gemma-3-1b")  # 4 heads of 256; 22 of 26 layers see 512 tokens
    pairs = shapes.forward_flops(gemma, Reading(2000, 0, 2000**2 / 2), 0) - shapes.forward_flops(
        gemma, Reading(2000, 0, 0), 0
    )
    assert pairs == 4 * 4 * 256 * (4 * 2000**2 / 2 + 22 * 2000 * 512)


def test_rounded_weights_take_half_a_byte_and_their_scales():
    shape = find_architecture("tiny")  # 2 layers of 36,864 weights, two embeddings of 104 x 64, five norms of 64
    assert shapes.weight_bytes(shape, 2, rounded=False) == 2 * (2 * 36_864 + 2 * 104 * 64 + 5 * 64)
    assert shapes.weight_bytes(shape, 2, rounded=True) == 2 * 36_864 * 0.5625 + 2 * (2 * 104 * 64 + 5 * 64)


def test_scores_are_kept_only_where_keys_are_shared():
    assert shapes.score_bytes(find_architecture("Qwen/Qwen2.5-3B"), 10) == 4 * 36 * 16 * 10
    assert (
        shapes.score_bytes(find_architecture("HuggingFaceTB/SmolLM2-1.7B"), 10) == 0
    )  # 32 heads with keys of their own
