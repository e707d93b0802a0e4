"""An exported agent computes the policy's logits where `marft` is not even imported."""

import json
import subprocess
import sys

import pytest
import torch
from huggingface_hub import ModelCard

from marft.config import parse_config
from marft.run.directory import RunDirectory
from marft.run.export import export_agent
from marft.run.state import save_training
from marft.team import build_team
from marft.types import MarftError

PROFILE = 'Say "yes".\nNever say no.'


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose two adapters have moved away from the base, and its team."""
    team = {"agents": [{"name": "planner", "profile": PROFILE}, {"name": "solver", "sees_task": False}]}
    config = parse_config(
        {
            "model": {"name": "tiny"},
            "team": team,
            "environment": {"name": "relay"},
            "rollout": {"sampling": {"max_tokens": 3, "temperature": 0.5}},
        }
    )
    team = build_team(config)
    generator = torch.Generator().manual_seed(0)
    for adapter in team.backends[0].policy.adapters:
        for parameter in team.backends[0].policy.parameters(adapter).values():
            parameter.data += 0.03 * torch.randn(parameter.shape, generator=generator)
    run = RunDirectory.create(config, tmp_path_factory.mktemp("export") / "run")
    save_training(run, team, {}, 5)
    return run, team


LOAD = """
import json, os, sys, torch
from transformers import AutoModelForCausalLM
from peft import AutoPeftModelForCausalLM
adapter, merged, ids = sys.argv[1], sys.argv[2], torch.tensor([json.loads(sys.argv[3])])
found = {}
for name, kind, folder in (
    ("adapter", AutoPeftModelForCausalLM, adapter),
    ("adapter, by transformers", AutoModelForCausalLM, adapter),
    ("merged", AutoModelForCausalLM, merged),
):
    model = kind.from_pretrained(folder)
    with torch.no_grad():
        found[name] = model(input_ids=ids).logits[0].tolist()
    found[name + " draws like"] = model.generation_config.to_diff_dict() if name != "adapter" else None
for folder in (adapter, merged):
    os.chdir(folder)
    code = open("README.md", encoding="utf8").read().split("```python")[1].split("```")[0]
    space = {}
    exec(code, space)
    found["messages"] = space["messages"]
    found[folder] = space["reply"].shape[1] - space["inputs"]["input_ids"].shape[1]
assert not [name for name in sys.modules if name.startswith("marft")]
print(json.dumps(found), file=open(sys.argv[4], "w"))
"""


def test_logits_equal_the_policys_without_marft(trained, tmp_path):
    run, team = trained
    adapter = export_agent(run, "planner", tmp_path / "adapter")
    merged = export_agent(run, "planner", tmp_path / "merged", merge=True)
    ids = [3, 9, 27, 42, 11, 60]
    with team.backends[0].policy.acting_as("planner") as backbone, torch.no_grad():
        mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
        states = backbone(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).last_hidden_state
        expected = team.backends[0].base.head(states)[0]
    arguments = [str(adapter), str(merged), json.dumps(ids), str(tmp_path / "found.json")]
    subprocess.run([sys.executable, "-c", LOAD, *arguments], check=True, capture_output=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    for name in ("adapter", "adapter, by transformers", "merged"):
        assert torch.allclose(torch.tensor(found[name]), expected, atol=1e-5), name
    assert found["messages"][0] == {"role": "system", "content": PROFILE}
    assert 1 <= found[str(adapter)] <= 3  # the README's code ran and kept to max_tokens
    assert found["merged draws like"]["temperature"] == 0.5


def test_the_folder_says_what_it_is(trained, tmp_path):
    run, _ = trained
    folder = export_agent(run, "solver")
    assert folder == run.path / "exports" / "solver-000005"
    text = (folder / "README.md").read_text(encoding="utf8")
    assert "checkpoint 000005" in text
    assert "holds no task" in text
    assert "It reads: planner." in text
    data = ModelCard.load(folder / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("peft", "text-generation")
    assert "vllm serve ./base --enable-lora --lora-modules solver=." in text
    for section in ("## Team", "## Training", "## Results", "## Limits"):
        assert f"\n{section}\n" in text
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str((folder / "base").resolve())
    assert "> Never say no." in (export_agent(run, "planner") / "README.md").read_text(encoding="utf8")


def test_an_adapter_on_a_local_model_points_there_and_leaves_it_out(trained, tmp_path):
    _, team = trained
    from marft.models.base import load_base

    base = load_base(team.config.model, "cpu")
    base.model.save_pretrained(tmp_path / "model")
    base.chat.tokenizer.save_pretrained(tmp_path / "model")
    raw = {**team.config.model_dump(mode="json"), "model": {"name": str(tmp_path / "model")}}
    config = parse_config(raw)
    other = RunDirectory.create(config, tmp_path / "run")
    save_training(other, build_team(config), {}, 1)
    folder = export_agent(other, "planner", tmp_path / "out")
    assert not (folder / "base").exists()
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "model")


def test_a_folder_in_use_is_left_alone_and_an_empty_one_is_taken(trained, tmp_path):
    run, _ = trained
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    with pytest.raises(MarftError, match=r"not empty.*-o"):
        export_agent(run, "planner", tmp_path / "full")
    with pytest.raises(MarftError, match="is a file"):
        export_agent(run, "planner", tmp_path / "full" / "mine")
    with pytest.raises(MarftError, match="cannot be written"):
        export_agent(run, "planner", tmp_path / "full" / "mine" / "below")
    (tmp_path / "empty").mkdir()
    export_agent(run, "planner", tmp_path / "empty")
    assert (tmp_path / "empty" / "README.md").is_file()


def test_an_export_that_fails_leaves_nothing(trained, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of paper")

    monkeypatch.setattr("marft.run.export._readme", broken)
    with pytest.raises(RuntimeError, match="out of paper"):
        export_agent(trained[0], "planner", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_unknown_agents_and_checkpoints_are_named(trained, tmp_path):
    with pytest.raises(MarftError, match="did you mean 'planner'"):
        export_agent(trained[0], "plannner", tmp_path / "out")
    with pytest.raises(MarftError, match="there are: 000005"):
        export_agent(trained[0], "planner", tmp_path / "out", which="6")
