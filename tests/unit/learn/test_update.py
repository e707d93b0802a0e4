"""One update of an adapter, or of the critic: what moves, by how much, and that packs only save memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import rms_norm

from builders import Plain, action, episode, policy_of, same, snapshot, tiny_base
from marft.config import CriticConfig, UpdateConfig
from marft.learn.collate import Layout, collate, unpad
from marft.learn.update import (
    Learner,
    Lesson,
    batch_logprobs,
    critic_values,
    decision_log_ratio,
    update_agent,
    update_critic,
    view_values,
)
from marft.models.critic import Critic
from marft.models.pack import pack
from marft.types import Credit

LEVELS = pytest.mark.parametrize("level", ["action", "token"])
AGENTS = ("ann", "bob")


class Small:
    """A policy with a critic, and a batch of replies of many lengths with arbitrary advantages."""

    def __init__(self, level="action", episodes=6, open_end=False):
        self.base = tiny_base()
        self.policy = policy_of(self.base, "ann", "bob", "critic")
        self.level = level
        random = np.random.default_rng(0)

        def ids(most):
            return tuple(random.integers(4, 16, random.integers(1, most)).tolist())

        played = []
        for number in range(episodes):
            cut = open_end and number % 2 == 0
            played.append(
                episode(
                    action("ann", (4, 5, *ids(4)), (*ids(7), 3), joint_ids=(4, 6, *ids(3)), text="one two three"),
                    action("bob", (4, 7, *ids(4)), ids(7), joint_ids=(4, 6, 8, *ids(6))),
                    terminated=not cut,
                    truncated=cut,
                    final_joint_ids={"bob": (4, 6, 8, *ids(5))},
                )
            )
        self.batch = collate(played, AGENTS, Layout(level)).batch
        heat = torch.where(self.batch.agent == 0, 1.0, 0.7)
        self.old = batch_logprobs(self.policy, self.batch, self.adapters, heat, 1000)
        generator = torch.Generator().manual_seed(1)
        spread = torch.randn(self.batch.tokens.shape, generator=generator)
        if level == "action":
            spread = spread[:, :1].expand_as(spread)
        advantages = torch.where(self.batch.action_mask, spread, 0.0)
        self.lesson = Lesson(
            replace(self.batch, logprobs=self.old),
            Credit(advantages, torch.zeros_like(advantages)),
            self.old,
            None,
            torch.ones(self.batch.rows),
            heat,
            torch.ones(self.batch.rows, dtype=torch.bool),
        )

    @property
    def adapters(self):
        return [AGENTS[number] for number in self.batch.agent.tolist()]

    def rows(self, name="ann"):
        return (self.batch.agent == AGENTS.index(name)).nonzero().squeeze(1)

    def config(self, **settings):
        return UpdateConfig(**{"level": self.level, "max_grad_norm": 1e9, "micro_tokens": 1000, **settings})

    def gradient(self, lesson=None, name="ann", rows=None, **settings):
        """The gradient of one step, without a step worth the name; and its statistics."""
        parameters = list(self.policy.parameters(name).values())
        learner = Learner(self.policy, name, torch.optim.SGD(parameters, 1e-12))
        rows = self.rows(name) if rows is None else rows
        stats = update_agent(learner, lesson or self.lesson, rows, self.config(**settings), seed=0).stats
        return torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters]
        ), stats

    def flat(self, lesson=None, **changes):
        """The lesson with no advantage anywhere."""
        lesson = lesson or self.lesson
        return replace(lesson, credit=Credit(*(torch.zeros_like(self.old),) * 2), **changes)


def close(one, other, relative):
    return torch.linalg.norm(one - other) <= relative * torch.linalg.norm(other)


# ---- ratios


@LEVELS
@pytest.mark.parametrize("kind", ["sum", "token", "word"])
def test_before_the_first_update_every_ratio_is_one(level, kind):
    small = Small(level)
    again = batch_logprobs(small.policy, small.batch, small.adapters, small.lesson.temperature, 7)
    ratio = decision_log_ratio(again, small.old, small.batch, small.config(action_normalisation=kind)).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
    _, stats = small.gradient(action_normalisation=kind)
    assert [stats[f"ratio_{each}"] for each in ("p05", "p50", "p95", "max")] == pytest.approx([1] * 4, abs=1e-5)
    assert (stats["clip_share"], stats["kl"]) == (0, pytest.approx(0, abs=1e-7))


def test_normalisation_divides_the_log_probability_of_an_action():
    small = Small()
    new = torch.where(small.batch.action_mask, small.old + 0.3, 0.0)
    lengths = small.batch.action_mask.sum(1)
    for kind, divisor in (("sum", 1), ("token", lengths), ("word", torch.tensor([3, 2] * 6))):
        found = decision_log_ratio(new, small.old, small.batch, small.config(action_normalisation=kind))
        torch.testing.assert_close(found, 0.3 * lengths / divisor, atol=1e-5, rtol=1e-5)


def test_the_logprobs_of_a_batch_are_each_rows_own():
    small = Small()
    plain = Plain(small.base.model)
    rows = unpad(small.batch.tokens, small.batch.attention_mask)
    for number, (row, name) in enumerate(zip(rows, small.adapters, strict=True)):
        start = int(small.batch.action_mask[number].int().argmax())
        heat = float(small.lesson.temperature[number])
        theirs = plain.logprobs(row[:start], row[start:], snapshot(small.policy, name), heat)
        torch.testing.assert_close(small.old[number, start : len(row)], theirs, atol=1e-5, rtol=1e-5)
    assert not small.old[~small.batch.action_mask].any()


# ---- the gradient


@LEVELS
@pytest.mark.parametrize(
    "settings",
    [{}, {"entropy": 0.3}, {"kl_reference": 0.5}, {"entropy": 0.2, "kl_reference": 0.1, "old_logprobs": "sampler"}],
    ids=str,
)
def test_micro_batches_add_up_to_the_whole(level, settings):
    small = Small(level)
    reference = torch.where(small.batch.action_mask, small.old - 0.2, 0.0)
    lesson = replace(small.lesson, reference=reference)
    whole, stats = small.gradient(lesson, **settings)
    for micro in (1, 15, 40):
        parts, found = small.gradient(lesson, micro_tokens=micro, **settings)
        assert close(parts, whole, 5e-6)  # rounding; a wrong weight shows at 1e-2
        assert found == pytest.approx(stats, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("level", "mean"), [("action", "decision"), ("token", "decision"), ("token", "action")])
def test_the_loss_is_what_the_formula_says(level, mean):
    small = Small(level)
    clip, weight, beta = 0.1, 0.3, 0.4
    generator = torch.Generator().manual_seed(5)
    old = torch.where(small.batch.action_mask, small.old + 0.2 * torch.randn(small.old.shape, generator=generator), 0.0)
    reference = torch.where(small.batch.action_mask, small.old - 0.3, 0.0)
    lesson = replace(small.lesson, old=old, reference=reference, carry=torch.linspace(0.8, 1.2, small.batch.rows))
    ours, stats = small.gradient(lesson, clip=clip, clip_high=0.25, entropy=weight, kl_reference=beta, loss_mean=mean)

    plain = Plain(small.base.model)
    leaves = {key: each.requires_grad_() for key, each in snapshot(small.policy, "ann").items()}
    rows = unpad(small.batch.tokens, small.batch.attention_mask)
    surrogate = spread = distance = decisions = tokens = 0
    for number in small.rows().tolist():
        mask = small.batch.action_mask[number]
        start, end = int(mask.int().argmax()), len(rows[number])
        logs = torch.log_softmax(plain.logits(rows[number], leaves)[start - 1 : end - 1], -1)
        new = logs.gather(1, torch.tensor([rows[number][start:]]).T)[:, 0]
        advantage = small.lesson.credit.advantages[number, start:end] * lesson.carry[number]
        gap = new - old[number, start:end]
        if level == "action":
            gap, advantage = gap.sum(), advantage[0]
        ratio = gap.exp()
        lesser = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1.25) * advantage)
        surrogate -= lesser.mean() if mean == "action" else lesser.sum()
        spread -= (logs.exp() * logs).sum()
        away = reference[number, start:end] - new
        distance += (away.exp() - away - 1).sum()
        decisions += 1 if mean == "action" else gap.numel()
        tokens += end - start
    loss = surrogate / decisions - weight * spread / tokens + beta * distance / tokens
    loss.backward()
    assert stats["loss"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)
    assert stats["reference_kl"] == pytest.approx(distance.item() / tokens, rel=1e-5)
    assert close(ours, torch.cat([each.grad.flatten() for each in leaves.values()]), 1e-5)
    assert stats["grad_norm"] == pytest.approx(float(torch.linalg.norm(ours)), rel=1e-5)


@LEVELS
def test_the_carry_multiplies_the_advantage(level):
    small = Small(level)
    plain, _ = small.gradient()
    doubled, _ = small.gradient(replace(small.lesson, carry=torch.full((small.batch.rows,), 2.0)))
    assert close(doubled, 2 * plain, 1e-5)
    first = small.rows()[0]
    others, _ = small.gradient(rows=small.rows()[1:])
    silenced = torch.ones(small.batch.rows)
    silenced[first] = 0
    found, _ = small.gradient(replace(small.lesson, carry=silenced))
    mask = small.batch.decision_mask
    assert close(found * mask[small.rows()].sum(), others * mask[small.rows()[1:]].sum(), 1e-5)


@LEVELS
def test_the_clip_stops_what_went_far_enough(level):
    small = Small(level)
    ahead = torch.where(small.batch.action_mask, small.old - 0.5, 0.0)  # ratios of e^.5 and more
    for sign in (1.0, -1.0):
        credit = Credit(torch.where(small.batch.action_mask, sign, 0.0), torch.zeros_like(small.old))
        found, stats = small.gradient(replace(small.lesson, old=ahead, credit=credit), clip=0.2)
        assert bool(found.any()) == (sign < 0)
        assert stats["clip_share"] == 1


def test_the_entropy_bonus_makes_replies_less_certain():
    small = Small()
    learner = Learner(small.policy, "ann", torch.optim.SGD(small.policy.parameters("ann").values(), 0.05))
    before, after = (
        update_agent(learner, small.flat(), small.rows(), small.config(entropy=1.0), 0).stats for _ in range(2)
    )
    assert after["loss"] < before["loss"] - 1e-3  # with all advantages 0, the loss is minus the mean entropy


def test_the_reference_kl_pulls_towards_the_base():
    small = Small()
    reference = batch_logprobs(small.policy, small.batch, [None] * small.batch.rows, small.lesson.temperature, 1000)
    lesson = small.flat(reference=reference)
    learner = Learner(small.policy, "ann", torch.optim.SGD(small.policy.parameters("ann").values(), 0.05))
    before, after = (
        update_agent(learner, lesson, small.rows(), small.config(kl_reference=1.0), 0).stats for _ in range(2)
    )
    assert 0 < after["reference_kl"] < 0.9 * before["reference_kl"]
    gradient, stats = small.gradient(lesson, kl_reference=1.0, kl_in="reward")  # it went into the reward instead
    assert not gradient.any()
    assert stats["reference_kl"] == 0


@LEVELS
def test_play_by_another_sampler_is_weighed_and_the_weight_truncated(level):
    small = Small(level)
    plain, _ = small.gradient()
    longest = int(small.batch.action_mask.sum(1).max())
    lengths = small.batch.action_mask.sum(1, keepdim=True) if level == "action" else torch.tensor(1)
    for odds, cap, weight in ((1.5, 2.0, 1.5), (0.5, 2.0, 0.5), (1e3, 2.0, 2.0)):
        sampler = torch.where(small.batch.action_mask, small.old - math.log(odds) / lengths, 0.0)
        lesson = replace(small.lesson, batch=replace(small.batch, logprobs=sampler))
        found, _ = small.gradient(lesson, old_logprobs="sampler", importance_cap=cap)
        assert close(found, weight * plain, 1e-4)
        ignored, _ = small.gradient(lesson, old_logprobs="learner")
        assert close(ignored, plain, 1e-6)
    assert longest > 1


@LEVELS
def test_only_play_of_an_older_version_is_weighed(level):
    """Against the sum of two gradients: fresh rows as they are, stale ones times their weight."""
    small = Small(level)
    lengths = small.batch.action_mask.sum(1, keepdim=True) if level == "action" else torch.tensor(1)
    sampler = torch.where(small.batch.action_mask, small.old - math.log(1.5) / lengths, 0.0)
    old = torch.arange(small.batch.rows) % 3 == 0
    batch = replace(small.batch, logprobs=sampler, version=torch.where(old, 4, 5))
    lesson = replace(small.lesson, batch=batch, version=5)
    assert lesson.stale.tolist() == old.tolist()

    def only(which):
        kept = torch.where(which[:, None], small.lesson.credit.advantages, 0.0)
        return small.gradient(replace(small.lesson, credit=replace(small.lesson.credit, advantages=kept)))[0]

    found, _ = small.gradient(lesson)
    assert close(found, only(~old) + 1.5 * only(old), 1e-4)
    assert not close(found, only(~old) + only(old), 1e-2)
    present, _ = small.gradient(replace(lesson, version=4))
    assert close(present, only(~old) + only(old), 1e-6)  # nobody is stale


# ---- steps


@LEVELS
def test_every_epoch_says_how_far_the_policy_has_moved(level):
    small = Small(level)
    _, stats = small.gradient(epochs=1)
    assert "epochs" not in stats
    learner = Learner(small.policy, "ann", torch.optim.SGD(small.policy.parameters("ann").values(), 0.5))
    config = small.config(epochs=3, clip=1e3)
    seen = []
    for _ in range(3):  # the same in three updates of one epoch, with the ratios seen from outside
        new = batch_logprobs(small.policy, small.batch, small.adapters, small.lesson.temperature, 1000)
        rows = small.rows()
        ratio = decision_log_ratio(new, small.old, small.batch, config)[rows].exp()
        ratio = ratio[small.batch.action_mask[rows]] if level == "token" else ratio
        x = (new - small.old)[rows][small.batch.action_mask[rows]]
        seen.append((float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())), float((x.exp() - 1 - x).mean())))
        update_agent(learner, small.lesson, rows, small.config(clip=1e3), seed=0)
    again = Small(level)
    learner = Learner(again.policy, "ann", torch.optim.SGD(again.policy.parameters("ann").values(), 0.5))
    epochs = update_agent(learner, again.lesson, again.rows(), config, seed=0).stats["epochs"]
    assert list(epochs) == ["0", "1", "2"]
    for each, (share, kl) in zip(epochs.values(), seen, strict=True):
        assert each["ess"] == pytest.approx(share, rel=1e-3)
        assert each["kl"] == pytest.approx(kl, rel=1e-3, abs=1e-6)
    assert epochs["0"]["ess"] == pytest.approx(1)
    assert epochs["2"]["ess"] < 0.99


class Counting(torch.optim.SGD):
    """Counts its steps."""

    steps = 0

    def step(self, *_):
        self.steps += 1


def test_epochs_and_minibatches_are_steps_that_see_every_row_once_an_epoch():
    small = Small()
    optimiser = Counting(small.policy.parameters("ann").values(), 1.0)
    learner = Learner(small.policy, "ann", optimiser)
    seen = []
    score = small.policy.score

    def spy(packed, starts, *rest, **named):
        seen.append([packed.tokens[path].tolist() for path in packed.paths])
        return score(packed, starts, *rest, **named)

    small.policy.score = spy
    update_agent(learner, small.lesson, small.rows(), small.config(epochs=3, minibatches=4), seed=0)
    assert optimiser.steps == 12
    ids = unpad(small.batch.tokens, small.batch.attention_mask)
    mine = sorted(ids[row] for row in small.rows().tolist())
    for epoch in range(3):
        assert sorted(row for pack in seen[4 * epoch : 4 * epoch + 4] for row in pack) == mine
    assert seen[0:4] != seen[4:8]  # another split in another epoch
    optimiser.steps = 0
    update_agent(learner, small.lesson, small.rows()[:2], small.config(minibatches=9), seed=0)
    assert optimiser.steps == 2


def test_an_agent_that_went_too_far_stops_early():
    small = Small()
    for limit, steps in ((1e9, 5), (0.0, 1)):
        optimiser = Counting(small.policy.parameters("ann").values(), 1.0)
        learner = Learner(small.policy, "ann", optimiser)
        lesson = replace(small.lesson, old=torch.where(small.batch.action_mask, small.old - 0.5, 0.0))
        stats = update_agent(learner, lesson, small.rows(), small.config(epochs=5, kl_stop=limit or 1e-6), seed=0).stats
        assert optimiser.steps == steps
        assert ("stopped_early" in stats) == (steps == 1)


def test_the_gradient_norm_is_clipped_to_its_greatest():
    small = Small()
    free, stats = small.gradient()
    bound, clipped = small.gradient(max_grad_norm=float(torch.linalg.norm(free)) / 4)
    assert close(bound, free / 4, 1e-4)
    assert clipped["grad_norm"] == pytest.approx(stats["grad_norm"], rel=1e-5)  # reported as it was


def test_only_the_adapter_of_the_learner_moves():
    small = Small()
    before = {name: snapshot(small.policy, name) for name in small.policy.adapters}
    learner = Learner(small.policy, "bob", torch.optim.AdamW(small.policy.parameters("bob").values(), 1e-2))
    update_agent(learner, small.lesson, small.rows("bob"), small.config(epochs=2), seed=0)
    moved = {name: not same(before[name], snapshot(small.policy, name)) for name in small.policy.adapters}
    assert moved == {"ann": False, "bob": True, "critic": False}


def test_a_better_action_becomes_more_probable():
    small = Small()
    good, bad = small.rows()[:2].tolist()
    advantages = torch.zeros_like(small.old)
    advantages[good], advantages[bad] = 1.0, -1.0
    lesson = replace(small.lesson, credit=Credit(advantages * small.batch.action_mask, advantages))
    learner = Learner(small.policy, "ann", torch.optim.SGD(small.policy.parameters("ann").values(), 0.01))
    update_agent(learner, lesson, small.rows(), small.config(), seed=0)
    new = batch_logprobs(small.policy, small.batch, small.adapters, small.lesson.temperature, 1000)
    change = (new - small.old).sum(1)
    assert change[good] > 0 > change[bad]


# ---- the critic


class Valued(Small):
    """With a critic whose head says something."""

    def __init__(self, level):
        super().__init__(level, open_end=True)
        self.critic = Critic(self.policy)
        torch.manual_seed(3)
        torch.nn.init.normal_(self.critic.head.weight, std=0.2)
        self.critic.head.bias.data.fill_(0.4)

    def by_hand(self, ids):
        """V after reading `ids`, by a plain forward pass."""
        state = Plain(self.base.model).hidden(ids, snapshot(self.policy, "critic"))[-1]
        return float(self.critic.head(rms_norm(state, state.shape) / len(state)))

    def learn(self, returns, optimiser, old=None, budget=1000, **settings):
        config = CriticConfig(**{"clip": None, "loss": "mse", "epochs": 1, "max_grad_norm": 1e9, **settings})
        old = returns if old is None else old
        return update_critic(self.critic, optimiser, self.batch, old, returns, config, budget, 0)

    def standing(self):
        """An optimiser whose steps are not worth the name."""
        return torch.optim.SGD(self.critic.parameters().values(), 1e-12)


@pytest.mark.parametrize("hidden", [16, 64])
def test_a_step_moves_a_value_by_about_the_rate_of_the_head_however_wide_the_model_is(hidden):
    base = tiny_base(hidden=hidden)
    critic = Critic(policy_of(base, "critic"))
    optimiser = torch.optim.Adam(critic.head.parameters(), 0.01)
    packed = pack([[4, 6, 8]], 10)[0]
    (1.0 - critic.values(packed, [3])[1]).sum().backward()
    optimiser.step()
    moved = float(critic.values(packed, [3])[1].detach())
    # Adam's first step is the rate in every weight: sum of |h| / H, at most 1 at unit scale, and the bias
    assert 0.01 < moved <= 0.02 + 1e-6


def test_an_untrained_critic_is_a_zero_baseline():
    small = Small()
    critic = Critic(small.policy)
    assert not critic_values(critic, small.batch, 1000).any()
    assert not view_values(critic, [[4, 6, 8]], 1000).any()


@pytest.mark.parametrize("budget", [1, 1000])
def test_at_action_level_the_value_is_that_of_the_joint_view(budget):
    world = Valued("action")
    values = critic_values(world.critic, world.batch, budget)
    views = unpad(world.batch.joint, world.batch.joint_mask)
    for row, view in enumerate(views):
        place = int(world.batch.action_mask[row].int().argmax())
        assert float(values[row, place]) == pytest.approx(world.by_hand(view), abs=1e-5)
    assert not values[~world.batch.decision_mask].any()
    ends = unpad(world.batch.final_joint, world.batch.final_joint_mask)
    final = view_values(world.critic, ends, budget)
    assert final.tolist() == pytest.approx([world.by_hand(view) for view in ends], abs=1e-5)


@pytest.mark.parametrize("budget", [1, 1000])
def test_at_token_level_a_value_is_that_of_the_state_before_its_token(budget):
    world = Valued("token")
    values = critic_values(world.critic, world.batch, budget)
    views, rows = (
        unpad(world.batch.joint, world.batch.joint_mask),
        unpad(world.batch.tokens, world.batch.attention_mask),
    )
    for row in range(world.batch.rows):
        for place in world.batch.action_mask[row].nonzero().squeeze(1).tolist():
            start = int(world.batch.action_mask[row].int().argmax())
            before = [*views[row], *rows[row][start:place]]
            assert float(values[row, place]) == pytest.approx(world.by_hand(before), abs=1e-5)
    assert not values[~world.batch.action_mask].any()


@LEVELS
def test_fitting_moves_the_critic_alone_and_towards_the_returns(level):
    world = Valued(level)
    before = {name: snapshot(world.policy, name) for name in world.policy.adapters}
    head = world.critic.head.weight.clone()
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(world.old.shape, generator=generator)
    returns = torch.where(world.batch.decision_mask, target, 0.0)
    # The head's sum is divided by the width, 32: at a rate of 0.3 a step moves a value by about 0.3
    groups = [{"params": list(world.critic.head.parameters()), "lr": 0.3}]
    groups.append({"params": list(world.policy.parameters("critic").values()), "lr": 1e-2})
    optimiser = torch.optim.AdamW(groups)
    losses = [world.learn(returns, optimiser)["loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    moved = {name: not same(before[name], snapshot(world.policy, name)) for name in world.policy.adapters}
    assert moved == {"ann": False, "bob": False, "critic": True}
    assert not torch.equal(head, world.critic.head.weight)


@LEVELS
def test_the_critics_loss_is_the_mean_over_decisions_however_it_is_packed(level):
    world = Valued(level)
    values = critic_values(world.critic, world.batch, 1000)
    mask = world.batch.decision_mask
    returns = torch.where(mask, torch.linspace(-1, 1, mask.numel()).view(mask.shape), 0.0)
    by_hand = 0.5 * ((values - returns)[mask] ** 2).mean()
    gradients = []
    for budget in (1, 30, 1000):
        stats = world.learn(returns, world.standing(), budget=budget)
        assert stats["loss"] == pytest.approx(float(by_hand), rel=1e-5)
        gradients.append(torch.cat([each.grad.flatten() for each in world.critic.parameters().values()]))
    assert close(gradients[0], gradients[2], 1e-6)
    assert close(gradients[1], gradients[2], 1e-6)


def test_a_value_that_left_its_old_one_by_more_than_the_clip_is_left_alone():
    world = Valued("action")
    values = critic_values(world.critic, world.batch, 1000)
    mask = world.batch.decision_mask
    old = torch.where(mask, values - 0.5, 0.0)  # it has moved up by .5…
    returns = torch.where(mask, values - 1.0, 0.0)  # …away from the return…
    back = torch.where(mask, values + 1.0, 0.0)  # …or towards it
    for clip, moves in ((0.2, False), (0.7, True), (None, True)):
        assert (world.learn(back, world.standing(), old, clip=clip)["grad_norm"] > 1e-6) == moves
        assert world.learn(returns, world.standing(), old, clip=clip)["grad_norm"] > 1e-6
