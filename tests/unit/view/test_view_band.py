"""The band around the mean over episodes, where tasks have different numbers of them: worked out by hand."""

import math
from pathlib import Path

import pytest
from view_runs import episode, write_run

from marft.run.directory import RunDirectory
from marft.run.statistics import mean_interval
from marft.view.band import mean_band
from marft.view.library import RunView

# Task a is won 4 of 4 times, b 0 of 1, c 1 of 1: r = 5/6, deviations y - r n of 2/3, -5/6, 1/6, v = (7/6) / 36
VALUES, TASKS = [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], ["a", "a", "b", "a", "c", "a"]


def test_a_task_counts_by_its_episodes() -> None:
    """Student's quantile with 2 degrees of freedom: 4.302653; standard error sqrt(v · 3/2) = sqrt(7) / 12."""
    found = mean_band(VALUES, TASKS, bounded=False)
    assert found.mean == pytest.approx(5 / 6)
    assert found.low == pytest.approx(5 / 6 - 4.302653 * math.sqrt(7) / 12, abs=1e-6)
    assert found.high == pytest.approx(5 / 6 + 4.302653 * math.sqrt(7) / 12, abs=1e-6)


def test_the_band_of_a_rate_stays_within_0_and_1() -> None:
    """Wilson's interval at n' = (5/36) / v = 30/7, 4.302653 in the place of the normal quantile: q²/n' = 4.319659,
    centre (5/6 + 2.159830) / 5.319659 = .562661, half sqrt(5/36 · 4.319659 + 4.664864) / 5.319659 = .431328."""
    found = mean_band(VALUES, TASKS, bounded=True)
    assert (found.low, found.high) == (pytest.approx(0.131333, abs=1e-5), pytest.approx(0.993989, abs=1e-5))


@pytest.mark.parametrize(
    ("values", "samples"),
    [
        ([1, 0, 1, 1], 1),
        ([1, 0, 1, 1, 0, 0], 2),
        ([0.25, 0.75, 0.5, 0.5], 2),  # every task alike
        ([1, 1, 1, 1], 2),
        ([0, 0, 0], 1),
        ([1, 0, 1], 3),  # a single task
        ([0.1, 0.7, 0.3, 0.2, 0.9, 0.4], 3),
    ],
)
@pytest.mark.parametrize("bounded", [True, False])
def test_with_as_many_episodes_of_each_task_it_is_the_interval_of_evaluations(
    values: list[float], samples: int, bounded: bool
) -> None:
    tasks = [place // samples for place in range(len(values))]
    expected = mean_interval(values, tasks, bounded=bounded)
    found = mean_band(values, tasks, bounded=bounded)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))


def test_where_all_is_won_a_task_played_often_tells_less_than_as_many_tasks() -> None:
    """Of (3 + 1)² / (3² + 1²) = 1.6 tasks: Wilson's interval of 1 begins at 1.6 / (1.6 + 1.959964²)."""
    found = mean_band([1.0, 1.0, 1.0, 1.0], ["a", "a", "a", "b"], bounded=True)
    assert (found.low, found.high) == (pytest.approx(1.6 / (1.6 + 1.959964**2), abs=1e-6), 1.0)


def test_uneven_failures_do_not_move_the_band_off_its_line(tmp_path: Path) -> None:
    """Ten tasks won 8 of 8 times; of ten that are lost, six have one episode that did not fail, four have four.

    r = 80 / 102; sum of squares 10 (8 - 8 r)² + 6 r² + 4 (4 r)² = 72.8335, v = .0070005, n' = r (1 - r) / v = 24.165;
    Student's quantile with 19 degrees of freedom 2.093024. The mean of the task means is .5, which was the line's
    interval once: [.29, .71].
    """
    failed = {"who": "solver", "reason": "deadline"}
    played = [episode(f"won {task}", 1.0, sample=sample) for task in range(10) for sample in range(8)]
    for task in range(10):
        left = 1 if task < 6 else 4
        played += [episode(f"lost {task}", error=failed if sample >= left else None) for sample in range(8)]
    row = {"iteration": 0, "success": 80 / 102}
    run = write_run(tmp_path / "run", rows=[row], episodes={"train-000000": played})
    found = RunView(RunDirectory.open(run)).metrics()
    band = found["intervals"]["success"]
    assert band["low"][0] < found["series"]["success"][0] < band["high"][0]
    assert (band["low"][0], band["high"][0]) == (pytest.approx(0.57375, abs=2e-4), pytest.approx(0.90761, abs=2e-4))
