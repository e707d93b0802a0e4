"""A user's functions are told how a run goes on, change nothing, and are named when they fail."""

import functools
import random

import pytest
import torch

import marft
from marft.run.directory import read_jsonl
from marft.run.progress import Silent
from marft.types import Episode

TIMED = {"seconds", "share", "play_tokens_per_second", "update_tokens_per_second"}
CONFIG = {
    "iterations": 2,
    "threads": 1,
    "model": {"name": "tiny"},
    "lora": {"r": 2},
    "team": {"agents": [{"name": "scout"}, {"name": "speaker"}]},
    "environment": {"name": "relay", "symbols": ["a", "b"]},
    "rollout": {"tasks": 2, "samples": 2, "sampling": {"max_tokens": 3}},
    "critic": {"kind": "none"},
    "credit": {"baseline": "group"},
    "evaluation": {"tasks": 1, "samples": 2, "retention": False, "influence": False},
    "run": {"trackers": []},
}


def rows(run):
    return [
        {key: each for key, each in row.items() if key not in TIMED} for row in read_jsonl(run.path / "metrics.jsonl")
    ]


class Meddler:
    """Callbacks that do what they should not."""

    def __init__(self):
        self.metrics, self.episodes = [], []

    def iteration(self, metrics):
        self.metrics.append(dict(metrics))
        metrics.clear()
        torch.manual_seed(5)
        random.seed(5)

    def episode(self, episode):
        self.episodes.append(episode)
        torch.rand(3)
        random.random()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run with callbacks, and what they heard."""
    meddler = Meddler()
    run = marft.train(
        CONFIG, run=tmp_path_factory.mktemp("told") / "run", watcher=Silent(), on_iteration=meddler.iteration,
        on_episode=meddler.episode,
    )  # fmt: skip
    return run, meddler


def test_each_iteration_is_told_under_the_names_of_the_table(told):
    run, heard = told
    assert [each["iteration"] for each in heard.metrics] == [0, 1]
    table = run.metrics
    for place, metrics in enumerate(heard.metrics):
        assert {key for key in metrics if not key.startswith("failures/")} - {"iteration"} >= set(table.columns)
        assert metrics["success"] == table.loc[place, "success"]
        assert metrics["update/speaker/kl"] == table.loc[place, "update/speaker/kl"]


def test_each_episode_of_training_and_evaluation_is_told_once(told):
    run, heard = told
    assert all(isinstance(each, Episode) for each in heard.episodes)
    there = sorted((each["group"], each["sample"], each["reward"]) for each in run.episodes)
    assert sorted((each.group, each.sample, each.reward) for each in heard.episodes) == there
    assert len(there) == 2 * 4 + 2 * 3


def test_nothing_that_callbacks_do_changes_a_bit(told, tmp_path):
    run, _ = told
    plain = marft.train(CONFIG, run=tmp_path / "plain", watcher=Silent())
    assert rows(run) == rows(plain)
    assert list(run.episodes) == list(plain.episodes)
    one, other = (each.path / "checkpoints/000002/adapters/speaker/adapter_model.safetensors" for each in (run, plain))
    assert one.read_bytes() == other.read_bytes()


def second(metrics):
    if metrics["iteration"] == 1:
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("callback", "name"),
    [(second, "second"), (functools.partial(lambda told, metrics: second(metrics), 1), "partial")],
)
def test_one_that_fails_ends_the_run_by_name_and_the_last_checkpoint_stays(tmp_path, callback, name):
    with pytest.raises(
        marft.MarftError, match=f"on_iteration: the callback '{name}' failed with KeyError: 'mine'"
    ) as error:
        marft.train(CONFIG, run=tmp_path / "run", watcher=Silent(), on_iteration=callback)
    assert isinstance(error.value.__cause__, KeyError)
    run = marft.open_run(tmp_path / "run")
    assert run.checkpoints == [1]
    assert len(marft.train(run=run.path, resume=True, watcher=Silent()).metrics) == 2


def test_one_that_fails_on_an_episode_is_no_failed_episode(tmp_path):
    def broken(episode):
        raise ValueError("no\nroom")

    with pytest.raises(marft.MarftError, match=r"on_episode: the callback '.*broken' failed with ValueError: no room"):
        marft.train(CONFIG, run=tmp_path / "run", watcher=Silent(), on_episode=broken)
    assert len(marft.open_run(tmp_path / "run").episodes) == 0


def test_a_watcher_beside_them_hears_everything(tmp_path):
    heard = []

    class Noisy:
        def __getattr__(self, name):
            return lambda *said, **more: heard.append(name)

    marft.train({**CONFIG, "iterations": 1}, run=tmp_path / "run", watcher=Noisy(), on_iteration=lambda metrics: None)
    assert {"start", "phase", "episode", "iteration", "evaluation", "finish"} <= set(heard)
    assert heard.count("episode") == 4 + 2 * 3
