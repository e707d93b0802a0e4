"""What surrounds vLLM: what is refused before it starts, which adapter it is told to use, when it sleeps and ends.

The first half runs anywhere, on a stand-in that notes what it is told; the second needs vLLM itself.
"""

import asyncio
import importlib.util
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from builders import ask, config_of, policy_of, request, snapshot, stirred, tiny_base
from marft.config import VllmConfig
from marft.generate import vllm
from marft.generate.sampling import choose
from marft.generate.vllm import VllmEngine
from marft.generate.vllm_adapters import room
from marft.models.policy import Policy
from marft.team import build_team
from marft.types import MarftError

INSTALLED = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not INSTALLED, reason="vllm is not installed: pip install 'marft[vllm]'")


# ---- what is refused


def refused(match, policy=None, base=None, **settings):
    base = base or tiny_base()
    with pytest.raises(MarftError, match=match):
        VllmEngine(policy or policy_of(base, "one"), base, 4, VllmConfig(**settings))


def test_without_vllm_a_config_that_asks_for_it_is_refused_with_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = config_of("ann", rollout={"engine": "vllm", "sampling": {"max_tokens": 3}})
    with pytest.raises(MarftError, match=r"mine\.yaml: rollout\.engine: .*pip install 'marft\[vllm\]'"):
        build_team(config, "mine.yaml", tiny_base())


def test_what_vllm_is_not_given_is_refused(monkeypatch):
    base = tiny_base()
    refused("tuning: full", Policy(base, config_of("ann").lora, ["one"], tuning="full"), base)
    refused("sleep.*cpu", sleep=True)
    monkeypatch.setattr("marft.models.base.is_quantised", lambda model: True)
    refused("quantise", policy_of(base, "one"), base)


def test_ranks_are_given_the_room_vllm_has():
    assert [room(rank) for rank in (1, 2, 8, 9, 16, 33, 512)] == [1, 8, 8, 16, 16, 64, 512]
    with pytest.raises(MarftError, match=r"lora\.r.*512.*600"):
        room(600)


# ---- a stand-in for vLLM


@dataclass(frozen=True)
class Lora:
    lora_name: str
    lora_int_id: int
    lora_path: str


class StandIn:
    """Answers every request with `reply` and notes in `told` all that it is told."""

    reply = (5, 3)
    ends = "stop"
    broken: Exception | None = None
    pause = 0.0

    def __init__(self, args):
        self.args = args
        self.told = []

    @classmethod
    def from_engine_args(cls, args):
        if cls.broken:
            raise cls.broken
        return cls(args)

    async def generate(self, prompt, params, name, lora_request=None):
        self.told.append(("generate", lora_request and lora_request.lora_name))
        await asyncio.sleep(self.pause)
        logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in self.reply]
        part = SimpleNamespace(token_ids=self.reply, logprobs=logprobs, finish_reason=self.ends)
        yield SimpleNamespace(outputs=[part], num_cached_tokens=1)

    async def add_lora(self, lora):
        assert os.path.isfile(os.path.join(lora.lora_path, "adapter_model.safetensors"))
        self.told.append(("add", lora.lora_name))

    async def remove_lora(self, number):
        self.told.append(("remove", number))

    async def sleep(self, level):
        self.told.append(("sleep", level))

    async def wake_up(self):
        self.told.append(("wake",))

    def shutdown(self):
        self.told.append(("shutdown",))


@pytest.fixture
def stand_in(monkeypatch):
    """vLLM's modules, as far as the engine uses them, with a fresh `StandIn` class."""
    mine = type("Mine", (StandIn,), {})
    arguments = lambda **given: SimpleNamespace(  # noqa: E731
        given=given, create_engine_config=lambda: SimpleNamespace(use_v2_model_runner=True)
    )
    modules = {
        "vllm": {"AsyncEngineArgs": arguments, "SamplingParams": lambda **given: given},
        "vllm.lora.request": {"LoRARequest": Lora},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA=0, FINAL_ONLY=1)},
        "vllm.v1.engine.async_llm": {"AsyncLLM": mine},
        "vllm.v1.engine.exceptions": {"EngineGenerateError": type("EngineGenerateError", (Exception,), {})},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm, "_check", lambda policy, base, settings: None)
    return mine


def engine_of(policy, base, **settings):
    return VllmEngine(policy, base, 4, VllmConfig(**settings))


def told(engine):
    """What vLLM was told since the last look."""
    found = list(engine._host.llm.told)
    engine._host.llm.told.clear()
    return found


@pytest.mark.usefixtures("stand_in")
def test_an_adapter_gets_a_new_name_when_its_tensors_change_and_only_then():
    base = tiny_base()
    policy = policy_of(base, "one", "two", "critic")
    engine = engine_of(policy, base)
    both = [request([8], "one"), request([8], "two")]
    ask(engine, both)
    first = told(engine)
    names = [name for what, name in first if what == "add"]
    assert [name.split("@")[0] for name in names] == ["one", "two"]  # the critic never speaks: never written
    assert [each for each in first if each[0] == "generate"] == [("generate", name) for name in names]

    engine.load(1)
    ask(engine, both)
    assert told(engine) == [("generate", name) for name in names]  # nothing changed: nothing is sent

    kept = snapshot(policy, "two")
    stirred(policy, seed=5)
    for name, tensor in policy.parameters("two").items():
        tensor.data = kept[name]
    engine.load(2)
    folder = engine._adapters.loaded["one"].folder
    ask(engine, both)
    removed, added, *asked = told(engine)
    assert removed == ("remove", 1)
    assert added[0] == "add"
    assert added[1].startswith("one@2-")
    assert added[1] not in names
    assert sorted(asked) == sorted([("generate", added[1]), ("generate", names[1])])
    assert not folder.exists()
    assert engine._adapters.loaded["one"].folder.exists()
    engine.close()
    assert not engine._adapters.loaded["one"].folder.exists()


@pytest.mark.usefixtures("stand_in")
def test_held_adapters_are_those_of_the_moment_whatever_the_learner_does_then():
    from safetensors.torch import load_file

    base = tiny_base()
    policy = policy_of(base, "one", "two", "critic")
    engine = engine_of(policy, base)
    assert engine.own_weights
    engine.hold(["one", "two", "of another model"])  # also starts vLLM
    assert [each[0] for each in told(engine)] == ["add", "add"]
    kept = {name: snapshot(policy, name) for name in ("one", "two")}
    stirred(policy, seed=5)  # the learner is at work
    ask(engine, [request([8], "one"), request([8], "two")])
    assert [each[0] for each in told(engine)] == ["generate", "generate"]
    for name, tensors in kept.items():
        written = load_file(engine._adapters.loaded[name].folder / "adapter_model.safetensors")
        theirs = sorted(float(each.double().sum()) for each in written.values())
        assert theirs == sorted(float(each.double().sum()) for each in tensors.values())
    engine.close()
    asleep = engine_of(policy, base, sleep=True)
    assert not asleep.own_weights  # it frees the memory that the learner needs
    asleep.close()


@pytest.mark.usefixtures("stand_in")
def test_vllm_sleeps_when_told_and_wakes_once_for_the_next_requests():
    base = tiny_base()
    engine = engine_of(policy_of(base, "one"), base, sleep=True)
    engine.rest()  # not started: nothing to free
    asked = [request([8], seed=seed) for seed in range(3)]
    ask(engine, asked)
    assert engine._host.llm.args.given["enable_sleep_mode"]
    told(engine)
    engine.rest()
    engine.rest()
    ask(engine, asked)
    assert told(engine) == [("sleep", 1), ("wake",), *[("generate", None)] * 3]
    engine.close()

    awake = engine_of(policy_of(base, "one"), base)
    ask(awake, asked)
    told(awake)
    awake.rest()  # the settings do not ask for it
    assert told(awake) == []
    awake.close()


@pytest.mark.usefixtures("stand_in")
def test_vllm_does_not_sleep_under_a_running_reply(stand_in):
    base = tiny_base()
    stand_in.pause = 0.2
    engine = engine_of(policy_of(base, "one"), base, sleep=True)

    async def play():
        task = asyncio.create_task(engine.generate(request([8])))
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeError, match="sleep while"):
            engine.rest()
        return await task

    assert asyncio.run(play()).token_ids == (5, 3)
    engine.close()


def test_vllm_that_does_not_start_tells_all_who_wait_why(stand_in):
    stand_in.broken = RuntimeError("no room\nfor the cache")
    base = tiny_base()
    engine = engine_of(policy_of(base, "one"), base)

    async def play():
        waiting = [engine.generate(request([8], seed=seed)) for seed in range(3)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    for error in asyncio.run(play()):
        assert isinstance(error, MarftError)
        assert "no room for the cache" in str(error)
        assert "gpu_memory_utilization" in str(error)
    engine.load(1)  # nobody is under way
    engine.close()


def test_a_reply_that_vllm_breaks_off_is_an_error(stand_in):
    stand_in.ends = "abort"
    base = tiny_base()
    engine = engine_of(policy_of(base, "one"), base)
    with pytest.raises(MarftError, match="of its own accord"):
        ask(engine, [request([8])])
    engine.close()


@pytest.mark.usefixtures("stand_in")
def test_vllm_is_told_what_the_config_says():
    base = tiny_base()
    settings = {"gpu_memory_utilization": 0.3, "cache_gib": 0.5, "tensor_parallel_size": 2, "enforce_eager": True}
    engine = engine_of(policy_of(base, "one", "two"), base, **settings)
    ask(engine, [request([8])])
    given = engine._host.llm.args.given
    wanted = {
        "gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 2**29, "tensor_parallel_size": 2,
        "enforce_eager": True, "enable_prefix_caching": True, "max_model_len": 256, "max_num_seqs": 4,
        "max_loras": 2, "max_lora_rank": 8, "dtype": "float32", "enable_sleep_mode": False,
    }  # fmt: skip
    assert {key: given[key] for key in wanted} == wanted
    assert engine._host.llm.args.logits_processors == ["marft.generate.vllm_sampling:DrawV2"]
    assert engine.usage.prompt_tokens_computed == 0  # the stand-in says one token was kept
    assert engine.usage.sampled_tokens == 2
    engine.close()


# ---- vLLM itself


def some_rules(count):
    from marft.generate.vllm_sampling import KEY, Rule

    given = [
        {"sampling": {"temperature": 0.5 + place / 4, "top_k": place or None, "max_tokens": 6}, "greedy": place == 2,
         "seed": [7, place]}
        for place in range(count)
    ]  # fmt: skip
    params = [SimpleNamespace(extra_args={KEY: each}) for each in given]
    return params, [Rule.of(each) for each in params]


def check_decided(decided, logits, rules, drawn):
    tokens, logprobs = choose(
        logits, torch.tensor([rule.draw(count) for rule, count in zip(rules, drawn, strict=True)]),
        [rule.sampling for rule in rules], [rule.greedy for rule in rules],
    )  # fmt: skip
    assert decided.argmax(-1).tolist() == tokens
    torch.testing.assert_close(decided.max(-1).values, torch.tensor(logprobs))
    assert (decided > float("-inf")).sum(-1).tolist() == [1] * len(rules)


@needs_vllm
def test_draws_follow_the_rows_of_the_first_model_runner():
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from marft.generate.vllm_sampling import DrawV1

    params, rules = some_rules(4)
    outputs = [[], [1], [1, 2], [1, 2, 3]]
    draw = DrawV1(None, torch.device("cpu"), False)
    added = [(row, params[row], None, outputs[row]) for row in range(3)]
    draw.update_state(BatchUpdate(batch_size=3, removed=[], added=added, moved=[]))
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    check_decided(draw.apply(logits.clone()), logits, rules[:3], [0, 1, 2])
    outputs[0].append(4)  # vLLM appends to the list it gave
    check_decided(draw.apply(logits.clone()), logits, rules[:3], [1, 1, 2])
    draw.update_state(
        BatchUpdate(
            batch_size=2,
            removed=[0],
            added=[(1, params[3], None, outputs[3])],
            moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)],
        )
    )
    check_decided(draw.apply(logits[:2].clone()), logits[:2], [rules[2], rules[3]], [2, 3])


@needs_vllm
def test_draws_follow_the_slots_of_the_second_model_runner():
    import numpy as np
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

    from marft.generate.vllm_sampling import DrawV2

    params, rules = some_rules(3)
    prompts = SimpleNamespace(np=np.array([5, 0, 9, 4], dtype=np.int32))
    draw = DrawV2(None, SimpleNamespace(prompt_len=prompts))
    assert draw.add_request(0, params[0])
    assert not draw.add_request(3, SimpleNamespace(extra_args=None))
    assert draw.add_request(3, params[1])
    assert draw.add_request(2, params[2])
    slots = np.array([3, 0, 2])
    context = LogitsContext(
        expanded_idx_mapping=torch.tensor(slots), idx_mapping=torch.tensor(slots), idx_mapping_np=slots,
        expanded_local_pos=torch.zeros(3), input_ids=torch.zeros(3), pos=torch.zeros(3),
        seq_lens_upper_bound_np=np.array([6, 5, 4]),  # two drawn, none, and a prompt of which four tokens are read
    )  # fmt: skip
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    check_decided(draw.apply(logits.clone(), context), logits, [rules[1], rules[0], rules[2]], [2, 0, 0])
    draw.add_request(0, SimpleNamespace(extra_args=None))
    assert torch.equal(draw.apply(logits.clone(), context)[1], logits[1])  # not ours any more


@needs_vllm
def test_kept_prefixes_live_as_long_as_the_tensors_they_were_computed_with():
    base = tiny_base(hidden=128)
    policy = policy_of(base, "one", "two")
    engine = engine_of(policy, tiny_base(hidden=128), cache_gib=0.2, enforce_eager=True)
    asked = [request([4 + place % 9 for place in range(200)], name, max_tokens=2) for name in ("one", "two", None)]

    def computed():
        before = engine.usage.prompt_tokens_computed
        found = []
        for each in asked:
            ask(engine, [each])
            found.append(engine.usage.prompt_tokens_computed - before - sum(found))
        return found

    assert computed() == [200, 200, 200]
    kept = computed()
    assert max(kept) < 100  # vLLM keeps whole blocks
    untouched = snapshot(policy, "two")
    stirred(policy, seed=5)
    for name, tensor in policy.parameters("two").items():
        tensor.data = untouched[name]
    engine.load(1)
    assert computed() == [200, *kept[1:]]

    import psutil

    # Ctrl-C in a terminal reaches every process of its group; a run that finishes its update still needs these
    children = psutil.Process().children(recursive=True)
    mine = [each for each in children if "resource_tracker" not in " ".join(each.cmdline())]
    assert mine
    for each in mine:
        each.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert computed() == kept
    engine.close()
    assert not psutil.wait_procs(mine, timeout=20)[1]


def test_the_numbers_of_a_base_are_the_ones_it_was_loaded_with(tmp_path):
    from safetensors.torch import load_file

    base = tiny_base()
    policy_of(base, "one")  # adapters are put around the layers of a copy
    folder = vllm.weights_of(base, tmp_path / "base")
    saved = load_file(f"{folder}/model.safetensors")
    own = dict(base.model.named_parameters())
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) for name in own)
    assert vllm.weights_of(replace(base, name="some/model"), tmp_path) == "some/model"
    assert vllm.weights_of(replace(base, name=folder), tmp_path / "other") == folder
