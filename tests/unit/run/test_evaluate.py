"""Evaluation: the numbers of a report, from play whose outcome is known."""

import asyncio
import math
import re
from dataclasses import replace

import pytest
import torch

from builders import Plain, World, action, episode, snapshot, stirred, team_of, tiny_base
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.rollout import rollout
from marft.run.evaluate import NEUTRAL_TEXT, evaluate, influence, perplexity, retention, summarise
from marft.types import Failure, Task

SETTINGS = {"tasks": 4, "samples": 2, "influence": True, "retention": False}


class Known:
    """A relay team whose second agent says what it reads (or always the same), and a record of what was played."""

    def __init__(self, listens=True, edges=(("ann", "bob"),), **settings):
        evaluation = {**SETTINGS, **settings}
        team = team_of("ann", "bob", base=tiny_base(PRINTABLE), evaluation=evaluation, team={
            "dependency": {"edges": list(edges)}
        }, environment={"name": "relay", "symbols": ["a", "b", "c", "d"], "hint": "it is {symbol}"})  # fmt: skip
        self.team = replace(team, generator=Scripted(team.base.chat, self.answer))
        self.listens = listens
        self.played = {}

    def answer(self, asked):
        text = self.team.base.chat.show(asked.prompt_ids)
        found = re.search(r"it is (\w)", text) if asked.adapter == "ann" else re.search(r"ann: (\w)", text)
        return found[1] if found and (self.listens or asked.adapter == "ann") else "a"

    def play(self, plans, label):
        self.played[label] = list(plans)
        return asyncio.run(rollout(self.team.stage, plans))


def test_a_team_that_listens_wins_and_loses_when_the_message_is_swapped():
    known = Known()
    found = evaluate(known.team, known.play, seed=1)
    report = found.report
    assert (report["tasks"], report["samples"]) == (4, 2)
    assert report["sampled"]["success"]["mean"] == report["greedy"]["success"]["mean"] == 1
    assert report["sampled"]["success"]["low"] < 1  # eight wins are no proof
    assert report["sampled"]["pass_at"] == {"1": 1, "2": 1}
    assert report["influence"].keys() == {"ann"}  # nobody listens to bob
    assert report["influence"]["ann"]["swapped"]["mean"] == 0
    assert report["influence"]["ann"]["drop"] == 1
    assert len(found.episodes) == 4 + 8
    assert found.headline["success, sampled"]["mean"] == 1


def test_a_team_that_does_not_listen_loses_nothing():
    known = Known(listens=False)
    report = evaluate(known.team, known.play, seed=1).report
    assert report["sampled"]["success"]["mean"] == 0.25
    assert report["influence"]["ann"]["swapped"]["mean"] == 0.25
    assert report["influence"]["ann"]["drop"] == 0


def test_without_an_edge_there_is_no_influence_to_measure():
    known = Known(edges=())
    assert evaluate(known.team, known.play, seed=1).report["influence"] == {}


def test_a_swapped_message_comes_from_another_task_and_all_else_is_equal():
    known = Known()
    evaluate(known.team, known.play, seed=1)
    plain, swapped = known.played["evaluating, sampled"], known.played["swapping ann's messages"]
    assert len(plain) == len(swapped) == 8
    for one, other in zip(plain, swapped, strict=True):
        assert replace(other, scripted={}) == one
        assert other.scripted["ann"] != [one.task.data["symbol"]]
        assert len(other.scripted["ann"]) == 1


def test_the_drop_compares_the_same_episodes():
    """One of two tasks has no donor, so only the other is replayed: its success alone is what may drop."""
    known = Known()
    tasks = [Task(name, "?", data={"symbol": name}) for name in ("a", "b")]
    played = [
        episode(action("ann", text="a"), action("bob", parents=(0,), reward=1.0), group="a", task=tasks[0]),
        episode(error=Failure("ann", "gone"), terminated=False, group="b", task=tasks[1]),
    ]  # fmt: skip
    plans = [replace(plan, task=task) for plan, task in zip(_plans(known), tasks, strict=False)]

    def play(again, label):
        assert [each.task.id for each in again] == ["b"]  # a's only donor failed
        return [replace(played[0], task=tasks[1], metrics={"success": 0.25})]

    assert influence(known.team, play, plans, played)["ann"]["drop"] == -0.25


def _plans(known):
    evaluate(known.team, known.play, seed=1)
    return known.played["evaluating, sampled"]


def test_the_same_tasks_and_draws_every_time_and_none_of_training():
    one, two = Known(), Known()
    evaluate(one.team, one.play, seed=1)
    evaluate(two.team, two.play, seed=1)
    assert one.played == two.played
    sampled, greedy = one.played["evaluating, sampled"], one.played["evaluating, greedy"]
    assert {each.task.id for each in sampled} == {f"heldout-{n}" for n in range(4)}
    assert [each.task.id for each in greedy] == [f"heldout-{n}" for n in range(4)]
    assert [each.greedy for each in [*sampled, *greedy]] == [False] * 8 + [True] * 4
    assert len({each.seed for each in sampled}) == 8
    assert {each.seed[0] for each in sampled} == {1}  # training's seeds begin with 0


def test_a_small_held_out_split_is_played_whole():
    known = Known()
    known.team.game.environment.size = lambda split: 3
    assert evaluate(known.team, known.play, seed=1).report["tasks"] == 3


def test_success_counts_failed_episodes_as_failures_and_pass_at_k_by_task():
    tasks = [Task("x", "?", "easy"), Task("y", "?", "hard")]
    results = [[1.0, 0.0], [0.0, None]]
    episodes = [
        episode(metrics={"success": 1.0 if each is None else each}, group=task.id, task=task, sample=sample,
                error=Failure("ann", "gone") if each is None else None)
        for task, row in zip(tasks, results, strict=True) for sample, each in enumerate(row)
    ]  # fmt: skip
    report = summarise(episodes, 2)
    assert report["success"]["mean"] == 0.25
    assert report["failed"] == 1
    assert report["kinds"]["easy"]["mean"] == 0.5
    assert report["kinds"]["hard"]["mean"] == 0
    assert report["pass_at"] == {"1": 0.25, "2": 0.5}
    assert "pass_at" not in summarise(episodes[:1], 1)


def spoken(team):
    return [
        episode(action("ann", (9, 10), (11, 12, 3)), action("bob", (9, 13), (14, 3))),
        episode(action("ann", (9, 8), (8, 3))),
        episode(action("ann", (9,), (9, 9)), error=Failure("bob", "gone")),
    ]


def test_language_is_whole_before_training():
    team = team_of("ann", "bob", world=World())
    found = retention(team, spoken(team))
    for name in ("ann", "bob"):
        assert found[name]["kl"] == pytest.approx(0, abs=1e-6)
        assert found[name]["perplexity"] == pytest.approx(found[name]["base_perplexity"], rel=1e-5)


def test_retention_is_the_mean_kl_on_an_agents_own_words():
    team = team_of("ann", "bob", world=World())
    stirred(team.policy)
    plain = Plain(team.base.model)
    found = retention(team, spoken(team))
    words = {"ann": [((9, 10), (11, 12, 3)), ((9, 8), (8, 3))], "bob": [((9, 13), (14, 3))]}
    for name, said in words.items():
        gaps = torch.cat([plain.logprobs(*each) - plain.logprobs(*each, snapshot(team.policy, name)) for each in said])
        assert found[name]["kl"] == pytest.approx(float((gaps.exp() - 1 - gaps).mean()), rel=1e-4)
        assert found[name]["kl"] > 1e-3
    assert retention(team, []) == {}


@pytest.mark.parametrize("name", [None, "ann"])
def test_perplexity_is_of_the_neutral_text_from_its_second_token(name):
    team = team_of("ann", world=World(), base=tiny_base(PRINTABLE, context=50))
    stirred(team.policy)
    ids = team.base.chat.encode(NEUTRAL_TEXT)[:50]  # no more than the model can read
    weights = snapshot(team.policy, name) if name else None
    by_hand = math.exp(-float(Plain(team.base.model).logprobs(ids[:1], ids[1:], weights).mean()))
    assert perplexity(team, name) == pytest.approx(by_hand, rel=1e-4)
