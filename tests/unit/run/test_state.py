"""A checkpoint brings everything back bit for bit, and is peft's own format."""

import json

import pytest
import torch
from peft import PeftModel

from builders import LETTERS, World, same, snapshot, stirred, team_of, tiny_base
from marft.learn.clock import Clock
from marft.learn.curriculum import Record
from marft.learn.train import Training, iterate
from marft.models.tiny import build_tiny
from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.run.progress import Silent
from marft.run.state import load_training, load_weights, save_training
from marft.types import MarftError

AGENTS = ("ann", "bob")


def fresh(**settings):
    world = World(pay=lambda said: float(said[-1]["bob"].count("a")))
    return Training.of(team_of(*AGENTS, world=world, critic={"warmup": 0}, **settings))


def trained(iterations, training=None, first=0):
    training = training or fresh()
    for iteration in range(first, first + iterations):
        iterate(training, iteration, Clock(), Silent())
        training.team.load(iteration + 1)
    return training


def whole_state(training):
    """Every tensor that decides what happens next."""
    team = training.team
    state = {
        (name, key): each
        for name in team.backends[0].policy.adapters
        for key, each in snapshot(team.backends[0].policy, name).items()
    }
    state |= {("head", key): each.clone() for key, each in team.critics["critic"].head.state_dict().items()}
    for name, optimiser in training.optimisers.items():
        for number, moments in optimiser.state_dict()["state"].items():
            state |= {(f"optimiser {name}", number, key): each.clone() for key, each in moments.items()}
    return state


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(fresh().team.config, tmp_path / "run")


def save(run, training, iteration):
    save_training(run, training.team, training.optimisers, iteration)
    return checkpoint.named(run, str(iteration))


def test_what_is_saved_comes_back_into_a_fresh_team_bit_for_bit(run):
    training = trained(2)
    state = whole_state(training)
    save(run, training, 2)
    other = fresh(seed=9)
    assert not same(whole_state(other), state)
    assert load_training(run, other.team, other.optimisers) == 2
    assert same(whole_state(other), state)
    assert any("exp_avg_sq" in key for key in state)
    assert any(each.any() for key, each in state.items() if key[0] == "head")


def test_going_on_from_a_checkpoint_is_never_having_stopped(run):
    unbroken = trained(4)
    half = trained(2)
    save(run, half, 2)
    resumed = fresh(seed=0)
    first = load_training(run, resumed.team, resumed.optimisers)
    trained(2, resumed, first)
    assert same(whole_state(resumed), whole_state(unbroken))


LATE = {
    "tasks": 2, "samples": 3, "staleness": 1, "reuse": 1, "resample": 2, "curriculum": {"pool": 2},
    "sampling": {"max_tokens": 3},
}  # fmt: skip


def test_waiting_and_reused_play_and_what_the_curriculum_knows_come_back(run):
    unbroken = trained(5, fresh(rollout=LATE))
    half = trained(3, fresh(rollout=LATE))
    save_training(run, half.team, half.optimisers, 3, half.memory)
    resumed = fresh(rollout=LATE)
    assert load_training(run, resumed.team, resumed.optimisers, resumed.memory) == 3
    assert resumed.memory.state().keys() == half.memory.state().keys()
    assert [each.iteration for each in resumed.memory.rounds] == [1, 2]
    assert all(each.episodes for each in resumed.memory.rounds)
    assert resumed.memory.record == half.memory.record != Record()
    resumed.team.load(3)
    trained(2, resumed, 3)
    assert same(whole_state(resumed), whole_state(unbroken))
    assert resumed.memory.record == unbroken.memory.record
    forgetful = fresh(rollout=LATE)  # the test can fail
    load_training(run, forgetful.team, forgetful.optimisers)
    forgetful.team.load(3)
    trained(2, forgetful, 3)
    assert not same(whole_state(forgetful), whole_state(unbroken))


def test_the_random_states_come_back(run):
    training = trained(1)
    torch.manual_seed(3)
    save(run, training, 1)
    expected = torch.rand(4)
    torch.manual_seed(4)
    load_training(run, training.team, training.optimisers)
    assert torch.equal(torch.rand(4), expected)


def test_without_a_checkpoint_a_run_starts_at_its_beginning(run):
    training = fresh()
    before = whole_state(training)
    assert load_training(run, training.team, training.optimisers) == 0
    assert same(whole_state(training), before)


def test_every_adapter_has_a_folder_of_its_own_and_each_has_moved(run):
    start = fresh()
    folder = save(run, trained(2), 2)
    files = {name: checkpoint.load_tensors(folder / "adapters" / name / "adapter_model.safetensors")
             for name in (*AGENTS, "critic")}  # fmt: skip
    assert {each.name for each in (folder / "adapters").iterdir()} == {"ann", "bob", "critic"}
    for name, tensors in files.items():
        assert not same(tensors, snapshot(start.team.backends[0].policy, name))
    assert not same(files["ann"], files["bob"])


@pytest.mark.parametrize("name", AGENTS)
def test_plain_peft_loads_an_adapter_and_computes_the_same(tmp_path, name):
    team = stirred_team()
    team.backends[0].policy.weights.save(name, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)
    plain, _ = build_tiny(0, LETTERS, 32)
    loaded = PeftModel.from_pretrained(plain.eval(), tmp_path / "out").eval()
    ids = torch.tensor([[8, 9, 10, 3, 12]])
    causal = torch.zeros(1, 1, 5, 5).masked_fill(~torch.ones(5, 5).bool().tril(), float("-inf"))
    with torch.no_grad(), team.backends[0].policy.acting_as(name) as backbone:
        ours = team.backends[0].base.head(
            backbone(input_ids=ids, attention_mask=causal, use_cache=False).last_hidden_state
        )
        theirs = loaded(input_ids=ids).logits
        bare = build_tiny(0, LETTERS, 32)[0](input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(theirs, bare, atol=1e-2)


def stirred_team():
    team = team_of(*AGENTS, world=World())
    stirred(team.backends[0].policy)
    return team


def test_an_adapter_that_does_not_fit_is_refused_with_its_file(run):
    folder = save(run, trained(1), 1)
    wider = team_of(*AGENTS, world=World(), lora={"r": 8, "alpha": 8})
    with pytest.raises(MarftError, match=r"adapters/ann/adapter_model\.safetensors.*do not fit this model"):
        load_weights(folder, wider)
    more = team_of(*AGENTS, "cy", world=World())
    with pytest.raises(MarftError, match="holds no adapter 'cy'"):
        load_weights(folder, more)
    bigger = team_of(*AGENTS, world=World(), base=tiny_base(hidden=64))
    with pytest.raises(MarftError, match="do not fit"):
        load_weights(folder, bigger)


def test_a_damaged_checkpoint_is_refused(run):
    training = trained(1)
    folder = save(run, training, 1)
    before = whole_state(training)
    file = folder / "adapters" / "bob" / "adapter_model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(MarftError, match="damaged"):
        load_training(run, training.team, training.optimisers)
    assert same(whole_state(training), before)  # nothing half-loaded


def test_a_team_without_a_critic_saves_and_loads(tmp_path):
    def lonely():
        return Training.of(team_of("ann", world=World(), critic={"kind": "none"}, credit={"baseline": "none"}))

    training = lonely()
    iterate(training, 0, Clock(), Silent())
    run = RunDirectory.create(training.team.config, tmp_path / "run")
    folder = save(run, training, 1)
    assert not (folder / "critic_head.safetensors").exists()
    other = lonely()
    assert load_training(run, other.team, other.optimisers) == 1
    assert same(snapshot(other.team.backends[0].policy, "ann"), snapshot(training.team.backends[0].policy, "ann"))


def test_the_best_and_the_newest_are_kept(run):
    """What a checkpoint is worth is known once it has been played with: before the next one is written."""
    training = fresh()
    checkpoint.mark_if_best(run, 0, 0.95)  # the untrained team has no checkpoint to be found again
    for iteration, score in enumerate([0.1, 0.9, 0.5, 0.5, 0.9], start=1):
        save(run, training, iteration)
        checkpoint.mark_if_best(run, iteration, score)
    assert checkpoint.best(run) == (2, 0.9)  # the first to reach it
    assert checkpoint.iterations(run) == [2, 4, 5]
