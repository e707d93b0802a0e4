"""Checkpoints: folders that are either whole or absent, whatever moment the process was killed at.

`checkpoints/NNNNNN/` holds the state after NNNNNN iterations, so a run resumed from it plays iteration NNNNNN next.
Tensors go to safetensors and everything else to JSON: nothing is pickled, so loading a checkpoint runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.run.directory import CHECKPOINT_NAME, RunDirectory, fsync, write_text
from marft.types import MarftError

MANIFEST = "manifest.json"
_HIDDEN = re.compile(r"\.(\d{6,})\.(tmp|old|gone)-\d+")


@contextmanager
def writing(run: RunDirectory, iteration: int) -> Iterator[Path]:
    """Yields a temporary folder to fill; on leaving it becomes checkpoint `iteration`, replacing one of that number.

    When the block raises, the temporary folder is removed and the checkpoints stay as they were.
    """
    target = _folder(run, iteration)
    temporary = _hidden(target, "tmp")
    run.checkpoints.mkdir(exist_ok=True)
    fsync(run.path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        _seal(temporary)
        if target.exists():  # rename cannot replace a folder with files in it; `clean` undoes a kill in between
            os.rename(target, _hidden(target, "old"))
        os.rename(temporary, target)
        fsync(run.checkpoints)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if _hidden(target, "old").exists() and not target.exists():
            os.rename(_hidden(target, "old"), target)
        if not isinstance(error, OSError):
            raise
        raise MarftError(f"{target}: the checkpoint cannot be written ({error.strerror or error})") from error
    shutil.rmtree(_hidden(target, "old"), ignore_errors=True)


def clean(run: RunDirectory) -> None:
    """Remove what a killed process left half-done; call it at the start, while holding `run.lock()`."""
    for file in run.path.rglob(".*.tmp-*"):
        if file.is_file() and not _HIDDEN.fullmatch(file.parent.name):
            file.unlink()
    for folder in sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []:
        match = _HIDDEN.fullmatch(folder.name)
        if match and match[2] == "old" and not (run.checkpoints / match[1]).exists():
            os.rename(folder, run.checkpoints / match[1])
        elif match:
            shutil.rmtree(folder)


def latest(run: RunDirectory) -> Path | None:
    """The newest checkpoint's folder, or None before the first."""
    numbers = iterations(run)
    return _folder(run, numbers[-1]) if numbers else None


def iterations(run: RunDirectory) -> list[int]:
    """The numbers of all checkpoints, oldest first."""
    return run.checkpoint_numbers()


def named(run: RunDirectory, name: str) -> Path:
    """The checkpoint called `latest`, `best` or by its number; raises `MarftError` that lists those there are."""
    numbers = iterations(run)
    if name == "latest":
        wanted = numbers[-1] if numbers else None
    elif name == "best":
        marked = best(run)
        wanted = marked[0] if marked else None
    else:
        wanted = int(name) if name.isdecimal() else None
    if wanted in numbers:
        return _folder(run, wanted)
    known = ", ".join(f"{number:06d}" for number in numbers) or "none yet"
    raise MarftError(f"{run.checkpoints}: there is no checkpoint '{name}'; there are: {known}")


def mark_best(run: RunDirectory, iteration: int, score: float) -> None:
    """Call checkpoint `iteration` the best, whatever was best before; it must have been written."""
    if iteration not in iterations(run):
        raise ValueError(f"checkpoint {iteration} was not written, so it cannot be the best")
    write_text(run.checkpoints / "best.json", json.dumps({"iteration": iteration, "score": score}) + "\n")


def mark_if_best(run: RunDirectory, iteration: int, score: float) -> None:
    """Call checkpoint `iteration` the best if it was written and no other scored as much; `score` is that of its play,
    which is known only when the iteration of that number has been played with it."""
    marked = best(run)
    if iteration in iterations(run) and (marked is None or score > marked[1]):
        mark_best(run, iteration, score)


def best(run: RunDirectory) -> tuple[int, float] | None:
    """(iteration, score) of the best checkpoint, or None when none was marked."""
    path = run.checkpoints / "best.json"
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf8"))
        return int(record["iteration"]), float(record["score"])
    except (OSError, ValueError, KeyError, TypeError):
        raise MarftError(f"{path}: is damaged; delete it to go on without a best checkpoint") from None


def prune(run: RunDirectory, keep_last: int, keep: int | None = None, also: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep_last` >= 1, `also`, and `keep`, by default the one marked best."""
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}: the newest checkpoint is always kept")
    if keep is None:
        marked = best(run)
        keep = marked[0] if marked else None
    for number in iterations(run)[:-keep_last]:
        if number != keep and number not in also:
            # Out of sight first, so that a kill while deleting leaves no checkpoint with half of its files
            gone = _hidden(_folder(run, number), "gone")
            os.rename(_folder(run, number), gone)
            shutil.rmtree(gone)


def verify(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises `MarftError` naming the damaged file and the newest earlier checkpoint that is whole.
    """
    fault = _fault(folder)
    if fault is None:
        return
    numbered = [each for each in folder.parent.iterdir() if CHECKPOINT_NAME.fullmatch(each.name)]
    earlier = [each for each in numbered if folder in numbered and int(each.name) < int(folder.name)]
    whole = next((each for each in sorted(earlier, key=_number, reverse=True) if _fault(each) is None), None)
    advice = f"checkpoint '{whole.name}' is whole" if whole else "no earlier checkpoint is whole"
    raise MarftError(f"{fault}; {advice}")


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors of any device as one safetensors file (memory two names share is stored twice)."""
    _save({name: _own(tensor) for name, tensor in tensors.items()}, path)


def load_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises `MarftError` when it is missing or damaged."""
    try:
        return load_file(str(path), device=device)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{path}: cannot be loaded: {error}") from None


def save_state(path: Path, state: Any) -> None:
    """Write nested dicts, lists and tuples of tensors, arrays, numbers, text and None as one safetensors file.

    The tensors are stored as they are and the structure around them as JSON in the file's header, so optimiser and
    random states come back bit for bit. Raises TypeError for anything else.
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(state, tensors))
    _save(tensors, path, {"structure": structure})


def load_state(path: Path, device: str = "cpu") -> Any:
    """What `save_state` wrote; raises `MarftError` when the file is missing, damaged or another kind of file."""
    tensors = load_tensors(path, device)
    with safetensors.safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
    if "structure" not in metadata:
        raise MarftError(f"{path}: holds tensors but no saved state")
    return _decode(json.loads(metadata["structure"]), tensors)


def seed_rng(seed: int) -> None:
    """Start the global random states of torch, NumPy and Python from one seed."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def rng_state() -> dict[str, Any]:
    """The global random states of torch (CPU and every CUDA device), NumPy and Python, for `save_state`."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Set the random states `rng_state` took; those of CUDA devices that this machine lacks are left aside."""
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available():
        for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(each.cpu(), device)
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def _folder(run: RunDirectory, iteration: int) -> Path:
    return run.checkpoints / f"{iteration:06d}"


def _number(folder: Path) -> int:
    return int(folder.name)


def _hidden(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{os.getpid()}")


def _seal(folder: Path) -> None:
    """Write the manifest and wait until every file and folder is on the disk."""
    paths = sorted(folder.rglob("*"))
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in paths
        if path.is_file()
    }
    write_text(folder / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")
    for path in (*paths, folder):
        fsync(path)


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words, or None."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf8"))["files"]
    except FileNotFoundError:
        return f"{folder / MANIFEST}: is missing, so this is no whole checkpoint"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder / MANIFEST}: is damaged"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{path}: is missing from the checkpoint"
        if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            return f"{path}: is damaged (its content is not what the manifest says)"
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    try:
        save_file(tensors, str(path), metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"{path}: cannot be written: {error}") from None


def _own(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for a state. What JSON has no word for becomes {"$kind": …}; tensors are put aside under their number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(each, tensors) for each in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(each, tensors) for key, each in value.items()}
        return {"$dict": [[_encode(key, tensors), _encode(each, tensors)] for key, each in value.items()]}
    if isinstance(value, Tensor | np.ndarray):
        kind = "$tensor" if isinstance(value, Tensor) else "$array"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
        tensors[str(len(tensors))] = _own(tensor)
        return {kind: str(len(tensors) - 1)}
    raise TypeError(f"a {type(value).__name__} cannot be part of a saved state")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$array" in value:
        return tensors[value["$array"]].cpu().numpy()
    if "$tuple" in value:
        return tuple(_decode(each, tensors) for each in value["$tuple"])
    if "$dict" in value:
        return {_decode(key, tensors): _decode(each, tensors) for key, each in value["$dict"]}
    return {key: _decode(each, tensors) for key, each in value.items()}
