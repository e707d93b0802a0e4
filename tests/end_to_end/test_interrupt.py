"""Signals to a training process: a polite stop saves and exits with 128 + n; a kill leaves a run that can go on."""

import random
import signal
import time

import pytest

from marft.run import checkpoint
from marft.run.directory import RunDirectory

MANY = "iterations=500"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_stop_saves_the_update_under_way(marft, start, config, tmp_path, rows, number, code):
    path, run = config(run={"save_every": 100, "trackers": []}), tmp_path / "run"
    process = start("train", path, MANY, "--run", run)
    process.wait_for_rows(run, 1)
    process.popen.send_signal(number)
    result = process.end()
    assert result.code == code, result.err
    assert result.err == ""
    assert "Stopping after the current update" in result.out
    assert f"marft train --run {run} --resume" in result.out
    done = len(rows(run))
    assert checkpoint.iterations(RunDirectory(run)) == [done]  # though none was due for a hundred iterations
    checkpoint.verify(run / "checkpoints" / f"{done:06d}")
    resumed = marft("train", "--run", run, "--resume", f"iterations={done + 1}")
    assert resumed.code == 0, resumed.err
    assert [row["iteration"] for row in rows(run)] == list(range(done + 1))


def test_two_kills_at_random_moments_change_nothing(marft, start, config, tmp_path, rows, state):
    path, run, whole = config(evaluation={"tasks": 0}), tmp_path / "run", tmp_path / "whole"
    seed = random.randrange(10**6)
    print("seed", seed)  # shown when the test fails
    moments = random.Random(seed)
    arguments = ("train", path, MANY, "--run", run)
    for count in (1, 5):
        process = start(*arguments)
        process.wait_for_rows(run, count)
        time.sleep(moments.uniform(0, 0.5))
        process.popen.kill()
        assert process.end().code == -signal.SIGKILL
        arguments = ("train", "--run", run, "--resume")
    newest = checkpoint.latest(RunDirectory(run))
    assert newest is None or checkpoint.verify(newest) is None
    end = len(rows(run)) + 1
    resumed = marft("train", "--run", run, "--resume", f"iterations={end}")
    assert resumed.code == 0, resumed.err
    assert [row["iteration"] for row in rows(run)] == list(range(end))
    assert not list(run.rglob(".*tmp*"))
    assert marft("train", path, f"iterations={end}", "--run", whole).code == 0
    assert state(run) == state(whole)
    assert rows(run) == rows(whole)
