"""What training remembers comes back from a checkpoint as it was."""

from dataclasses import replace

import pytest
import torch

from builders import action, episode
from marft.learn.curriculum import Record
from marft.learn.memory import Memory, Round, packed, unpacked
from marft.run import checkpoint
from marft.types import Failure, Task


def some_episodes():
    rich = action(
        "bob", (4,), (5, 6, 7), turn=2, parents=(0,), joint_ids=(), logprobs=(-0.1, -1 / 3, -1e-9), text="$ö\u2028",
        stop="length", policy_version=3, reward=-0.7, truncated_tokens=2, step=1, tool_results=("4", ""), side="red",
        shared=0.3,
    )  # fmt: skip
    return (
        episode(action(), rich, group="t/3/0", sample=1, metrics={"success": 0.1}, answer="4"),
        episode(
            action(), terminated=False, truncated=True, final_joint_ids={"ann": (1, 2, 3), "bob": ()},
            task=Task("x", "?", "hard"),
        ),
        episode(error=Failure("bob", "lost"), terminated=False),
    )  # fmt: skip


def test_episodes_come_back_whole_from_a_file(tmp_path):
    checkpoint.save_state(tmp_path / "memory", packed(some_episodes()))
    assert unpacked(checkpoint.load_state(tmp_path / "memory")) == some_episodes()
    checkpoint.save_state(tmp_path / "none", packed(()))
    assert unpacked(checkpoint.load_state(tmp_path / "none")) == ()


def test_the_graders_data_is_not_kept():
    secret = replace(some_episodes()[0], task=Task("t/3/0", "?", data={"answer": object()}))
    assert unpacked(packed([secret]))[0] == replace(secret, task=Task("t/3/0", "?"))


def test_ids_are_two_tensors_however_many_actions():
    state = packed(some_episodes())
    assert [name for name, value in state.items() if isinstance(value, torch.Tensor)] == ["ids", "logprobs"]
    # prompt, joint view and reply of ann, bob and ann, then the final views
    assert state["ids"].tolist() == [5, 6, 7, 1, 2, 8, 9, 4, 5, 6, 7, 5, 6, 7, 1, 2, 8, 9, 1, 2, 3]


def test_everything_comes_back_from_a_checkpoint(tmp_path):
    memory = Memory({"ann": 0.5}, 0.25, 2, (Round(3, some_episodes()), Round(4, ())), Record(9, {5: 0.5}, {"a": 0.1}))
    checkpoint.save_state(tmp_path / "memory", memory.state())
    other = Memory()
    other.restore(checkpoint.load_state(tmp_path / "memory"))
    assert other == memory


@pytest.mark.parametrize(
    ("staleness", "reuse", "expected"),
    [
        (0, 0, [[0], [1], [2], [3]]),
        (1, 0, [[], [0], [1], [2]]),
        (0, 1, [[0], [1, 0], [2, 1], [3, 2]]),
        (1, 2, [[], [0], [1, 0], [2, 1, 0]]),
        (2, 1, [[], [], [0], [1, 0]]),
    ],
)
def test_what_is_due_is_so_many_iterations_old_and_newest_first(staleness, reuse, expected):
    memory, found, kept = Memory(), [], []
    for iteration in range(4):
        memory.add(Round(iteration, ()))
        found.append([each.iteration for each in memory.due(iteration, staleness, reuse)])
        memory.forget(iteration, staleness, reuse)
        kept.append(len(memory.rounds))
    assert found == expected
    assert max(kept) == staleness + reuse  # no more than is still needed
