"""Play and learning of one iteration, one after the other or at once: the same results, and an end whatever happens."""

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from builders import World, same, snapshot, stirred, team_of, tiny_base
from marft.config import LoraConfig
from marft.generate.scripted import Scripted
from marft.generate.torch_engine import TorchEngine
from marft.learn.ahead import Both, Side, beside, plays_apart
from marft.learn.clock import Clock
from marft.learn.score import prepare
from marft.learn.train import Training, iterate
from marft.models.policy import Policy
from marft.run.interrupt import GracefulStop
from marft.run.progress import Silent
from marft.types import MarftError

TIMED = ("play_tokens_per_second", "update_tokens_per_second")
LATE = {"tasks": 2, "samples": 4, "staleness": 1, "sampling": {"max_tokens": 3}}


class Apart:
    """A torch engine on a copy of the weights, which it takes over when it is told of new ones."""

    def __init__(self, policy, own_weights=True, pause=0.0):
        base = tiny_base()
        self.learners, self.policy = policy, Policy(base, LoraConfig(r=4, alpha=8.0), policy.adapters)
        self.engine = TorchEngine(self.policy)
        self.own_weights, self.pause = own_weights, pause
        self.threads, self.held, self.busy = set(), [], 0
        self._copy()

    version = property(lambda self: self.engine.version)
    usage = property(lambda self: self.engine.usage)

    def _copy(self):
        for name in self.policy.adapters:
            theirs = self.learners.parameters(name)
            for key, each in self.policy.parameters(name).items():
                each.data = theirs[key].detach().clone()

    async def generate(self, request):
        self.threads.add(threading.current_thread())
        self.busy += 1
        try:
            await asyncio.sleep(self.pause)
            return await self.engine.generate(request)
        finally:
            self.busy -= 1

    def load(self, version):
        assert not self.busy
        self._copy()
        self.engine.load(version)

    def hold(self, adapters):
        self.held.append(adapters)

    def rest(self):
        assert not self.busy
        self.engine.rest()


def letters(said):
    return float(list(said[-1].values())[-1].count("a"))


def training_with(engine, world=None, rollout=LATE, **settings):
    """A duo whose seats are at `engine(policy)`."""
    team = team_of("ann", "bob", world=world or World(pay=letters), rollout=rollout, critic={"warmup": 1}, **settings)
    stirred(team.backends[0].policy)
    generator = engine(team.backends[0].policy)
    seats = {name: replace(seat, generator=generator) for name, seat in team.seats.items()}
    return Training.of(replace(team, seats=seats)), generator


def several(training, count, watcher=None):
    """Episodes and untimed stats of some iterations."""
    found = []
    for iteration in range(count):
        episodes, stats = iterate(training, iteration, Clock(), watcher or Silent())
        training.team.load(iteration + 1)
        found.append((episodes, {key: each for key, each in stats.items() if key not in TIMED}))
    return found


def weights(training):
    policy = training.team.backends[0].policy
    return {name: snapshot(policy, name) for name in policy.adapters}


def test_at_once_and_one_after_the_other_are_the_same():
    rollout = {**LATE, "reuse": 1, "resample": 1, "curriculum": {"pool": 2}}
    settings = {"rollout": rollout, "update": {"epochs": 2, "minibatches": 2, "lr": 0.01}}
    late, both = training_with(lambda policy: Apart(policy, own_weights=False), **settings)
    early, engine = training_with(Apart, **settings)
    first = several(late, 4)
    assert several(early, 4) == first
    assert all(same(weights(late)[name], weights(early)[name]) for name in weights(late))
    assert late.memory == early.memory
    assert both.threads == {threading.main_thread()}
    assert both.held == []
    assert threading.main_thread() not in engine.threads
    assert engine.held == [("ann", "bob")] * 4
    assert [each[1]["learnt"]["iterations"] for each in first] == [0, 1, 2, 2]
    assert "off_policy" in first[2][1]


def test_play_and_learning_overlap(monkeypatch):
    """Play waits until learning has begun, and learning until play has: one after the other could not end."""
    training, engine = training_with(Apart)
    several(training, 1)
    playing, learning = threading.Event(), threading.Event()
    generate = engine.generate

    async def wait_and_generate(request):
        playing.set()
        assert await asyncio.to_thread(learning.wait, 30)
        return await generate(request)

    engine.generate = wait_and_generate

    def wait_and_prepare(*given):
        learning.set()
        assert playing.wait(30)
        return prepare(*given)

    monkeypatch.setattr("marft.learn.train.prepare", wait_and_prepare)
    iterate(training, 1, Clock(), Silent())
    assert learning.is_set()


def test_first_iterations_only_play():
    training, _ = training_with(Apart, rollout={**LATE, "staleness": 2})
    before = weights(training)
    for _, stats in several(training, 2):
        assert stats["learnt"] == {"episodes": 0, "iterations": 0}
        assert not {"update", "critic", "entropy"} & set(stats)
        assert stats["episodes"] == 8
    assert all(same(before[name], weights(training)[name]) for name in before)


def test_with_staleness_the_warm_up_starts_when_learning_does():
    training, _ = training_with(Apart)
    stats = [each for _, each in several(training, 3)]
    assert ["critic" in each for each in stats] == [False, True, True]
    assert ["update" in each for each in stats] == [False, False, True]


def test_older_play_is_weighed_and_its_age_told():
    training, _ = training_with(Apart, update={"lr": 0.02})
    *_, (episodes, stats) = several(training, 4)
    assert {each.policy_version for played in episodes for each in played.actions} == {3}
    ann = stats["off_policy"]["ann"]
    assert (ann["age_mean"], ann["age_max"]) == (1, 1)
    assert ann["weight_p05"] < 1 < ann["weight_max"] <= 2.0
    assert 0 < ann["ess"] < 1
    assert stats["sampler_gap"] == {}  # what older play and the learner differ by is what was learnt


def test_reused_play_stands_beside_new_play():
    rollout = {**LATE, "staleness": 0, "reuse": 2}
    training, _ = training_with(lambda policy: Apart(policy, own_weights=False), rollout=rollout)
    stats = [each for _, each in several(training, 4)]
    assert [each["learnt"] for each in stats] == [{"episodes": 8 * n, "iterations": n} for n in (1, 2, 3, 3)]
    assert "off_policy" not in stats[0]
    assert [stats[-1]["off_policy"]["bob"][key] for key in ("age_mean", "age_max")] == [1, 2]
    assert stats[-1]["sampler_gap"]["max"] < 1e-4


def test_groups_of_different_iterations_never_mix():
    """Every reply of an iteration earns the same, more each iteration: a mean over both would see a difference."""
    world = World(pay=lambda said: float(world.round))
    rollout = {**LATE, "staleness": 0, "reuse": 1}
    team = team_of("ann", world=world, rollout=rollout, critic={"kind": "none"}, credit={"baseline": "group"})
    world.task = lambda split, index: World().task(split, 0)
    training = Training.of(team)
    for iteration in range(2):
        world.round = iteration
        _, stats = iterate(training, iteration, Clock(), Silent())
        training.team.load(iteration + 1)
    assert stats["learnt"]["iterations"] == 2
    assert stats["update"]["ann"]["grad_norm"] == 0


# ---- who plays apart


def test_a_team_plays_apart_only_where_every_seat_does():
    training, _ = training_with(Apart)
    team = training.team
    assert plays_apart(team)
    learners = replace(team.seats["bob"], generator=team.backends[0].generator)
    assert not plays_apart(replace(team, seats={**team.seats, "bob": learners}))
    script = replace(team.seats["bob"], generator=Scripted(team.backends[0].base.chat, ["a"]))
    assert plays_apart(replace(team, seats={**team.seats, "bob": script}))


def test_without_staleness_play_comes_first_whoever_plays():
    training, engine = training_with(Apart, rollout={**LATE, "staleness": 0})
    several(training, 1)
    assert engine.threads == {threading.main_thread()}
    assert engine.held == []


# ---- ends


def test_what_play_raises_arrives_after_learning_has_ended():
    training, engine = training_with(Apart)
    several(training, 1)
    before = weights(training)

    async def refuse(request):
        raise MarftError("the engine is on fire")

    engine.generate = refuse
    with pytest.raises(MarftError, match="on fire"):
        iterate(training, 1, Clock(), Silent())
    assert not same(before["critic"], weights(training)["critic"])
    assert threads() == []


def test_what_learning_raises_arrives_and_cuts_play_short(monkeypatch):
    training, engine = training_with(Apart)
    several(training, 1)
    engine.pause = 600.0
    monkeypatch.setattr("marft.learn.train.prepare", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        iterate(training, 1, Clock(), Silent())
    assert threads() == []
    assert engine.busy == 0


def test_ctrl_c_lets_an_iteration_end_and_a_second_one_ends_it_at_once():
    training, engine = training_with(Apart)
    several(training, 1)
    with GracefulStop(announce=lambda text: None) as stop:
        once = Interrupts(1)
        iterate(training, 1, Clock(), once)
        assert stop.requested
        assert once.sent == 1
        training.team.load(2)
        engine.pause = 600.0
        stop._since = time.monotonic() - 10
        with pytest.raises(KeyboardInterrupt):
            iterate(training, 2, Clock(), Interrupts(1))
    assert threads() == []


class Interrupts(Silent):
    """Sends Ctrl-C to this process when learning begins."""

    def __init__(self, count):
        self.count, self.sent = count, 0

    def phase(self, name, done=None, total=None):
        if "scoring" in name and self.sent < self.count:
            self.sent += 1
            os.kill(os.getpid(), signal.SIGINT)


def threads():
    return [each for each in threading.enumerate() if each.name == "play"]


def test_the_coroutine_has_ended_when_its_context_is_left():
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    with pytest.raises(KeyError), beside(work()):
        raise KeyError
    assert ended.is_set()

    async def quick():
        return 7

    with beside(quick()) as result:
        assert result.result() == 7


def test_a_thread_that_cannot_start_its_loop_ends_nobody_in_silence(monkeypatch):
    def no_loop(coroutine):
        coroutine.close()
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "run", no_loop)

    async def work():
        """Never begun."""

    waiting = work()
    with pytest.raises(KeyError), beside(waiting):
        raise KeyError
    with beside(waiting) as result, pytest.raises(OSError, match="too many"):
        result.result()
    waiting.close()


# ---- what a person sees


class Notes(Silent):
    def __init__(self):
        self.seen, self.inside = [], 0

    def phase(self, name, done=None, total=None):
        self.inside += 1
        time.sleep(0.0005)
        assert self.inside == 1  # one at a time
        self.inside -= 1
        self.seen.append((name, done, total))


def test_two_sides_are_shown_side_by_side():
    watcher = Notes()
    both = Both(watcher)
    play, learn = Side(both, 0), Side(both, 1)
    play.phase("playing", 3, 8)
    learn.phase("updating ann")
    play.phase("playing", 4, 8)
    learn.phase("")
    assert [each[0] for each in watcher.seen] == [
        "playing 3/8", "playing 3/8 · updating ann", "playing 4/8 · updating ann", "playing 4/8",
    ]  # fmt: skip
    assert {each[1:] for each in watcher.seen} == {(None, None)}


def test_a_watcher_is_told_by_one_side_at_a_time():
    watcher = Notes()
    both = Both(watcher)

    def talk(side):
        for number in range(50):
            Side(both, side).phase(f"side {side}", number)

    talkers = [threading.Thread(target=talk, args=(side,)) for side in (0, 1)]
    for each in talkers:
        each.start()
    for each in talkers:
        each.join()
    assert len(watcher.seen) == 100


def test_other_words_are_passed_on():
    said = []

    class Hears(Silent):
        def note(self, text):
            said.append(text)

        def iteration(self, metrics):
            said.append(metrics)

        def evaluation(self, title, report, done):
            said.append((title, report, done))

    side = Side(Both(Hears()), 0)
    side.note("hello")
    side.iteration({"iteration": 3})
    side.start({})
    side.evaluation("x", {}, 4)
    side.finish()
    assert said == ["hello", {"iteration": 3}, ("x", {}, 4)]
