"""An iteration's play: which tasks, which of them carry a signal, and what is said of all of it."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from builders import World, action, episode, team_of
from marft.learn.curriculum import Record
from marft.learn.play import Group, TooManyFailed, has_signal, play_iteration, task_indices
from marft.run.progress import Silent
from marft.types import Failure, MarftError, Task


def play(team, iteration=0, record=None):
    return asyncio.run(play_iteration(team, record or Record(), iteration, Silent()))


class Tasks:
    """A world of tasks: `pay(index, sample)` is what an episode earns, `kind(index)` the kind of the task."""

    name = "tasks"

    def __init__(self, pay=lambda index, sample: 0.0, size=None, kind=lambda index: "task", fails=()):
        self.pay, self.count, self.kind, self.fails = pay, size, kind, fails
        self.samples = Counter()

    def size(self, split):
        return self.count

    def task(self, split, index):
        return Task(f"{split}-{index}", "c", self.kind(index), {"index": index})

    def reset(self, task, agents, seed):
        index = task.data["index"]
        if index in self.fails:
            raise MarftError("a task without a world")
        self.samples[index] += 1
        return index, self.samples[index] - 1

    def observe(self, state, agent):
        return ""

    def step(self, state, messages):
        from marft.environments.base import Outcome

        return Outcome(state, self.pay(*state))


def team_in(world, *agents, tasks=3, samples=2, **rollout):
    sampling = {"max_tokens": 2}
    return team_of(
        *(agents or ("ann",)),
        world=world,
        rollout={"tasks": tasks, "samples": samples, "sampling": sampling, **rollout},
    )


def indices(episodes):
    return list(dict.fromkeys(each.task.data["index"] for each in episodes))


# ---- which tasks


def test_an_endless_split_is_played_on_and_on():
    team = team_of("ann", rollout={"tasks": 3, "samples": 1}, world=World())
    assert [task_indices(team, iteration) for iteration in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_finite_split_is_played_epoch_by_epoch_each_shuffled():
    world = World()
    world.size = lambda split: 7
    team = team_of("ann", rollout={"tasks": 3, "samples": 1}, world=world)
    played = [index for iteration in range(14) for index in task_indices(team, iteration)]
    epochs = [played[start : start + 7] for start in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3
    again = team_of("ann", rollout={"tasks": 3, "samples": 1}, world=world)
    assert task_indices(again, 9) == played[27:30]  # a resumed run goes on where it was
    other = team_of("ann", rollout={"tasks": 3, "samples": 1}, world=world, seed=1)
    assert [task_indices(other, iteration) for iteration in range(2)] != [played[:3], played[3:6]]
    more = team_of("ann", rollout={"tasks": 16, "samples": 1}, world=world)
    assert sorted(Counter(task_indices(more, 0)).values()) == [2] * 5 + [3] * 2


def test_an_iteration_plays_every_task_so_many_times_with_draws_of_its_own():
    team = team_of("ann", world=World(), rollout={"tasks": 3, "samples": 4, "sampling": {"max_tokens": 12}})
    first, second = (play(team, iteration).episodes for iteration in range(2))
    assert Counter(each.task.id for each in first) == {f"train-{n}": 4 for n in range(3)}
    assert {each.task.id for each in second} == {f"train-{n}" for n in range(3, 6)}
    assert len({each.actions[0].token_ids for each in [*first, *second]}) > 20
    assert first == play(team, 0).episodes


def test_a_task_that_comes_twice_makes_two_groups_and_so_does_one_of_another_iteration():
    world = Tasks(size=1)
    team = team_in(world, tasks=4, samples=2)
    episodes = [*play(team, 0).episodes, *play(team, 5).episodes]
    assert len({each.task.id for each in episodes}) == 1
    assert [each.group for each in episodes] == [f"train-0/{i}/{n}" for i in (0, 5) for n in range(4) for _ in range(2)]


def test_without_options_nothing_is_dropped_and_nothing_remembered():
    played = play(team_in(Tasks()), 2, Record(40, {1: 0.5}))
    assert indices(played.episodes) == [6, 7, 8]
    assert played.record == Record(40, {1: 0.5})
    assert list(played.kept) == played.episodes
    assert not {"resample", "curriculum"} & set(played.stats)


# ---- resampling


def group(*episodes):
    return Group(0, episodes)


def test_a_signal_is_a_difference_in_what_somebody_earned():
    def won(amount, **settings):
        return episode(action("ann"), action("bob", reward=amount, **settings))

    assert not has_signal(group(won(1.0), won(1.0)))
    assert has_signal(group(won(1.0), won(0.0)))
    assert not has_signal(group(won(0.1 + 0.2), won(0.3)))  # equal up to rounding
    assert has_signal(group(won(0.3), won(0.3 + 1e-3)))
    assert not has_signal(group(won(1.0)))
    failed = episode(error=Failure("ann", "?"), terminated=False)
    assert not has_signal(group(won(1.0), failed, won(1.0)))
    assert not has_signal(group(failed, failed))
    assert has_signal(group(won(1.0), failed, won(0.0)))
    # The sum is the same, and who won is not
    zero_sum = [episode(action("ann", reward=x, side="a"), action("bob", reward=-x, side="b")) for x in (1.0, -1.0)]
    assert has_signal(group(*zero_sum))
    # A team's reward stands on whoever spoke last, which is no difference
    shared = [episode(action("ann", reward=1.0, shared=1.0)), episode(action("ann"), won(1.0, shared=1.0).actions[1])]
    assert not has_signal(group(*shared))
    # Who was right a turn earlier has the same sum, and another return on what it said later
    early = episode(action("ann", reward=1.0, shared=1.0), action("ann", turn=1))
    late = episode(action("ann"), action("ann", turn=1, reward=1.0, shared=1.0))
    assert has_signal(group(early, late))
    # An episode that nothing is learnt from is no second opinion
    empty = episode(action("ann", tokens=(), reward=0.0))
    assert not has_signal(group(won(1.0), empty))


def odd_teaches(index, sample):
    """Tasks of odd index are won by the first sample alone, the others by all."""
    return float(index % 2 == 0 or sample == 0)


def test_tasks_without_a_signal_are_replaced_until_enough_have_one():
    played = play(team_in(Tasks(odd_teaches), tasks=3, samples=2, resample=5))
    # 0 1 2, then two for 0 and 2, then one for 4, and 6 for which one more is needed
    assert indices(played.episodes) == [0, 1, 2, 3, 4, 5]
    assert indices(played.kept) == [1, 3, 5]
    assert played.stats["resample"] == {"rounds": 2, "groups": 6, "dropped": 3}
    assert played.record.cursor == 6
    assert indices(play(team_in(Tasks(odd_teaches), resample=5), 1, played.record).episodes)[0] == 6
    # What is said is said of all that was played: every even task is won twice, every odd one once
    assert played.stats["episodes"] == 12
    assert played.stats["success"] == pytest.approx(9 / 12)
    assert len({each.group for each in played.episodes}) == 6
    assert len({each.actions[0].token_ids for each in played.episodes}) > 1


def test_rounds_are_limited_and_what_is_short_is_learnt_from():
    played = play(team_in(Tasks(odd_teaches), tasks=4, samples=2, resample=1))
    assert indices(played.episodes) == [0, 1, 2, 3, 4, 5]
    assert indices(played.kept) == [1, 3, 5]


def test_where_nothing_has_a_signal_the_last_tasks_are_kept():
    played = play(team_in(Tasks(lambda index, sample: 1.0), tasks=2, samples=2, resample=2))
    assert indices(played.episodes) == [0, 1, 2, 3, 4, 5]
    assert indices(played.kept) == [4, 5]
    assert played.stats["resample"] == {"rounds": 2, "groups": 6, "dropped": 4}


def test_a_small_split_is_not_played_twice_for_a_signal():
    played = play(team_in(Tasks(lambda index, sample: 1.0, size=5), tasks=2, samples=2, resample=9))
    assert sorted(indices(played.episodes)) == [0, 1, 2, 3, 4]
    assert played.stats["resample"]["rounds"] == 2


def test_failures_of_all_rounds_count_together():
    world = Tasks(lambda index, sample: 1.0, fails={4})
    played = play(team_in(world, tasks=4, samples=2, resample=1, max_failed=0.25))  # 2 of 16
    assert played.stats["failed"] == 2
    assert all(each.error is None for each in played.kept)
    world = Tasks(odd_teaches, fails={5})  # alone in its round, and 2 of 12
    assert play(team_in(world, tasks=3, samples=2, resample=2, max_failed=0.25)).stats["failed"] == 2
    with pytest.raises(TooManyFailed, match="4 of 10 episodes failed") as error:
        play(team_in(Tasks(odd_teaches, fails={3, 4}), tasks=3, samples=2, resample=9, max_failed=0.33))
    assert len(error.value.episodes) == 10


# ---- curriculum


def hard_or_easy(index):
    return "hard" if index % 2 else "easy"


def test_tasks_won_every_second_time_are_preferred():
    team = team_in(Tasks(kind=hard_or_easy), tasks=8, samples=1, curriculum={"pool": 4, "floor": 0.001})
    record = Record(100, {}, {"easy": 1.0, "hard": 0.5})
    played = play(team, 0, record)
    assert indices(played.episodes) == sorted(indices(played.episodes))
    assert all(100 <= index < 132 for index in indices(played.episodes))
    assert sum(index % 2 for index in indices(played.episodes)) >= 7  # of 8; at random 4 are expected
    assert played.record.cursor == 132
    assert played.record.tasks == {}  # an endless split never brings one again
    assert played.record.kinds["hard"] == pytest.approx(0.8 * 0.5)  # nobody won
    assert played.stats["curriculum"]["known_tasks"] == 0
    assert indices(play(team, 0, record).episodes) == indices(played.episodes)
    assert indices(play(team, 1, record).episodes) != indices(played.episodes)


def test_a_finite_split_remembers_its_tasks():
    world = Tasks(lambda index, sample: float(index < 4), size=12)
    team = team_in(world, tasks=3, samples=2, curriculum={"pool": 4, "decay": 0.5, "floor": 0.001})
    record, seen = Record(), Counter()
    for iteration in range(4):
        played = play(team, iteration, record)
        record = played.record
        seen.update(indices(played.episodes))
        assert len(indices(played.episodes)) == 3
    assert set(record.tasks) == set(seen)
    assert set(record.tasks.values()) <= {0.0, 1.0}
    assert len(seen) == 12  # what was won always or never yields to what nobody knows
    assert record.cursor == 48


def test_a_split_smaller_than_its_tasks_is_played_whole():
    assert sorted(indices(play(team_in(Tasks(size=2), tasks=3, curriculum={})).episodes)) == [0, 1]


def test_resampled_tasks_are_chosen_by_the_curriculum_too():
    team = team_in(Tasks(odd_teaches), tasks=2, samples=2, resample=3, curriculum={"pool": 3})
    played = play(team)
    tasks = indices(played.episodes)
    assert len(set(tasks)) == len(tasks)
    assert all(index < 6 for index in tasks[:2])
    assert all(index >= 6 for index in tasks[2:])
    assert len(indices(played.kept)) == 2
    assert all(index % 2 for index in indices(played.kept))


def test_play_changes_neither_record_nor_team():
    record = Record(3, {1: 0.5}, {"task": 0.5})
    team = team_in(Tasks(odd_teaches, size=20), resample=2, curriculum={})
    before = replace(record, tasks=dict(record.tasks), kinds=dict(record.kinds))
    play(team, 0, record)
    assert record == before
