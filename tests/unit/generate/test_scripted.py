"""The generator without a model."""

import asyncio

import pytest

from builders import ask, request, tiny_base
from marft.generate.base import Usage
from marft.generate.scripted import Scripted


@pytest.fixture(scope="module")
def chat():
    return tiny_base().chat


def test_a_list_is_answered_in_order(chat):
    engine = Scripted(chat, ["ab", [8, 9]])
    engine.load(3)
    first, second = ask(engine, [request([8, 8], max_tokens=5), request([9], max_tokens=5)])
    end = chat.stop_ids[0]
    assert (first.token_ids, first.stop, first.policy_version) == ((*chat.encode("ab"), end), "stop", 3)
    assert (second.token_ids, second.stop, second.logprobs) == ((8, 9), "length", (0.0, 0.0))
    assert [each.prompt_ids for each in engine.requests] == [(8, 8), (9,)]
    assert engine.usage == Usage(prompt_tokens=3, sampled_tokens=5)
    with pytest.raises(IndexError, match="no answer left"):
        ask(engine, [request([8])])


def test_a_function_sees_the_request_and_may_wait_or_raise(chat):
    async def late(asked):
        await asyncio.sleep(0)
        return asked.adapter

    def fail(asked):
        raise OSError("gone")

    (reply,) = ask(Scripted(chat, late), [request([8], "ba", max_tokens=5)])
    assert chat.decode(reply.token_ids) == "ba"
    with pytest.raises(OSError, match="gone"):
        ask(Scripted(chat, fail), [request([8])])


def test_a_long_answer_is_cut_as_a_sampled_one_would_be(chat):
    (reply,) = ask(Scripted(chat, ["abcd"]), [request([8], max_tokens=2)])
    assert (reply.token_ids, reply.stop) == (chat.encode("ab"), "length")
