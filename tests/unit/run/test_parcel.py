"""What a run from a hub may hold without being refused, whatever its author calls things; what goes to a hub of one."""

import json
import typing
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from marft.config import Config, EnvironmentConfig, parse_config
from marft.run.directory import RunDirectory, to_json
from marft.run.parcel import check_trusted, pack
from marft.run.state import save_training
from marft.team import build_team
from marft.types import MarftError

ROOT = Path(__file__).parents[3]
# Keys that hold words for models somewhere in a config, so that a check that goes by names would pass over them
WORDS = ("profile", "message", "prompt", "hint", "description", "instruction", "question")
AGENTS = [{"name": "ann"}, {"name": "bob"}]
RAW = {"model": {"name": "tiny"}, "team": {"agents": AGENTS}, "environment": {"name": "relay", "symbols": ["a", "b"]}}


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Judge what stands in a config; the sentence, or None where it is trusted."""
    monkeypatch.delenv("MARFT_TRUST_HUB", raising=False)

    def judge(raw):
        text = raw if isinstance(raw, str) else yaml.safe_dump(raw, allow_unicode=True)
        (tmp_path / "config.yaml").write_text(text, encoding="utf8")
        try:
            check_trusted(RunDirectory(tmp_path), "hf://me/duo")
        except MarftError as error:
            return str(error)
        return None

    return judge


TOOLS = [
    ("command", {"kind": "mcp", "command": "touch", "args": ["x"]}),
    ("url", {"kind": "mcp", "url": "http://example.org/mcp"}),
    ("sandbox", {"kind": "python", "sandbox": "limits-only"}),
]


@pytest.mark.parametrize("name", [*WORDS, "shell", "url", "environment"])
@pytest.mark.parametrize(("key", "tool"), TOOLS)
def test_a_tool_is_judged_under_any_name(judged, name, key, tool):
    said = judged({**RAW, "tools": {name: tool}})
    assert said.startswith(f"hf://me/duo: its config reaches outside of marft (tools.{name}.{key}: ")
    assert said.endswith("MARFT_TRUST_HUB=1 if you trust it")


@pytest.mark.parametrize("name", [*WORDS, "url"])
def test_an_agent_is_judged_under_any_name(judged, name):
    endpoint = {"url": "example.org", "model": "m"}  # not even an address
    said = judged({**RAW, "team": {"agents": [{"name": "ann"}, {"name": name, "endpoint": endpoint}]}})
    assert "(team.agents.1.endpoint.url: 'example.org')" in said


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "marft.environments:os.system",
        "é_mod:f",
        "os:é",
        " os:system",
        "os:system\n",
        "os",
        "",
        b"os:system",
    ],
)
@pytest.mark.parametrize("place", ["reward", "team.workflow", "team.dependency.function", "environment.name"])
def test_import_paths_are_judged_by_their_place(judged, place, path):
    raw = {**RAW, "team": {"agents": AGENTS}}
    section, _, key = place.partition(".")
    if place == "team.dependency.function":
        raw["team"]["dependency"] = {"function": path}
    elif key:
        raw[section] = {**raw[section], key: path}
    else:
        raw[section] = path
    said = judged(raw)
    if place == "environment.name" and path in ("os", ""):
        assert said is None  # no path, and no environment either: building the team says so
    else:
        assert f"({place}: " in said


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        ("opponents.1", {"name": "textarena", "game": "TicTacToe-v0", "opponents": {1: "os:system"}}),
        ("opponents.1", {"name": "textarena", "game": "TicTacToe-v0", "opponents": {1: "é:ü"}}),
        ("opponents.1", {"name": "textarena", "game": "TicTacToe-v0", "opponents": {1: b"os:system"}}),
        ("parameters.env_name", {"name": "textarena", "game": "BabyAiText-v0", "parameters": {"env_name": "m:X-v0"}}),
        ("parameters.prompt", {"name": "textarena", "game": "Chess-v0", "parameters": {"prompt": "m:X"}}),
        ("game", {"name": "textarena", "game": "Debate-v0-long"}),
        ("dataset", {"name": "reasoning", "dataset": "codeio"}),
        ("datasets.0.dataset", {"name": "reasoning", "datasets": [{"dataset": "codeio"}]}),
        ("hub", {"name": "math", "hub": "https://example.org/x"}),
        ("hub", {"name": "math", "hub": "hf://datasets/x/y"}),
        ("sandbox", {"name": "code", "benchmark": "mbpp", "sandbox": "limits-only"}),
        ("prompt.0", {"name": "relay", "prompt": ["m:x"]}),
        ("hint.prompt", {"name": "relay", "hint": {"prompt": "m:x"}}),
        ("hint.*", {"name": "relay", "hint": {"m:x": 1}}),
        ("symbols", {"name": "relay", "symbols": {"a", "b"}}),  # a set is no plain YAML
    ],
)
def test_an_environment_is_handed_no_import_path_and_no_address(judged, key, parameters):
    said = judged({**RAW, "environment": parameters})
    assert f"its config reaches outside of marft (environment.{key}: " in said
    assert "\n" not in said


def test_words_stay_words(judged):
    agents = [{"name": "ann", "profile": "os:system"}, {"name": "bob", "profile": "See https://example.org:80/x?y"}]
    world = {"name": "relay", "prompt": "os:system", "hint": "It is: {symbol}"}
    tools = {"papers": {"kind": "search", "path": "papers", "description": "os:system"}, "sums": {"kind": "calculator"}}
    assert judged({**RAW, "team": {"agents": agents, "message": "{name}:{text}"}, "environment": world}) is None
    assert judged({**RAW, "tools": {**tools, "run": {"kind": "python"}}}) is None


@pytest.mark.parametrize(
    "text",
    ["[", "- team", "", "team: {agents: 1}", "when: 2026-99-99", "a: " + "[" * 4000, "tools: {x: {kind: other}}",
     yaml.safe_dump({**RAW, "hooks": "os:system"}), yaml.safe_dump({**RAW, "tools": [{"kind": "mcp"}]})],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(judged, text):
    assert judged(text).startswith("hf://me/duo: its config cannot be judged, so it is not opened: ")


def test_a_file_that_is_no_text_is_refused(judged, tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MarftError, match="cannot be judged"):
        check_trusted(RunDirectory(tmp_path), "hf://me/duo")


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda file: file.name)
def test_examples_are_trusted(judged, file):
    said = judged(file.read_text(encoding="utf8"))
    assert said is None, said


# Every text that a config may hold, and why it is safe to read from a stranger; who adds one must judge it
HARMLESS = {
    "Config.name", "Config.device", "ModelConfig.name", "LoraConfig.targets", "AgentConfig.name", "AgentConfig.profile",
    "AgentConfig.adapter", "AgentConfig.model", "AgentConfig.tools", "GraphConfig.edges", "GraphConfig.recall",
    "EdgeConfig.speaker", "EdgeConfig.reader", "EdgeConfig.when", "DebateConfig.judge",
    "OrchestratorConfig.orchestrator", "OrchestratorConfig.stop", "TeamConfig.message",
    "SearchConfig.path", "SearchConfig.description",
    "RunConfig.folder", "RunConfig.project",
}  # fmt: skip
JUDGED = {
    "Config.reward", "TeamConfig.workflow", "FunctionConfig.function", "EnvironmentConfig.name",
    "EndpointConfig.url", "EndpointConfig.model", "EndpointConfig.key_env",
    "McpConfig.command", "McpConfig.args", "McpConfig.env", "McpConfig.url", "McpConfig.tools",
}  # fmt: skip


def test_every_text_of_the_schema_is_judged():
    found, seen = set(), set()

    def texts(annotation):
        """Whether a text may stand here; sections within are looked at by themselves."""
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            look(annotation)
            return False
        if typing.get_origin(annotation) is typing.Literal:
            return False
        return annotation in (str, typing.Any) or True in [texts(each) for each in typing.get_args(annotation)]

    def look(model):
        if model not in seen:
            seen.add(model)
            found.update(
                f"{model.__name__}.{key}" for key, each in model.model_fields.items() if texts(each.annotation)
            )

    look(Config)
    found.discard("Config.tools")  # its keys, which a pattern holds to letters
    assert found == HARMLESS | JUDGED
    assert {each.__name__ for each in seen if each.model_config.get("extra") != "forbid"} == {
        EnvironmentConfig.__name__
    }


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Pack an untrained run of a config with other sections and rows; the folder, and the keys that were cut."""
    monkeypatch.delenv("MARFT_PUBLISH_ARGS", raising=False)
    count = iter(range(99))

    def make(rows=(), **sections):
        number = next(count)
        team = build_team(parse_config(RAW))
        run = RunDirectory.create(parse_config({**RAW, **sections}), tmp_path / f"run{number}")
        save_training(run, team, {}, 1)
        run.metrics_file.write_text("".join(to_json(row) + "\n" for row in rows), encoding="utf8")
        at = tmp_path / f"out{number}"
        at.mkdir()
        return at, pack(run, "latest", "me/duo", at)

    return make


def server(**keys):
    return {"tools": {"prompt": {"kind": "mcp", **keys}}}


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("tools.prompt.url", server(url="https://user:hunter2@example.org/mcp")),
        ("tools.prompt.url", server(url="https://hunter2@example.org/mcp")),
        ("tools.prompt.url", server(url="https://example.org/mcp?api_key=hunter2")),
        ("tools.prompt.url", server(url="https://example.org/mcp#hunter2")),
        ("tools.prompt.url", server(url="https://[hunter2@example.org/mcp")),
        ("tools.prompt.args", server(command="serve", args=["--token", "hunter2"])),
        ("tools.prompt.args", server(command="serve", args=["hunter2"])),
        ("tools.prompt.env.KEY", server(command="serve", env={"KEY": "hunter2"})),
        ("tools.prompt.env.KEY", server(command="serve", env={"KEY": "$$hunter2"})),
        ("tools.prompt.env.KEY", server(command="serve", env={"KEY": "$NAME-hunter2"})),
        ("team.agents.1.endpoint.url", {"team": {"agents": [
            {"name": "ann"}, {"name": "bob", "endpoint": {"url": "https://e.org/v1?key=hunter2", "model": "m"}}]}}),
        ("environment.store", {"environment": {"name": "my:World", "store": "at postgres://me:hunter2@db/x"}}),
    ],
)  # fmt: skip
def test_what_may_be_secret_is_refused_by_its_key(packed, key, sections):
    with pytest.raises(MarftError, match=r"config.yaml: ") as error:
        packed(**sections)
    assert f"config.yaml: {key}: " in str(error.value)
    assert "hunter2" not in str(error.value)
    assert "\n" not in str(error.value)


def test_addresses_without_secrets_and_named_variables_go_up(packed):
    at, cut = packed(**server(url="https://example.org/@me/mcp"))
    assert cut == []
    assert yaml.safe_load((at / "config.yaml").read_text())["tools"]["prompt"]["url"] == "https://example.org/@me/mcp"
    at, _ = packed(**server(command="serve", env={"A": "$KEY", "B": "${KEY}"}))
    assert yaml.safe_load((at / "config.yaml").read_text())["tools"]["prompt"]["env"] == {"A": "$KEY", "B": "${KEY}"}


def test_arguments_go_up_when_that_is_said_and_paths_in_them_are_cut(packed, tmp_path, monkeypatch):
    here = tmp_path / "data of mine"
    here.mkdir()
    (tmp_path / "tool").touch()
    args = [f"--root={tmp_path}/tool", f"-I{tmp_path}/new", f"{tmp_path}:{tmp_path}/tool", str(here), "a/b", "--no=/"]
    with pytest.raises(MarftError, match=r"tools.prompt.args: .*MARFT_PUBLISH_ARGS=1$"):
        packed(**server(command=f"{tmp_path}/tool", args=args))
    monkeypatch.setenv("MARFT_PUBLISH_ARGS", "1")
    at, cut = packed(**server(command=f"{tmp_path}/tool", args=args))
    tool = yaml.safe_load((at / "config.yaml").read_text())["tools"]["prompt"]
    assert tool["command"] == "tool"
    assert tool["args"] == ["--root=tool", "-Inew", f"{tmp_path.name}:tool", "data of mine", "a/b", "--no=/"]
    assert cut == ["tools.prompt.command", *(f"tools.prompt.args.{place}" for place in range(4))]
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in at.rglob("*") if file.is_file())


def test_words_for_models_go_up_as_they_were_learnt_with(packed, tmp_path):
    profile = f"Look into {tmp_path} and at https://example.org/?q=1, or ~nobody."
    agents = [{"name": "ann", "profile": profile}, {"name": "bob", "profile": "~5 words"}]
    at, cut = packed(team={"agents": agents, "message": "~x {text}"})
    assert [each["profile"] for each in yaml.safe_load((at / "config.yaml").read_text())["team"]["agents"]] == [
        profile, "~5 words",
    ]  # fmt: skip
    assert cut == []


def test_texts_of_errors_stay_and_their_counts_go_up(packed):
    rows = [
        {"iteration": 0, "success": 0.5, "failures": {}, "nonfinite": {"x/kl": "nan"}},
        {
            "iteration": 1, "failures": {"environment: no /home/me/secret": 2, "ann: at /home/me": 1, "ann: or": 3,
            "/home/me: gone": 4}, "diverged": {"bob": "bob: in /home/me"}, "play": {"ann": {"replies": 1}},
        },
    ]  # fmt: skip
    at, _ = packed(rows)
    first, second = map(json.loads, (at / "metrics.jsonl").read_text(encoding="utf8").splitlines())
    assert first == rows[0]
    left = "the text was not published"
    assert second == {
        **rows[1],
        "failures": {f"environment: {left}": 2, f"ann: {left}": 4, f"other: {left}": 4},
        "diverged": {"bob": left},
    }
