"""A mistake of the user's: one sentence that names file and key, exit code 2, no traceback, nothing half-written."""

import pytest


def check_sentence(result, *words):
    """Exit code 2 and one line that holds all the words."""
    assert result.code == 2, result.out + result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err, result.err


TRIO = {"agents": [{"name": "scout"}, {"name": "speaker"}]}

MISTAKES = {
    "unknown key": ({"update": {"lrr": 1}}, [], ["update.lrr", "did you mean 'lr'?"]),
    "wrong type": ({"iterations": "many"}, [], ["iterations", "'many'"]),
    "unknown key in an override": ({}, ["rollout.sample=3"], ["rollout.sample", "did you mean 'samples'?"]),
    "cycle": (
        {"team": {**TRIO, "dependency": {"edges": [["scout", "speaker"], ["speaker", "scout"]]}}},
        [],
        ["team.dependency.edges", "scout -> speaker -> scout"],
    ),
    "unknown agent in an edge": (
        {"team": {**TRIO, "dependency": {"edges": [["scuot", "speaker"]]}}},
        [],
        ["team.dependency.edges", "no agent 'scuot'", "did you mean 'scout'?"],
    ),
    "missing model": ({"model": {"name": "tinny"}}, [], ["model.name", "did you mean 'tiny'?"]),
    "missing data file": (
        {"environment": {"name": "question_answer", "path": "no/such.jsonl"}},
        [],
        ["environment 'question_answer'", "no/such.jsonl: there is no such file"],
    ),
    "unknown environment": ({"environment": {"name": "relais"}}, [], ["environment.name", "did you mean 'relay'?"]),
    "unknown module": ({"lora": {"targets": ["q_prox"]}}, [], ["lora.targets", "q_prox"]),
    "zero trainable agents": (
        {"team": {"agents": [{"name": "a", "trainable": False}, {"name": "b", "trainable": False}]}},
        [],
        ["team.agents", "trainable: true"],
    ),
    "prompt longer than the context": (
        {},
        ["model.context=64"],
        ["model.context", "agent 'scout'", "task 'train-0'", "context of 64", "max_tokens"],
    ),
    "prompt that cannot be cut": (
        {},
        ["model.context=64", "rollout.context_policy=truncate_history"],
        ["train-0", "scout", "only 62 fit"],
    ),
    "a team the environment refuses": ({"team": {"agents": [{"name": "a"}]}}, [], ["train-0", "at least 2 agents"]),
}


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_config(marft, config, tmp_path, command, mistake):
    sections, overrides, words = MISTAKES[mistake]
    path = config(**sections)
    check_sentence(marft(command, path, *overrides), str(path), *words)
    assert [each.name for each in tmp_path.iterdir()] == ["team.yaml"]


def test_a_missing_config_and_one_of_a_similar_name(marft, config):
    path = config()
    check_sentence(marft("train", path.with_name("teem.yaml")), "teem.yaml", f"did you mean '{path}'?")
    check_sentence(marft("train", "update.lr=1"), "CONFIG is missing")
    check_sentence(marft("train", path, "not-an-override"), "not-an-override", "key=value")


def test_a_run_directory_that_cannot_be_written(marft, config, tmp_path):
    path = config()
    (tmp_path / "file").write_text("in the way")
    check_sentence(marft("train", path, "--run", tmp_path / "file" / "run"), "file/run", "--run")
    check_sentence(marft("train", path, f"run.folder={tmp_path / 'file'}"), "file", "run.folder")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "team.yaml"]


def test_a_run_is_never_overwritten(marft, trained):
    config = trained.parent / "team.yaml"
    before = {each: each.stat().st_mtime_ns for each in trained.rglob("*")}
    check_sentence(marft("train", config, "--run", trained), str(trained), "--resume")
    assert {each: each.stat().st_mtime_ns for each in trained.rglob("*")} == before


def test_resuming_what_is_not_there_or_not_the_same(marft, trained):
    config = trained.parent / "team.yaml"
    check_sentence(marft("train", config, "--resume"), "--run")
    check_sentence(marft("train", "--run", trained.with_name("rum"), "--resume"), f"did you mean '{trained}'?")
    check_sentence(marft("train", "--run", trained, "--resume", "update.lr=1"), "update.lr", "iterations")
    check_sentence(marft("train", "--run", trained, "--resume", "iterations=2"), "4 iterations", "iterations")
    other = trained.parent / "other.yaml"
    other.write_text(config.read_text().replace("lr: 0.003", "lr: 0.004"))
    check_sentence(marft("train", other, "--run", trained, "--resume"), "other.yaml", "'update.lr'")


def test_an_adapter_that_does_not_fit(marft, trained):
    check_sentence(marft("eval", trained, "lora.r=8"), "adapter_model.safetensors", "adapter 'scout'", "lora section")
    agents = '[{"name": "scout"}, {"name": "speeker"}]'
    check_sentence(marft("eval", trained, f"team.agents={agents}"), "holds no adapter 'speeker'")


def test_naming_what_is_not_there(marft, trained):
    check_sentence(marft("eval", trained, "--checkpoint", "77"), "'77'", "000003, 000004")
    check_sentence(marft("eval", trained.with_name("rum")), f"did you mean '{trained}'?")
    check_sentence(marft("eval", trained.parent / "team.yaml", "--checkpoint", "best"), "team.yaml", "--checkpoint")
    check_sentence(marft("eval", trained, "evaluation.tasks=0"), "evaluation.tasks")
    check_sentence(marft("play", trained, "-q", "long " * 400), "scout", "exceed the context")
    check_sentence(marft("export", trained, "--agent", "scuot"), "no agent 'scuot'", "did you mean 'scout'?")


def test_a_benchmark_that_cannot_be_played(marft, trained, tmp_path):
    check_sentence(marft("eval", trained, "--on", "gsm8"), "--on gsm8", "did you mean 'gsm8k'?")
    check_sentence(marft("eval", trained, "--on", "leg_counting"), "did you mean 'reasoning:leg_counting'?")
    check_sentence(marft("eval", trained, "--on", "reasoning:leg_count"), "--on", "did you mean 'leg_counting'?")
    missing, broken = tmp_path / "missing.jsonl", tmp_path / "broken.jsonl"
    check_sentence(
        marft("eval", trained, "--on", "gsm8k", "--path", missing), "--on gsm8k", str(missing), "no such file"
    )
    rows = ['{"question": "What is 1 + 1?", "answer": "#### 2"}'] * 2
    broken.write_text("\n".join([rows[0], '{"question": "What is', rows[1]]) + "\n")
    check_sentence(marft("eval", trained, "--on", "gsm8k", "--path", broken), "--on gsm8k", str(broken), "line 2")
    check_sentence(marft("eval", trained, "--path", broken), "--path", "--on")


def test_evaluating_nothing_at_all(marft, trained):
    check_sentence(marft("eval", trained, "--samples", "0"), "--samples 0", "at least 1")
    check_sentence(marft("eval", trained, "--limit", "0"), "--limit 0", "at least 1")
    check_sentence(marft("eval", "update.lr=1"), "RUN_OR_CONFIG is missing")


def test_runs_that_cannot_be_compared(marft, trained, config):
    check_sentence(marft("eval", trained, trained), str(trained), "named twice")
    check_sentence(marft("eval", trained, trained.with_name("rum")), f"did you mean '{trained}'?")
    alone = config(team={"agents": [{"name": "a"}]})
    check_sentence(marft("eval", trained, alone), str(alone), "at least 2 agents")


def test_a_damaged_checkpoint_is_named_with_one_that_is_whole(marft, config, tmp_path):
    run = tmp_path / "run"
    assert marft("train", config(evaluation={"tasks": 0}), "iterations=2", "--run", run).code == 0
    file = run / "checkpoints" / "000002" / "critic_head.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    words = ("000002/critic_head.safetensors", "damaged", "checkpoint '000001' is whole")
    check_sentence(marft("eval", run, "evaluation.tasks=1"), *words)
    check_sentence(marft("train", "--run", run, "--resume", "iterations=3"), *words)


def test_too_many_failed_episodes_stop_the_run_with_the_reason(marft, config, monkeypatch):
    from marft.environments.relay import Relay

    monkeypatch.setattr(Relay, "step", lambda *_: {}["lost"])
    words = ("4 of 4 episodes failed", "rollout.max_failed", "environment: KeyError: 'lost'")
    check_sentence(marft("train", config()), *words)


def test_the_real_process_says_one_sentence_and_nothing_else(start, config):
    process = start("train", config(), "model.context=64")
    check_sentence(process.end(), "team.yaml", "model.context")
