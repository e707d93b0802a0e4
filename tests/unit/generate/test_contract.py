"""What every `Generator` owes those who ask: the same questions to the torch engine, to vLLM and to a script.

Expectations come from transformers' own model with the adapters folded in (`Plain`), one row at a time in float32.
"""

import asyncio
import importlib.util
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from builders import Plain, ask, policy_of, request, snapshot, stirred, tiny_base
from marft.config import VllmConfig
from marft.generate.base import Request
from marft.generate.scripted import Scripted
from marft.generate.torch_engine import TorchEngine
from marft.generate.vllm import VllmEngine
from marft.models.chat import Chat
from marft.models.policy import Policy
from marft.types import MarftError

ADAPTERS = ("one", "two", None)
STOPS = (3, 9)  # a turn may have several ends, and a random model seldom says the real one
LONG = 200  # prompt tokens: more than a block of any engine's prefix cache
CONTEXT = 256
TOLERANCE = 1e-4  # of log-probabilities, in float32
SCRIPT = (4, 5, 6, 9)


@dataclass(frozen=True)
class World:
    """One kind of generator; `policy` is what it generates with, None for a script."""

    engine: Any
    policy: Policy | None

    def plain(self, adapter: str | None) -> Any:
        """The model as the adapter makes it now, in plain transformers."""
        folded = Plain(self.policy.base.model).folded(snapshot(self.policy, adapter) if adapter else None)
        return folded.requires_grad_(False)


def torch_world():
    base = spoken(tiny_base(hidden=128))
    policy = policy_of(base, "one", "two")
    return World(TorchEngine(policy, 5), policy)  # fewer slots than there are requests


def vllm_world():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed: pip install 'marft[vllm]'")
    policy = policy_of(spoken(tiny_base(hidden=128)), "one", "two")  # vLLM's attention wants heads of 32 and more
    settings = VllmConfig(cache_gib=0.2, enforce_eager=True)
    return World(VllmEngine(policy, spoken(tiny_base(hidden=128)), 5, settings), policy)


def scripted_world():
    return World(Scripted(spoken(tiny_base()).chat, lambda asked: SCRIPT), None)


def spoken(base):
    return replace(base, chat=Chat(base.chat.tokenizer, STOPS))


@pytest.fixture(scope="module", params=["torch", "vllm", "scripted"])
def world(request):
    made = {"torch": torch_world, "vllm": vllm_world, "scripted": scripted_world}[request.param]()
    yield made
    if isinstance(made.engine, VllmEngine):
        made.engine.close()


@pytest.fixture
def model(world):
    """A world with a model in it."""
    if world.policy is None:
        pytest.skip("a script has no model: nothing is computed, drawn, kept or limited")
    return world


def mixed(count, longest=12, **settings):
    """Requests of many lengths and adapters; some prompts are prefixes of others."""
    random = np.random.default_rng(0)
    prompts = [random.integers(4, 16, size=random.integers(1, 14)).tolist() for _ in range(count)]
    prompts[1::4] = [prompt[: max(1, len(prompt) // 2)] for prompt in prompts[0::4]][: len(prompts[1::4])]
    return [
        request(prompt, ADAPTERS[place % 3], seed=place, max_tokens=1 + int(random.integers(longest)), **settings)
        for place, prompt in enumerate(prompts)
    ]


def probabilities(model, ids, heat=1.0):
    """Of the next token [V]."""
    return torch.softmax(model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1] / heat, -1)


def scores(model, asked, reply):
    """The log-probability [A] of each token of a reply, at the request's temperature and before any filter."""
    row = torch.tensor([[*asked.prompt_ids, *reply.token_ids]])
    logits = model(input_ids=row, use_cache=False).logits[0, len(asked.prompt_ids) - 1 : -1]
    logs = torch.log_softmax(logits / asked.sampling.temperature, -1)
    return logs.gather(1, torch.tensor([reply.token_ids]).T)[:, 0]


def drawn_alone(model, asked):
    """A reply by the rule in its plainest form: the first token at which the cumulated probability passes the draw."""
    draws = np.random.default_rng(asked.seed).random(asked.sampling.max_tokens, dtype=np.float32)
    reply: list[int] = []
    for draw in draws:
        spread = probabilities(model, [*asked.prompt_ids, *reply], asked.sampling.temperature)
        token = int(spread.argmax()) if asked.greedy else int((spread.double().cumsum(0) <= float(draw)).sum())
        reply.append(token)
        if token in STOPS:
            break
    return tuple(reply)


def listening(asked, hear):
    """The request with someone who listens."""
    return replace(asked, on_token=hear)


# ---- the reply


def test_a_reply_ends_with_a_token_that_ends_turns_or_at_its_limit(world):
    asked = [request([8, 9], ADAPTERS[seed % 3], seed=seed, max_tokens=1 + seed % 7) for seed in range(40)]
    replies = ask(world.engine, asked)
    for each, reply in zip(asked, replies, strict=True):
        assert 1 <= len(reply.token_ids) <= each.sampling.max_tokens
        assert len(reply.logprobs) == len(reply.token_ids)
        assert not set(STOPS) & set(reply.token_ids[:-1])
        assert reply.stop == ("stop" if reply.token_ids[-1] in STOPS else "length")
        assert reply.stop == "stop" or len(reply.token_ids) == each.sampling.max_tokens
    assert {reply.stop for reply in replies} == {"stop", "length"}


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 0.7, "greedy": True},
        {"temperature": 0.7, "top_k": 3},
        {"temperature": 1.3, "top_p": 0.6},
    ],
    ids=str,
)
def test_log_probabilities_are_the_learners_at_the_temperature_and_before_filters(model, settings):
    asked = mixed(12, **settings)
    folded = {adapter: model.plain(adapter) for adapter in ADAPTERS}
    for each, reply in zip(asked, ask(model.engine, asked), strict=True):
        found = torch.tensor(reply.logprobs)
        row = [*each.prompt_ids, *reply.token_ids]
        heat = each.sampling.temperature
        (learners,) = model.policy.logprobs([row], [len(each.prompt_ids)], each.adapter, heat, 100)
        torch.testing.assert_close(found, learners, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(found, scores(folded[each.adapter], each, reply), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("settings", [{"greedy": True}, {"temperature": 1.0}, {"temperature": 0.7}], ids=str)
def test_replies_are_those_of_plain_decoding_row_by_row(model, settings):
    asked = mixed(12, **settings)
    folded = {adapter: model.plain(adapter) for adapter in ADAPTERS}
    expected = [drawn_alone(folded[each.adapter], each) for each in asked]
    assert [reply.token_ids for reply in ask(model.engine, asked)] == expected
    assert len(set(expected)) > 6


def test_filters_leave_the_rest_in_proportion(model):
    folded = model.plain("one")
    spread = probabilities(folded, [8, 9]).sort(descending=True)
    for settings, kept in (({"top_k": 2}, 2), ({"top_p": 0.6}, int((spread.values.cumsum(0) < 0.6).sum()) + 1)):
        asked = [request([8, 9], "one", seed=seed, max_tokens=1, **settings) for seed in range(300)]
        seen = Counter(reply.token_ids[0] for reply in ask(model.engine, asked))
        assert set(seen) == set(spread.indices[:kept].tolist())
        share = float(spread.values[0] / spread.values[:kept].sum())
        spare = 4 * (share * (1 - share) / len(asked)) ** 0.5  # four standard errors; the seeds are fixed
        assert seen[int(spread.indices[0])] / len(asked) == pytest.approx(share, abs=spare)


# ---- company


def test_a_request_gets_the_same_reply_alone_in_company_and_in_any_order(model):
    asked = mixed(18)
    alone = [ask(model.engine, [each])[0] for each in asked]
    for order in (list(range(18)), list(range(17, -1, -1)), np.random.default_rng(1).permutation(18).tolist()):
        replies = ask(model.engine, [asked[place] for place in order])
        for place, reply in zip(order, replies, strict=True):
            assert reply.token_ids == alone[place].token_ids
            np.testing.assert_allclose(reply.logprobs, alone[place].logprobs, atol=TOLERANCE)


def test_adapters_and_the_bare_base_share_a_batch_and_keep_apart(model):
    asked = [request([8, 9, 10], adapter, seed=5, max_tokens=8) for adapter in ADAPTERS for _ in range(2)]
    replies = ask(model.engine, asked)
    for each, reply in zip(asked, replies, strict=True):
        own = scores(model.plain(each.adapter), each, reply)
        torch.testing.assert_close(torch.tensor(reply.logprobs), own, atol=TOLERANCE, rtol=0)
        others = [scores(model.plain(other), each, reply) for other in ADAPTERS if other != each.adapter]
        assert all(float((other - own).abs().max()) > 100 * TOLERANCE for other in others)  # the test can fail


def test_a_cancelled_request_holds_up_nobody(model):
    others = mixed(6)
    expected = [reply.token_ids for reply in ask(model.engine, others)]

    async def play():
        started = asyncio.Event()
        long = request([8], "one", seed=1, max_tokens=CONTEXT - 1, temperature=0.05)
        doomed = asyncio.create_task(model.engine.generate(listening(long, lambda token: started.set())))
        await asyncio.wait_for(started.wait(), 60)
        rest = [asyncio.create_task(model.engine.generate(each)) for each in others]
        doomed.cancel()
        replies = await asyncio.wait_for(asyncio.gather(*rest), 60)
        with pytest.raises(asyncio.CancelledError):
            await doomed
        model.engine.load(model.engine.version)  # nobody is left who uses the adapters
        return [reply.token_ids for reply in replies]

    assert asyncio.run(play()) == expected


def test_an_engine_outlives_the_loop_it_was_asked_from(model):
    asked = mixed(6)
    expected = [reply.token_ids for reply in ask(model.engine, asked)]

    async def leave():
        started = asyncio.Event()
        long = listening(request([8], "one", seed=1, max_tokens=200, temperature=0.05), lambda token: started.set())
        tasks = [asyncio.create_task(model.engine.generate(each)) for each in (long, *asked)]
        await asyncio.wait_for(started.wait(), 60)
        return len(tasks)

    asyncio.run(leave())
    assert [reply.token_ids for reply in ask(model.engine, asked)] == expected


# ---- weights and versions


def test_a_reply_carries_the_version_of_its_dispatch(world):
    world.engine.load(7)
    assert ask(world.engine, [request([8], max_tokens=2)])[0].policy_version == world.engine.version == 7
    world.engine.load(8)
    assert ask(world.engine, [request([8], max_tokens=2)])[0].policy_version == 8


def test_adapters_cannot_change_under_a_running_reply(model):
    before = model.engine.version

    async def play():
        task = asyncio.create_task(model.engine.generate(request([8], "one", max_tokens=5)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="while replies were being generated"):
            model.engine.load(before + 1)
        return await task

    assert asyncio.run(play()).policy_version == model.engine.version == before


def test_an_engine_of_its_own_weights_keeps_them_while_the_learner_moves_its(model):
    if not model.engine.own_weights:
        with pytest.raises(RuntimeError, match="the learner's own weights"):
            model.engine.hold(["one"])
        return
    asked = [request([8, 9, 10], "one", seed=5, max_tokens=8)]
    before = model.plain("one")
    model.engine.hold(["one", "somebody else's"])
    stirred(model.policy, seed=17, size=0.3)
    (reply,) = ask(model.engine, asked)
    found = torch.tensor(reply.logprobs)
    torch.testing.assert_close(found, scores(before, asked[0], reply), atol=TOLERANCE, rtol=0)
    assert float((found - scores(model.plain("one"), asked[0], reply)).abs().max()) > 100 * TOLERANCE
    model.engine.load(model.engine.version + 1)
    (reply,) = ask(model.engine, asked)
    now = scores(model.plain("one"), asked[0], reply)
    torch.testing.assert_close(torch.tensor(reply.logprobs), now, atol=TOLERANCE, rtol=0)


def test_a_script_has_nothing_that_could_move():
    engine = scripted_world().engine
    assert engine.own_weights
    engine.hold(["one"])
    assert ask(engine, [request([8], max_tokens=9)])[0].token_ids == SCRIPT


def test_new_weights_are_spoken_with_and_prefixes_of_the_old_forgotten(model):
    random = np.random.default_rng(3)
    asked = [request(random.integers(4, 16, size=LONG).tolist(), adapter, seed=3, max_tokens=6) for adapter in ADAPTERS]
    for version, seed in ((20, 11), (21, 12), (22, 13)):
        ask(model.engine, asked)  # whatever can be kept is
        untouched = snapshot(model.policy, "two")
        stirred(model.policy, seed=seed, size=0.3)
        for name, tensor in model.policy.parameters("two").items():  # only "one" learns
            tensor.data = untouched[name]
        model.engine.load(version)
        for each, reply in zip(asked, ask(model.engine, asked), strict=True):
            now = scores(model.plain(each.adapter), each, reply)
            torch.testing.assert_close(torch.tensor(reply.logprobs), now, atol=TOLERANCE, rtol=0)


# ---- limits, counts, listeners


def test_what_cannot_fit_is_refused_with_its_numbers(model):
    assert len(ask(model.engine, [request([8] * 250, max_tokens=6, greedy=True)])[0].token_ids) <= 6
    with pytest.raises(MarftError, match=r"251 tokens.* 6 .*context of 256"):
        ask(model.engine, [request([8] * 251, max_tokens=6)])
    with pytest.raises(MarftError, match="empty"):
        ask(model.engine, [request([], max_tokens=1)])


def test_usage_counts_what_was_asked_and_sampled(world):
    before = world.engine.usage
    asked = mixed(6)
    replies = ask(world.engine, asked)
    after = world.engine.usage
    assert after.prompt_tokens - before.prompt_tokens == sum(len(each.prompt_ids) for each in asked)
    assert after.sampled_tokens - before.sampled_tokens == sum(len(reply.token_ids) for reply in replies)
    assert 0 <= after.prompt_tokens_computed - before.prompt_tokens_computed <= after.prompt_tokens
    assert (after.seconds > before.seconds) == (world.policy is not None)  # a script computes nothing


def test_a_listener_hears_the_ids_in_order_and_in_its_own_thread(model):
    heard: dict[int, list[int]] = {}
    asked = [
        listening(each, lambda token, place=place: heard.setdefault(place, []).append(token))
        for place, each in enumerate(mixed(6))
    ]
    replies = ask(model.engine, asked)
    assert [tuple(heard[place]) for place in range(6)] == [reply.token_ids for reply in replies]


def test_what_a_listener_raises_reaches_the_one_who_asked(model):
    def refuse(token: int) -> None:
        raise KeyError("no more of this")

    with pytest.raises(KeyError, match="no more of this"):
        ask(model.engine, [listening(Request((8,), "one", mixed(1)[0].sampling, (1,)), refuse)])
    (reply,) = ask(model.engine, [request([8, 9], "one", seed=1, max_tokens=3)])
    assert reply.token_ids
