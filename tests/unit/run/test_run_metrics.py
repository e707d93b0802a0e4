"""metrics.jsonl: every iteration once, every line valid JSON, whatever was killed when."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from marft.run.metrics import MetricsWriter, flatten, read_metrics
from marft.types import MarftError


def iterations(run):
    return [row["iteration"] for row in read_metrics(run.path)]


def test_rows_come_back(run):
    with MetricsWriter(run) as writer:
        writer.write(0, {"success": 0.25, "planner": {"kl": 0.5, "ratio": [0.9, 1.1]}, "phase": "é"})
        writer.write(1, {"success": np.float32(0.5), "planner": {"kl": torch.tensor(0.25)}})
    assert read_metrics(run.path) == read_metrics(run.metrics_file)
    assert read_metrics(run.metrics_file) == [
        {"iteration": 0, "success": 0.25, "planner": {"kl": 0.5, "ratio": [0.9, 1.1]}, "phase": "é"},
        {"iteration": 1, "success": 0.5, "planner": {"kl": 0.25}},
    ]
    assert {each.name for each in run.path.iterdir()} == {"config.yaml", "metrics.jsonl"}


def test_a_run_without_metrics_has_no_rows(run, tmp_path):
    assert read_metrics(run.path) == []
    with pytest.raises(MarftError, match="cannot be read"):
        read_metrics(tmp_path / "absent.jsonl")


def test_numbers_that_are_not_finite_are_null_and_named(run):
    with MetricsWriter(run) as writer:
        writer.write(0, {"kl": math.nan, "planner": {"grad": math.inf, "low": -math.inf, "ok": 1.0}})
    row = json.loads(run.metrics_file.read_text(), parse_constant=pytest.fail)
    assert row["kl"] is None
    assert row["planner"] == {"grad": None, "low": None, "ok": 1.0}
    assert row["nonfinite"] == {"kl": "nan", "planner/grad": "inf", "planner/low": "-inf"}


def test_a_row_is_on_disk_before_write_returns(run):
    child = os.fork()
    if child == 0:
        writer = MetricsWriter(run)
        writer.write(0, {"success": 0.5})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert read_metrics(run.path) == [{"iteration": 0, "success": 0.5}]


def test_each_row_is_synced(run, monkeypatch):
    synced = []
    fsync = os.fsync
    with MetricsWriter(run) as writer:
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_size), fsync(descriptor))
        )
        writer.write(0, {})
        writer.write(1, {})
    assert synced == [len('{"iteration": 0}\n'), 2 * len('{"iteration": 0}\n')]


@pytest.mark.parametrize("start", [0, 2, 4, 9])
def test_resuming_drops_what_will_be_played_again(run, start):
    with MetricsWriter(run) as writer:
        for iteration in range(4):
            writer.write(iteration, {"success": 0.0})
    with MetricsWriter(run, start=start) as writer:
        writer.write(start, {"success": 1.0})
    assert iterations(run) == [*range(min(start, 4)), start]
    assert read_metrics(run.path)[-1]["success"] == 1.0


@pytest.mark.parametrize("tail", ['{"iteration": 2, "succ', '{"iteration": 2, "success": 0.0}'])
def test_a_line_torn_by_a_kill_does_not_spoil_the_next(run, tail):
    run.metrics_file.write_text('{"iteration": 0}\n{"iteration": 1}\n' + tail)
    with MetricsWriter(run, start=2) as writer:
        writer.write(2, {})
    assert iterations(run) == [0, 1, 2]
    with MetricsWriter(run, start=3) as writer:
        writer.write(3, {})
    assert iterations(run) == [0, 1, 2, 3]


def test_metrics_of_another_iteration_are_refused(run):
    with MetricsWriter(run) as writer:
        writer.write(1, {"iteration": 1})
        with pytest.raises(ValueError, match="iteration 5"):
            writer.write(2, {"iteration": 5})
    assert iterations(run) == [1]


def test_flatten_names_numbers_only():
    nested = {"a": 1, "planner": {"kl": np.float64(0.5), "deep": {"er": True}, "list": [1]}, "text": "x", "none": None}
    assert list(flatten(nested)) == [("a", 1.0), ("planner/kl", 0.5), ("planner/deep/er", 1.0)]


def test_reading_metrics_loads_no_torch():
    code = (
        "import sys, marft.run.metrics, marft.run.statistics; "
        "sys.exit(bool({'torch', 'tensorboard', 'wandb', 'mlflow', 'trackio'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_room_of_run_loads_transformers_or_scipy():
    rooms = "checkpoint, directory, interrupt, metrics, progress, statistics"
    code = (
        f"import sys; from marft.run import {rooms}; sys.exit(bool({{'transformers', 'scipy'}} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
