"""The run directory: one folder that holds everything a person may want to look at, and all that resuming needs."""

from __future__ import annotations

import difflib
import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from marft.config import Config, dump_config, load_config
from marft.types import Action, Episode, MarftError, Spelt, Trace

Spell = Callable[[Action], Spelt]
LOOK = 0.3  # seconds: who asks whether a run is live holds its lock for an instant
CHECKPOINT_NAME = re.compile(r"\d{6,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunDirectory:
    """A run on disk: `config.yaml`, `metrics.jsonl`, `episodes/*.jsonl`, `learnt/NNNNNN.jsonl`,
    `evaluations/NNNNNN.json`, `checkpoints/NNNNNN/`; and what trackers keep, such as `tensorboard/`."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The resolved config; a folder is a run when it has this file."""
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per iteration."""
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """The folder of readable transcripts."""
        return self.path / "episodes"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint_numbers(self) -> list[int]:
        """After how many iterations there is a checkpoint, oldest first; half-written ones do not count."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(each.name) for each in self.checkpoints.iterdir() if CHECKPOINT_NAME.fullmatch(each.name))

    @classmethod
    def create(cls, config: Config, at: str | Path | None = None) -> RunDirectory:
        """Make `<run.folder>/<name>-<YYYYmmdd-HHMMSS>` (or `at`) and write its config; nothing is ever overwritten.

        Raises `MarftError` when `at` is taken or the folder cannot be written; what was made until then is removed.
        """
        made: list[Path] = []
        try:
            if at is not None:
                path = _claim(Path(at), made)
            else:
                path = _claim_new(Path(config.run.folder), f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}", made)
            write_text(path / "config.yaml", dump_config(config))
        except BaseException as error:
            for folder in reversed(made):
                shutil.rmtree(folder, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            where = at if at is not None else config.run.folder
            raise MarftError(
                f"{where}: the run directory cannot be made ({error.strerror or error}); "
                "choose a folder that can be written with --run or run.folder"
            ) from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run at `path`; raises `MarftError` with the nearest runs when there is none."""
        run = cls(Path(path))
        if run.config_file.is_file():
            return run
        if run.path.is_file():
            raise MarftError(f"{path}: is a file; name the folder of the run{_other_runs(run.path.parent)}")
        what = "is not a run (it has no config.yaml)" if run.path.exists() else "there is no such run"
        raise MarftError(f"{path}: {what}{_other_runs(run.path)}")

    def config(self) -> Config:
        """The config the run was started with."""
        return load_config(self.config_file)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for one writing process; raises `MarftError` when another has it. A killed process lets go."""
        try:
            file = open(self.path / ".lock", "a")  # noqa: SIM115 (closed by the `with` below)
        except OSError as error:
            raise MarftError(f"{self.path}: the run directory cannot be written ({error.strerror})") from None
        with file:
            until = time.monotonic() + LOOK
            while not _locked(file):
                if time.monotonic() > until:
                    raise MarftError(f"{self.path}: another process is training in this run; wait for it to end")
                time.sleep(LOOK / 10)
            yield

    def write_evaluation(self, iteration: int, report: Mapping[str, Any]) -> Path:
        """Write `evaluations/NNNNNN.json`: the report of an evaluation after `iteration` iterations."""
        folder = self.path / "evaluations"
        folder.mkdir(exist_ok=True)
        return write_text(folder / f"{iteration:06d}.json", to_json(report) + "\n")

    def read_evaluations(self) -> dict[int, dict[str, Any]]:
        """All evaluation reports, by the number of iterations they came after."""
        files = sorted((self.path / "evaluations").glob("*.json"))
        return {int(file.stem): json.loads(file.read_text(encoding="utf8")) for file in files}

    def write_episodes(self, name: str, episodes: Iterable[Episode], spell: Spell | None = None) -> Path:
        """Write `episodes/<name>.jsonl`, one readable episode a line; `spell` gives an action's ids as text."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"episode file name {name!r}: use letters, digits, '.', '_' and '-'")
        self.episodes.mkdir(exist_ok=True)
        lines = [to_json(episode_record(episode, spell)) + "\n" for episode in episodes]
        return write_text(self.episodes / f"{name}.jsonl", "".join(lines))

    def write_learnt(self, iteration: int, traces: Iterable[Trace]) -> Path:
        """Write `learnt/NNNNNN.jsonl`: what each action was worth that iteration `iteration` (from 0) learnt from."""
        folder = self.path / "learnt"
        folder.mkdir(exist_ok=True)
        lines = [to_json(asdict(trace)) + "\n" for trace in traces]
        return write_text(folder / f"{iteration:06d}.jsonl", "".join(lines))

    def read_episodes(self, name: str) -> list[dict[str, Any]]:
        """The records of `episodes/<name>.jsonl`, as `episode_record` made them."""
        path = self.episodes / f"{name}.jsonl"
        if not path.is_file():
            known = ", ".join(self.episode_names()) or "none yet"
            raise MarftError(f"{path}: there is no such file of episodes; there are: {known}")
        return read_jsonl(path)

    def episode_names(self) -> list[str]:
        """The names `read_episodes` takes, sorted."""
        return sorted(path.stem for path in self.episodes.glob("*.jsonl"))


def episode_record(episode: Episode, spell: Spell | None = None) -> dict[str, Any]:
    """What a person wants to read of an episode: who saw what, who said what, and what it earned (no token ids)."""
    error = None if episode.error is None else {"who": episode.error.who, "reason": episode.error.reason}
    return {
        "task": {"id": episode.task.id, "kind": episode.task.kind, "prompt": episode.task.prompt},
        "group": episode.group,
        "sample": episode.sample,
        "reward": episode.reward,
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "error": error,
        "answer": episode.answer,
        "metrics": dict(episode.metrics),
        "actions": [_action_record(action, episode.actions, spell) for action in episode.actions],
    }


def _action_record(action: Action, actions: Sequence[Action], spell: Spell | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "agent": action.agent,
        "turn": action.turn,
        "step": action.step,
        "saw": [actions[parent].agent for parent in action.parents],
        "parents": list(action.parents),  # a name alone is ambiguous once an agent has spoken twice
    }
    if spell is not None:
        spelt = spell(action)
        record |= {"prompt": spelt.prompt, "pieces": list(spelt.pieces)}
        record["logprobs"] = [round(each, 4) for each in action.logprobs]
    if action.tool_results:
        record["tool_results"] = list(action.tool_results)
    record |= {
        "text": action.text,
        "reward": action.reward,
        "stop": action.stop,
        "tokens": len(action.token_ids),
        "mean_logprob": sum(action.logprobs) / len(action.logprobs) if action.logprobs else None,
        "policy_version": action.policy_version,
        "truncated_tokens": action.truncated_tokens,
    }
    return record


def to_json(value: Any) -> str:
    """One line of valid JSON; NaN and infinities become null, 0-dim tensors and NumPy scalars become numbers."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "item") and not isinstance(value, str | int | float):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line torn by a kill is left out, any other damage raises `MarftError`."""
    try:
        # Only "\n" ends a row: `splitlines` would also cut at U+2028 and its like inside a model's words
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MarftError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate([*lines, last], start=1):
        try:
            if line:
                rows.append(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError):
            if number <= len(lines):  # a complete line: no kill explains it
                raise MarftError(f"{path}: line {number} is not valid JSON; the file is damaged") from None
    return rows


def write_text(path: Path, text: str) -> Path:
    """Write a file so that a kill at any moment leaves the old content or the new, never a mixture; returns `path`."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            # A lone surrogate (from a task's JSON) has no UTF-8 form; its backslash form is that character in JSON
            file.write(text.encode("utf8", errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)
    return path


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(path: Path, made: list[Path]) -> Path:
    if (path / "config.yaml").exists():
        raise MarftError(f"{path}: already holds a run; add --resume to go on with it, or choose another --run")
    if path.is_dir() and any(not each.name.startswith(".") for each in path.iterdir()):
        raise MarftError(f"{path}: the folder is not empty and is not a run; choose another --run")
    _make(path, made)
    return path


def _claim_new(folder: Path, name: str, made: list[Path]) -> Path:
    _make(folder, made)
    number = 1
    while True:
        path = folder / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()  # fails where it exists, so two runs started in one second never share a folder
        except FileExistsError:
            number += 1
        else:
            made.append(path)
            return path


def _make(path: Path, made: list[Path]) -> None:
    """`mkdir -p` that adds each folder it made to `made`, so that a failure can take exactly those away again."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:  # another run made it meanwhile: it is not ours to remove
            continue
        made.append(each)
    if not path.is_dir():
        raise NotADirectoryError(20, "a file is in the way", str(path))


def _other_runs(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    runs = [each.parent for each in folder.glob("*/config.yaml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, [run.name for run in runs], n=1)
    if near:
        return f"; did you mean '{folder / near[0]}'?"
    if runs:
        newest = max(runs, key=lambda run: (run / "config.yaml").stat().st_mtime)
        return f"; the newest run near there is '{newest}'"
    return ""
