"""The small model for studies: its problems, its corpus, its world, and that it is made the same again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.nano.corpus import ROLES, Lesson, Noise, lessons
from benchmarks.nano.model import Shape, build_model
from benchmarks.nano.problems import KINDS, MOST, Plan, read_plan, read_result
from benchmarks.nano.teams import MEMBERS, experiment, team
from benchmarks.nano.train import Recipe, nano_model, tokens, train
from benchmarks.nano.world import WordProblems
from tests.builders import base_of

from marft.config import parse_config
from marft.models.base import Base, load_base
from marft.rollout import Plan as Played
from marft.rollout import rollout
from marft.team import build_team
from marft.types import MarftError, Task

SMALL = Shape(hidden=16, intermediate=16, layers=1, heads=2, key_value_heads=1)
QUICK = Recipe(steps=3, rows=4, warmup=1, threads=1, shape=SMALL)


def corpus(count: int, seed: int = 0, **noise: float) -> list[Lesson]:
    return list(islice(lessons(random.Random(seed), Noise(**noise)), count))


def understood(question: str) -> str:
    """The plan of a question, read word by word."""
    words = question.split()
    start, steps = "", []
    signs = dict.fromkeys(("gets", "finds", "buys"), "+") | dict.fromkeys(("loses", "gives", "eats", "sells"), "-")
    for word, following in pairwise(words):
        if word in ("has", "had"):
            start = following
        elif word in signs:
            steps.append(f"{signs[word]} {following}")
        elif word in ("doubles", "triples"):
            steps.append(f"* {2 if word == 'doubles' else 3}")
    return " ".join([start, *steps])


def value(plan: str) -> int:
    """Python's own arithmetic, from left to right."""
    start, *rest = plan.split()
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        start = f"({start} {sign} {number})"
    return int(eval(start))


@pytest.fixture(scope="module")
def base() -> Base:
    return base_of(*build_model(SMALL, 0))


def settings(section: dict[str, Any], **environment: Any) -> Any:
    raw = experiment("tiny", section, environment)
    return parse_config({**raw, "critic": {"kind": "none"}, "credit": {"baseline": "none"}, "lora": {"r": 1}})


class TestProblems:
    def test_a_plan_is_carried_out_from_left_to_right(self) -> None:
        plan = Plan(3, (("+", 4), ("*", 2), ("-", 5)))
        assert plan.text == "3 + 4 * 2 - 5"
        assert plan.results == (7, 14, 9)
        assert plan.calculation == "3 + 4 = 7 * 2 = 14 - 5 = 9"
        assert read_plan(plan.text) == plan

    @pytest.mark.parametrize(
        "text", ["", "3", "3 +", "3 + 4 5", "3 + + 4", "3 + x", "3 = 4", "+ 3 4", "3 +- 4", "3 + 4 ?"]
    )
    def test_what_is_no_plan(self, text: str) -> None:
        assert read_plan(text) is None

    @pytest.mark.parametrize(
        ("text", "result"),
        [
            ("3 + 4 = 7 - 2 = 5", 5),
            ("3 + 4 = 7", 7),
            ("3 + 4 = 7 - 2 = 5 so 5", 5),
            ("3 + 4 - 2 : 3 + 4 = 7 - 2 = 5", 5),
            ("3 + 4 = 7 - 2 = 5 so 6", None),
            ("3 + 4 = 8 - 2 = 6", None),
            ("3 + 4 = 7 - 2", None),
            ("3 + 4 = 7 -", None),
            ("3 + 4", None),
            ("3 ? 4 = 7", None),
            ("3 + 4 so 7", None),
            ("7", None),
            ("", None),
        ],
    )
    def test_a_calculation_counts_when_every_step_is_right(self, text: str, result: int | None) -> None:
        assert read_result(text) == result


class TestCorpus:
    def test_every_word_is_one_token_and_comes_back(self, base: Base) -> None:
        unknown = base.chat.tokenizer.unk_token_id
        for lesson in corpus(500):
            prompt, reply = tokens(lesson, base.chat)
            assert unknown not in (*prompt, *reply)
            assert reply[-1:] == base.chat.stop_ids
            assert base.chat.decode(reply) == lesson.reply
            assert len(reply) == len(lesson.reply.split()) + 1

    @pytest.mark.parametrize("anonymous", [False, True])
    def test_played_prompts_are_those_that_were_taught(self, base: Base, anonymous: bool) -> None:
        seen = set()
        for lesson in corpus(60, anonymous=float(anonymous)):
            question, *said = lesson.heard.split("\n\n")
            visible = question.endswith("?")
            said = said if visible else [question, *said]
            fitting = [
                (size, place)
                for size, members in MEMBERS.items()
                for place, (_, role, _) in enumerate(members)
                if place == len(said) and lesson.profile in ("", role)
            ]
            size, place = fitting[0]
            hidden = not visible or place == 0
            game = build_team(settings(team(size, hidden, anonymous)), "test", base)
            names = game.game.names
            lines = {name: [said[at] if at < place else "0"] for at, name in enumerate(names)}
            task = Task("t", question if visible else "tom has 1 nuts gets 1 gets 1 how many ?", "two_steps",
                        {"plan": "1 + 1 + 1", "answer": 3, "level": 1})  # fmt: skip
            (episode,) = asyncio.run(rollout(game.stage, [Played(task, 0, (0,), 0, scripted=lines)]))
            assert episode.actions[place].prompt_ids == tokens(lesson, base.chat)[0]
            seen.add((place, hidden))
        assert seen >= {(0, True), (1, True), (1, False), (2, True), (2, False)}

    def test_plans_are_wrong_as_often_as_said(self) -> None:
        told = [each for each in corpus(4000, anonymous=0) if each.profile == "plan"]
        wrong = sum(each.reply != understood(each.heard) for each in told) / len(told)
        assert abs(wrong - 0.35) < 4 * (0.35 * 0.65 / len(told)) ** 0.5

    def test_calculations_slip_as_often_as_said(self) -> None:
        told = [each for each in corpus(4000, anonymous=0, hidden=1) if each.profile == "calculate"]
        wrong = sum(read_result(each.reply) is None for each in told) / len(told)
        assert abs(wrong - 0.30) < 4 * (0.3 * 0.7 / len(told)) ** 0.5

    def test_without_noise_everything_is_right(self) -> None:
        clean = corpus(600, wrong_plans=0, slips=0, wrong_answers=0, anonymous=0, hidden=0)
        assert {each.profile for each in clean} == set(ROLES)
        for each in clean:
            right = value(understood(each.heard.split("\n\n")[0]))
            said = each.reply.split()
            assert (value(each.reply) if each.profile == "plan" else int(said[-1])) == right

    def test_held_out_problems_are_not_taught(self) -> None:
        world = WordProblems()
        held = {world.task("heldout", index).prompt for index in range(500)}
        assert not held & {each.heard.split("\n\n")[0] for each in corpus(3000)}


class TestWorld:
    def test_tasks_are_right_and_the_same_for_the_same_index(self) -> None:
        world, again = WordProblems(), WordProblems()
        for split in ("train", "heldout"):
            tasks = [world.task(split, index) for index in range(300)]
            assert tasks == [again.task(split, index) for index in range(300)]
            assert {task.kind for task in tasks} == set(KINDS)
            assert {task.data["level"] for task in tasks} == {1, 2, 3}
            for task in tasks:
                assert understood(task.prompt) == task.data["plan"]
                assert value(task.data["plan"]) == task.data["answer"]
                assert 0 <= task.data["answer"] <= MOST

    def test_no_plan_stands_in_both_splits(self) -> None:
        world = WordProblems()
        train, heldout = ({world.task(s, i).data["plan"] for i in range(1500)} for s in ("train", "heldout"))  # type: ignore[arg-type]
        assert len(train) > 500
        assert not train & heldout

    def test_kinds_and_levels_can_be_chosen(self) -> None:
        for kind, level in product(KINDS, (1, 2, 3)):
            world = WordProblems(kinds=[kind], levels=[level])
            for task in (world.task("heldout", index) for index in range(10)):
                assert (task.kind, task.data["level"]) == (kind, level)
                assert len(task.data["plan"].split()) == (5 if kind.startswith("two") else 7)
                assert ("sees" in task.prompt, "first had" in task.prompt) == ("aside" in kind, "backwards" in kind)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ({"kinds": ["two_step"]}, "no kind 'two_step'; did you mean 'two_steps'"),
            ({"kinds": []}, "kinds"),
            ({"levels": [4]}, "levels"),
            ({"levels": [1, 1]}, "environment.levels: names one twice"),
            ({"pay": "all"}, "pay"),
        ],
    )
    def test_parameters_are_checked(self, bad: dict[str, Any], message: str) -> None:
        with pytest.raises(MarftError, match=message):
            WordProblems(**bad)

    TASK = Task("t", "tom has 3 nuts gets 4 sells 2 how many ?", "two_steps", {"plan": "3 + 4 - 2", "answer": 5})

    def outcome(self, pay: str, *messages: str) -> Any:
        names = tuple("abcd"[: len(messages)])
        world = WordProblems(pay=pay)
        return world.step(world.reset(self.TASK, names, 0), dict(zip(names, messages, strict=True)))

    @pytest.mark.parametrize(
        ("last", "reward", "answer"),
        [
            ("5", 1, "5"),
            ("3 + 4 = 7 - 2 = 5 so 5", 1, "5"),
            ("3 + 3 = 7 - 2 = 5", 1, "5"),
            ("5 so 6", 0, "6"),
            ("15", 0, "15"),
            ("", 0, ""),
            ("so ? tom", 0, ""),
        ],
    )
    def test_the_team_is_paid_for_the_last_number(self, last: str, reward: float, answer: str) -> None:
        found = self.outcome("team", "1 + 1", last)
        assert (found.rewards, found.metrics["success"], found.answer) == (reward, reward, answer)
        assert found.terminated

    @pytest.mark.parametrize(
        ("messages", "rewards"),
        [
            (("3 + 4 - 2", "3 + 4 = 7 - 2 = 5"), {"a": 1, "b": 1}),
            (("4 + 3 - 2", "9"), {"a": 1, "b": 0}),
            (("3 + 2 + 0", "5"), {"a": 0, "b": 1}),  # comes to the same by chance
            (("", ""), {"a": 0, "b": 0}),
            (("3 + 4 - 2", "3 + 4 = 7 - 2 = 5", "5"), {"a": 1, "b": 1, "c": 1}),
            (("3 + 4 - 2", "3 + 4 = 8 - 2 = 5", "5"), {"a": 1, "b": 0, "c": 1}),
            (("3 + 4 - 1", "3 + 4 = 7 - 1 = 6", "3 + 4 = 7 - 2 = 5", "6"), {"a": 0, "b": 0, "c": 1, "d": 0}),
            (("3 + 4 - 2 : 3 + 4 = 7 - 2 = 5",), {"a": 1}),
        ],
    )
    def test_each_can_be_paid_for_its_own_part(self, messages: tuple[str, ...], rewards: dict[str, float]) -> None:
        assert self.outcome("each", *messages).rewards == rewards

    def test_who_did_not_act_is_not_paid(self) -> None:
        world = WordProblems(pay="each")
        found = world.step(world.reset(self.TASK, ("a", "b"), 0), {"a": "3 + 4 - 2"})
        assert found.rewards == {"a": 1}
        assert found.metrics == {"success": 0, "plan": 1, "calculation": 0}

    def test_a_lone_agents_parts_are_measured(self) -> None:
        found = self.outcome("team", "3 + 4 - 2 : 3 + 4 = 8 - 2 = 6")
        assert found.metrics == {"success": 0, "plan": 1, "calculation": 0}


class TestTeams:
    @pytest.mark.parametrize(("size", "hidden", "anonymous"), list(product(MEMBERS, (True, False), (True, False))))
    def test_every_team_is_a_config(self, size: int, hidden: bool, anonymous: bool) -> None:
        agents = settings(team(size, hidden, anonymous)).team.agents
        assert [each.sees_task for each in agents] == [True, *[not hidden] * (size - 1)]
        assert all(bool(each.profile) != anonymous for each in agents)

    def test_the_longest_right_replies_fit(self) -> None:
        longest = dict.fromkeys(ROLES, 0)
        for each in corpus(3000, anonymous=0):
            longest[each.profile] = max(longest[each.profile], len(each.reply.split()) + 1)
        given = {role: tokens for members in MEMBERS.values() for _, role, tokens in members}
        assert all(longest[role] <= given[role] for role in ROLES)

    def test_there_is_no_team_of_five(self) -> None:
        with pytest.raises(MarftError, match="size: no team of 5"):
            team(5)


class TestTraining:
    def test_the_same_recipe_gives_the_same_weights(self) -> None:
        first, again, other = (train(recipe)[0].state_dict() for recipe in (QUICK, QUICK, replace(QUICK, seed=1)))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)

    def test_the_folder_is_made_once_and_loads(
        self, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MARFT_CACHE", str(tmp_path / "cache"))
        steps: list[int] = []
        threads = torch.get_num_threads()
        folder = nano_model(recipe=QUICK, progress=lambda step, loss: steps.append(step))
        assert nano_model(recipe=QUICK, progress=lambda step, loss: steps.append(step)) == folder
        assert steps == [0, 1, 2]
        assert torch.get_num_threads() == threads
        assert list((tmp_path / "cache").iterdir()) == [folder]
        loaded = load_base(settings(team(1)).model.model_copy(update={"name": str(folder)}), "cpu")
        lesson = corpus(1)[0]
        assert tokens(lesson, loaded.chat) == tokens(lesson, base.chat)
        weights, trained = loaded.model.state_dict(), train(QUICK)[0].state_dict()
        assert all(torch.equal(weights[name], trained[name]) for name in trained)

    def test_a_damaged_folder_is_made_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MARFT_CACHE", str(tmp_path))
        folder = nano_model(recipe=QUICK)
        (folder / "config.json").write_text("{}", encoding="utf8")
        nano_model(recipe=QUICK)
        assert '"LlamaForCausalLM"' in (folder / "config.json").read_text(encoding="utf8")

    def test_nothing_is_left_of_a_training_that_failed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MARFT_CACHE", str(tmp_path))

        def fail(*_: Any, **__: Any) -> None:
            raise OSError("no space")

        monkeypatch.setattr("json.dumps", fail)
        monkeypatch.setattr(Recipe, "name", "nano-test")
        with pytest.raises(OSError, match="no space"):
            nano_model(recipe=QUICK)
        assert not list(tmp_path.iterdir())

    def test_the_name_tells_settings_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recipes = [
            Recipe(),
            Recipe(seed=1),
            Recipe(steps=10),
            Recipe(lr=1e-3),
            Recipe(threads=1),
            Recipe(noise=Noise(slips=0.2)),
            Recipe(shape=SMALL),
        ]
        assert len({each.name for each in recipes}) == len(recipes)
        assert Recipe().name == Recipe().name
        before = Recipe().name
        monkeypatch.setattr("benchmarks.nano.problems.THINGS", ("apples", "pears"))
        assert Recipe().name != before
