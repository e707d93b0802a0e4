"""The loop and its steps: what is played, what joins the reward, who is updated and who is left alone."""

import asyncio
from dataclasses import replace

import pytest
import torch

from builders import World, action, config_of, episode, same, snapshot, stirred, team_of
from marft.learn.clock import Clock
from marft.learn.collate import Layout, collate
from marft.learn.train import Training, give_credit, iterate, prepare, set_learning_rate, units, update_agents
from marft.models.pack import pack
from marft.run.progress import Silent
from marft.types import MarftError

RELAY = {"name": "relay", "symbols": ["a", "b"], "prompt": "c", "hint": "{symbol}"}


def letters(said):
    """A reward with something to learn from: how many letters a the last one says."""
    return float(list(said[-1].values())[-1].count("a"))


def training_of(*agents, world=None, **settings):
    return Training.of(team_of(*agents, world=world or World(pay=letters), **settings))


def play_and_learn(training, iteration=0):
    episodes, stats = iterate(training, iteration, Clock(), Silent())
    training.team.load(iteration + 1)
    return episodes, stats


def adapters(team):
    return {name: snapshot(team.backends[0].policy, name) for name in team.backends[0].policy.adapters}


def moved(before, team):
    return {name for name in before if not same(before[name], snapshot(team.backends[0].policy, name))}


# ---- what is played


def failing(share, count=8):
    """A world in which the first tasks fail."""
    world = World(pay=letters)

    def observe(said, name):
        world.seen += 1
        if world.seen <= share * count:
            raise MarftError("the world is flat")
        return ""

    world.seen = 0
    world.look = observe
    return world


def test_a_few_failures_are_counted_and_never_trained_on():
    training = training_of("ann", world=failing(0.25), rollout={"tasks": 4, "samples": 2}, critic={"warmup": 0})
    episodes, stats = play_and_learn(training)
    assert (stats["episodes"], stats["failed"]) == (8, 2)
    assert stats["failures"] == {"environment: the world is flat": 2}
    assert sum(each.error is not None for each in episodes) == 2
    good = [each for each in episodes if not each.error]
    assert stats["reward"] == pytest.approx(sum(each.reward for each in good) / 6)
    lengths = [len(each.actions[0].token_ids) for each in good]
    assert stats["play"]["ann"]["reply_tokens"] == pytest.approx(sum(lengths) / 6)


def test_too_many_failures_stop_the_run_and_say_why():
    training = training_of("ann", world=failing(0.5), rollout={"tasks": 4, "samples": 2})
    before = adapters(training.team)
    with pytest.raises(MarftError, match=r"4 of 8 episodes failed.*25%.*environment: the world is flat"):
        play_and_learn(training)
    assert moved(before, training.team) == set()


def test_nothing_left_to_train_on_is_no_crash():
    world = failing(1.0)
    training = training_of("ann", world=world, rollout={"tasks": 4, "samples": 2, "max_failed": 1.0})
    before = adapters(training.team)
    _, stats = play_and_learn(training)
    assert stats["failed"] == 8
    assert moved(before, training.team) == set()


# ---- what is learnt from


def batch_of(team, level="action"):
    played = [
        episode(action("ann", (4, 5), (8, 9, 3)), action("bob", (4, 6), (9,), reward=1.0)),
        episode(action("ann", (4, 5), (10,)), action("bob", (4, 7), (9, 8), reward=0.5)),
    ]
    return collate(played, team.game.names, Layout(level)).batch


def kl_by_hand(team, batch, row):
    """Sum over the action of log pi - log pi_base."""
    ids = batch.tokens[row][batch.attention_mask[row]].tolist()
    start = int(batch.action_mask[row].int().argmax())
    name = team.game.names[int(batch.agent[row])]
    policy = team.backends[0].policy
    own, base = (policy.score(pack([ids], 99)[0], [start], adapter, 1.0).logprobs.sum() for adapter in (name, None))
    return float(own - base)


@pytest.mark.parametrize("place", ["reward", "loss"])
def test_the_reference_kl_goes_to_exactly_one_place(place):
    team = team_of("ann", "bob", update={"kl_reference": 0.3, "kl_in": place, "max_grad_norm": 1e9})
    stirred(team.backends[0].policy)
    batch = batch_of(team)
    stats = {}
    lesson = prepare(team, batch, stats)
    expected = batch.rewards.clone()
    if place == "reward":
        expected -= 0.3 * torch.tensor([kl_by_hand(team, batch, row) for row in range(4)])
    torch.testing.assert_close(lesson.batch.rewards, expected, atol=1e-5, rtol=1e-5)
    found, _ = update_agents(Training.of(team), lesson, 0, Silent())  # no advantage anywhere
    for name in ("ann", "bob"):
        assert (found[name]["grad_norm"] > 0) == (place == "loss")
        assert (found[name]["reference_kl"] > 0) == (place == "loss")
    mean = sum(kl_by_hand(team_of_start(team), batch, row) for row in range(4)) / int(batch.action_mask.sum())
    assert stats["reference_kl"] == pytest.approx(mean, abs=1e-5)


def team_of_start(team):
    """The same team before its update."""
    again = team_of("ann", "bob")
    stirred(again.backends[0].policy)
    return again


def test_without_a_reference_nothing_is_scored_against_the_base():
    team = team_of("ann", "bob")
    stats = {}
    assert prepare(team, batch_of(team), stats).reference is None
    assert "reference_kl" not in stats


def test_credit_is_normalised_as_asked_and_returns_are_not():
    for how, mean in (("batch", 0.0), ("none", 0.75)):
        credit = {"normalise": how, "baseline": "none", "gamma": 1, "gamma_agent": 1}
        team = team_of("ann", "bob", credit=credit, critic={"kind": "none"})
        lesson, returns = give_credit(Training(team, {}), prepare(team, batch_of(team), {}), None, None)
        first = lesson.batch.decision_mask
        assert float(lesson.credit.advantages[first].mean()) == pytest.approx(mean, abs=1e-6)
        assert returns[first].tolist() == [1, 1, 0.5, 0.5]


def test_the_sampler_and_the_learner_agree_on_what_was_played():
    for level in ("action", "token"):
        training = training_of("ann", "bob", update={"level": level}, critic={"warmup": 0})
        for iteration in range(3):
            _, stats = play_and_learn(training, iteration)
            assert stats["sampler_gap"]["max"] < 1e-4


def test_actions_carry_the_version_they_were_played_with():
    training = training_of("ann", critic={"warmup": 0})
    for iteration in range(2):
        episodes, _ = play_and_learn(training, iteration)
        assert {each.policy_version for played in episodes for each in played.actions} == {iteration}


# ---- who is updated


def test_an_agent_that_is_not_trainable_does_not_move():
    training = training_of("ann", {"name": "bob", "trainable": False}, "cy", critic={"warmup": 0})
    stirred(training.team.backends[0].policy)
    before = adapters(training.team)
    for iteration in range(2):
        _, stats = play_and_learn(training, iteration)
    assert moved(before, training.team) == {"ann", "cy", "critic"}
    assert "bob" not in stats
    assert "bob" not in training.optimisers


def test_the_critic_is_warmed_up_alone():
    training = training_of("ann", "bob", critic={"warmup": 2})
    before = adapters(training.team)
    for iteration, expected in enumerate([{"critic"}, {"critic"}, {"critic", "ann", "bob"}]):
        _, stats = play_and_learn(training, iteration)
        assert moved(before, training.team) - {"critic"} == expected - {"critic"}
        assert ("update" in stats) == (iteration == 2)
    assert "critic" in moved(before, training.team)  # its adapter; the head begins at zero and goes first


def test_without_a_critic_there_is_none_and_lone_groups_are_counted():
    credit = {"baseline": "group"}
    training = training_of("ann", credit=credit, critic={"kind": "none"}, rollout={"tasks": 2, "samples": 2})
    assert set(training.optimisers) == {"ann"}
    _, stats = play_and_learn(training)
    assert "critic" not in stats
    assert stats["groups_of_one"] == 0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("sequential", [{"ann", "bob", "cy"}] * 3),
        ("simultaneous", [{"ann", "bob", "cy"}] * 3),
        ("alternate", [{"ann"}, {"bob"}, {"cy"}]),
    ],
)
def test_the_schedule_says_who_moves_in_an_iteration(schedule, expected):
    training = training_of("ann", "bob", "cy", update={"schedule": schedule}, critic={"warmup": 0})
    stirred(training.team.backends[0].policy)
    for iteration in range(3):
        before = adapters(training.team)
        play_and_learn(training, iteration)
        assert moved(before, training.team) - {"critic"} == expected[iteration]


def test_agents_that_share_an_adapter_are_one_unit():
    team = team_of({"name": "ann", "adapter": "x"}, "bob", {"name": "cy", "adapter": "x"})
    assert team.backends[0].policy.adapters == ("x", "bob", "critic")
    # Else cy's update would move what ann's ratio, already in the factor M of others, was taken at
    assert units(team, ("ann", "bob", "cy")) == [("ann", "cy"), ("bob",)]
    assert units(team, ("cy",)) == [("cy",)]
    training = Training.of(team)
    assert set(training.optimisers) == {"x", "bob", "critic"}


def advantages_for(lesson, numbers):
    spread = torch.where(lesson.batch.action_mask, torch.tensor(numbers)[:, None], 0.0)
    return replace(lesson, credit=replace(lesson.credit, advantages=spread))


def test_sequential_updates_see_the_same_old_policy_and_the_carry_of_those_before():
    """With HAPPO's factor, bob's step depends on what ann's update did; without it, not at all."""
    steps = {}
    for carry in ("none", "happo"):
        for first in (0.0, 1.0):
            team = team_of("ann", "bob", update={"carry": carry, "lr": 0.01, "carry_clip": 5.0, "max_grad_norm": 1e9})
            stirred(team.backends[0].policy)
            lesson = advantages_for(prepare(team, batch_of(team), {}), [first, 1.0, -first, -1.0])
            found, _ = update_agents(Training.of(team), lesson, 0, Silent())
            steps[carry, first] = found["bob"]["grad_norm"]
            if carry == "happo":
                new = [(found["bob"]["carry_p05"], found["bob"]["carry_max"])]
                assert (new[0][1] > 1.001) == (first != 0)
    assert steps["none", 0.0] == steps["none", 1.0] == steps["happo", 0.0]
    assert abs(steps["happo", 1.0] / steps["none", 1.0] - 1) > 1e-3


def test_the_running_mean_counts_every_return_once_however_often_it_is_learnt_from():
    """Returns 0, 1, 1 with a decay of one half: means 0, 1/2, 3/4."""
    for reuse in (0, 1):
        rewards = iter([0.0] * 2 + [1.0] * 4)
        training = training_of(
            "ann", world=World(pay=lambda said, rewards=rewards: next(rewards)), critic={"kind": "none"},
            credit={"baseline": "running", "running_decay": 0.5},
            rollout={"tasks": 1, "samples": 2, "reuse": reuse, "sampling": {"max_tokens": 3}},
        )  # fmt: skip
        means = []
        for iteration in range(3):
            play_and_learn(training, iteration)
            means.append(training.memory.running["ann"])
        assert means == pytest.approx([0.0, 0.5, 0.75])


def test_the_learning_rate_rises_linearly_and_stays():
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 9.0)
    rates = []
    for iteration in range(6):
        set_learning_rate(optimiser, 0.8, iteration, warmup=3)
        rates.append(optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    set_learning_rate(optimiser, 0.8, 0, warmup=0)
    assert optimiser.param_groups[0]["lr"] == 0.8


def test_an_iteration_is_a_function_of_its_seed():
    def run(seed):
        training = training_of("ann", "bob", seed=seed, update={"epochs": 2, "minibatches": 2}, critic={"warmup": 0})
        for iteration in range(2):
            play_and_learn(training, iteration)
        return adapters(training.team)

    one, two, other = run(0), run(0), run(1)
    assert all(same(one[name], two[name]) for name in one)
    assert not any(same(one[name], other[name]) for name in one)


def test_without_a_factor_the_order_of_updates_changes_nothing_and_with_it_something():
    """Each adapter's gradient comes from its own rows at the old joint policy: one after another is all at once."""

    def run(**update):
        training = training_of("ann", "bob", "cy", update={**update, "epochs": 2, "lr": 0.01}, critic={"warmup": 0})
        for iteration in range(2):
            play_and_learn(training, iteration)
        return adapters(training.team)

    together = run(schedule="simultaneous")
    for order in ("declared", "reverse"):
        apart = run(schedule="sequential", order=order)
        assert all(same(apart[name], together[name]) for name in together)
    corrected = run(schedule="sequential", carry="happo")
    assert {name for name in together if not same(corrected[name], together[name])} >= {"bob", "cy"}


def test_the_loop_leaves_no_task_behind():
    training = training_of("ann")
    play_and_learn(training)

    async def left():
        return [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]

    assert asyncio.run(left()) == []


@pytest.mark.parametrize("name", ["critic", "../x", "a.b", ""])
def test_no_agent_may_act_with_the_critics_adapter_or_a_name_that_is_no_folder(name):
    with pytest.raises(MarftError, match="adapter"):
        config_of({"name": "ann", "adapter": name})


def test_a_factor_for_earlier_updates_needs_earlier_updates():
    with pytest.raises(MarftError, match=r"update\.carry: 'happo' corrects for earlier updates"):
        config_of("ann", "bob", update={"carry": "happo", "schedule": "simultaneous"})
