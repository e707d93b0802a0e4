"""The update's gradient is the exact policy gradient: every joint action of a tiny game is listed and weighed.

The expected return J = sum over episodes of p(episode) * return is differentiated by autograd through a plain
transformers forward pass. The library learns from each episode once, its advantages multiplied by p(episode): then
its gradient must be that of J, divided by the number of decisions (which is how its loss is averaged).
"""

import asyncio
from dataclasses import replace
from itertools import product
from zlib import crc32

import pytest
import torch

from builders import Plain, World, agent, config_of, letters_base, snapshot, stirred
from marft.game.dependency import chain, parallel
from marft.game.flexmg import FlexMG
from marft.generate.scripted import Scripted
from marft.learn.collate import Layout, collate
from marft.learn.score import prepare, value_decisions
from marft.learn.train import Training, give_credit
from marft.learn.update import Learner, update_agent
from marft.models.critic import Critic
from marft.models.policy import Policy
from marft.rollout import Plan, Seat, rollout
from marft.team import Backend, Team
from marft.types import Task

END = 0
EXACT = {"gamma": 1, "gamma_agent": 1, "gamma_token": 1, "lam": 1, "lam_token": 1, "normalise": "none"}


def every_reply(longest):
    """All token sequences a reply can be: ended by the stop token, or of the greatest length."""
    return [
        reply
        for length in range(1, longest + 1)
        for reply in product((0, 1, 2), repeat=length)
        if END not in reply[:-1] and (reply[-1] == END or length == longest)
    ]


def number(said):
    """Something between -1 and 1, the same in every process."""
    return crc32(repr(said).encode()) % 101 / 50 - 1


def wage(said):
    """An arbitrary reward of each agent in each turn, from all that was said so far.

    Not from what is said later: a reward sits on the action that earned it, and credit flows backwards from there.
    """
    heard = [list(turn.items()) for turn in said]
    return {name: number([*heard[:-1], heard[-1][: place + 1]]) for place, name in enumerate(said[-1])}


def team_payment(said):
    """One arbitrary number for the whole team."""
    return number(said)


def ends_early(said):
    """After the second turn, or at once when bob says nothing."""
    return len(said) == 2 or said[-1]["bob"] == ""


GAMES = {  # D, longest replies of ann and bob, world, turns
    "chain": (chain(("ann", "bob")), (3, 2), World(pay=wage), 1),
    "chain with one reward": (chain(("ann", "bob")), (2, 3), World(pay=team_payment), 1),
    "parallel": (parallel(), (3, 2), World(pay=team_payment), 1),
    "two turns": (chain(("ann", "bob")), (2, 1), World(pay=wage, over=ends_early), 2),
}


class Game:
    """Every episode of a game with its return, and the team that learns it.

    `mixed`: each agent on its own model; `independent`: each with a chain and a critic of its own.
    """

    def __init__(self, kind, level, adapters, stir_critic, mixed=False, tuning="lora", independent=False):
        dependency, longest, world, turns = GAMES[kind]
        agents = tuple(
            agent(name, adapter=adapter, max_tokens=tokens)
            for name, adapter, tokens in zip(("ann", "bob"), adapters, longest, strict=True)
        )
        update = {"level": level, "max_grad_norm": 1e9, "micro_tokens": 300}
        alone = {"learner": "ippo", "critic": {"kind": "own"}} if independent else {}
        config = config_of("ann", "bob", credit=EXACT, update=update, **alone)
        self.config, self.stir_critic = config, stir_critic
        if mixed:  # other weights, another width, and the same letters under other numbers
            backends = (
                self.backend(letters_base(seed=1), ("ann",), [adapters[0]], "critic", "lora"),
                self.backend(letters_base("ba", hidden=24, seed=2), ("bob",), [adapters[1]], "critic-2", tuning),
            )
        else:
            backends = (self.backend(letters_base(seed=1), ("ann", "bob"), adapters, "critic", tuning),)
        game = FlexMG(agents, dependency, world, turns)
        seats = {
            each: Seat(of.base.chat, None, of.base.context, of.base.context) for of in backends for each in of.agents
        }
        self.team = Team(config, game, backends, seats)
        self.episodes = self.play([every_reply(tokens) for tokens in longest] * turns)

    def backend(self, base, members, adapters, critic_name, tuning):
        own = self.config.critic.kind == "own"
        names = {member: f"critic-{member}" if own else critic_name for member in members}
        policy = Policy(base, self.config.lora, list(dict.fromkeys([*adapters, *names.values()])), tuning=tuning)
        stirred(policy, seed=1)
        critics = {name: Critic(policy, name) for name in dict.fromkeys(names.values())}
        if self.stir_critic:
            torch.manual_seed(7)
            for critic in critics.values():
                torch.nn.init.normal_(critic.head.weight, std=0.1)
                critic.head.bias.data.fill_(0.1)
        return Backend(policy, {member: critics[name] for member, name in names.items()}, None, members)

    def play(self, replies):
        """Each joint action once; those after an early end are the same episode."""
        joint = list(product(*replies))

        def answer(asked):
            return joint[asked.order[0]][asked.order[1]]

        stage = self.team.stage
        seats = {name: replace(seat, generator=Scripted(seat.chat, answer)) for name, seat in stage.seats.items()}
        plans = [Plan(Task("t", "ba"), number, (0, number), number) for number in range(len(joint))]
        played = asyncio.run(rollout(replace(stage, seats=seats), plans))
        return list({tuple(each.token_ids for each in episode.actions): episode for episode in played}.values())

    def exact(self):
        """Probability of every episode, and the gradient of the expected return per adapter."""
        # In float64: in float32 its own rounding, where the terms of a gradient cancel, would be as large as the limit
        plain = {name: Plain(each.base.model) for each in self.team.backends for name in each.agents}
        for each in plain.values():
            each.model.double()
        leaves = {
            name: {key: tensor.double().requires_grad_() for key, tensor in snapshot(each.policy, name).items()}
            for each in self.team.backends
            for name in each.policy.adapters
        }
        adapter_of = {each.name: each.adapter for each in self.team.game.agents}
        known = {}

        def logprob(action):
            key = (action.agent, action.prompt_ids, action.token_ids)
            if key not in known:
                weights = leaves[adapter_of[action.agent]]
                known[key] = plain[action.agent].logprobs(action.prompt_ids, action.token_ids, weights).sum()
            return known[key]

        chances = torch.stack([torch.stack([*map(logprob, each.actions)]).sum() for each in self.episodes]).exp()
        expected = (chances * torch.tensor([each.reward for each in self.episodes])).sum()
        expected.backward()
        return chances.detach(), {
            name: torch.cat([each.grad.flatten() for each in leaves[name].values()])
            for name in set(adapter_of.values())
        }

    def ours(self, chances):
        """The library's gradient per adapter, each episode weighed by its chance."""
        team, config = self.team, self.team.config
        batch = collate(self.episodes, team.game.names, Layout.of(config)).batch
        lesson = prepare(team, batch, {})
        values, final = value_decisions(team, batch)
        lesson, _ = give_credit(Training(team, {}), lesson, values, final)
        # With chains of agents an episode has one for each agent that acted
        alone = config.credit.chain == "agent"
        chains = [len({each.agent for each in episode.actions}) if alone else 1 for episode in self.episodes]
        weighed = lesson.credit.advantages * chances.repeat_interleave(torch.tensor(chains))[batch.episode][:, None]
        lesson = replace(lesson, credit=replace(lesson.credit, advantages=weighed))
        found = {}
        for adapter in dict.fromkeys(each.adapter for each in team.game.agents):
            members = [number for number, each in enumerate(team.game.agents) if each.adapter == adapter]
            rows = torch.isin(batch.agent, torch.tensor(members)).nonzero().squeeze(1)
            parameters = team.policy_of(adapter).parameters(adapter).values()
            learner = Learner(team.policy_of(adapter), adapter, torch.optim.SGD(parameters, 1e-9))
            update_agent(learner, lesson, rows, config.update, seed=0)
            decisions = batch.decision_mask[rows].sum()
            # The loss is minimised, so its gradient points down
            found[adapter] = -decisions * torch.cat([each.grad.flatten() for each in parameters])
        return found, values


@pytest.mark.parametrize("stir_critic", [False, True], ids=["zero critic", "arbitrary critic"])
@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("kind", GAMES)
def test_the_gradient_is_that_of_the_expected_return(kind, level, stir_critic):
    check(Game(kind, level, ("ann", "bob"), stir_critic), stir_critic)


@pytest.mark.parametrize("level", ["action", "token"])
def test_agents_that_share_an_adapter_share_its_gradient(level):
    check(Game("chain", level, ("both", "both"), True), True)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("kind", ["chain", "two turns"])
def test_agents_on_different_models_learn_from_one_chain(kind, level, tuning):
    # Over two turns bob's gradient is the small rest of large terms: 1e-5 of it is about what float32 can tell
    limit = 2e-5 if kind == "two turns" else 1e-5
    check(Game(kind, level, ("ann", "bob"), True, mixed=True, tuning=tuning), True, limit)


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("kind", ["chain with one reward", "parallel"])
def test_independent_learners_of_a_team_reward_have_its_exact_gradient_too(kind, level):
    check(Game(kind, level, ("ann", "bob"), True, independent=True), True)


def check(game, stir_critic, limit=1e-5):
    chances, exact = game.exact()
    assert float(chances.sum()) == pytest.approx(1, abs=1e-5)  # the list is complete
    assert len({len(each.token_ids) for episode in game.episodes for each in episode.actions}) > 1
    ours, values = game.ours(chances)
    assert bool(values.any()) == stir_critic
    assert ours.keys() == exact.keys()
    for adapter, gradient in exact.items():
        assert torch.linalg.norm(gradient) > 1e-3
        assert torch.linalg.norm(ours[adapter] - gradient) <= limit * torch.linalg.norm(gradient), adapter
