"""Which tasks come next: the order of a split, the weights of a curriculum, and what it remembers."""

import random
from collections import Counter
from itertools import islice

import pytest

from marft.learn import curriculum
from marft.learn.curriculum import Record, Result, choose, noted, ordered, upcoming, weight


def test_an_endless_split_goes_on_and_a_finite_one_comes_again_shuffled():
    assert list(islice(ordered(None, 0, 5), 4)) == [5, 6, 7, 8]
    whole = list(islice(ordered(7, 3), 35))
    epochs = [whole[at : at + 7] for at in range(0, 35, 7)]
    assert all(sorted(each) == list(range(7)) for each in epochs)
    assert len({tuple(each) for each in epochs}) > 3
    assert list(islice(ordered(7, 3, 9), 20)) == whole[9:29]  # from anywhere, also in the middle of an epoch
    assert list(islice(ordered(7, 4), 7)) != epochs[0]


def test_upcoming_tasks_are_different_and_not_those_that_were_taken():
    assert upcoming(None, 0, 10, 3) == ([10, 11, 12], 13)
    assert upcoming(None, 0, 10, 3, {10, 12}) == ([11, 13, 14], 15)
    order = list(islice(ordered(5, 1), 10))
    found, cursor = upcoming(5, 1, 3, 4)  # across the end of an epoch
    assert found == list(dict.fromkeys(order[3:]))[:4]
    assert order[3:cursor].count(found[-1]) == 1
    assert sorted(upcoming(5, 1, 3, 9)[0]) == [0, 1, 2, 3, 4]  # there are no more
    assert upcoming(5, 1, 3, 2, {0, 1, 2, 3, 4})[0] == []
    for cursor in range(10):  # wherever it stands, it finds the one that is left
        assert upcoming(5, 1, cursor, 3, {0, 1, 2, 4})[0] == [3]


def test_a_task_weighs_what_its_outcome_varies():
    assert [weight(p, 0.05) for p in (0.0, 0.5, 0.25, 0.9, 1.0)] == pytest.approx([0.05, 1.0, 0.75, 0.36, 0.05])


def test_places_are_drawn_one_after_another_without_replacement():
    """Against the probabilities of successive draws, by hand: weights 3, 2, 1; two of them."""
    pairs = {
        (0, 1): 3 / 6 * 2 / 3 + 2 / 6 * 3 / 4,
        (0, 2): 3 / 6 * 1 / 3 + 1 / 6 * 3 / 5,
        (1, 2): 2 / 6 / 4 + 1 / 6 * 2 / 5,
    }
    draws = random.Random(0)
    seen = Counter(tuple(choose([3.0, 2.0, 1.0], 2, draws)) for _ in range(6000))
    assert sum(pairs.values()) == pytest.approx(1)
    for pair, expected in pairs.items():
        assert seen[pair] / 6000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 6000) ** 0.5)
    assert choose([1.0, 1.0], 5, draws) == [0, 1]
    assert choose([1.0] * 9, 4, random.Random(1)) == choose([1.0] * 9, 4, random.Random(1))


def test_success_is_the_tasks_own_else_its_kinds_else_a_half():
    record = Record(0, {4: 0.9}, {"easy": 0.7})
    assert [record.success(4, "easy"), record.success(5, "easy"), record.success(5, "hard")] == [0.9, 0.7, 0.5]


def test_rates_move_towards_what_was_seen():
    first = noted(Record(7), [Result(1, "a", 1.0), Result(2, "a", 0.0), Result(3, "b", 1.0)], 0.8, endless=False)
    assert (first.tasks, first.kinds) == ({1: 1.0, 2: 0.0, 3: 1.0}, {"a": 0.5, "b": 1.0})
    second = noted(first, [Result(1, "a", 0.5), Result(4, "a", 1.0)], 0.8, endless=False)
    assert second.tasks == pytest.approx({1: 0.8 * 1.0 + 0.2 * 0.5, 2: 0.0, 3: 1.0, 4: 1.0})
    assert second.kinds == pytest.approx({"a": 0.8 * 0.5 + 0.2 * 0.75, "b": 1.0})
    assert second.cursor == 7
    assert noted(Record(), [Result(1, "a", 1.0)], 0.8, endless=True) == Record(0, {}, {"a": 1.0})


def test_the_record_is_bounded_and_forgets_what_was_played_longest_ago(monkeypatch):
    monkeypatch.setattr(curriculum, "LIMIT", 3)
    record = Record()
    for index in (1, 2, 3, 1, 4):
        record = noted(record, [Result(index, f"kind {index}", 1.0)], 0.5, endless=False)
    assert list(record.tasks) == [3, 1, 4]
    assert list(record.kinds) == ["kind 3", "kind 1", "kind 4"]


def test_a_record_comes_back_in_its_order():
    record = Record(5, {9: 0.25, 2: 1.0}, {"$odd": 0.1, "a": 0.2})
    again = Record.of(record.state())
    assert again == record
    assert list(again.tasks) == [9, 2]
