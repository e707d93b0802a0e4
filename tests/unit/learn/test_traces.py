"""What is written of learning says of each action what the update made of it."""

import json

import pytest
import torch

from builders import Plain, World, action, episode, same, snapshot, stirred, team_of
from marft.learn.clock import Clock
from marft.learn.collate import Layout, collate
from marft.learn.repetition import repeated
from marft.learn.train import Training, iterate
from marft.run.progress import Silent
from marft.types import Trace

FREE = {"credit": {"baseline": "none", "normalise": "none", "gamma_token": 0.5, "lam_token": 1.0}}


def learnt(level, *agents, keep=True, **settings):
    """One iteration of a team that is paid for letters a: the training, its episodes, and what was kept of learning."""
    world = World(pay=lambda said: float(list(said[-1].values())[-1].count("a")))
    update = {"level": level, "lr": 0.05}
    training = Training.of(team_of(*agents, world=world, update=update, critic={"kind": "none"}, **FREE, **settings))
    for backend in training.team.backends:
        stirred(backend.policy)
    kept = []
    episodes, _ = iterate(training, 0, Clock(), Silent(), kept.extend if keep else None)
    return training, episodes, kept


def test_rows_name_the_actions_they_came_from():
    played = episode(*(action(name, turn=turn) for turn in (0, 1) for name in ("ann", "bob")), group="g", sample=3)
    team = collate([played], ("ann", "bob"), Layout())
    assert team.origins == (("g", 3, 0), ("g", 3, 1), ("g", 3, 2), ("g", 3, 3))
    own = collate([played], ("ann", "bob"), Layout(chain="agent"))  # a chain per agent: ann's actions, then bob's
    assert own.origins == (("g", 3, 0), ("g", 3, 2), ("g", 3, 1), ("g", 3, 3))
    assert own.batch.agent.tolist() == [0, 0, 1, 1]
    sides = [action("ann", side="x"), action("bob", side="y"), action("ann", side="x", turn=1)]
    assert [place for _, _, place in collate([episode(*sides)], ("ann", "bob"), Layout()).origins] == [0, 2, 1]


@pytest.mark.parametrize("level", ["action", "token"])
def test_traces_hold_the_advantages_and_the_ratios_of_the_update(level):
    training, episodes, kept = learnt(level, "ann", "bob")
    plain = Plain(training.team.backends[0].base.model)
    policy = training.team.backends[0].policy
    assert len(kept) == 2 * len(episodes) == 8
    by_place = {(each.group, each.sample, each.action): each for each in kept}
    for played in episodes:
        for place, said in enumerate(played.actions):
            trace = by_place[played.group, played.sample, place]
            last, size = place == 1, len(said.token_ids)
            if level == "action":  # gamma_agent is 1: the reward arrives whole at both agents
                assert trace.advantage == pytest.approx(played.reward, abs=1e-4)
            else:  # every token is half as far from the reward as the one before it
                distance = [size - 1 - at + (0 if last else len(played.actions[1].token_ids) - 1) for at in range(size)]
                expected = [played.reward * 0.5**steps for steps in distance]
                found = trace.advantage if size > 1 else [trace.advantage]
                assert found == pytest.approx(expected, abs=1e-4)
            new = plain.logprobs(said.prompt_ids, said.token_ids, snapshot(policy, said.agent))
            expected = (new - torch.tensor(said.logprobs)).exp()  # in float32 the sampler's are the learner's
            assert trace.ratio == pytest.approx(expected.tolist(), abs=2e-4)
    assert any(abs(each - 1) > 0.01 for trace in kept for each in trace.ratio)  # or nothing was learnt to see


def test_only_a_quarter_of_many_rows_is_measured():
    rollout = {"tasks": 10, "samples": 8, "sampling": {"max_tokens": 2}}
    _, _, kept = learnt("action", "ann", rollout=rollout)
    assert [trace.ratio is not None for trace in kept] == [True] * 20 + [False] * 60


def test_agents_that_do_not_learn_leave_no_trace():
    _, episodes, kept = learnt("action", {"name": "ann", "trainable": False}, "bob")
    assert {trace.action for trace in kept} == {1}
    assert len(kept) == len(episodes)


def test_keeping_traces_changes_nothing():
    with_traces, _, kept = learnt("token", "ann", "bob")
    without, _, nothing = learnt("token", "ann", "bob", keep=False)
    assert kept
    assert not nothing
    for name in ("ann", "bob"):
        one, other = (snapshot(each.team.backends[0].policy, name) for each in (with_traces, without))
        assert same(one, other)


def test_they_are_written_one_a_line(run):
    rows = [Trace("t/0/1", 2, 0, 0, 0.5, None), Trace("t/0/1", 2, 1, 0, (0.5, -1.0), (1.0, float("inf")))]
    path = run.write_learnt(7, rows)
    assert path == run.path / "learnt" / "000007.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"group": "t/0/1", "sample": 2, "action": 0, "played": 0, "advantage": 0.5, "ratio": None},
        {"group": "t/0/1", "sample": 2, "action": 1, "played": 0, "advantage": [0.5, -1.0], "ratio": [1.0, None]},
    ]


@pytest.fixture
def run(tmp_path):
    from marft.run.directory import RunDirectory

    return RunDirectory(tmp_path)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 0.0),
        ("one two three", 0.0),  # too short for a run of four
        ("one two three four", 0.0),
        ("a b c d a b c d", 0.2),  # five runs, one of which came before
        ("A a a a a a a", 0.75),  # four equal runs
    ],
)
def test_repetition_counts_runs_of_four_words_that_came_before(text, share):
    assert repeated(text) == pytest.approx(share)
