"""`marft plan` and `marft check --no-weights` as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

PAPER = Path(__file__).parents[2] / "examples" / "paper"


def test_a_plan_is_a_table_with_its_assumptions(marft):
    result = marft("plan", PAPER / "math-3b.yaml", "--gpu", "h200", "--reply", 700)
    assert result.code == 0, result.err
    said = " ".join(result.out.split())
    for words in (
        "3,085,938,688",
        "59,867,136",
        "2 + 1",
        "at most",
        "GPU-hours",
        "h200: 141 GB",
        "planner 700",
        "fits",
    ):
        assert words in said
    assert "DOES NOT FIT" not in said


def test_a_plan_that_does_not_fit_says_so(marft):
    result = marft("plan", PAPER / "code-7b.yaml", "--gpu", "a100-40")
    assert "DOES NOT FIT" in " ".join(result.out.split())


def test_a_plan_as_one_line_of_json(marft):
    result = marft("plan", PAPER / "code-7b.yaml", "team.preset=quad", "rollout.sampling.max_tokens=1152", "--json")
    assert result.out.count("\n") == 1
    found = json.loads(result.out)
    assert found["models"][0]["parameters"] == 7_615_616_512
    assert found["models"][0]["agents"] == ["planner", "solver", "verifier", "reflector"]
    assert found["peak_bytes"]["play"] == sum(found["play_bytes"].values())


def test_mistakes_are_one_sentence(marft, config):
    for words, expected in (
        (("--gpu", "h1000"), "error: --gpu h1000: no such machine; did you mean 'h100'"),
        (("model.name=a/b",), "the shape of 'a/b' is not known here"),
        (("update.lrr=1",), "unknown key 'update.lrr'; did you mean 'lr'?"),
    ):
        result = marft("plan", config(), *words)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert expected in result.err


def test_a_shape_may_be_named(marft, config, tmp_path):
    file = tmp_path / "config.json"
    shape = {
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    file.write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 64, **shape}))
    found = json.loads(marft("plan", config(), "model.name=a/b", "--shape", file, "--json").out)
    assert found["models"][0]["parameters"] == 2 * 10 * 8 + 4 * 64 + 3 * 64 + 3 * 8


def test_a_plan_loads_no_torch():
    code = (
        "import sys, marft.cli\n"
        f"try: marft.cli.main(['plan', {str(PAPER / 'math-3b.yaml')!r}, '--json'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print({'torch', 'transformers', 'peft'} & set(sys.modules) or 'light')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.rstrip().endswith("light")


def test_check_without_weights_draws_the_team_and_says_what_it_left_out(marft):
    result = marft("check", "--no-weights", PAPER / "math-7b.yaml", "team.preset=trio")
    assert result.code == 0, result.err
    for words in ("environment math", "verifier", "← reads: planner, solver", "no weights were loaded", "'deepscaler'"):
        assert words in result.out
    assert result.out.endswith("ok\n")


def test_check_without_weights_names_a_mistake(marft, config):
    result = marft("check", "--no-weights", config(), "environment.symbols=[a]")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "symbols" in result.err
