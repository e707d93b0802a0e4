"""Continuous batching gives every request what it would get alone, and hears of everything that goes wrong."""

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from builders import Plain, ask, policy_of, request, snapshot, stirred, tiny_base
from marft.config import SamplingConfig
from marft.generate import torch_engine as module
from marft.generate.base import Request
from marft.generate.torch_engine import TorchEngine
from marft.models.chat import Chat
from marft.types import MarftError

ADAPTERS = ("one", "two", None)


@pytest.fixture(scope="module")
def world():
    base = tiny_base()
    policy = policy_of(base, "one", "two")
    return policy, Plain(base.model)


def mixed(count, random_seed=0, longest=12, **settings):
    """Requests of many lengths and adapters; some prompts are prefixes of others, some equal."""
    random = np.random.default_rng(random_seed)
    prompts = [random.integers(4, 16, size=random.integers(1, 14)).tolist() for _ in range(count)]
    prompts[1::4] = [prompt[: max(1, len(prompt) // 2)] for prompt in prompts[0::4]][: len(prompts[1::4])]
    tokens = random.integers(1, longest + 1, size=count).tolist()
    return [
        request(prompt, ADAPTERS[place % 3], seed=place, max_tokens=tokens[place], **settings)
        for place, prompt in enumerate(prompts)
    ]


def tensors(policy, adapter):
    return snapshot(policy, adapter) if adapter else None


# ---- the right tokens


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_greedy_equals_transformers_generate(slots):
    base = tiny_base()
    stops = (3, 9, 12)  # several tokens may end a turn, and a random model seldom says the real one
    policy = policy_of(replace(base, chat=Chat(base.chat.tokenizer, stops)), "one", "two")
    plain = Plain(base.model)
    requests = mixed(13, greedy=True)
    folded = {adapter: plain.folded(tensors(policy, adapter)) for adapter in ADAPTERS}
    ended = Counter()
    for each, reply in zip(requests, ask(TorchEngine(policy, slots), requests), strict=True):
        theirs = folded[each.adapter].generate(
            torch.tensor([each.prompt_ids]),
            attention_mask=torch.ones(1, len(each.prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=each.sampling.max_tokens,
            eos_token_id=list(stops),
            pad_token_id=1,
        )
        assert list(reply.token_ids) == theirs[0, len(each.prompt_ids) :].tolist()
        ended[reply.stop] += 1
    assert min(ended["stop"], ended["length"]) > 0  # both ways to end were seen


@pytest.mark.parametrize("heat", [1.0, 0.6])
def test_log_probabilities_are_the_learners_and_transformers(world, heat):
    policy, plain = world
    requests = mixed(12, temperature=heat)
    for each, reply in zip(requests, ask(TorchEngine(policy, 5), requests), strict=True):
        theirs = plain.logprobs(each.prompt_ids, reply.token_ids, tensors(policy, each.adapter), heat)
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs, atol=1e-5, rtol=1e-5)
        row = [*each.prompt_ids, *reply.token_ids]
        (learners,) = policy.logprobs([row], [len(each.prompt_ids)], each.adapter, heat, 100)
        torch.testing.assert_close(torch.tensor(reply.logprobs), learners, atol=1e-5, rtol=1e-5)


def test_a_request_gets_the_same_reply_alone_and_in_any_company(world):
    policy, _ = world
    requests = mixed(30, longest=25)
    alone = [ask(TorchEngine(policy, 1), [each])[0] for each in requests]
    assert len({reply.token_ids for reply in alone}) > 20
    for slots in (2, 3, 7, 64):
        for reply, expected in zip(ask(TorchEngine(policy, slots), requests), alone, strict=True):
            assert reply.token_ids == expected.token_ids
            np.testing.assert_allclose(reply.logprobs, expected.logprobs, atol=1e-5)


def test_the_same_requests_give_the_same_bits(world):
    policy, _ = world
    requests = mixed(20)
    assert ask(TorchEngine(policy, 6), requests) == ask(TorchEngine(policy, 6), requests)


def test_the_order_of_arrival_changes_nothing(world):
    policy, _ = world
    requests = mixed(20)
    forward = ask(TorchEngine(policy, 6), requests)
    backward = ask(TorchEngine(policy, 6), requests[::-1])
    assert forward == backward[::-1]


def test_other_seeds_draw_otherwise(world):
    policy, _ = world
    replies = ask(TorchEngine(policy), [request([8, 9], seed=seed, max_tokens=6) for seed in range(10)])
    assert len({reply.token_ids for reply in replies}) > 5
    one, two = (Request((8,), None, SamplingConfig(max_tokens=20), seed) for seed in ((1, 2, 3), (1, 2, 4)))
    assert len({reply.token_ids for reply in ask(TorchEngine(policy), [one, two])}) == 2


def test_replies_are_distributed_as_the_model_says(world):
    policy, plain = world
    heat, count = 0.7, 4000
    replies = ask(
        TorchEngine(policy),
        [request([8, 9], "one", seed=seed, max_tokens=2, temperature=heat) for seed in range(count)],
    )
    end = policy.base.chat.stop_ids[0]
    first = torch.softmax(plain.logits([8, 9], tensors(policy, "one"))[-1] / heat, -1)
    expected = {(end,): float(first[end])}
    for token in range(len(first)):
        if token != end:
            second = torch.softmax(plain.logits([8, 9, token], tensors(policy, "one"))[-1] / heat, -1)
            expected |= {(token, other): float(first[token] * second[other]) for other in range(len(second))}
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    seen = Counter(reply.token_ids for reply in replies)
    assert set(seen) <= set(expected)
    common = [reply for reply, share in expected.items() if share * count >= 5]
    observed = [seen[reply] for reply in common]
    predicted = [expected[reply] * count for reply in common]
    observed.append(count - sum(observed))
    predicted.append(count - sum(predicted))
    assert len(common) > 20
    assert chisquare(observed, predicted).pvalue > 1e-3


def test_top_k_and_top_p_leave_tokens_out(world):
    policy, plain = world
    probabilities = torch.softmax(plain.logits([8, 9])[-1], -1).sort(descending=True)
    for settings, kept in (({"top_k": 2}, 2), ({"top_p": 0.7}, int((probabilities.values.cumsum(0) < 0.7).sum()) + 1)):
        replies = ask(TorchEngine(policy), [request([8, 9], seed=i, max_tokens=1, **settings) for i in range(200)])
        assert {reply.token_ids[0] for reply in replies} == set(probabilities.indices[:kept].tolist())
        assert 1 < kept < len(probabilities.values)


def test_the_stop_token_is_part_of_the_reply_and_ends_it(world):
    policy, _ = world
    end = policy.base.chat.stop_ids[0]
    replies = ask(TorchEngine(policy), [request([8, 9], seed=seed, max_tokens=8) for seed in range(200)])
    assert {reply.stop for reply in replies} == {"stop", "length"}
    assert len({len(reply.token_ids) for reply in replies if reply.stop == "stop"}) > 3
    for reply in replies:
        assert end not in reply.token_ids[:-1]
        assert (reply.token_ids[-1] == end) == (reply.stop == "stop")
        assert len(reply.token_ids) == len(reply.logprobs)
        assert reply.stop == "stop" or len(reply.token_ids) == 8


# ---- coming and going


def endless(policy, name="one"):
    """A prompt and seed whose reply does not stop for 60 tokens."""
    seeds = range(20)
    asked = [request([8], name, seed=seed, max_tokens=60, temperature=0.05) for seed in seeds]
    replies = ask(TorchEngine(policy), asked)
    return next(seed for seed, reply in zip(seeds, replies, strict=True) if len(reply.token_ids) == 60)


def test_new_requests_are_admitted_while_others_run(world):
    policy, _ = world
    engine = TorchEngine(policy, 2)
    seed = endless(policy)
    long = request([8], "one", seed=seed, max_tokens=60, temperature=0.05)
    short = request([9, 10], "two", seed=1, max_tokens=3)

    async def play():
        first = asyncio.create_task(engine.generate(long))
        while engine.usage.sampled_tokens < 5:
            await asyncio.sleep(0)
        second = await engine.generate(short)
        assert not first.done()
        third = await engine.generate(short)
        assert not first.done()
        return await first, second, third

    replies = asyncio.run(play())
    alone = ask(TorchEngine(policy), [long]) + ask(TorchEngine(policy), [short])
    assert [each.token_ids for each in replies] == [alone[0].token_ids, alone[1].token_ids, alone[1].token_ids]


def test_a_cancelled_request_frees_its_slot_and_the_others_go_on(world):
    policy, _ = world
    engine = TorchEngine(policy, 2)
    seed = endless(policy)
    long = request([8], "one", seed=seed, max_tokens=60, temperature=0.05, order=(0,))
    others = [each for each in mixed(6) if each.sampling.max_tokens > 3]

    async def play():
        doomed = asyncio.create_task(engine.generate(long))
        waiting = asyncio.create_task(engine.generate(request([9], seed=3, order=(99,))))
        rest = [asyncio.create_task(engine.generate(each)) for each in others]
        while engine.usage.sampled_tokens < 4:
            await asyncio.sleep(0)
        doomed.cancel()
        waiting.cancel()
        replies = await asyncio.gather(*rest)
        assert doomed.cancelled()
        assert waiting.cancelled()
        engine.load(1)  # nobody holds a slot any more
        return replies

    replies = asyncio.run(play())
    assert [each.token_ids for each in replies] == [ask(TorchEngine(policy), [each])[0].token_ids for each in others]
    assert engine.usage.sampled_tokens < 60  # the cancelled one was not played to its end


@pytest.mark.parametrize("turns", range(5))
def test_weights_that_change_after_everybody_was_cancelled_are_seen(turns):
    policy = policy_of(tiny_base(), "one")
    engine = TorchEngine(policy, 4)
    asked = request([8, 9, 10], "one", seed=3, max_tokens=6)

    async def play():
        doomed = asyncio.create_task(engine.generate(asked))
        while not engine.usage.sampled_tokens:
            await asyncio.sleep(0)
        doomed.cancel()
        stirred(policy, seed=9, size=0.5)
        await asyncio.sleep(0)
        engine.load(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        return await engine.generate(asked)

    reply = asyncio.run(play())
    (learners,) = policy.logprobs([[8, 9, 10, *reply.token_ids]], [3], "one", 1.0, 100)
    torch.testing.assert_close(torch.tensor(reply.logprobs), learners, atol=1e-5, rtol=1e-5)


def test_a_listener_that_fails_ends_its_own_request_alone(world):
    policy, _ = world

    def fail(token):
        raise ValueError("deaf")

    engine = TorchEngine(policy, 4)
    others = mixed(6)

    async def play():
        broken = engine.generate(replace(request([8, 9], "one", max_tokens=9), on_token=fail))
        return await asyncio.gather(broken, *map(engine.generate, others), return_exceptions=True)

    failed, *replies = asyncio.run(play())
    assert isinstance(failed, ValueError)
    assert [each.token_ids for each in replies] == [ask(TorchEngine(policy), [each])[0].token_ids for each in others]


def test_the_cache_has_room_for_the_longest_reply_and_no_more(world):
    policy, _ = world
    engine = TorchEngine(policy, 2)
    long = request([8] * 10, "one", seed=endless(policy), max_tokens=60, temperature=0.05)

    async def play():
        first = asyncio.create_task(engine.generate(long))
        while engine.usage.sampled_tokens < 40:
            await asyncio.sleep(0)
        await engine.generate(request([9], max_tokens=1))
        room = engine._slots.keys[0].shape[2]
        await first
        return room

    assert asyncio.run(play()) == 128  # 70, rounded up to a multiple of 64


def fail_at(policy, call):
    """The model breaks at its n-th forward pass from now, once."""
    layer = policy.base.backbone.layers[-1]
    calls = []

    def hook(*_):
        calls.append(1)
        if len(calls) == call:
            handle.remove()
            raise RuntimeError("out of memory")

    handle = layer.register_forward_hook(hook)


@pytest.mark.parametrize("call", [1, 2, 3, 6])  # the first prompts, then decoding
def test_an_error_reaches_everyone_who_waits_and_the_engine_goes_on(world, call):
    policy, _ = world
    requests = [each for each in mixed(12) if each.sampling.max_tokens > 3]
    expected = ask(TorchEngine(policy, 4), requests)
    engine = TorchEngine(policy, 4)

    async def play():
        together = asyncio.gather(*(engine.generate(each) for each in requests), return_exceptions=True)
        return await asyncio.wait_for(together, 20)

    fail_at(policy, call)
    outcomes = asyncio.run(play())
    failed = [isinstance(each, RuntimeError) for each in outcomes]
    assert failed == [True] * len(failed) if call == 1 else any(failed)
    # What was finished before is as it should be
    assert all(bad or each == right for bad, each, right in zip(failed, outcomes, expected, strict=True))
    assert ask(engine, requests) == expected
    engine.load(1)


def test_an_engine_outlives_a_loop_that_was_torn_down(world):
    policy, _ = world
    engine = TorchEngine(policy, 4)
    requests = mixed(8)

    async def leave():
        tasks = [asyncio.create_task(engine.generate(each)) for each in requests]
        while engine.usage.sampled_tokens < 6:
            await asyncio.sleep(0)
        del tasks

    asyncio.run(leave())
    engine.load(1)
    assert [each.token_ids for each in ask(engine, requests)] == [
        each.token_ids for each in ask(TorchEngine(policy, 4), requests)
    ]


# ---- versions and limits


def test_a_reply_carries_the_version_of_its_dispatch(world):
    policy, _ = world
    engine = TorchEngine(policy)
    assert ask(engine, [request([8], max_tokens=2)])[0].policy_version == 0
    engine.load(7)
    assert ask(engine, [request([8], max_tokens=2)])[0].policy_version == engine.version == 7


def test_adapters_cannot_change_under_a_running_reply(world):
    policy, _ = world
    engine = TorchEngine(policy)

    async def play():
        task = asyncio.create_task(engine.generate(request([8], max_tokens=5)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="while replies were being generated"):
            engine.load(1)
        assert (await task).policy_version == 0

    asyncio.run(play())


def test_after_an_adapter_changes_the_engine_speaks_with_the_new_one():
    policy = policy_of(tiny_base(), "one", "two")
    engine = TorchEngine(policy, 4)
    asked = [request([8, 9, 10], adapter, seed=3, max_tokens=10) for adapter in ADAPTERS]
    before = ask(engine, asked)
    stirred(policy, seed=9, size=0.5)
    engine.load(1)
    after = ask(engine, asked)
    for each, was, now in zip(asked, before, after, strict=True):
        row = [*each.prompt_ids, *now.token_ids]
        (learners,) = policy.logprobs([row], [3], each.adapter, 1.0, 100)
        torch.testing.assert_close(torch.tensor(now.logprobs), learners, atol=1e-5, rtol=1e-5)
        assert (was.logprobs[0] == pytest.approx(now.logprobs[0], abs=1e-4)) == (each.adapter is None)


def test_what_cannot_fit_is_refused_with_its_numbers():
    engine = TorchEngine(policy_of(tiny_base(context=16), "one"))
    assert len(ask(engine, [request([8] * 6, max_tokens=10, greedy=True)])[0].token_ids) <= 10
    with pytest.raises(MarftError, match=r"7 tokens.* 10 .*context of 16"):
        ask(engine, [request([8] * 7, max_tokens=10)])
    with pytest.raises(MarftError, match="empty"):
        ask(engine, [request([], max_tokens=1)])


def test_usage_counts_tokens_and_what_sharing_saved(world):
    policy, _ = world
    engine = TorchEngine(policy, 8)
    replies = ask(engine, [request([8, 9, 10, 11], "one", seed=seed, max_tokens=4) for seed in range(3)])
    assert engine.usage.prompt_tokens_computed == 4  # equal prompts once
    replies += ask(engine, [request([8, 9, 12], adapter, max_tokens=2) for adapter in ("one", "two")])
    assert engine.usage.prompt_tokens == 3 * 4 + 2 * 3
    assert engine.usage.prompt_tokens_computed == 4 + 1 + 3  # a known prefix not at all; never across adapters
    assert engine.usage.sampled_tokens == sum(len(reply.token_ids) for reply in replies)
    assert engine.usage.seconds > 0


# ---- the prefix tree


def turns(policy, engine, count=4):
    """An agent's turns: each prompt is everything said before and something new. Returns prompts and replies."""
    said, found = [8, 9, 10], []
    for turn in range(count):
        (reply,) = ask(engine, [request(said, "one", seed=turn, max_tokens=5)])
        found.append((said, reply))
        said = [*said, *reply.token_ids, 11, 12 + turn]
    return found


@pytest.mark.parametrize("remembered", [0, 1, 7, 1000])
def test_what_is_remembered_changes_no_reply(world, remembered):
    policy, plain = world
    for prompt, reply in turns(policy, TorchEngine(policy, 4, remembered)):
        theirs = plain.logprobs(prompt, reply.token_ids, snapshot(policy, "one"))
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs, atol=1e-5, rtol=1e-5)
    requests = mixed(30, longest=25)
    expected = [ask(TorchEngine(policy, 1), [each])[0].token_ids for each in requests]
    assert [each.token_ids for each in ask(TorchEngine(policy, 3, remembered), requests)] == expected


def test_a_later_turn_computes_only_what_is_new(world):
    policy, _ = world
    engine = TorchEngine(policy, 4)
    played = turns(policy, engine)
    # After the first prompt: the last token of the reply before, which was drawn and not taken in, and two new ones
    assert engine.usage.prompt_tokens_computed == 3 + 3 * (len(played) - 1)
    assert engine.usage.prompt_tokens == sum(len(prompt) for prompt, _ in played)


def test_a_prompt_that_was_part_of_another_costs_one_token(world):
    policy, plain = world
    engine = TorchEngine(policy, 4)
    ask(engine, [request([8, 9, 10, 11, 12], "one", max_tokens=1)])
    asked = [request([8, 9, 10], "one", seed=3, max_tokens=4), request([8, 9, 10, 11], "one", seed=4, max_tokens=4)]
    for each, reply in zip(asked, ask(engine, asked), strict=True):
        theirs = plain.logprobs(each.prompt_ids, reply.token_ids, snapshot(policy, "one"))
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs, atol=1e-5, rtol=1e-5)
    assert engine.usage.prompt_tokens_computed == 5 + 1 + 1


def test_new_weights_start_with_an_empty_tree(world):
    policy, _ = world
    engine = TorchEngine(policy, 4)
    ask(engine, [request([8, 9, 10], "one", max_tokens=1)])
    engine.load(1)
    ask(engine, [request([8, 9, 10], "one", max_tokens=1)])
    assert engine.usage.prompt_tokens_computed == 6


def test_long_prompts_are_taken_in_over_several_passes(world, monkeypatch):
    policy, _ = world
    requests = mixed(20)
    expected = ask(TorchEngine(policy, 16), requests)
    monkeypatch.setattr(module, "PREFILL_BUDGET", 4)
    for reply, right in zip(ask(TorchEngine(policy, 16), requests), expected, strict=True):
        assert reply.token_ids == right.token_ids
        np.testing.assert_allclose(reply.logprobs, right.logprobs, atol=1e-5)
