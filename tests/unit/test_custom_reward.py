"""`reward: module:function`: it pays in the environment's place, and its mistakes are failures that name it."""

import asyncio
import functools
import sys
import textwrap
from dataclasses import replace

import pytest

from builders import World, config_of, stage_of, tiny_base
from marft.cli import main
from marft.environments.base import Outcome
from marft.environments.check import EnvironmentFault, check_environment
from marft.environments.paid import Paid, RewardFault, own_state
from marft.game.dependency import graph
from marft.game.flexmg import build_game
from marft.generate.scripted import Scripted
from marft.rollout import Plan, play
from marft.run.evaluate import without_verdict
from marft.types import MarftError, Task


def paid(reward, world=None):
    return Paid(world or World(pay=lambda said: 7.0), reward, "my:pay")


def outcome_of(world, *turns, agents=("ann", "bob"), task=None):
    """The outcome of the last of some turns of messages."""

    async def steps():
        state = world.reset(task or Task("t", "c"), agents, 0)
        for messages in turns:
            outcome = await world.step(state, messages)
            state = outcome.state
        return outcome

    return asyncio.run(steps())


class TestWhatItIsTold:
    def test_the_task_the_messages_and_what_the_environment_made_of_them(self):
        told = []
        world = World(pay=lambda said: 7.0)
        task = Task("t", "c", data={"index": 3})
        outcome_of(paid(lambda *each: told.append(each) or 0.0, world), {"ann": "x", "bob": "y"}, task=task)
        ((heard, messages, outcome),) = told
        assert heard is task
        assert messages == {"ann": "x", "bob": "y"}
        assert (outcome.rewards, outcome.terminated, outcome.state) == (7.0, True, [{"ann": "x", "bob": "y"}])

    def test_every_turn_of_an_episode(self):
        told = []
        world = World(turns=2)
        outcome_of(paid(lambda task, messages, _: told.append(messages) or 1.0, world), {"ann": "1"}, {"ann": "2"})
        assert told == [{"ann": "1"}, {"ann": "2"}]

    def test_what_it_does_to_what_it_is_shown_is_of_no_account(self):
        class Measured(World):
            def step(self, state, messages):
                return replace(super().step(state, messages), metrics={"success": 1.0})

        def spoil(task, messages, outcome):
            outcome.metrics["success"] = 0.0
            messages.clear()
            return 0.0

        messages = {"ann": "x"}
        assert outcome_of(paid(spoil, Measured()), messages).metrics == {"success": 1.0}
        assert messages == {"ann": "x"}


class TestWhatItPays:
    def test_a_number_to_the_team(self):
        assert outcome_of(paid(lambda *_: 2), {"ann": "x"}).rewards == 2.0

    def test_a_mapping_to_agents_who_spoke_in_this_turn_or_before(self):
        world = paid(lambda task, messages, _: {"ann": 1, "bob": 0.5} if "bob" in messages else 0.0, World(turns=2))
        assert outcome_of(world, {"ann": "x"}, {"bob": "y"}).rewards == {"ann": 1.0, "bob": 0.5}

    def test_success_is_what_it_would_have_been_without(self):
        for own, success in ((7.0, 1.0), (0.0, 0.0), ({"ann": 0.5}, 1.0)):
            outcome = outcome_of(paid(lambda *_: -1.0, World(pay=lambda said, own=own: own)), {"ann": "x"})
            assert (outcome.rewards, outcome.metrics) == (-1.0, {"success": success})

    def test_a_coroutine_function_is_awaited(self):
        async def later(task, messages, outcome):
            await asyncio.sleep(0)
            return 3.0

        assert outcome_of(paid(later), {"ann": "x"}).rewards == 3.0

    def test_anything_that_can_be_called(self):
        class Judge:
            def __call__(self, task, messages, outcome):
                return 4.0

        def scaled(factor, task, messages, outcome):
            return factor * outcome.rewards

        assert outcome_of(paid(Judge()), {"ann": "x"}).rewards == 4.0
        assert outcome_of(paid(functools.partial(scaled, 2)), {"ann": "x"}).rewards == 14.0


@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        (None, "gives the team nothing (None)"),
        ("1", "gives the team a str"),
        (float("nan"), "gives the team nan"),
        ({"ann": float("inf")}, "gives 'ann' inf"),
        ({"ann": None}, "gives 'ann' nothing"),
        ({"eve": 1.0}, "pays 'eve', who is not in the team (ann, bob)"),
        ({"bob": 1.0}, "pays 'bob', who has not spoken yet"),
    ],
)
def test_what_is_no_reward_is_named(gives, sentence):
    with pytest.raises(RewardFault, match="the reward function 'my:pay' ") as error:
        outcome_of(paid(lambda *_: gives), {"ann": "x"})
    assert sentence in str(error.value)


def test_an_exception_is_named_with_its_place_and_kept():
    def broken(task, messages, outcome):
        return task.data["target"]

    with pytest.raises(RewardFault, match=r"'my:pay' failed with KeyError: 'target' \(broken, line \d+\)") as error:
        outcome_of(paid(broken), {"ann": "x"})
    assert isinstance(error.value.__cause__, KeyError)


def test_a_function_of_other_arguments_is_refused_before_anything_is_played():
    with pytest.raises(RewardFault, match=r"'my:pay' cannot be called as reward\(task, messages, outcome\)"):
        paid(lambda messages: 0.0)


class TestInPlay:
    """An episode of a planner and a solver under a reward."""

    def episode(self, reward):
        base = tiny_base()
        game = build_game(config_of("ann", "bob"))
        game = replace(game, environment=paid(reward))
        stage = stage_of(game, base.chat, Scripted(base.chat, lambda request: "a"))
        return asyncio.run(play(stage, Plan(Task("t", "c"), 0, (0, 0), 0)))

    def test_rewards_sit_on_the_messages_that_earned_them(self):
        assert [each.reward for each in self.episode(lambda *_: 2.0).actions] == [0.0, 2.0]
        assert [each.reward for each in self.episode(lambda *_: {"ann": 1.0, "bob": 3.0}).actions] == [1.0, 3.0]

    def test_a_reward_that_fails_fails_the_episode_and_is_no_zero(self):
        episode = self.episode(lambda *_: None)
        assert episode.error is not None
        assert "the reward function 'my:pay' gives the team nothing" in episode.error.reason


class Rich(World):
    """A world with all that an environment may have."""

    def __init__(self, told=True):
        super().__init__()
        self.attempts, self.tools, self.dropped, self.told = 2, {"look": "a tool"}, 5, told

    def sides(self, state):
        assert state == []
        return {"ann": "red"}

    def without_verdict(self):
        return Rich(told=False) if self.told else self


class TestWhatAnEnvironmentMayHave:
    def test_is_there_and_what_it_has_not_is_not(self):
        world = paid(lambda *_: 1.0, Rich())
        assert (world.name, world.attempts, world.tools, world.dropped) == ("world", 2, {"look": "a tool"}, 5)
        assert world.sides(world.reset(Task("t", "c"), ("ann",), 0)) == {"ann": "red"}
        bare = paid(lambda *_: 1.0)
        assert not any(hasattr(bare, name) for name in ("attempts", "tools", "sides", "without_verdict"))

    def test_play_without_verdict_is_paid_too(self):
        silent = without_verdict(paid(lambda *_: 1.5, Rich()))
        assert not silent.told
        assert outcome_of(silent, {"ann": "x"}).rewards == 1.5
        assert without_verdict(silent) is None
        assert without_verdict(paid(lambda *_: 1.0)) is None

    def test_d_reads_the_state_that_the_environment_made(self):
        seen = []

        def d(state, turn):
            seen.append(state)
            return graph([]).graph

        game = replace(build_game(config_of("ann")), dependency=d)
        game.graph_at(paid(lambda *_: 1.0).reset(Task("t", "c"), ("ann",), 0), 0)
        assert seen == [[]]
        assert own_state("another's") == "another's"

    def test_the_rules_of_environments_hold_for_rewards_too(self):
        check_environment(paid(lambda task, messages, _: float(len(messages))), one_prompt=True)
        count = iter(range(1000))
        with pytest.raises(EnvironmentFault, match="another episode the second time"):
            check_environment(paid(lambda *_: float(next(count))), one_prompt=True)


REWARDS = """
from functools import partial
def scaled(factor, task, messages, outcome):
    return factor * len(messages["speaker"])
class Kept:
    halves = staticmethod(lambda task, messages, outcome: 0.5)
double = partial(scaled, 2.0)
number = 3
def broken(task, messages, outcome):
    return 1 / 0
"""

WORLDS = """
from marft import Outcome, Task
class Echo:
    name = "echo"
    def __init__(self, word="a"): self.word = word
    def size(self, split): return None
    def task(self, split, index): return Task(f"{split}-{index}", f"Say {self.word}. {split} {index}")
    def reset(self, task, agents, seed): return agents
    def observe(self, state, agent): return ""
    def step(self, state, messages):
        return Outcome(state, 0.0, metrics={"success": float(self.word in messages[state[-1]])})
"""

TEAM = """
iterations: 1
threads: 1
model: {name: tiny}
team: {agents: [{name: scout}, {name: speaker}]}
environment: {name: "my_worlds:Echo", word: b}
reward: my_rewards:double
rollout: {tasks: 2, samples: 2, sampling: {max_tokens: 3}}
evaluation: {tasks: 2, samples: 2, retention: false}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder: a reward, an environment and a config, the current folder."""
    for name, text in (("my_rewards.py", REWARDS), ("my_worlds.py", WORLDS), ("team.yaml", TEAM)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_rewards", "my_worlds"):
        sys.modules.pop(name, None)


def marft(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out + err


class TestFromAUsersFolder:
    def test_an_environment_and_a_reward_train_evaluate_and_answer(self, folder, capsys):
        import marft as library

        assert marft(capsys, "check", "team.yaml")[0] == 0
        run = library.train("team.yaml", run="run")
        for record in run.episodes:
            words = record["actions"][-1]["text"]
            assert record["reward"] == 2.0 * len(words)
            assert record["success"] == float("b" in words)
        assert {each["split"] for each in run.episodes} == {"train", "greedy", "sampled"}
        assert run.config["reward"] == "my_rewards:double"
        assert len(run.team().ask("Say b.").messages) == 2  # nothing is graded

    @pytest.mark.parametrize(
        ("path", "sentence"),
        [
            (
                "my_rewards:duoble",
                "team.yaml: reward: reward function 'my_rewards:duoble': my_rewards holds no 'duoble'",
            ),
            ("nowhere:pay", "team.yaml: reward: reward function 'nowhere:pay': there is no module 'nowhere'"),
            ("my_rewards:number", "team.yaml: reward: 'my_rewards:number' is a int, not a reward function"),
            ("my_rewards:scaled", "team.yaml: reward: 'my_rewards:scaled' cannot be called as reward("),
        ],
    )
    def test_a_path_that_leads_nowhere_is_one_sentence_at_check_time(self, folder, capsys, path, sentence):
        for words in (("check",), ("check", "--no-weights"), ("train", "--run", "run")):
            code, said = marft(capsys, *words[:1], "team.yaml", f"reward={path}", *words[1:])
            assert code == 2
            assert sentence in said
        assert not (folder / "run").exists()

    def test_check_plays_it_and_training_counts_its_failures(self, folder, capsys):
        code, said = marft(capsys, "check", "team.yaml", "reward=my_rewards:broken")
        assert code == 2
        assert "the reward function 'my_rewards:broken' failed with ZeroDivisionError" in said
        code, said = marft(capsys, "train", "team.yaml", "reward=my_rewards:broken", "--run", "run")
        assert code == 2
        assert "episodes failed" in said
        assert "environment: the reward function 'my_rewards:broken' failed with ZeroDivisionError" in said

    def test_a_lambda_in_a_class_can_be_reached(self, folder):
        game = build_game(config_of("scout", "speaker", reward="my_rewards:Kept.halves"))
        assert isinstance(game.environment, Paid)
        with pytest.raises(MarftError, match=r"pay\.yaml: reward: .*no module"):
            build_game(config_of("scout", "speaker", reward="gone:x"), "pay.yaml")


def test_an_outcome_of_an_environment_that_waits_is_waited_for():
    class Slow(World):
        async def step(self, state, messages):
            await asyncio.sleep(0)
            return Outcome([*state, messages], 1.0, answer="slow")

    outcome = outcome_of(paid(lambda task, messages, outcome: 2 * outcome.rewards, Slow()), {"ann": "x"})
    assert (outcome.rewards, outcome.answer) == (2.0, "slow")
