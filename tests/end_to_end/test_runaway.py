"""A run that runs away is warned of, or brought back; and a kill on the way back changes nothing."""

import pkgutil
import string
from statistics import fmean

import pytest

LETTERS = list(string.ascii_lowercase)
# Paid is who says letters, which a random model does a third of the time: easy to learn, and easy to unlearn
GAME = {
    "environment": {"name": "matrix", "symbols": LETTERS, "payoff": [[1] * 26] * 26, "prompt": "c"},
    "rollout": {"tasks": 4, "samples": 16, "sampling": {"max_tokens": 1}},
    "critic": {"kind": "none"},
    "credit": {"baseline": "group"},
    "evaluation": {"tasks": 0},
}
ABSURD = {"update": {"lr": 10.0}}
GUARD = {"kl": 0.5, "ratio": 20.0, "shrink": 0.01}


@pytest.fixture
def play(marft, config, tmp_path):
    """Runs the game under a guard; returns the run's folder and what the command left behind."""

    def begin(name, action, *overrides, **sections):
        guard = {**GUARD, **sections.pop("guard", {}), "action": action}
        path = config(**GAME | ABSURD | {"iterations": 10, "guard": guard} | sections)
        return tmp_path / name, marft("train", path, *overrides, "--run", tmp_path / name)

    return begin


def test_an_absurd_step_is_warned_of_and_going_back_saves_the_run(play, rows):
    alone, warned = play("alone", "warn")
    saved, rescued = play("saved", "rollback")
    assert (warned.code, rescued.code) == (0, 0), warned.err + rescued.err
    assert "iter 1: agent 'scout': KL of " in warned.out
    assert "nats per token in one update (guard.kl: 0.5); lower update.lr" in warned.out
    assert "back to checkpoint" not in warned.out
    assert rows(alone)[0]["health"]["kl"]["scout"] > 0.5
    assert "iter 1: back to checkpoint 000000, with learning rates times 0.01 (rollback 1 of 3)" in rescued.out
    assert [row["iteration"] for row in rows(saved)] == list(range(10))
    assert (rows(saved)[0]["rollback_to"], rows(saved)[0]["lr_scale"]) == (0, 0.01)
    assert rows(saved)[-1]["health"] == {"alarms": 0}
    after = {run: fmean(row["success"] for row in rows(run)[-3:]) for run in (alone, saved)}
    assert after[saved] > after[alone] + 0.3


def test_when_nothing_helps_the_run_ends_with_one_sentence_and_a_checkpoint_to_use(play, marft):
    run, result = play("run", "rollback", guard={"shrink": 0.9, "rollbacks": 2}, evaluation={"tasks": 1, "samples": 1})
    assert result.code == 2
    (sentence,) = result.err.splitlines()
    assert sentence.startswith(f"error: {run}: iteration 3: agent 'scout': KL of ")
    assert "gone back 2 times already (guard.rollbacks)" in sentence
    assert sentence.endswith("so the run ends with checkpoint 000003, in the state of checkpoint 000002")
    assert marft("eval", run).code == 0


def test_what_waits_to_be_learnt_from_outlives_going_back(play, marft, rows, state):
    late = {"rollout": {**GAME["rollout"], "staleness": 1, "reuse": 1}, "run": {"trackers": [], "keep_last": 1}}
    whole, result = play("whole", "rollback", "iterations=5", **late)
    assert result.code == 0, result.err
    found = rows(whole)
    assert "rollback_to" in found[1]  # the first iteration only plays
    # play of iterations 1 and 0, of versions that were partly given up, is learnt from in iteration 2
    assert found[2]["learnt"] == {"episodes": 128, "iterations": 2}
    assert found[2]["off_policy"]["scout"]["age_max"] == 2.0
    parts, _ = play("parts", "rollback", "iterations=2", **late)
    assert marft("train", "--run", parts, "--resume", "iterations=5").code == 0
    assert rows(parts) == found
    assert state(parts) == state(whole)


def test_a_rolled_back_run_in_two_parts_is_the_run_in_one(play, marft, rows, state):
    learner = {"update": {"lr": 0.3, "lr_warmup": 2}, "critic": {}, "credit": {}, "run": {"trackers": []}}
    learner["run"] |= {"save_every": 2, "keep_last": 1}
    guard = {"shrink": 0.3, "rollbacks": 9}
    whole, result = play("whole", "rollback", "iterations=6", guard=guard, **learner)
    assert result.code == 0, result.err
    back = [row["iteration"] for row in rows(whole) if "rollback_to" in row]
    assert back
    for stop in (1, 3, 4):  # 1 and 3 are saved only because the run ends there
        parts, _ = play(f"parts{stop}", "rollback", f"iterations={stop}", guard=guard, **learner)
        assert marft("train", "--run", parts, "--resume", "iterations=6").code == 0
        assert rows(parts) == rows(whole), stop
        assert state(parts) == state(whole), stop


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("moment", "calls"),
    [
        ("marft.run.rollback.load_learners", 2),  # nothing is loaded yet, but the step is smaller
        ("marft.run.metrics.MetricsWriter.write", 2),  # everything is loaded, no row tells of it
        ("marft.learn.train.save_training", 2),  # there is a row, but no checkpoint
        ("marft.run.checkpoint.prune", 3),  # there is a checkpoint (the first one was that of the untrained state)
    ],
)
def test_a_death_on_the_way_back_changes_nothing(play, marft, rows, state, monkeypatch, moment, calls):
    short = {"iterations": 3, "run": {"trackers": [], "keep_last": 1}}
    whole, result = play("whole", "rollback", **short)
    assert result.code == 0, result.err
    assert "rollback_to" in rows(whole)[1]
    real, seen = pkgutil.resolve_name(moment), []

    def die(*given, **named):
        seen.append(given)
        if len(seen) == calls:
            raise Died
        return real(*given, **named)

    monkeypatch.setattr(moment, die)
    with pytest.raises(Died):
        play("parts", "rollback", **short)
    monkeypatch.undo()
    parts = whole.with_name("parts")
    assert len(rows(parts)) < 3
    assert marft("train", "--run", parts, "--resume").code == 0
    assert rows(parts) == rows(whole)
    assert state(parts) == state(whole)
