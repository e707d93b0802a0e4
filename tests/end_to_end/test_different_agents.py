"""Teams of agents that differ: other base models and tokenizers, whole weights, and an endpoint that plays along."""

import http.server
import json
import threading

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from marft.models.tiny import build_tiny

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def other_model(tmp_path):
    """A model of another width, with other characters under other numbers and another template."""
    model, tokenizer = build_tiny(5, "ba\n .:[]Youredsthcnwi", hidden=48, template=TEMPLATE)
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    return str(tmp_path / "other")


def mixed(config, other_model, level="token", **agent):
    solver = {"name": "speaker", "model": {"name": other_model, "dtype": "float32", **agent}}
    team = {"agents": [{"name": "scout", "profile": "You saw it."}, solver]}
    update = {"level": level, "lr": 0.003, "carry": "happo", "kl_reference": 0.01, "entropy": 0.01}
    return config(team=team, update=update, iterations=3)


@pytest.mark.parametrize(("level", "tuning"), [("token", "lora"), ("action", "full")])
def test_a_mixed_team_trains_resumes_bit_for_bit_and_evaluates_as_it_logged(
    marft, config, other_model, tmp_path, rows, state, level, tuning
):
    file = mixed(config, other_model, level, tuning=tuning)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert marft("train", file, "--run", whole).code == 0
    assert marft("train", file, "iterations=2", "--run", parts).code == 0
    resumed = marft("train", "--run", parts, "--resume", "iterations=3")
    assert resumed.code == 0, resumed.err
    assert rows(whole) == rows(parts)
    assert state(whole) == state(parts)
    newest = max(each for each in (whole / "checkpoints").iterdir() if each.name.isdigit())
    assert {each.name for each in (newest / "adapters").iterdir()} == {"scout", "speaker", "critic", "critic-2"}
    report = marft("eval", whole, "--json")
    assert report.code == 0, report.err
    logged = json.loads((whole / "evaluations" / "000003.json").read_text())
    assert json.loads(report.out) == logged
    assert set(logged["retention"]) == {"scout", "speaker"}
    assert {"critic", "critic-2"} <= rows(whole)[-1].keys()


def test_each_agent_is_exported_on_its_own_base(marft, config, other_model, tmp_path):
    file = mixed(config, other_model, tuning="full")
    assert marft("train", file, "iterations=2", "--run", tmp_path / "run").code == 0
    assert marft("export", tmp_path / "run", "--agent", "scout", "-o", tmp_path / "scout").code == 0
    assert marft("export", tmp_path / "run", "--agent", "speaker", "-o", tmp_path / "speaker").code == 0
    assert (tmp_path / "scout" / "adapter_config.json").is_file()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "speaker")
    start = AutoModelForCausalLM.from_pretrained(other_model)
    assert model.config.hidden_size == 48
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters(), strict=True)]
    assert any(changed)
    assert AutoTokenizer.from_pretrained(tmp_path / "speaker").chat_template == TEMPLATE


def test_check_and_play_speak_each_models_own_tokens(marft, config, other_model):
    file = mixed(config, other_model)
    checked = marft("check", file)
    assert checked.code == 0, checked.err
    assert "tiny (float32" in checked.out
    assert "for scout" in checked.out
    assert "for speaker" in checked.out
    asked = marft("play", file, "--question", "ab")
    assert asked.code == 0, asked.err
    assert "who read whom: scout; speaker ← scout" in asked.out


# ---- an endpoint


@pytest.fixture
def endpoint():
    """A chat endpoint on this machine that always says `a`; `.asked` keeps what it was sent."""

    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.asked = asked
    yield server
    server.shutdown()
    server.server_close()


def test_an_endpoint_plays_along_and_is_never_trained(marft, config, endpoint, tmp_path):
    partner = {"name": "speaker", "endpoint": {"url": f"http://127.0.0.1:{endpoint.server_port}", "model": "big"}}
    file = config(team={"agents": [{"name": "scout", "profile": "You saw it."}, partner]}, iterations=2)
    trained = marft("train", file, "--run", tmp_path / "run")
    assert trained.code == 0, trained.err
    newest = max(each for each in (tmp_path / "run" / "checkpoints").iterdir() if each.name.isdigit())
    assert {each.name for each in (newest / "adapters").iterdir()} == {"scout", "critic"}
    asked = endpoint.asked[0]
    assert asked["model"] == "big"
    assert [each["role"] for each in asked["messages"]] == ["user"]
    assert "scout: " in asked["messages"][0]["content"]
    episode = json.loads((tmp_path / "run" / "episodes" / "train-000000.jsonl").read_text().splitlines()[0])
    assert episode["actions"][1]["text"] == "a"
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "scout" in metrics["entropy"]
    assert "speaker" not in metrics["entropy"]
    refused = marft("export", tmp_path / "run", "--agent", "speaker")
    assert refused.code == 2
    assert "agent 'speaker' is the endpoint" in refused.err


def test_an_endpoint_that_is_not_there_fails_episodes_under_the_agents_name(marft, config, tmp_path):
    partner = {"name": "speaker", "endpoint": {"url": "http://127.0.0.1:9", "model": "big", "retries": 0}}
    refused = marft("train", config(team={"agents": [{"name": "scout"}, partner]}), "--run", tmp_path / "run")
    assert refused.code == 2
    assert "speaker: endpoint http://127.0.0.1:9 (model big) could not be reached" in refused.err
    # What was said until then is kept, so that the reason can be read
    kept = tmp_path / "run" / "episodes" / "failed.jsonl"
    assert f"all of them are in {kept}" in refused.err
    first = json.loads(kept.read_text().splitlines()[0])
    assert first["error"]["who"] == "speaker"


def test_check_says_who_is_played_elsewhere(marft, config):
    partner = {"name": "speaker", "endpoint": {"url": "http://127.0.0.1:9", "model": "big"}}
    checked = marft("check", config(team={"agents": [{"name": "scout"}, partner]}))
    assert checked.code == 0, checked.err
    assert "http://127.0.0.1:9 (model big) for speaker" in checked.out
    assert "'speaker' is played by http://127.0.0.1:9 (model big), which was not asked" in checked.out


@pytest.mark.parametrize(
    ("agent", "fault"),
    [
        ({"endpoint": {"url": "http://x", "model": "m"}, "trainable": True}, "is an endpoint, which cannot be trained"),
        ({"endpoint": {"url": "http://x", "model": "m"}, "model": "tiny"}, "it has no `model` and no `adapter` here"),
        ({"endpoint": {"url": "nowhere", "model": "m"}}, "'nowhere' is not an address"),
        ({"endpoint": {"url": "http://x", "model": "m", "key_env": "MARFT_NO_SUCH"}}, "MARFT_NO_SUCH is not set"),
        ({"model": "no-such-model"}, "'no-such-model' is neither a built-in model nor a folder"),
        ({"model": {"name": "tiny", "tuning": "full", "quantise": "4bit"}}, "quantise"),
        ({"adapter": "scout", "model": {"name": "tiny", "seed": 3}}, "share the adapter 'scout' but not the model"),
        ({"adapter": "critic-2"}, "is a critic's own"),
    ],
)
def test_mistakes_are_one_sentence(marft, config, agent, fault):
    refused = marft("check", config(team={"agents": [{"name": "scout"}, {"name": "speaker", **agent}]}))
    assert (refused.code, refused.out) == (2, "")
    assert fault in refused.err
    assert refused.err.count("\n") == 1
