"""A pushed team plays bit for bit what it plays here; nothing of this machine goes with it; errors are sentences."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from fake_hub import TOKEN, FakeHub, commit_name, pretend, serving
from huggingface_hub import ModelCard, constants

from marft.cli import main
from marft.config import parse_config
from marft.run import checkpoint, hub
from marft.run.directory import RunDirectory
from marft.run.metrics import MetricsWriter
from marft.run.opening import open_team
from marft.run.state import save_training
from marft.team import build_team
from marft.types import MarftError

RAW = {
    "model": {"name": "tiny"},
    "lora": {"r": 4},
    "team": {"agents": [{"name": "scout", "profile": "Look."}, {"name": "speaker", "sees_task": False}]},
    "environment": {"name": "relay", "symbols": ["a", "b"]},
    "rollout": {"sampling": {"max_tokens": 4}},
    "critic": {"kind": "shared"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with two checkpoints whose adapters differ, the earlier of them marked best; nothing was really learnt."""
    place = tmp_path_factory.mktemp("secret-place")
    config = parse_config({**RAW, "run": {"folder": str(place)}})
    team, run = build_team(config), RunDirectory.create(config, place / "mine")
    generator = torch.Generator().manual_seed(0)
    for iteration in (3, 5):
        for adapter in team.backends[0].policy.adapters:
            for parameter in team.backends[0].policy.parameters(adapter).values():
                parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        save_training(run, team, {}, iteration)
    checkpoint.mark_best(run, 3, 0.75)
    interval = {"mean": 0.25, "low": 0.125, "high": 0.5}
    played = {"success": interval, "reward": interval, "tokens": 3.0, "failed": 0, "kinds": {}}
    run.write_evaluation(5, {"tasks": 4, "samples": 2, "sampled": played, "greedy": played})
    with MetricsWriter(run) as writer:
        for iteration in range(5):
            writer.write(iteration, {"success": 0.5, "episodes": 8})
    run.write_episodes("train-000000", [])
    return run


@pytest.fixture
def fake(tmp_path, monkeypatch):
    with serving(FakeHub()) as found:
        pretend(monkeypatch, found, tmp_path / "cache")
        yield found


def weights(team):
    policy = team.backends[0].policy
    found = {(name, key): each for name in policy.adapters for key, each in policy.parameters(name).items()}
    heads = {(name, key): each for name, critic in team.critics.items() for key, each in critic.parameters().items()}
    return {**found, **heads}


def said(target, capsys, *more):
    with pytest.raises(SystemExit) as ended:
        main(["play", str(target), "--question", "who?", "--sample", *more])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(("which", "number"), [("latest", "000005"), ("best", "000003")])
def test_a_pushed_team_plays_bit_for_bit_the_same(trained, fake, capsys, which, number):
    hub.push(trained, "me/duo", which)
    assert list(fake.files("me/duo")).count(f"checkpoints/{number}/manifest.json") == 1
    ours, _ = open_team(str(trained.path), which)
    theirs, words = open_team("hf://me/duo", which)
    assert words == f"hf://me/duo, checkpoint {number}"
    mine, other = weights(ours), weights(theirs)
    assert mine.keys() == other.keys()
    assert any(name == "critic" for name, _ in mine)
    assert all(torch.equal(mine[key], other[key]) for key in mine)
    assert said("hf://me/duo", capsys) == said(trained.path, capsys, "--checkpoint", which)


def test_one_commit_holds_what_is_needed_and_nothing_of_this_machine(trained, fake):
    pushed = hub.push(trained, "me/duo")
    assert pushed == hub.Pushed(f"{fake.url}/me/duo", ())
    assert len(fake.commits["me/duo"]) == 2  # the empty one that makes the repository, and ours
    files = fake.files("me/duo")
    adapters = {f"checkpoints/000005/adapters/{name}" for name in ("scout", "speaker", "critic")}
    assert set(files) == {
        ".gitattributes", "README.md", "config.yaml", "metrics.jsonl", "evaluations/000005.json",
        "checkpoints/000005/manifest.json", "checkpoints/000005/state.json",
        "checkpoints/000005/critic_head.safetensors",
        *(f"{each}/{file}" for each in adapters for file in ("adapter_config.json", "adapter_model.safetensors")),
    }  # fmt: skip
    for name, content in files.items():
        assert b"secret-place" not in content, name
        assert str(Path.home()).encode() not in content or Path.home() == Path("/"), name
    assert yaml.safe_load(files["config.yaml"])["run"]["folder"] == "runs"
    assert files["metrics.jsonl"] == trained.metrics_file.read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.data.library_name == "peft"
    assert "marft play hf://me/duo" in card.text
    assert "0.250 [0.125, 0.500]" in card.text


def test_a_later_push_leaves_one_checkpoint_and_a_revision_finds_the_earlier(trained, fake):
    hub.push(trained, "me/duo", "3")
    hub.push(trained, "me/duo", "5")
    found = {path.split("/")[1] for path in fake.files("me/duo") if path.startswith("checkpoints/")}
    assert found == {"000005"}
    assert checkpoint.iterations(RunDirectory(hub.local("hf://me/duo"))) == [5]
    assert checkpoint.iterations(RunDirectory(hub.local(f"hf://me/duo@{commit_name('me/duo', 1)}"))) == [3]


def test_a_copy_in_the_cache_serves_without_network(trained, fake, monkeypatch):
    hub.push(trained, "me/duo")
    first = hub.local("hf://me/duo")
    count = len(fake.downloads)
    assert hub.local("hf://me/duo") == first
    assert len(fake.downloads) == count
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.local("hf://me/duo") == first


def test_an_agent_of_a_pushed_team_is_exported_as_from_here(trained, fake, tmp_path, capsys):
    hub.push(trained, "me/duo")
    for target, name in (("hf://me/duo", "theirs"), (str(trained.path), "ours")):
        with pytest.raises(SystemExit) as ended:
            main(["export", target, "--agent", "scout", "-o", str(tmp_path / name)])
        assert not ended.value.code, capsys.readouterr().err
    ours, theirs = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("ours", "theirs"))
    assert ours == theirs
    assert "of the run `duo`" in (tmp_path / "theirs" / "README.md").read_text(encoding="utf8")
    with pytest.raises(SystemExit) as ended:
        main(["export", "hf://me/duo", "--agent", "scout"])
    assert ended.value.code == 2
    assert "with -o" in capsys.readouterr().err


def test_private_and_the_command(trained, fake, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["push", str(trained.path), "me/hidden", "--checkpoint", "3", "--private"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"{fake.url}/me/hidden: marft play hf://me/hidden\n"
    assert fake.private == {"me/hidden"}


@pytest.mark.parametrize(
    ("token", "repository", "sentence"),
    [
        (None, "me/duo", r"^me/duo: you are not logged in to the hub; run `hf auth login`, or set HF_TOKEN$"),
        ("hf_reads", "me/duo", r"^me/duo: http://127\S+ refuses your token \(403\)"),
        (TOKEN, "duo", r"^duo: is no name for a repository; write user/name"),
        (TOKEN, "me/du o", r"is no name for a repository"),
        (TOKEN, "me/-duo", r"is no name for a repository"),
    ],
)
def test_what_hinders_a_push_is_one_sentence(trained, fake, tmp_path, monkeypatch, token, repository, sentence):
    pretend(monkeypatch, fake, tmp_path / "cache", token)
    with pytest.raises(MarftError, match=sentence) as error:
        hub.push(trained, repository)
    assert "\n" not in str(error.value)
    assert not fake.commits


def test_what_hinders_opening_is_one_sentence(trained, fake, tmp_path, monkeypatch, capsys):
    for target, sentence in (
        ("hf://me/absent", "has no such repository, or it is private"),
        ("hf://duo", "write it as hf://user/name, or hf://user/name@revision"),
        ("hf://me/duo/more", "write it as hf://user/name"),
        ("hf://me/duo@absent", "the repository has no such revision"),
        ("hf://me/model", "is no run; one is made by `marft push`"),
    ):
        hub.push(trained, "me/duo")
        fake.commits["me/model"] = [{"README.md": b"words", "model.safetensors": b"weights"}]
        with pytest.raises(SystemExit) as ended:
            main(["play", target, "-q", "x"])
        assert ended.value.code == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {target}: ")
        assert sentence in err
        assert err.count("\n") == 1
    assert "model.safetensors" not in fake.downloads
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MarftError, match=r"^hf://me/duo: http://127.0.0.1:9 cannot be reached .* no copy"):
        hub.local("hf://me/duo")
    with pytest.raises(MarftError, match=r"^me/duo: http://127.0.0.1:9 cannot be reached"):
        hub.push(trained, "me/duo")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MarftError, match=r"cannot be reached \(HF_HUB_OFFLINE is set\)"):
        hub.local("hf://me/duo")


def with_config(run, to, **sections):
    """A run with another config and the same checkpoints, in the folder `to`."""
    raw = {**RAW, **sections}
    found = RunDirectory.create(parse_config(raw), to)
    (to / "checkpoints").symlink_to(run.checkpoints.resolve())
    return found


def test_a_local_model_and_secrets_stay_here(trained, fake, tmp_path):
    (tmp_path / "model").mkdir()
    run = with_config(trained, tmp_path / "one", model={"name": str(tmp_path / "model")})
    with pytest.raises(MarftError, match=r"config.yaml: model.name: '.*model' is a folder of this machine"):
        hub.push(run, "me/duo")
    server = {"kind": "mcp", "command": "serve", "env": {"KEY": "plain-words"}}
    run = with_config(trained, tmp_path / "two", tools={"lookup": server})
    with pytest.raises(MarftError, match=r"tools.lookup.env.KEY: its value would be published; write it as \$NAME"):
        hub.push(run, "me/duo")
    assert not fake.commits


def test_paths_in_a_config_are_cut_to_their_names(trained, fake, tmp_path, capsys):
    (tmp_path / "problems.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 4)
    environment = {"name": "question_answer", "path": str(tmp_path / "problems.jsonl")}
    run = with_config(trained, tmp_path / "one", environment=environment)
    with pytest.raises(SystemExit):
        main(["push", str(run.path), "me/duo"])
    out = capsys.readouterr().out
    assert "note: of environment.path only the name of the file went up" in out
    assert yaml.safe_load(fake.files("me/duo")["config.yaml"])["environment"]["path"] == "problems.jsonl"
    assert not any(str(tmp_path).encode() in content for content in fake.files("me/duo").values())


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("environment.name", {"environment": {"name": "subprocess:Popen", "args": ["true"]}}),
        ("reward", {"reward": "os:system"}),
        ("tools.lookup.command", {"tools": {"lookup": {"kind": "mcp", "command": "sh"}}}),
        ("team.agents.0.endpoint.url", {"team": {"agents": [
            {"name": "a", "endpoint": {"url": "https://example.org/v1", "model": "m"}}, {"name": "b"}]}}),
    ],
)  # fmt: skip
def test_a_config_from_the_hub_runs_nothing_unasked(trained, fake, monkeypatch, key, change):
    hub.push(trained, "me/duo")
    raw = {**yaml.safe_load(fake.files("me/duo")["config.yaml"]), **change}
    fake.files("me/duo")["config.yaml"] = yaml.safe_dump(raw).encode()
    sentence = rf"^hf://me/duo: its config reaches outside of marft \({key}: .*MARFT_TRUST_HUB=1"
    with pytest.raises(MarftError, match=sentence):
        open_team("hf://me/duo")
    monkeypatch.setenv("MARFT_TRUST_HUB", "1")
    assert (hub.local("hf://me/duo") / "config.yaml").is_file()


def test_words_for_models_are_no_code(trained, fake):
    hub.push(trained, "me/duo")
    raw = yaml.safe_load(fake.files("me/duo")["config.yaml"])
    raw["team"]["agents"][0]["profile"] = "answer:yes"
    fake.files("me/duo")["config.yaml"] = yaml.safe_dump(raw).encode()
    assert open_team("hf://me/duo")[0].game.agents[0].profile == "answer:yes"


def test_a_damaged_checkpoint_is_not_pushed(trained, fake, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "000005" / "critic_head.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(MarftError, match="is damaged"):
        hub.push(RunDirectory(tmp_path / "run"), "me/duo")
    assert not fake.commits


def test_folders_are_left_as_they_are(tmp_path):
    assert hub.local(tmp_path) == tmp_path
    assert hub.local("runs/mine") == Path("runs/mine")
    assert not hub.is_remote("hf/user/name")
    assert hub.is_remote(Path("hf://user/name"))  # which has lost a slash
