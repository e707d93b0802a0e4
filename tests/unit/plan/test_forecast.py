"""A forecast as a whole: against a team that is really built, and by arithmetic where nothing can be built."""

import json

import pytest
import torch

from builders import config_of, tiny_base
from marft.learn.train import Training
from marft.models.tiny import PRINTABLE, build_tiny
from marft.plan import Assumptions, Machine, forecast, machine_of
from marft.team import build_team
from marft.types import MarftError

MACHINE = Machine("box", 80e9, 100e12, 1e12)
GIVEN = Assumptions(MACHINE, mfu=0.5, decode=0.5, task=100, longest_task=300, reply=10)
R = 4
ADAPTER = R * 2 * (128 + 96 + 96 + 128 + 3 * 192)  # r (in + out) of tiny's seven linear layers, twice


def plan(*agents, given=GIVEN, **sections):
    agents = agents or ("ann", "bob")
    return forecast(config_of(*agents, **sections), "c", given)


@pytest.mark.parametrize("critic", [{}, {"kind": "none"}, {"kind": "own"}])
def test_adapters_moments_and_gradients_are_those_of_a_real_team(critic):
    credit = {"": {}, "none": {"baseline": "none"}, "own": {"chain": "agent"}}[critic.get("kind", "")]
    agents = ("ann", {"name": "bob", "trainable": False}, {"name": "cy", "adapter": "ann"})
    config = config_of(*agents, critic=critic, credit=credit)
    base = tiny_base(PRINTABLE, hidden=64)
    training = Training.of(build_team(config, base=base))
    (backend,) = training.team.backends
    held = [each for name in backend.policy.adapters for each in backend.policy.parameters(name).values()]
    heads = [each for found in training.team.critics.values() for each in found.head.parameters()]
    for optimiser in training.optimisers.values():
        for group in optimiser.param_groups:
            for each in group["params"]:
                each.grad = torch.ones_like(each)
        optimiser.step()
    states = [state for each in training.optimisers.values() for state in each.state.values()]
    found = plan(*agents, critic=critic, credit=credit).learn_bytes
    assert found["adapters"] == sum(each.nbytes for each in [*held, *heads])
    assert found["moments of AdamW"] == sum(each["exp_avg"].nbytes + each["exp_avg_sq"].nbytes for each in states)
    trained = [
        each
        for optimiser in training.optimisers.values()
        for group in optimiser.param_groups
        for each in group["params"]
    ]
    assert found["gradients"] == sum(each.grad.nbytes for each in trained)


def test_whole_weights_are_held_in_float32_for_every_adapter():
    model, _ = build_tiny()
    size = 4 * sum(each.numel() for each in model.parameters())
    found = plan(model={"name": "tiny", "tuning": "full"})
    assert found.learn_bytes["base"] == size
    assert found.learn_bytes["adapters"] == 3 * size + 4 * 65  # ann, bob, the critic and its head
    assert "factors side by side" not in {name for name, held in found.play_bytes.items() if held}


def test_memory_by_hand():
    """Tiny in bfloat16: 87,360 parameters; 2 layers of 2 x 16 keys in 4 heads: 256 bytes of keys and values a token."""
    found = plan(rollout={"tasks": 2, "samples": 2, "slots": 6, "prefix_tokens": 50, "sampling": {"max_tokens": 20}})
    assert found.play_bytes["base"] == 87_360 * 2
    longest = 300 + 8 + 20 + 8 + 20  # bob: task, frame, ann's words in a frame, and his own
    assert found.tokens["longest prompt and reply"] == longest
    assert found.play_bytes["slots"] == 6 * 384 * 256  # 356, rounded up to a multiple of 64
    assert found.play_bytes["known prefixes"] == 50 * 256
    assert found.play_bytes["logits"] == 4 * 104 * (2 + 12)  # 4 episodes, one reply at a time
    assert found.learn_bytes["logits"] == 8 * 104 * 128
    assert found.peaks["play"] == sum(found.play_bytes.values())
    assert found.models[0]["trained parameters"] == 3 * ADAPTER + 65


def test_the_longest_row_sets_the_peak_where_it_is_longer_than_a_pack():
    sampling = {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 20}}
    small, large, huge = (
        plan(rollout=sampling, update={"micro_tokens": tokens}).learn_bytes["activations"] for tokens in (8, 64, 4096)
    )
    assert small == large < huge
    assert any("stands alone" in note for note in plan(rollout=sampling, update={"micro_tokens": 64}).notes)
    assert not plan(rollout=sampling, update={"micro_tokens": 4096}).notes


def test_scores_under_a_mask_by_hand():
    """Two episodes of a task; ann's rows are 108 + 10 tokens, bob's 126 + 10, his view 126; tiny: 2 layers, 4 heads."""
    sampling = {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 20}}
    wide, narrow, alone = (plan(rollout=sampling, update={"micro_tokens": tokens}) for tokens in (140, 50, 5))
    assert wide.learn_bytes["scores under a mask"] == 4 * 2 * 4 * max(14 * 10 * 118, 5 * 28 * 136, 126**2)
    assert narrow.learn_bytes["scores under a mask"] == 4 * 2 * 4 * 5 * 10 * 118  # ann's: more than 50 x 50
    assert alone.learn_bytes["scores under a mask"] == 4 * 2 * 4 * 5 * 5  # of a view cut to 5 tokens, at most
    cpu = plan(rollout=sampling, given=Assumptions(machine_of("cpu", 24, 2, 20)))
    assert cpu.learn_bytes["scores under a mask"] == 0


def test_tokens_by_hand():
    found = plan(rollout={"tasks": 3, "samples": 4, "sampling": {"max_tokens": 20}}).tokens
    ann, bob = 108, 108 + 10 + 8
    assert found["episodes"] == 12
    assert found["prompts"] == 12 * (ann + bob)
    assert found["prompts, computed"] == 3 * (108 + 108) + 12 * 18
    assert found["drawn"] == found["learnt from"] == 12 * 20
    assert found["of a pass over all rows"] == 3 * (108 + 4 * 10) + 3 * (108 + 4 * 28)
    assert found["of a pass over the critics' views"] == 3 * (108 + 4 * 18)
    assert (
        plan("ann", {"name": "bob", "trainable": False}).tokens["learnt from"] == 4 * 3
    )  # max_tokens 3 bounds a reply


def test_what_a_phase_is_made_of():
    settings = {"rollout": {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 20}}}
    plain = plan(**settings).flops
    forward = plain["score"]
    assert plain["update"] == pytest.approx(forward * (1 * 2 + 0.25))
    assert plain["fit critic"] == pytest.approx(plain["critic"] * 2 * 2)  # two epochs, forward and backward
    more = plan(**settings, update={"epochs": 3, "carry": "happo", "kl_reference": 0.1}).flops
    assert more["score"] == pytest.approx(2 * forward)
    assert more["update"] == pytest.approx(forward * (3 * 2 + 0.25 + 1))
    one = plan(**settings, update={"schedule": "alternate"}).flops
    assert one["update"] == pytest.approx(plain["update"] / 2)
    assert plan(**settings, credit={"baseline": "none"}, critic={"kind": "none"}).flops["fit critic"] == 0
    whole = plan(**settings, model={"name": "tiny", "tuning": "full"}).flops
    assert whole["update"] == pytest.approx(whole["score"] * (3 + 0.25))


def test_seconds_follow_from_flops_bytes_and_shares():
    settings = {"rollout": {"tasks": 2, "samples": 2, "slots": 2, "sampling": {"max_tokens": 20}}}
    found = plan(**settings)
    for name in ("play: prompts", "score", "critic", "update", "fit critic"):
        assert found.seconds[name] == pytest.approx(found.flops[name] / (100e12 * 0.5))
    # 40 + 40 tokens in 2 slots: 40 steps, each of which reads the layers, the projection, two adapters' factors and the
    # keys of two rows
    read = 2 * (87_360 - 104 * 64)
    factors = 2 * 2 * R * 2 * (3 * (64 + 128) + (64 + 64) + 2 * (64 + 256) + (128 + 64))
    keys = 2 * 256 * (10 * (108 + 5) + 10 * (126 + 5)) / 20
    assert found.seconds["play: replies"] == pytest.approx(40 * (read + factors + keys) / (1e12 * 0.5))
    slow = plan(given=Assumptions(Machine("box", 80e9, 1e9, 1e12), 0.5, 0.5, 100, 300, 10), **settings)
    assert slow.seconds["play: replies"] == pytest.approx(slow.flops["play: replies"] / (1e9 * 0.5))


def test_the_run_adds_up():
    settings = {"rollout": {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 20}}, "iterations": 10}
    found = plan(**settings, evaluation={"tasks": 6, "samples": 3, "every": 4, "influence": True})
    play = found.seconds["play: prompts"] + found.seconds["play: replies"]
    assert found.run["seconds of an iteration"] == pytest.approx(sum(found.seconds.values()))
    # greedy, three samples, and three with ann's words from elsewhere, for which bob alone draws
    assert found.run["seconds of an evaluation"] == pytest.approx(play * 6 * (1 + 3 + 3 / 2) / 4)
    assert found.run["evaluations"] == 4  # before, after, and at 4 and 8
    hours = (10 * found.run["seconds of an iteration"] + 4 * found.run["seconds of an evaluation"]) / 3600
    assert found.run["GPU-hours"] == found.run["hours"] == pytest.approx(hours)
    assert found.other_bytes["host memory while loading"] == 4 * 87_360
    assert found.other_bytes["checkpoints kept"] == 3 * found.other_bytes["a checkpoint"]


def test_vllm_takes_its_share_and_gives_it_back_when_it_sleeps():
    rollout = {"tasks": 2, "samples": 2, "engine": "vllm", "sampling": {"max_tokens": 20}}
    awake = plan(rollout=rollout | {"vllm": {"gpu_memory_utilization": 0.5}})
    assert awake.play_bytes["vLLM"] == awake.learn_bytes["vLLM"] == 40e9
    asleep = plan(rollout=rollout | {"vllm": {"cache_gib": 1, "sleep": True, "tensor_parallel_size": 2}})
    assert asleep.play_bytes["vLLM"] == 87_360 * 2 / 2 + 2**30
    assert "vLLM" not in asleep.learn_bytes
    assert asleep.run["GPU-hours"] == 2 * asleep.run["hours"]
    (note,) = [note for note in asleep.notes if "cache" in note]
    assert f"{2**30 / (256 / 2):,.0f} tokens" in note
    tight = plan(rollout=rollout | {"vllm": {"gpu_memory_utilization": 1e-6}})
    assert any("too small for the weights" in note for note in tight.notes)


def test_a_cpu_computes_in_float32_and_reorders_layers_in_bfloat16():
    cpu = Assumptions(machine_of("cpu", 24, 2, 20))
    assert plan(given=cpu).models[0]["bytes a number"] == 4
    found = plan(given=cpu, model={"name": "tiny", "dtype": "bfloat16"})
    assert found.learn_bytes["reordered layers"] == found.play_bytes["reordered layers"] == 2 * 2 * 36_864


def test_agents_of_two_models_are_added_up():
    both = plan("ann", {"name": "bob", "model": "smollm2-135m-instruct"})
    assert [each["name"] for each in both.models] == ["tiny", "smollm2-135m-instruct"]
    assert both.learn_bytes["base"] == 2 * (87_360 + 134_515_008)


def test_all_of_it_is_json():
    found = plan()
    assert json.loads(json.dumps(found.as_dict()))["peak_bytes"] == found.peaks
    assert found.assumptions["machine"].startswith("box: 80 GB, 100 TFLOP/s, 1000 GB/s")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"name": "a/b"}}, "c: model.name: the shape of 'a/b' is not known here"),
        ({"model": {"name": "tiny", "context": 5000}}, "c: model.context: 5000 is longer than the 1024 tokens tiny"),
        ({"lora": {"targets": ["q_prox"]}}, r"c: lora.targets: \['q_prox'\] do not fit tiny.* self_attn.q_proj"),
        ({"environment": {"name": "relai"}}, "c: environment.name: no environment 'relai'; did you mean 'relay'"),
    ],
)
def test_a_mistake_is_named(sections, words):
    with pytest.raises(MarftError, match=words):
        plan(**sections)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: machine_of("h10"), "--gpu h10: no such machine; did you mean 'h100'.*--memory, --tflops, --bandwidth"),
        (lambda: machine_of("h100", memory=-1), "--memory -1: must be above 0"),
        (lambda: machine_of("mine", 10, 20), "add --bandwidth"),
        (lambda: Assumptions(MACHINE, mfu=1.5), "--mfu 1.5: must be above 0 and at most 1"),
        (lambda: Assumptions(MACHINE, longest_task=0), "--longest-task 0: must be at least 1"),
    ],
)
def test_an_impossible_assumption_is_named(call, words):
    with pytest.raises(MarftError, match=words):
        call()


def test_a_machine_may_be_corrected():
    assert machine_of("H100", memory=94) == Machine("h100", 94e9, 989e12, 3.35e12)
    assert machine_of("mine", 10, 20, 30) == Machine("mine", 10e9, 20e12, 30e9)
