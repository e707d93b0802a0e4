"""What is checked without weights and data, and what then is not."""

import pytest

from builders import config_of
from marft.config import EnvironmentConfig
from marft.run.offline import offline_game, source_of
from marft.run.preflight import check_offline
from marft.types import MarftError

DEEPSCALER = {"name": "math", "benchmark": "deepscaler"}


@pytest.mark.parametrize(
    ("environment", "source"),
    [
        ({"name": "math", "benchmark": "gsm8k"}, "the benchmark 'gsm8k'"),
        ({"name": "math", "benchmark": "gsm8k", "path": "x.jsonl"}, ""),
        ({"name": "code", "benchmark": "humaneval", "heldout_path": "x.jsonl"}, ""),
        ({"name": "question_answer", "hub": "openai/gsm8k"}, "'openai/gsm8k'"),
        ({"name": "relay", "symbols": ["a", "b"]}, ""),
        ({"name": "mine:World", "hub": "anything"}, ""),
    ],
)
def test_what_would_be_fetched(environment, source):
    assert source_of(EnvironmentConfig(**environment)) == source


def test_a_local_folder_is_not_fetched(tmp_path):
    assert source_of(EnvironmentConfig(name="math", hub=str(tmp_path))) == ""


def test_a_game_without_its_data_cannot_be_played():
    game = offline_game(config_of("ann", "bob", environment=DEEPSCALER), "c")
    assert (game.names, game.environment.name) == (("ann", "bob"), "math")
    with pytest.raises(MarftError, match="environment 'math' was not loaded"):
        game.environment.size("train")


def test_what_needs_no_network_is_tried_out():
    game, left_out = check_offline(config_of("ann", "bob"), "c")
    assert game.environment.name == "relay"
    assert game.environment.task("train", 0).prompt == "c"
    assert len(left_out) == 1


def test_a_world_that_breaks_a_rule_is_found_without_weights(tmp_path, monkeypatch):
    (tmp_path / "broken_world.py").write_text(
        "class World:\n"
        "    name = 'broken'\n"
        "    def size(self, split): return 0\n"
        "    def task(self, split, index): ...\n"
        "    def reset(self, task, agents, seed): ...\n"
        "    def observe(self, state, agent): return ''\n"
        "    def step(self, state, messages): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MarftError, match=r"c: .*size\('train'\) must be None or above 0, not 0"):
        check_offline(config_of("ann", environment={"name": "broken_world:World"}), "c")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"environment": {**DEEPSCALER, "benchmark": "deepscale"}}, "c: .*benchmark.*'deepscaler'"),
        ({"environment": {**DEEPSCALER, "instructions": "x"}}, "c: unknown key 'environment.instructions'"),
        ({"environment": {**DEEPSCALER, "answerer": "bop"}}, "c: environment.answerer: no agent 'bop'.* 'bob'"),
        ({"environment": {**DEEPSCALER, "attempts": 2}}, "c: team.turns: environment.attempts 2 needs as many turns"),
        ({"environment": {"name": "maths"}}, "c: environment.name: no environment 'maths'; did you mean 'math'"),
        ({"model": {"name": "tinny"}}, "c: model.name: 'tinny' is neither .*did you mean 'tiny'"),
        ({"model": {"name": "no/such/folder"}}, "c: model.name: 'no/such/folder' is neither a built-in model"),
        ({"model": {"name": "tiny", "context": 3}}, "c: model.context: a reply of .*max_tokens 3 leaves no room"),
        ({"model": {"name": "tiny", "context": 4096}}, "c: model.context: 4096 is longer than the 1024 tokens"),
        ({"lora": {"targets": ["q_prox"]}}, r"c: lora.targets: \['q_prox'\] do not fit tiny"),
        (
            {"model": {"name": "tiny", "tuning": "full"}, "rollout": {"engine": "vllm"}},
            "c: rollout.engine: vllm is given whole weights and adapters only",
        ),
        ({"team": {"dependency": {"edges": [["ann", "bop"]]}}}, "c: team.dependency.edges: .*no agent 'bop'"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(sections, words):
    with pytest.raises(MarftError, match=words):
        check_offline(config_of("ann", "bob", **sections), "c")


def test_tools_are_checked_but_servers_are_not_started():
    server = {"tools": {"far": {"kind": "mcp", "command": "no-such-program"}}}
    _, left_out = check_offline(config_of({"name": "ann", "tools": ["calculator", "far"]}, "bob", **server), "c")
    assert "the server of tools.far was not started" in left_out
    with pytest.raises(MarftError, match=r"c: team.agents.ann.tools: there is no tool 'calculater'; did you mean"):
        check_offline(config_of({"name": "ann", "tools": ["calculater"]}, "bob"), "c")


def test_a_model_of_unknown_shape_is_accepted_with_a_note():
    _, left_out = check_offline(config_of("ann", "bob", model={"name": "somebody/model"}), "c")
    assert left_out[-1].startswith("the shape of somebody/model is not known here")
