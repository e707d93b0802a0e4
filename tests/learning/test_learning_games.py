"""Small games with a known optimum are learnt, and what cannot be known is not."""

import pytest
import torch

from builders import Base, config_of, letters_base, same, snapshot
from marft.learn.clock import Clock
from marft.learn.train import Training, iterate
from marft.models.attention import additive
from marft.run.progress import Silent
from marft.team import build_team

# Climbing (Claus & Boutilier, 1998, scaled): missing the best cell costs most, and c pays best to those who do not know
CLIMBING = {
    "name": "matrix", "symbols": ["a", "b", "c"], "payoff": [[10, -9, 0], [-9, 7, 6], [0, 0, 5]], "illegal": -9,
    "prompt": "c",
}  # fmt: skip
RELAY = {"name": "relay", "symbols": ["a", "b", "c", "d"], "prompt": "", "hint": "{symbol}"}
CRITIC = {"lr": 3e-3, "head_lr": 3e-2}


def training_of(base: Base, *agents, environment, tokens=1, samples=8, tasks=8, **settings):
    rollout = {"tasks": tasks, "samples": samples, "sampling": {"max_tokens": tokens}}
    config = config_of(*agents, environment=environment, rollout=rollout, critic=CRITIC, **settings)
    return Training.of(build_team(config, base=base))


def learn(training, iterations):
    """Success of sampled play, iteration by iteration."""
    success = []
    for iteration in range(iterations):
        _, stats = iterate(training, iteration, Clock(), Silent())
        training.team.load(iteration + 1)
        success.append(stats["success"])
    return success


def repeats_a_little(base: Base, letters: int, goal: float = 0.6) -> Base:
    """Teach a base to repeat the last letter it read, until it does so this often.

    From nothing, a team may agree on any code, and usually on one that gives two symbols the same word (success 3/4).
    A language model has a code to begin with.
    """
    generator = torch.Generator().manual_seed(0)
    base.model.requires_grad_(True)
    optimiser = torch.optim.Adam(base.model.parameters(), 1e-3)
    chance = 0.0
    while chance < goal:
        letter = torch.randint(1, letters + 1, (32, 1), generator=generator)
        losses = []
        for lead in (0, 5):  # the hint, and a message with its speaker's name
            ids = torch.nn.functional.pad(letter, (lead, 1))
            causal = additive(torch.ones(1, 1, lead + 2, lead + 2).bool().tril(), torch.float32)
            logits = base.model(input_ids=ids, attention_mask=causal, use_cache=False).logits[:, -1]
            losses.append(torch.nn.functional.cross_entropy(logits, letter[:, 0]))
        chance = min(float((-loss.detach()).exp()) for loss in losses)
        optimiser.zero_grad()
        sum(losses).backward()
        optimiser.step()
    base.model.requires_grad_(False)
    return base


def relay_training(*agents, dependency="chain"):
    base = repeats_a_little(letters_base("abcd", hidden=32, seed=1, spread=0.2), 4)
    update = {"lr": 1e-2, "epochs": 2, "entropy": 0.02}
    team = {"dependency": dependency}
    return training_of(base, *agents, environment=RELAY, tasks=16, samples=4, update=update, team=team)


@pytest.mark.parametrize("level", ["action", "token"])
def test_climbing_reaches_its_optimum(level):
    base = letters_base("abc", hidden=32, seed=1, spread=0.2)
    update = {"level": level, "lr": 1e-2, "entropy": 0.02}
    training = training_of(base, "one", "two", environment=CLIMBING, tokens=2, update=update, seed=10)
    success = learn(training, 30)
    assert success[0] < 0.1
    assert sum(success[-5:]) / 5 > 0.9


def test_relay_is_solved_when_the_second_reads_the_first():
    success = learn(relay_training("one", "two"), 30)
    assert success[0] < 0.6
    assert sum(success[-5:]) / 5 > 0.9


def test_relay_stays_at_chance_when_it_does_not():
    success = learn(relay_training("one", "two", dependency="parallel"), 30)
    assert max(success) < 0.45  # 1/4, and what luck adds in 64 episodes


def test_an_agent_that_is_not_trained_keeps_every_bit_while_the_others_learn():
    training = relay_training("one", {"name": "two", "trainable": False})
    policy = training.team.backends[0].policy
    before = {name: snapshot(policy, name) for name in policy.adapters}
    learn(training, 4)
    assert same(before["two"], snapshot(policy, "two"))
    assert not same(before["one"], snapshot(policy, "one"))
    assert not same(before["critic"], snapshot(policy, "critic"))
