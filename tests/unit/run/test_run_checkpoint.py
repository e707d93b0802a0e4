"""Checkpoints: whole or absent after a kill at any moment, damage is named, and states come back bit for bit."""

import json
import math
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from marft.run.checkpoint import (
    best,
    clean,
    iterations,
    latest,
    load_state,
    load_tensors,
    mark_best,
    named,
    prune,
    restore_rng,
    rng_state,
    save_state,
    save_tensors,
    verify,
    writing,
)
from marft.types import MarftError


def save(run, iteration, content="state"):
    with writing(run, iteration) as folder:
        (folder / "adapters" / "planner").mkdir(parents=True)
        (folder / "adapters" / "planner" / "weights.bin").write_bytes(bytes(range(256)) * 20)
        (folder / "state.json").write_text(f"{content} {iteration}")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def kill_oneself(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work):
    """Run `work` in a forked process; True when it was killed, False when it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return False


def test_a_checkpoint_is_written_and_found(run):
    assert latest(run) is None
    assert iterations(run) == []
    for iteration in (1, 2, 10):
        save(run, iteration)
    assert names(run.checkpoints) == ["000001", "000002", "000010"]
    assert latest(run) == named(run, "latest") == named(run, "000010") == named(run, "10")
    assert (latest(run) / "state.json").read_text() == "state 10"
    verify(latest(run))


def test_the_manifest_lists_every_file(run):
    save(run, 1)
    files = json.loads((latest(run) / "manifest.json").read_text())["files"]
    # sha256sum of the 5120 bytes 00 01 … ff, twenty times over, and of "state 1"
    assert {name: entry["bytes"] for name, entry in files.items()} == {
        "adapters/planner/weights.bin": 5120,
        "state.json": 7,
    }
    assert files["state.json"]["sha256"] == "2780e2d008eba4f8b30ac02f5ec0a66ce5285a29bb2d1a6c0164ea2c7dd17544"


def test_numbers_beyond_six_digits_stay_in_order(run):
    save(run, 999_999)
    save(run, 1_000_000)
    assert latest(run).name == "1000000"
    (latest(run) / "state.json").unlink()
    with pytest.raises(MarftError, match="checkpoint '999999' is whole"):
        verify(latest(run))


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (RuntimeError("out of memory"), RuntimeError, "out of memory"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (OSError(28, "No space left on device"), MarftError, r"000002: the checkpoint cannot be written \(No space"),
    ],
)
def test_an_error_while_saving_leaves_the_checkpoints_as_they_were(run, error, raised, message):
    def fail():
        with writing(run, 2) as folder:
            (folder / "state.json").write_text("half")
            raise error

    save(run, 1)
    with pytest.raises(raised, match=message):
        fail()
    assert names(run.checkpoints) == ["000001"]


def test_everything_is_on_disk_before_the_name_appears(run, monkeypatch):
    """A power cut after the rename must find the content: each file and folder is synced first, the parent after."""
    steps = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor):
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split(".tmp-")[0])
        fsync(descriptor)

    def recording_rename(source, target):
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    save(run, 1)
    before, after = steps[: steps.index("rename")], steps[steps.index("rename") + 1 :]
    assert {"adapters", "planner", "weights.bin", "state.json", ".manifest.json", ".000001"} <= set(before)
    assert before[-1] == ".000001"  # the folder itself last, when all its names are there
    assert after == ["checkpoints"]


def test_saving_a_number_again_replaces_it(run):
    save(run, 1)
    save(run, 1, "newer")
    assert names(run.checkpoints) == ["000001"]
    assert (latest(run) / "state.json").read_text() == "newer 1"
    verify(latest(run))


def test_a_failed_replacement_keeps_the_old_one(run, monkeypatch):
    save(run, 1)
    rename = os.rename

    def fail_on_temporary(source, target):
        if ".tmp-" in str(source):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_on_temporary)
    with pytest.raises(MarftError, match="Input/output error"):
        save(run, 1, "newer")
    assert names(run.checkpoints) == ["000001"]
    assert (latest(run) / "state.json").read_text() == "state 1"


def test_named_lists_what_there_is(run):
    with pytest.raises(MarftError, match="no checkpoint 'latest'; there are: none yet"):
        named(run, "latest")
    save(run, 3)
    for name in ("best", "000004", "newest"):
        with pytest.raises(MarftError, match=f"no checkpoint '{name}'; there are: 000003"):
            named(run, name)


def test_best_is_marked_and_kept(run):
    assert best(run) is None
    for iteration in range(1, 6):
        save(run, iteration)
        if iteration == 2:
            mark_best(run, 2, 0.75)
        prune(run, keep_last=2)
    assert names(run.checkpoints) == ["000002", "000004", "000005", "best.json"]
    assert named(run, "best").name == "000002"
    assert best(run) == (2, 0.75)
    mark_best(run, 5, 0.8)
    prune(run, keep_last=1)
    assert iterations(run) == [5]
    with pytest.raises(ValueError, match="was not written"):
        mark_best(run, 2, 1.0)
    with pytest.raises(ValueError, match="keep_last"):
        prune(run, keep_last=0)
    (run.checkpoints / "best.json").write_text("{")
    with pytest.raises(MarftError, match=r"best\.json: is damaged"):
        best(run)


def test_prune_keeps_the_one_it_is_told(run):
    for iteration in range(1, 5):
        save(run, iteration)
    prune(run, 1, keep=2)
    assert iterations(run) == [2, 4]


@pytest.mark.parametrize("name", ["state.json", "adapters/planner/weights.bin"])
def test_damage_is_named_with_the_checkpoint_that_is_whole(run, name):
    for iteration in (1, 2, 3):
        save(run, iteration)
    for number in ("000002", "000003"):
        path = run.checkpoints / number / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1  # one bit, the size unchanged
        path.write_bytes(content)
    with pytest.raises(MarftError, match=f"000003/{name}: is damaged .*; checkpoint '000001' is whole"):
        verify(latest(run))
    verify(named(run, "1"))
    (run.checkpoints / "000001" / "state.json").unlink()
    with pytest.raises(MarftError, match=r"000001/state.json: is missing .*; no earlier checkpoint is whole"):
        verify(named(run, "1"))


def test_a_checkpoint_without_a_manifest_is_none(run):
    save(run, 1)
    (latest(run) / "manifest.json").write_text('{"files"')
    with pytest.raises(MarftError, match=r"manifest\.json: is damaged"):
        verify(latest(run))
    (latest(run) / "manifest.json").unlink()
    with pytest.raises(MarftError, match=r"manifest\.json: is missing"):
        verify(latest(run))


@pytest.mark.parametrize("function", ["rename", "replace", "fsync", "mkdir", "unlink", "rmdir"])
def test_a_kill_at_every_step_leaves_the_newest_checkpoint_whole(run, function):
    """Before the 1st, 2nd, 3rd … call of each function that changes the disk, the process dies."""

    def save_and_prune():
        save(run, 2, "newer")  # replaces
        save(run, 3)
        mark_best(run, 3, 1.0)
        prune(run, keep_last=1)

    def die_at(call):
        real = getattr(os, function)
        count = iter(range(1, call + 1))

        def counted(*args, **options):
            if next(count, None) == call:
                kill_oneself()
            return real(*args, **options)

        setattr(os, function, counted)
        save_and_prune()

    for call in range(1, 100):
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        save(run, 1)
        save(run, 2)
        killed = in_child(lambda call=call: die_at(call))
        clean(run)
        for iteration in iterations(run):
            verify(named(run, str(iteration)))
        assert iterations(run)[-1] >= 2
        assert [name for name in names(run.checkpoints) if name.startswith(".")] == []
        if not killed:
            break
    assert not killed  # every call was tried
    assert call > 1


def test_a_kill_at_random_moments_leaves_the_newest_checkpoint_whole(run):
    def save_for_ever():
        iteration = iterations(run)[-1] if iterations(run) else 0
        while True:
            iteration += 1
            with writing(run, iteration) as folder:
                save_tensors(folder / "weights.safetensors", {"w": torch.full((20_000,), float(iteration))})
                save_state(folder / "optimizer.safetensors", {"step": iteration})
            prune(run, keep_last=2)

    chance = random.Random(0)
    newest = 0
    for _ in range(25):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever()
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.01, 0.12))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])  # it was still saving
        clean(run)
        if newest or latest(run):
            verify(latest(run))
            number = load_state(latest(run) / "optimizer.safetensors")["step"]
            assert load_tensors(latest(run) / "weights.safetensors")["w"].eq(number).all()
            assert int(latest(run).name) == number >= newest
            newest = number
        assert len(iterations(run)) <= 3
    assert newest > 3  # rounds did save something, and went on from each other


def test_clean_takes_away_only_what_a_kill_left(run):
    save(run, 1)
    run.write_episodes("x", [])
    for stale in (".000002.tmp-7", ".000001.old-7", ".000000.gone-7", ".other-1"):
        (run.checkpoints / stale / "inner").mkdir(parents=True)
    (run.checkpoints / ".best.json.tmp-7").write_text("{")
    (run.path / ".metrics.jsonl.tmp-7").write_text("{")
    clean(run)
    assert names(run.checkpoints) == [".other-1", "000001"]
    assert names(run.path) == ["checkpoints", "config.yaml", "episodes"]
    assert names(run.episodes) == ["x.jsonl"]


def test_tensors_come_back(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "plain": base,
        "view": base.t(),  # shares memory and is not contiguous
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "grad": torch.nn.Parameter(torch.ones(2)),
    }
    save_tensors(tmp_path / "t.safetensors", tensors)
    loaded = load_tensors(tmp_path / "t.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor.detach())


def test_states_come_back_with_their_types(tmp_path):
    state = {
        "numbers": [1, -(2**100), 0.1, math.inf, 5e-324, True, None],
        "betas": (0.9, (0.999,)),
        3: {"$tensor": "a user's own key"},
        (1, "a"): [],
        "tensor": torch.tensor([1.0, math.nan]),
        "array": np.array([[1, 2], [3, 4]], dtype=np.uint32),
        "text": "é\n",
    }
    save_state(tmp_path / "s.safetensors", state)
    loaded = load_state(tmp_path / "s.safetensors")
    # As whole numbers, because NaN is not equal to itself
    assert torch.equal(loaded.pop("tensor").view(torch.int32), state.pop("tensor").view(torch.int32))
    array, expected = loaded.pop("array"), state.pop("array")
    assert array.dtype == expected.dtype
    assert (array == expected).all()
    assert loaded == state
    assert [type(each) for each in loaded["numbers"]] == [type(each) for each in state["numbers"]]
    assert isinstance(loaded["betas"][1], tuple)


def test_a_state_that_cannot_be_stored_is_refused(tmp_path):
    with pytest.raises(TypeError, match="a set cannot be part"):
        save_state(tmp_path / "s.safetensors", {"a": {1, 2}})


def test_files_that_cannot_be_loaded_are_named(tmp_path):
    path = tmp_path / "s.safetensors"
    with pytest.raises(MarftError, match=r"s\.safetensors: cannot be loaded"):
        load_state(path)
    path.write_bytes(b"\x08\x00")
    with pytest.raises(MarftError, match=r"s\.safetensors: cannot be loaded"):
        load_tensors(path)
    save_tensors(path, {"a": torch.ones(1)})
    with pytest.raises(MarftError, match="no saved state"):
        load_state(path)
    with pytest.raises(MarftError, match="cannot be written"):
        save_tensors(tmp_path / "absent" / "s.safetensors", {"a": torch.ones(1)})


def train(model, optimizer, steps):
    for _ in range(steps):
        loss = (model(torch.randn(8, 4)) ** 2).mean() + np.random.rand() * model.bias.sum() * random.random()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_and_random_states_resume_bit_for_bit(tmp_path, amsgrad):
    def fresh():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01, "weight_decay": 0.1}]
        return model, torch.optim.AdamW(groups, lr=1e-3, amsgrad=amsgrad)

    model, optimizer = fresh()
    train(model, optimizer, 3)
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    save_state(tmp_path / "optimizer.safetensors", optimizer.state_dict())
    save_state(tmp_path / "rng.safetensors", rng_state())
    train(model, optimizer, 4)
    next_draws = torch.rand(3).tolist(), np.random.rand(), random.random()

    resumed, again = fresh()
    random.seed(1)
    np.random.seed(1)
    resumed.load_state_dict(load_tensors(tmp_path / "model.safetensors"))
    again.load_state_dict(load_state(tmp_path / "optimizer.safetensors"))
    restore_rng(load_state(tmp_path / "rng.safetensors"))
    train(resumed, again, 4)
    assert torch.equal(resumed.weight, model.weight)
    assert torch.equal(resumed.bias, model.bias)
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == next_draws


def test_every_global_random_state_comes_back(tmp_path):
    np.random.randn()  # leaves a second Gaussian waiting, which is part of the state
    random.gauss(0, 1)
    save_state(tmp_path / "rng.safetensors", rng_state())

    def draw():
        return torch.rand(3).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1), random.random()

    expected = draw()
    assert draw() != expected
    restore_rng(load_state(tmp_path / "rng.safetensors"))
    assert draw() == expected


def test_a_numpy_generator_comes_back(tmp_path):
    generator = np.random.default_rng(5)
    generator.random(7)
    save_state(tmp_path / "g.safetensors", generator.bit_generator.state)  # 128-bit whole numbers
    expected = generator.random(4)
    other = np.random.default_rng(0)
    other.bit_generator.state = load_state(tmp_path / "g.safetensors")
    assert (other.random(4) == expected).all()
