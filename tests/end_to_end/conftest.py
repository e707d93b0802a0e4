"""The command line in this process (fast) and in its own (for signals), and small runs of the tiny model."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from marft.cli import main

RELAY: dict[str, Any] = {
    "name": "duo",
    "iterations": 4,
    "threads": 1,
    "model": {"name": "tiny"},
    "team": {"agents": [{"name": "scout", "profile": "You saw it."}, {"name": "speaker"}]},
    "environment": {"name": "relay", "symbols": ["a", "b"]},
    "rollout": {"tasks": 2, "samples": 4, "sampling": {"max_tokens": 2}},
    "lora": {"r": 4},
    "update": {"lr": 0.003, "micro_tokens": 1024},
    "evaluation": {"tasks": 2, "samples": 2, "every": 3},
    "run": {"trackers": []},
}


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run_main(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def write_config(folder: Path, raw: dict[str, Any] | None = None) -> Path:
    raw = {**RELAY, **(raw or {})}
    raw["run"] = {"folder": str(folder / "runs"), **raw["run"]}
    path = folder / "team.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf8")
    return path


@pytest.fixture
def marft() -> Callable[..., Result]:
    return run_main


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes `team.yaml`: the relay duo with other sections in place of its own."""

    def write(**sections: Any) -> Path:
        return write_config(tmp_path, sections)

    return write


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 4 iterations (`team.yaml` beside it), for tests that only read it."""
    folder = tmp_path_factory.mktemp("trained")
    result = run_main("train", write_config(folder), "--run", folder / "run")
    assert result.code == 0, result.err
    (folder / "said").write_text(result.out, encoding="utf8")
    return folder / "run"


class Process:
    """`marft` as a process of its own, in its own process group."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "marft.cli", *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def wait_for_rows(self, run: Path, count: int) -> None:
        """Until the run's metrics have so many rows."""
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline, "no iteration ended within a minute"
            time.sleep(0.02)

    def end(self) -> Result:
        out, err = self.popen.communicate(timeout=60)
        return Result(self.popen.returncode, out, err)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts `marft` with arguments; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def begin(*arguments: object) -> Process:
        started.append(Process(arguments))
        return started[-1]

    yield begin
    for each in started:
        if each.popen.poll() is None:
            each.popen.kill()
            each.popen.communicate()


def plain_rows(run: Path) -> list[dict[str, Any]]:
    from marft.run.directory import read_jsonl

    def untimed(row: dict[str, Any]) -> dict[str, Any]:
        return {key: each for key, each in row.items() if key not in ("seconds", "share") and "per_second" not in key}

    return [untimed(row) for row in read_jsonl(run / "metrics.jsonl")]


def newest_state(run: Path) -> dict[str, bytes]:
    """Every tensor file of the newest checkpoint, byte for byte, and its `state.json`."""
    newest = max(each for each in (run / "checkpoints").iterdir() if each.name.isdigit())
    files = [each for each in newest.rglob("*") if each.is_file() and each.suffix != ".json"]
    return {str(each.relative_to(newest)): each.read_bytes() for each in [*files, newest / "state.json"]}


@pytest.fixture
def rows() -> Callable[[Path], list[dict[str, Any]]]:
    """A run's metrics rows without timings."""
    return plain_rows


@pytest.fixture
def state() -> Callable[[Path], dict[str, bytes]]:
    """The newest checkpoint's files, byte for byte."""
    return newest_state
