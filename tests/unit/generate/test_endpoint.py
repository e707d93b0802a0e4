"""A frozen partner behind an OpenAI-compatible address: what is asked, what is answered, and everything between."""

import asyncio
import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from builders import request, tiny_base
from marft.config import EndpointConfig, SamplingConfig
from marft.generate.base import Request
from marft.generate.endpoint import Endpoint, EndpointGenerator
from marft.models.chat import Exchange
from marft.types import MarftError

SAMPLING = SamplingConfig(max_tokens=7, temperature=0.5)
KEY = "sk-secret-123"
MESSAGES = [{"role": "user", "content": "hi"}]


def said(text, ended="stop"):
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": ended}]}


class Server:
    """Answers with `script`, one entry per request, the last again and again.

    An entry is (status, body, *headers) or a function that returns it; a body of several pieces comes in drops.
    """

    def __init__(self):
        self.script = [(200, said("hello"))]
        self.asked = []
        self.busy = self.busiest = 0
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.asked.append((self.path, dict(self.headers), body))
                    outer.busy += 1
                    outer.busiest = max(outer.busiest, outer.busy)
                    answer = outer.script[min(len(outer.asked), len(outer.script)) - 1]
                try:
                    status, body, *headers = answer() if callable(answer) else answer
                    pieces = body if isinstance(body, list) else [body]
                    pieces = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in pieces]
                    self.send_response(status)
                    for name, value in {"Content-Length": str(sum(map(len, pieces))), **dict(headers)}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    for piece in pieces:
                        self.wfile.write(piece)
                        time.sleep(0.05 if len(pieces) > 1 else 0)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has given up
                finally:
                    with lock:
                        outer.busy -= 1

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PARTNER_KEY", KEY)
    server = Server()
    yield server
    server.close()


def endpoint(server, **settings):
    return Endpoint(server.url, "partner", **{"key_env": "PARTNER_KEY", "pause": 0.01, **settings})


def chat(endpoint, messages=MESSAGES, sampling=SAMPLING, greedy=False, seed=3):
    return asyncio.run(endpoint.chat(messages, sampling, greedy, seed))


def fault(endpoint, **settings):
    with pytest.raises(MarftError) as caught:
        chat(endpoint, **settings)
    text = str(caught.value)
    assert "\n" not in text
    assert KEY not in text
    return text


def test_what_is_asked_and_what_is_answered(server):
    assert chat(endpoint(server)) == ("hello", "stop")
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "partner", "messages": MESSAGES, "max_tokens": 7, "temperature": 0.5, "seed": 3,
    }  # fmt: skip


def test_greedy_and_the_optional_settings(server):
    chat(endpoint(server, key_env=None), sampling=SamplingConfig(top_p=0.9, top_k=5), greedy=True, seed=2**40 + 5)
    _, headers, body = server.asked[0]
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"]) == (0.0, 0.9, 5, 5)
    assert "Authorization" not in headers


@pytest.mark.parametrize("address", ["{}/", "{}?api-version=1"])
def test_the_address_may_end_in_a_slash_or_carry_a_query(server, address):
    chat(Endpoint(address.format(server.url), "partner"))
    assert server.asked[0][0].partition("?")[0] == "/v1/chat/completions"
    assert ("api-version=1" in server.asked[0][0]) == ("?" in address)


@pytest.mark.parametrize(
    ("content", "ended", "expected"),
    [
        ("cut of", "length", ("cut of", "length")),
        ("", "stop", ("", "stop")),
        (None, "length", ("", "length")),  # all tokens went into thinking
        ("with a reason of its own", "eos", ("with a reason of its own", "stop")),
        ("ünïcode ✓", None, ("ünïcode ✓", "stop")),
    ],
)
def test_ways_to_end(server, content, ended, expected):
    server.script = [(200, said(content, ended))]
    assert chat(endpoint(server)) == expected


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_what_may_pass_is_asked_again(server, status):
    server.script = [(status, {"error": {"message": "busy"}}), (200, said("better"))]
    assert chat(endpoint(server)) == ("better", "stop")
    assert len(server.asked) == 2


def test_the_server_may_say_how_long_to_wait(server):
    server.script = [(429, {}, ("Retry-After", "0.3")), (200, said("ok"))]
    started = time.perf_counter()
    assert chat(endpoint(server)) == ("ok", "stop")
    assert 0.3 <= time.perf_counter() - started < 5
    server.asked.clear()
    server.script = [(503, {}, ("Retry-After", "Wed, 21 Oct 2099 07:28:00 GMT")), (200, said("ok"))]
    started = time.perf_counter()
    chat(endpoint(server))
    assert time.perf_counter() - started < 5


def test_patience_ends(server):
    server.script = [(503, {"error": {"message": f"overloaded, {KEY}"}})]
    text = fault(endpoint(server, retries=2))
    assert "answered 503: overloaded, *** (asked 3 times)" in text
    assert f"endpoint {server.url} (model partner)" in text
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_will_not_pass_is_asked_once(server, status):
    server.script = [(status, {"error": {"message": f"no model\npartner for {KEY}"}})]
    assert f"answered {status}: no model partner for ***" in fault(endpoint(server))
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_named_by_its_variable(server, status):
    server.script = [(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})]
    assert fault(endpoint(server)).endswith(f"answered {status}: it refuses the key in PARTNER_KEY")
    assert "endpoint.key_env" in fault(endpoint(server, key_env=None))
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "body",
    [b"<html>hello</html>", b"", b"\xff\xfe", b"[]", b"null", b'{"choices": []}', b'{"choices": [{"text": "x"}]}',
     b'{"choices": [{"message": {"content": 7}}]}', b'{"choices": [{"message": null}]}'],
)  # fmt: skip
def test_an_answer_of_another_form_is_refused(server, body):
    server.script = [(200, body)]
    assert "did not answer as a chat endpoint does" in fault(endpoint(server))
    assert len(server.asked) == 1


def slow(seconds):
    def answer():
        time.sleep(seconds)
        return 200, said("late")

    return answer


def test_a_slow_answer_is_given_up_and_asked_for_again(server):
    server.script = [slow(2.0), (200, said("in time"))]
    started = time.perf_counter()
    assert chat(endpoint(server, timeout=0.3)) == ("in time", "stop")
    assert time.perf_counter() - started < 1.5
    server.script = [slow(1.0)]
    assert "gave no answer within 0.2 s (asked 2 times)" in fault(endpoint(server, timeout=0.2, retries=1))


def test_an_answer_in_drops_is_slow_too(server):
    server.script = [(200, [b" "] * 100)]
    started = time.perf_counter()
    assert "gave no answer within 0.3 s" in fault(endpoint(server, timeout=0.3, retries=0))
    assert time.perf_counter() - started < 2


def test_a_connection_that_breaks_off_is_tried_again(server):
    server.script = [(200, b"half", ("Content-Length", "1000")), (200, said("whole"))]
    assert chat(endpoint(server)) == ("whole", "stop")


def test_nobody_there(server):
    server.close()
    text = fault(endpoint(server, retries=1))
    assert "could not be reached" in text
    assert server.url in text


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://host/v1", "http://", "http://host:port", "/v1"])
def test_what_is_no_address_is_refused_at_once(url):
    with pytest.raises(MarftError, match=r"endpoint\.url"):
        Endpoint(url, "partner")


def test_secrets_in_the_address_are_not_shown(server):
    server.script = [(404, {})]
    url = server.url.replace("http://", "http://me:pass%20word@") + "?key=hidden"
    text = fault(Endpoint(url, "partner"))
    assert server.url in text
    assert not any(secret in text for secret in ("me:", "pass", "hidden"))


def test_a_missing_or_impossible_key_is_named(server, monkeypatch):
    monkeypatch.delenv("PARTNER_KEY")
    assert "PARTNER_KEY is not set" in fault(endpoint(server))
    for wrong in ("schlüssel", "two words", "line\nbreak"):
        monkeypatch.setenv("PARTNER_KEY", wrong)
        text = fault(endpoint(server))
        assert "PARTNER_KEY holds something" in text
        assert wrong not in text
    monkeypatch.setenv("PARTNER_KEY", f"{KEY}\n")  # as `$(cat key)` may leave it
    chat(endpoint(server))
    assert server.asked[0][1]["Authorization"] == f"Bearer {KEY}"


def test_the_key_is_in_no_log(server, caplog):
    with caplog.at_level(logging.DEBUG):
        server.script = [(500, {}), (200, said("ok"))]
        chat(endpoint(server))
    assert KEY not in caplog.text
    assert KEY not in repr(endpoint(server))


def test_only_so_many_at_once_and_in_every_loop_anew(server):
    server.script = [slow(0.1)]
    partner = endpoint(server, concurrency=2)

    async def six():
        return await asyncio.gather(*(partner.chat(MESSAGES, SAMPLING, False, seed) for seed in range(6)))

    for _ in range(2):  # a rollout has a loop of its own
        assert asyncio.run(six()) == [("late", "stop")] * 6
        assert server.busiest == 2


def test_a_cancelled_wait_frees_its_turn(server):
    server.script = [slow(5.0), (200, said("next"))]
    partner = endpoint(server, concurrency=1)

    async def play():
        first = asyncio.create_task(partner.chat(MESSAGES, SAMPLING, False, 0))
        while not server.asked:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await partner.chat(MESSAGES, SAMPLING, False, 1)

    assert asyncio.run(play()) == ("next", "stop")


# ---- as a generator


def generator(server, **settings):
    settings = {"url": server.url, "model": "partner", "key_env": "PARTNER_KEY", **settings}
    return EndpointGenerator(EndpointConfig(**settings), tiny_base().chat, 64)


def test_it_answers_requests_in_messages_and_in_ids(server):
    server.script = [(200, said("ab")), (200, said("cd", "length"))]
    partner = generator(server)
    chat, drawn = partner.chat, []
    asked = Request(
        prompt_ids=(5, 6), adapter=None, sampling=SAMPLING, seed=(1, 2), profile="be d", on_token=drawn.append,
        exchanges=(Exchange("a"), Exchange("b", chat.encode("c") + chat.stop_ids), Exchange("d", role="tool")),
    )  # fmt: skip
    partner.load(4)
    reply = asyncio.run(partner.generate(asked))
    assert reply.token_ids == (*chat.encode("ab"), chat.stop_ids[0])
    assert chat.decode(reply.token_ids) == "ab"
    assert reply.logprobs == (0.0, 0.0, 0.0)
    assert (reply.stop, reply.policy_version) == ("stop", 4)
    assert drawn == list(reply.token_ids)
    assert server.asked[0][2]["messages"] == [
        {"role": "system", "content": "be d"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    cut = asyncio.run(partner.generate(asked))
    assert (cut.token_ids, cut.stop) == (chat.encode("cd"), "length")
    assert (partner.usage.prompt_tokens, partner.usage.sampled_tokens) == (4, 5)


def test_a_request_fixes_the_seed(server):
    partner = generator(server)
    for seed in (1, 1, 2):
        asyncio.run(partner.generate(request([5], seed=seed)))
    seeds = [body["seed"] for _, _, body in server.asked]
    assert seeds[0] == seeds[1] != seeds[2]


def test_without_its_key_a_partner_is_refused_before_anyone_plays(server, monkeypatch):
    monkeypatch.delenv("PARTNER_KEY")
    with pytest.raises(MarftError, match="PARTNER_KEY is not set"):
        generator(server)


def test_nothing_said_is_still_an_action_and_words_are_kept_whole(server):
    words = ("ab " * 60).strip()
    server.script = [(200, said(None, "length")), (200, said(words))]
    partner = generator(server, key_env=None)
    request = Request(prompt_ids=(1, 2), adapter=None, sampling=SAMPLING, seed=(1,))
    silent, wordy = (asyncio.run(partner.generate(request)) for _ in range(2))
    assert (silent.token_ids, silent.text) == (partner.chat.stop_ids[:1], "")  # the episode is not thrown away
    assert wordy.text == words  # as it was said, whatever the other model's tokenizer makes of it
    assert len(wordy.token_ids) == len(wordy.logprobs) == 64
