"""The run directory: nothing is overwritten, nothing is left half-written, and transcripts can be read."""

import fcntl
import json
import math
import os
import re
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from marft.run.directory import RunDirectory, read_jsonl, to_json, write_text
from marft.types import Action, Episode, Failure, MarftError, Spelt, Task


def action(agent="planner", turn=0, parents=(), text="add", logprobs=(-0.5, -1.5), reward=0.0):
    return Action(
        agent=agent,
        turn=turn,
        parents=parents,
        prompt_ids=(1, 2, 3),
        joint_ids=(1,),
        token_ids=tuple(range(len(logprobs))),
        logprobs=logprobs,
        text=text,
        stop="stop",
        policy_version=4,
        reward=reward,
    )


def episode(*actions, **changes):
    fields = {
        "task": Task("chain_sum-7", "2 + 3 = ?", "chain_sum", {"answer": "5"}),
        "group": "chain_sum-7",
        "sample": 1,
        "actions": actions,
        "terminated": True,
        "truncated": False,
        "metrics": {"success": 1.0},
    }
    return Episode(**{**fields, **changes})


def entries(path: Path) -> list[str]:
    return sorted(each.relative_to(path).as_posix() for each in path.rglob("*"))


def test_a_run_is_made_and_opened_again(config, tmp_path):
    run = RunDirectory.create(config)
    assert run.path.parent == tmp_path / "runs"
    assert re.fullmatch(r"duo-\d{8}-\d{6}", run.path.name)
    assert entries(run.path) == ["config.yaml"]
    assert RunDirectory.open(run.path).config() == config


def test_runs_of_one_second_get_folders_of_their_own(config, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")
    names = [RunDirectory.create(config).path.name for _ in range(3)]
    assert names == ["duo-20260102-030405", "duo-20260102-030405-2", "duo-20260102-030405-3"]


def test_an_explicit_folder_is_taken_if_empty(config, tmp_path):
    (tmp_path / "mine").mkdir()
    assert RunDirectory.create(config, tmp_path / "mine").config() == config
    assert RunDirectory.create(config, tmp_path / "deep" / "er").config() == config


def test_a_folder_that_holds_a_run_is_refused(config, run):
    before = run.config_file.read_bytes()
    with pytest.raises(MarftError, match=r"already holds a run; add --resume .* another --run"):
        RunDirectory.create(config, run.path)
    assert run.config_file.read_bytes() == before


def test_a_folder_with_other_things_is_refused(config, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(MarftError, match="not empty and is not a run"):
        RunDirectory.create(config, tmp_path / "thesis")
    assert entries(tmp_path) == ["thesis", "thesis/chapter.tex"]


@pytest.mark.parametrize("at", ["file", "file/run", "file/deep/run"])
def test_a_file_in_the_way_is_one_sentence(config, tmp_path, at):
    (tmp_path / "file").write_text("x")
    with pytest.raises(MarftError, match=r"the run directory cannot be made \(.+\); choose .*--run") as caught:
        RunDirectory.create(config, tmp_path / at)
    assert "\n" not in str(caught.value)
    assert entries(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_parent_is_one_sentence(config, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(MarftError, match=r"cannot be made \(Permission denied\)"):
        RunDirectory.create(config)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("explicit", [True, False])
def test_a_full_disk_leaves_nothing_behind(config, tmp_path, explicit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))  # writing fails at the 17th byte
        with pytest.raises(MarftError, match="cannot be made"):
            RunDirectory.create(config, tmp_path / "new" / "run" if explicit else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert entries(tmp_path) == []


def test_opening_what_is_no_run_names_the_runs_there_are(config, run, tmp_path):
    with pytest.raises(MarftError, match=rf"rum: there is no such run; did you mean '{run.path}'\?"):
        RunDirectory.open(tmp_path / "rum")
    with pytest.raises(MarftError, match=rf"is not a run .*; the newest run near there is '{run.path}'"):
        RunDirectory.open(tmp_path)
    with pytest.raises(MarftError, match=r"there is no such run$"):
        RunDirectory.open(tmp_path / "no" / "where")
    with pytest.raises(MarftError, match=r"config\.yaml: is a file; name the folder of the run$"):
        RunDirectory.open(run.config_file)


def test_a_run_has_one_writer_and_a_killed_writer_lets_go(run):
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with run.lock():
            os.write(tell, b"x")
            signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(MarftError, match="another process is training in this run"), run.lock():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with run.lock():
        pass
    with run.lock():  # and leaving gives it back
        pass


def test_a_glance_at_the_lock_does_not_keep_a_writer_out(run):
    with open(run.path / ".lock", "a") as glance:
        fcntl.flock(glance, fcntl.LOCK_SH)  # as `marft view` does to see whether a run is live
        threading.Timer(0.1, fcntl.flock, (glance, fcntl.LOCK_UN)).start()
        with run.lock():
            pass


def test_an_episode_is_written_for_people(run):
    played = episode(
        action("planner", text="add them"),
        action("critic", parents=(0,), text="fine"),
        action("solver", turn=1, parents=(0, 1), text="5", logprobs=(-0.25, -0.5, -0.75), reward=1.0),
    )
    path = run.write_episodes("000003", [played], lambda each: Spelt(f"{len(each.prompt_ids)} ids", ("5", "", "<end>")))
    assert path == run.path / "episodes" / "000003.jsonl"
    (record,) = run.read_episodes("000003")
    assert {key: record[key] for key in ("task", "group", "sample", "reward", "success", "error", "metrics")} == {
        "task": {"id": "chain_sum-7", "kind": "chain_sum", "prompt": "2 + 3 = ?"},
        "group": "chain_sum-7",
        "sample": 1,
        "reward": 1.0,
        "success": 1.0,
        "error": None,
        "metrics": {"success": 1.0},
    }
    assert (record["terminated"], record["truncated"]) == (True, False)
    assert [each["saw"] for each in record["actions"]] == [[], ["planner"], ["planner", "critic"]]
    assert record["actions"][2] == {
        "agent": "solver",
        "turn": 1,
        "step": 0,
        "saw": ["planner", "critic"],
        "parents": [0, 1],
        "prompt": "3 ids",
        "pieces": ["5", "", "<end>"],
        "logprobs": [-0.25, -0.5, -0.75],
        "text": "5",
        "reward": 1.0,
        "stop": "stop",
        "tokens": 3,
        "mean_logprob": -0.5,
        "policy_version": 4,
        "truncated_tokens": 0,
    }


def test_without_prompts_no_prompt_and_no_ids_are_written(run):
    run.write_episodes("x", [episode(action())])
    (record,) = run.read_episodes("x")
    assert not {"prompt", "prompt_ids", "token_ids", "logprobs"} & record["actions"][0].keys()


def test_a_failed_episode_names_who_and_why(run):
    run.write_episodes("x", [episode(error=Failure("planner", "deadline"), metrics={}), episode(action(logprobs=()))])
    failed, empty = run.read_episodes("x")
    assert failed["error"] == {"who": "planner", "reason": "deadline"}
    assert failed["actions"] == []
    assert (empty["actions"][0]["tokens"], empty["actions"][0]["mean_logprob"]) == (0, None)


def test_any_text_comes_back(run):
    # U+2028 and U+0085 end lines for some readers; a lone surrogate has no UTF-8 form
    text = 'one\ntwo\u2028three\x85four\x00 \ud800 é 😀 "quoted" \\'
    path = run.write_episodes("x", [episode(action(text=text)), episode(action(text="next"))])
    assert [each["actions"][0]["text"] for each in run.read_episodes("x")] == [text, "next"]
    assert path.read_bytes().count(b"\n") == 2
    assert "é 😀".encode() in path.read_bytes()  # readable, not escaped


def test_numbers_json_has_no_word_for_are_null(run):
    path = run.write_episodes("x", [episode(action(reward=math.nan, logprobs=(-math.inf,)))])
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (record["actions"][0]["reward"], record["actions"][0]["mean_logprob"]) == (None, None)


def test_scalars_of_other_libraries_become_numbers():
    assert to_json({"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(2.0), "d": (True, None, "x")}) == (
        '{"a": 0.5, "b": 3, "c": 2.0, "d": [true, null, "x"]}'
    )
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_unknown_episodes_and_bad_names_are_refused(run):
    with pytest.raises(MarftError, match="there are: none yet"):
        run.read_episodes("000001")
    run.write_episodes("b", [])
    run.write_episodes("a", [])
    assert run.episode_names() == ["a", "b"]
    with pytest.raises(MarftError, match="there are: a, b"):
        run.read_episodes("c")
    with pytest.raises(ValueError, match="episode file name"):
        run.write_episodes("../outside", [])


def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"a": 1}\n{"a": "é'.encode()[:-1])  # torn inside a character
    assert read_jsonl(path) == [{"a": 1}]
    path.write_bytes(b'{"a": 1}\n{"a": 2}')  # only the line's end is missing
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
    path.write_bytes(b'{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(MarftError, match="line 2 is not valid JSON"):
        read_jsonl(path)
    with pytest.raises(MarftError, match="cannot be read"):
        read_jsonl(tmp_path / "absent.jsonl")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write_text(tmp_path / "file", "old")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "file", "new")
    assert entries(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"
