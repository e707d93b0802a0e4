"""Evaluation: the numbers of a report, from play whose outcome is known."""

import asyncio
import math
import re
from dataclasses import dataclass, replace

import pytest
import torch

from builders import Plain, World, action, episode, snapshot, stirred, team_of, tiny_base
from marft.environments.base import Outcome
from marft.generate.scripted import Scripted
from marft.models.tiny import PRINTABLE
from marft.rollout import rollout
from marft.run.evaluate import NEUTRAL_TEXT, evaluate, held_out, influence, perplexity, retention, summarise
from marft.run.progress import Silent
from marft.types import Failure, Task

SETTINGS = {"tasks": 4, "samples": 2, "influence": True, "retention": False}


class Known:
    """A relay team whose second agent says what it reads (or always the same), and a record of what was played."""

    def __init__(self, listens=True, edges=(("ann", "bob"),), **settings):
        evaluation = {**SETTINGS, **settings}
        team = team_of("ann", "bob", base=tiny_base(PRINTABLE), evaluation=evaluation, team={
            "dependency": {"edges": list(edges)}
        }, environment={"name": "relay", "symbols": ["a", "b", "c", "d"], "hint": "it is {symbol}"})  # fmt: skip
        chat = team.seats["ann"].chat
        self.show, generator = chat.show, Scripted(chat, self.answer)
        self.team = replace(team, seats={each: replace(seat, generator=generator) for each, seat in team.seats.items()})
        self.listens = listens
        self.played = {}

    def answer(self, asked):
        text = self.show(asked.prompt_ids)
        found = re.search(r"it is (\w)", text) if asked.adapter == "ann" else re.search(r"ann: (\w)", text)
        return found[1] if found and (self.listens or asked.adapter == "ann") else "a"

    def play(self, plans, label, environment=None):
        assert environment is None  # relay tells nobody whether an answer was right
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
    # Bonett & Price by hand: all 4 tasks lost, so centre 4/6 and variance (4 + 2)/6 - (4/6)^2 = 5/9 over n + 2 = 6
    low = 4 / 6 - 1.959964 * math.sqrt(5 / 9 / 6)
    assert report["influence"]["ann"]["loss"] == {"mean": 1, "low": pytest.approx(low, abs=1e-6), "high": 1}
    assert "no_verdict" not in report
    assert "maj_at" not in report["sampled"]  # relay reads no answers
    assert [len(each.actions) for each in found.episodes] == [2] * (4 + 8)
    assert found.episodes == (*found.greedy, *found.sampled)  # the order in which they are kept
    assert found.headline["success, sampled"]["mean"] == 1


def test_a_team_that_does_not_listen_loses_nothing():
    known = Known(listens=False)
    report = evaluate(known.team, known.play, seed=1).report
    assert report["sampled"]["success"]["mean"] == 0.25
    assert report["influence"]["ann"]["swapped"]["mean"] == 0.25
    assert report["influence"]["ann"]["drop"] == 0
    loss = report["influence"]["ann"]["loss"]
    assert loss["low"] == -loss["high"] < 0


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

    def play(again, label, environment=None):
        assert [each.task.id for each in again] == ["b"]  # a's only donor failed
        return [replace(played[0], task=tasks[1], metrics={"success": 0.25})]

    assert influence(known.team, play, plans, played)["ann"]["drop"] == -0.25


def test_a_message_is_what_others_read_and_who_reads_only_itself_is_not_heard():
    """Replies that call a tool go to the tool, and the answer to one is its caller's alone."""
    known = Known()
    tasks = [Task(name, "?", data={"symbol": name}) for name in "abcd"]
    called = {"text": "call a tool", "tool_results": ("42",)}
    played = [
        episode(
            action("ann", **called), action("ann", parents=(0,), text=f"it is {task.id}", step=1),
            action("bob", parents=(1,), **called), action("bob", parents=(1, 2), step=1),
            group=task.id, task=task,
        )
        for task in tasks
    ]  # fmt: skip
    asked = []

    def play(again, label, environment=None):
        asked.append((label, [each.scripted for each in again]))
        return played

    plans = [replace(plan, task=task) for plan, task in zip(_plans(known), tasks, strict=False)]
    influence(known.team, play, plans, played)
    assert asked == [("swapping ann's messages", [{"ann": [f"it is {other}"]} for other in "bcda"])]


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
    assert "maj_at" not in report  # nobody gave an answer that could be counted
    assert "pass_at" not in summarise(episodes[:1], 1)


def test_samples_of_a_task_vote_and_failed_or_silent_ones_do_not():
    """x: 7, 7, 8 of which 7 is right; y: 8 wrong, one failed on 9, one silent; so maj@3 is 1 and 0."""
    spoken = {"x": [("7", 1), ("7", 1), ("8", 0)], "y": [("8", 0), ("9", None), ("", 0)]}
    episodes = [
        episode(metrics={"success": float(win or 0)}, group=name, task=Task(name, "?"), sample=sample, answer=answer,
                error=Failure("ann", "gone") if win is None else None)
        for name, rows in spoken.items() for sample, (answer, win) in enumerate(rows)
    ]  # fmt: skip
    report = summarise(episodes, 3)
    # Of x's pairs 77 is right and the two 78 are ties: (1 + 1/2 + 1/2) / 3
    expected = {"1": 1 / 3, "2": 1 / 3, "3": 1 / 2}
    assert report["maj_at"] == pytest.approx(expected)
    assert report["pass_at"] == pytest.approx({"1": 1 / 3, "2": 1 / 2, "3": 1 / 2})


def test_a_budget_of_tokens_buys_as_many_votes_as_it_can_pay():
    """x: 7, 7, 8 of which 7 is right; y: 8, 8, 7 of which 8 is right; three tokens an episode."""
    spoken = {"x": [("7", 1), ("7", 1), ("8", 0)], "y": [("8", 1), ("8", 1), ("7", 0)]}
    episodes = [
        episode(action(tokens=(8, 9, 3)), metrics={"success": float(win)}, group=name, task=Task(name, "?"),
                sample=sample, answer=answer)
        for name, rows in spoken.items() for sample, (answer, win) in enumerate(rows)
    ]  # fmt: skip
    assert summarise(episodes, 3)["tokens"] == 3
    assert "vote" not in summarise(episodes, 3)
    found = {budget: summarise(episodes, 3, budget)["vote"] for budget in (1, 8, 9, 100)}
    assert [each["k"] for each in found.values()] == [1, 2, 3, 3]  # 9 tokens are exactly three
    assert found[100]["affordable"] == pytest.approx(100 / 3)
    means = [each["success"]["mean"] for each in found.values()]
    assert means == pytest.approx([2 / 3, 2 / 3, 1, 1])  # of a task's pairs one is right and two are ties


@dataclass(frozen=True)
class Guessing:
    """Two turns to guess a letter; with an oracle the team hears that the first guess was wrong."""

    oracle: bool = True
    name = "guessing"

    def size(self, split):
        return 4

    def task(self, split, index):
        return Task(f"{split}-{index}", "guess", data={"letter": "ab"[index % 2]})

    def reset(self, task, agents, seed):
        return task.data["letter"], 0, ""

    def observe(self, state, agent):
        return state[2]

    def step(self, state, messages):
        letter, turn, _ = state
        right = messages["ann"] == letter
        over = turn == 1 or (right and self.oracle)
        after = (letter, turn + 1, "wrong" if self.oracle and not right else "")
        return Outcome(after, float(right), over, metrics={"success": float(right)}, answer=messages["ann"])

    def without_verdict(self):
        return Guessing(oracle=False)


class Heard(Silent):
    """Remembers the phases it was told of."""

    def __init__(self):
        self.phases = []

    def phase(self, name, done=None, total=None):
        self.phases.append(name)


def guessing_team(world, **settings):
    base = tiny_base(PRINTABLE)
    evaluation = {"tasks": 8, "samples": 2, "influence": False, "retention": False, **settings}
    team = team_of("ann", base=base, world=world, evaluation=evaluation, team={"turns": 2})
    guesser = Scripted(base.chat, lambda asked: "b" if "wrong" in base.chat.show(asked.prompt_ids) else "a")
    return replace(team, seats={"ann": replace(team.seats["ann"], generator=guesser)})


def test_an_oracle_is_taken_away_and_the_score_without_it_stands_beside():
    """Told that `a` was wrong, the team says `b` and is right; else it says `a` twice, right in half the tasks."""
    heard = Heard()
    found = held_out(guessing_team(Guessing()), heard, "mine")
    assert found.report["sampled"]["success"]["mean"] == found.report["greedy"]["success"]["mean"] == 1
    assert found.report["no_verdict"]["success"]["mean"] == 0.5
    assert found.report["no_verdict"]["maj_at"] == {"1": 0.5, "2": 0.5}
    assert len(found.episodes) == 4 + 8  # what is kept has its old order: greedy, then sampled
    plain, blind = ([(each.task, each.sample) for each in episodes] for episodes in (found.sampled, found.no_verdict))
    assert plain == blind
    assert any("told right from wrong" in line for line in found.headline)
    assert "evaluating without verdict (mine)" in heard.phases
    assert all(each.endswith(" (mine)") for each in heard.phases)


def test_a_world_without_an_oracle_is_played_once(monkeypatch):
    monkeypatch.setattr(Guessing, "without_verdict", lambda self: self)
    heard = Heard()
    report = held_out(guessing_team(Guessing(oracle=False), retention=True), heard).report
    assert "no_verdict" not in report
    assert "evaluating without verdict" not in heard.phases
    assert heard.phases[-1] == "measuring the language"


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
    stirred(team.backends[0].policy)
    plain = Plain(team.backends[0].base.model)
    found = retention(team, spoken(team))
    words = {"ann": [((9, 10), (11, 12, 3)), ((9, 8), (8, 3))], "bob": [((9, 13), (14, 3))]}
    for name, said in words.items():
        gaps = torch.cat(
            [plain.logprobs(*each) - plain.logprobs(*each, snapshot(team.backends[0].policy, name)) for each in said]
        )
        assert found[name]["kl"] == pytest.approx(float((gaps.exp() - 1 - gaps).mean()), rel=1e-4)
        assert found[name]["kl"] > 1e-3
    assert retention(team, []) == {}


def test_language_is_measured_against_each_agents_own_model():
    other = {"name": "bob", "model": {"name": "tiny", "seed": 7}}
    team = team_of(
        "ann", other, {"name": "eve", "endpoint": {"url": "http://localhost:9", "model": "m"}}, world=World()
    )
    assert [each.agents for each in team.backends] == [("ann", "eve"), ("bob",)]
    stirred(team.backends[1].policy)
    said = episode(
        action("ann", (9, 10), (11, 12, 3)), action("bob", (9, 13), (14, 3)), action("eve", (9, 13), (14, 3))
    )
    found = retention(team, [said])
    assert found.keys() == {"ann", "bob"}  # nothing is known of the model behind an endpoint
    assert found["ann"]["kl"] == pytest.approx(0, abs=1e-6)
    theirs = team.backends[1]
    plain, moved = Plain(theirs.base.model), snapshot(theirs.policy, "bob")
    gaps = plain.logprobs((9, 13), (14, 3)) - plain.logprobs((9, 13), (14, 3), moved)
    assert found["bob"]["kl"] == pytest.approx(float((gaps.exp() - 1 - gaps).mean()), rel=1e-4)
    ids = theirs.base.chat.encode(NEUTRAL_TEXT)[: theirs.base.context]
    unmoved = math.exp(-float(plain.logprobs(ids[:1], ids[1:]).mean()))
    assert found["bob"]["base_perplexity"] == pytest.approx(unmoved, rel=1e-4)


@pytest.mark.parametrize("name", [None, "ann"])
def test_perplexity_is_of_the_neutral_text_from_its_second_token(name):
    team = team_of("ann", world=World(), base=tiny_base(PRINTABLE, context=50))
    stirred(team.backends[0].policy)
    ids = team.backends[0].base.chat.encode(NEUTRAL_TEXT)[:50]  # no more than the model can read
    weights = snapshot(team.backends[0].policy, name) if name else None
    by_hand = math.exp(-float(Plain(team.backends[0].base.model).logprobs(ids[:1], ids[1:], weights).mean()))
    assert perplexity(team.backends[0], name) == pytest.approx(by_hand, rel=1e-4)
