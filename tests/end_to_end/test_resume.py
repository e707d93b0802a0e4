"""k + m iterations equal k, resume, m: bit for bit on the CPU, and in the record."""

import json
import shutil

import pytest

HARD = {
    "MARFT-A": {"level": "action", "order": "random", "minibatches": 2, "epochs": 2, "carry": "happo", "lr_warmup": 3},
    "MARFT-T": {"level": "token", "order": "random", "minibatches": 2, "epochs": 2, "weight_decay": 0.01},
}


@pytest.mark.parametrize("learner", HARD)
def test_two_iterations_resume_and_two_more_equal_four(marft, config, tmp_path, rows, state, learner):
    path = config(update={"lr": 0.003, **HARD[learner]}, critic={"minibatches": 2, "epochs": 2})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert marft("train", path, "--run", whole).code == 0
    assert marft("train", path, "iterations=2", "--run", parts).code == 0
    assert state(parts) != state(whole)
    result = marft("train", path, "--run", parts, "--resume", "iterations=4")
    assert result.code == 0, result.err
    assert result.out.count("iter ") == 2  # the first two were not played again
    there = state(whole)
    assert {"critic_head.safetensors", "rng", "optimiser-critic", "optimiser-scout", "optimiser-speaker"} < set(there)
    assert {f"adapters/{name}/adapter_model.safetensors" for name in ("scout", "speaker", "critic")} < set(there)
    assert state(parts) == there
    assert rows(parts) == rows(whole)
    assert [row["iteration"] for row in rows(parts)] == [0, 1, 2, 3]
    final = "evaluations/000004.json"
    assert (parts / final).read_text() == (whole / final).read_text()
    assert (parts / "config.yaml").read_text() == (whole / "config.yaml").read_text()


def test_without_a_critic_and_with_group_credit(marft, config, tmp_path, rows, state):
    path = config(critic={"kind": "none"}, credit={"baseline": "group"}, evaluation={"tasks": 0})
    assert marft("train", path, "--run", tmp_path / "whole").code == 0
    assert marft("train", path, "iterations=3", "--run", tmp_path / "parts").code == 0
    assert marft("train", "--run", tmp_path / "parts", "--resume", "iterations=4").code == 0
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_with_late_and_reused_play_resampling_and_a_curriculum(marft, config, tmp_path, rows, state):
    rollout = {
        "tasks": 2, "samples": 4, "staleness": 1, "reuse": 1, "resample": 2, "curriculum": {"pool": 3},
        "sampling": {"max_tokens": 2},
    }  # fmt: skip
    path = config(rollout=rollout, update={"lr": 0.01, "epochs": 2})
    assert marft("train", path, "--run", tmp_path / "whole").code == 0
    assert marft("train", path, "iterations=2", "--run", tmp_path / "parts").code == 0
    result = marft("train", "--run", tmp_path / "parts", "--resume", "iterations=4")
    assert result.code == 0, result.err
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    found = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == found
    assert [row["learnt"]["iterations"] for row in found] == [0, 1, 2, 2]
    assert found[3]["off_policy"]["scout"]["age_max"] == 2
    assert {"resample", "curriculum"} <= set(found[0])


def test_a_complete_run_says_so_and_stays_as_it_is(marft, trained):
    before = {each: each.read_bytes() for each in trained.rglob("*") if each.is_file()}
    result = marft("train", trained.parent / "team.yaml", "--run", trained, "--resume")
    assert result.code == 0, result.err
    assert "All 4 iterations are done" in result.out
    assert "iter " not in result.out
    assert {each: each.read_bytes() for each in trained.rglob("*") if each.is_file()} == before


class Died(BaseException):
    """Stands for the end of the process."""


def die(*_):
    raise Died


def test_death_between_a_row_and_its_checkpoint_loses_and_repeats_nothing(marft, config, tmp_path, rows, monkeypatch):
    from marft.learn import train

    save = train.save_training
    monkeypatch.setattr(train, "save_training", lambda *given: die() if given[3] == 2 else save(*given))
    with pytest.raises(Died):
        marft("train", config(), "--run", tmp_path / "run")
    assert [row["iteration"] for row in rows(tmp_path / "run")] == [0, 1]
    monkeypatch.undo()
    assert marft("train", "--run", tmp_path / "run", "--resume").code == 0
    assert [row["iteration"] for row in rows(tmp_path / "run")] == [0, 1, 2, 3]


def test_the_best_checkpoint_is_the_one_that_played_best(marft, config, tmp_path, monkeypatch):
    """Not the one that was written after that play: its last step is what nobody has tried yet."""
    from marft.learn import train

    scores = iter([0.9, 0.2, 0.8, 0.3])  # of checkpoints 0 (there is none), 1, 2 and 3
    monkeypatch.setattr(train, "_score", lambda episodes: next(scores))
    assert marft("train", config(), "--run", tmp_path / "run").code == 0
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert best == {"iteration": 2, "score": 0.8}
    assert (tmp_path / "run" / "checkpoints" / "000002").is_dir()


def test_death_before_the_last_evaluation_is_made_up_for(marft, config, tmp_path, monkeypatch):
    from marft.learn import train

    run = tmp_path / "run"
    evaluate = train.record_evaluation
    monkeypatch.setattr(train, "record_evaluation", lambda *given: die() if given[2] == 4 else evaluate(*given))
    with pytest.raises(Died):
        marft("train", config(), "--run", run)
    assert not (run / "evaluations" / "000004.json").exists()
    monkeypatch.undo()
    result = marft("train", "--run", run, "--resume")
    assert result.code == 0, result.err
    assert "After training" in result.out
    assert (run / "evaluations" / "000004.json").exists()


def test_death_before_the_first_checkpoint_starts_over(marft, config, tmp_path, rows, state, monkeypatch):
    from marft.learn import train

    path = config()
    monkeypatch.setattr(train, "save_training", die)
    with pytest.raises(Died):
        marft("train", path, "--run", tmp_path / "run")
    monkeypatch.undo()
    assert marft("train", "--run", tmp_path / "run", "--resume").code == 0
    assert marft("train", path, "--run", tmp_path / "whole").code == 0
    assert state(tmp_path / "run") == state(tmp_path / "whole")
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def names(run, folder):
    return sorted(path.name for path in (run / folder).iterdir())


def test_what_was_written_after_the_checkpoint_is_not_left_behind(marft, config, tmp_path, rows, state):
    often = {"tasks": 2, "samples": 2, "every": 1}
    path = config(evaluation=often, run={"trackers": [], "keep_last": 9})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert marft("train", path, "--run", whole).code == 0
    assert marft("train", path, "iterations=6", "--run", parts).code == 0
    for number in (3, 4, 5, 6):  # as if it had been killed before it could save them
        shutil.rmtree(parts / "checkpoints" / f"{number:06d}")
    result = marft("train", "--run", parts, "--resume", "iterations=4")
    assert result.code == 0, result.err
    for folder in ("episodes", "learnt", "evaluations"):
        assert names(parts, folder) == names(whole, folder)
        for name in names(whole, folder):
            assert (parts / folder / name).read_bytes() == (whole / folder / name).read_bytes()
    assert names(whole, "learnt") == [f"{number:06d}.jsonl" for number in range(1, 4)]  # the first warms the critic up
    assert rows(parts) == rows(whole)
    assert state(parts) == state(whole)


def test_what_is_learnt_later_is_written_for_the_episodes_that_are(marft, config, tmp_path):
    rollout = {"tasks": 2, "samples": 2, "staleness": 1, "sampling": {"max_tokens": 2}}
    path = config(rollout=rollout, critic={"warmup": 0}, run={"trackers": [], "episodes_every": 2})
    assert marft("train", path, "--run", tmp_path / "run").code == 0
    played = [name for name in names(tmp_path / "run", "episodes") if name.startswith("train")]
    assert played == ["train-000000.jsonl", "train-000002.jsonl"]
    assert names(tmp_path / "run", "learnt") == ["000001.jsonl", "000003.jsonl"]
    for iteration in (0, 2):
        episodes = lines(tmp_path / "run" / "episodes" / f"train-{iteration:06d}.jsonl")
        learnt = lines(tmp_path / "run" / "learnt" / f"{iteration + 1:06d}.jsonl")
        there = {(each["group"], each["sample"], place) for each in episodes for place in range(len(each["actions"]))}
        assert {(each["group"], each["sample"], each["action"]) for each in learnt} == there
        assert {each["played"] for each in learnt} == {iteration}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
