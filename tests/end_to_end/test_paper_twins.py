"""Each full-size config, scaled down by `examples/paper/twin.txt` as its header says, is trained from end to end."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from marft.config import load_config
from marft.plan import Assumptions, forecast, machine_of
from marft.run.directory import read_jsonl

FOLDER = Path(__file__).parents[2] / "examples" / "paper"
TWIN = (FOLDER / "twin.txt").read_text(encoding="utf8").split()
# Every size, preset and kind of team at least once: what tells two of them apart is in the config files alone
TWINS = [
    ("math-3b", "duo", False),
    ("math-3b", "quad", True),
    ("math-7b", "trio", False),
    ("code-3b", "duo", True),
    ("code-3b", "trio", False),
    ("code-7b", "quad", False),
]
ROWS = {
    "math": [{"problem": f"What is {number} + 2?", "answer": str(number + 2), "solution": ""} for number in range(8)],
    "code": [
        {"problem": f"Print {number}.", "tests": json.dumps([{"input": "1", "output": str(number)}])}
        for number in range(8)
    ],
}


def overrides(tmp_path, name, preset, anonymous):
    kind = name.partition("-")[0]
    file = tmp_path / f"{kind}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[kind]))
    return [f"team.preset={preset}", f"team.anonymous={str(anonymous).lower()}", *TWIN, f"environment.path={file}"]


@pytest.mark.parametrize(("name", "preset", "anonymous"), TWINS)
def test_a_twin_trains(marft, tmp_path, name, preset, anonymous):
    path, keys, run = FOLDER / f"{name}.yaml", overrides(tmp_path, name, preset, anonymous), tmp_path / "run"
    result = marft("train", path, *keys, "--run", run)
    assert result.code == 0, result.err
    config = load_config(path, keys)
    rows = read_jsonl(run / "metrics.jsonl")
    names = [agent.name for agent in config.team.agents]
    assert [row["failed"] for row in rows] == [0, 0]
    assert set(rows[1]["update"]) == set(names)  # the first iteration is the critic's alone
    assert rows[1]["critic"]["grad_norm"] > 0
    assert rows[1]["reference_kl"] == pytest.approx(0, abs=1e-6)  # kl_reference of the paper's file is in force
    folder = run / "checkpoints" / "000002"
    assert sorted(each.name for each in (folder / "adapters").iterdir()) == sorted([*names, "critic"])
    for agent in names:
        tensors = load_file(folder / "adapters" / agent / "adapter_model.safetensors")
        assert any(each.abs().max() > 0 for key, each in tensors.items() if "lora_B" in key), agent


def test_a_twin_s_checkpoint_and_tokens_are_as_planned(marft, tmp_path):
    """What is written are the planned bytes, and beside them names and settings; every reply is 8 tokens at most."""
    path, keys, run = FOLDER / "math-7b.yaml", overrides(tmp_path, "math-7b", "trio", False), tmp_path / "run"
    keys.append("evaluation.tasks=0")
    assert marft("train", path, *keys, "--run", run).code == 0
    given = Assumptions(machine_of("cpu", 8, 1, 10), reply=8)
    planned = forecast(load_config(path, keys), str(path), given)
    folder = run / "checkpoints" / "000002"
    files = [*folder.rglob("*.safetensors"), *folder.glob("optimiser-*")]
    written = sum(part.nbytes for each in files for part in load_file(each).values())
    assert written == pytest.approx(planned.other_bytes["a checkpoint"], rel=0.01)  # and AdamW's numbers of steps
    played = read_jsonl(run / "metrics.jsonl")[1]["play"].values()
    drawn = sum(each["reply_tokens"] * each["replies"] for each in played) * 4
    assert 0 < drawn <= planned.tokens["drawn"] == 4 * 3 * 8
    assert planned.tokens["longest prompt and reply"] <= 1024
