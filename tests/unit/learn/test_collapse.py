"""Collapse, on rows made by hand and on simulated runs that are well: an alarm at its limit, and none from noise."""

import random

import pytest

from marft.config import GuardConfig
from marft.learn.collapse import first_recent, good_until
from marft.learn.guard import alarms

CONFIG = GuardConfig(window=4, collapse=0.5)


def row(iteration, success=0.5, **more):
    return {"iteration": iteration, "success": success, "reward": success, "episodes": 64, "failed": 0, **more}


def course(*successes):
    return [row(iteration, success) for iteration, success in enumerate(successes)]


def kinds(rows, config=CONFIG):
    return [(each.kind, each.who) for each in alarms(rows, config)]


def test_success_collapses_when_a_window_is_surely_below_its_share_of_the_best():
    # best 0.8, its error that of 4 x 64 episodes: sqrt(.8 * .2 / 256) = 0.025; half of it 0.4, whose error is
    # 0.0306186; that of half the best and of 0.4 together is sqrt(0.0125^2 + 0.0306186^2) = 0.0330719: the alarm is
    # below 0.4 - 3 * 0.0330719 = 0.30078
    good = [0.8] * 8
    assert kinds(course(*good, *[0.31] * 4)) == []
    assert kinds(course(*good, *[0.302] * 4)) == []
    assert kinds(course(*good, *[0.299] * 4)) == [("collapse", "team")]
    (alarm,) = alarms(course(*good, *[0.29] * 4), CONFIG)
    assert (alarm.kind, alarm.who) == ("collapse", "team")
    assert alarm.value == pytest.approx(0.29)
    assert "mean success of the last 4 iterations is 0.29, after 0.8 at best (guard.collapse: 0.5" in alarm.text
    assert kinds(course(*good, *[0.0] * 3, 0.8)) == [("collapse", "team")]  # mean 0.2
    assert kinds(course(*[0.8] * 3, *[0.0] * 4)) == []  # no whole window before


def test_a_collapse_leads_back_to_the_end_of_the_last_good_window():
    rising = [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8]
    (alarm,) = alarms(course(*rising, 0.1, 0.1, 0.1, 0.1), CONFIG)
    assert alarm.since == 7
    slow = [0.8 - 0.05 * step for step in range(14)]
    (alarm,) = alarms(course(*rising, *slow), CONFIG)
    # noise: 17 differences before the last window, 3 of 0.2, 5 of 0 and 9 of 0.05: sqrt(0.1425 / 17 / 2 / 4) = 0.0324;
    # the windows that end at 9 and 10 have means 0.7875 and 0.7625, and 0.8 - 0.0324 lies between
    assert alarm.since == 9


def test_noise_at_a_low_success_is_no_collapse():
    assert kinds(course(*[2 / 64] * 4, *[0.0] * 4)) == []
    assert kinds(course(*[4 / 64, 0, 4 / 64, 0] * 4, *[0.0] * 4)) == []


def test_what_the_rows_themselves_show_of_noise_counts():
    swinging = [1.0, 0.2] * 4  # as where few tasks are played, and all episodes of a task end alike
    assert kinds(course(*swinging, *[0.2] * 4)) == []
    assert kinds(course(*[0.6] * 8, *[0.15] * 4)) == [("collapse", "team")]


def test_rewards_are_judged_by_what_was_gained_where_success_says_nothing():
    def rewards(*given):
        return [row(place, 0.0) | {"reward": each} for place, each in enumerate(given)]

    gained = [-10.0] * 4 + [-8.0, -6.0, -4.0, -2.0] + [-2.0] * 8
    assert kinds(rewards(*gained, *[-5.0] * 4)) == []
    assert kinds(rewards(*gained, *[-9.0] * 4)) == [("collapse", "team")]
    assert kinds(rewards(*[0.0] * 16)) == []  # rewards that add up to nothing
    assert kinds(rewards(*[-1.0] * 8, *[-3.0] * 8)) == []  # nothing was ever gained


def test_what_was_given_up_still_sets_the_mark_but_is_not_how_the_team_fares():
    rows = course(*[0.8] * 8, *[0.1] * 4)
    assert kinds(rows) == [("collapse", "team")]
    rows[-1]["rollback_to"] = 7
    assert first_recent(rows) == 12
    assert kinds([*rows, row(12, 0.1), row(13, 0.1), row(14, 0.1)]) == []
    (alarm,) = alarms([*rows, *(row(place, 0.1) for place in range(12, 16))], CONFIG)
    assert (alarm.kind, alarm.since) == ("collapse", 12)
    assert good_until([*rows, row(12, 0.8)], CONFIG) == 12


def test_failed_iterations_say_nothing_of_success():
    rows = course(*[0.8] * 8)
    rows += [row(place, 0.0) | {"failed": 64} for place in range(8, 12)]
    assert kinds(rows) == []


def test_good_until_follows_a_run_that_is_well_and_stays_where_it_was_best():
    assert good_until([], CONFIG) == 0
    assert good_until(course(0.1, 0.2), CONFIG) == 1
    assert good_until(course(*[0.5] * 20), CONFIG) == 19
    assert good_until(course(*[0.8] * 8, *[0.3] * 5), CONFIG) == 7


# ---- false alarms


def played(chances, seed, tasks, samples):
    """Rows of a run whose tasks are of different difficulty, so that the episodes of one are alike."""
    draw = random.Random(seed)
    rows = []
    for iteration, chance in enumerate(chances):
        won = 0
        for _ in range(tasks):
            own = draw.betavariate(1.5 * chance, 1.5 * (1 - chance))
            won += sum(draw.random() < own for _ in range(samples))
        share = won / tasks / samples
        rows.append(row(iteration, share) | {"episodes": tasks * samples})
    return rows


def runs_with_alarms(chances, tasks, samples, seeds=25):
    config = GuardConfig(window=5, collapse=0.5)
    found = 0
    for seed in range(seeds):
        rows = played(chances, seed, tasks, samples)
        found += any(alarms(rows[:end], config) for end in range(1, len(rows) + 1))
    return found


RISING = [0.05 + 0.75 * step / 79 for step in range(80)]


@pytest.mark.parametrize(("tasks", "samples"), [(2, 4), (8, 8)])
def test_a_noisy_run_that_gets_better_raises_no_alarm(tasks, samples):
    assert runs_with_alarms(RISING, tasks, samples) == 0


@pytest.mark.parametrize("chance", [0.02, 0.1, 0.4])
def test_a_noisy_run_that_gets_nowhere_hardly_ever_does(chance):
    assert runs_with_alarms([chance] * 80, 8, 8) <= 1


def test_a_noisy_run_that_crashes_always_does():
    assert runs_with_alarms([*RISING, *[0.02] * 8], 8, 8) == 25


def test_a_crash_of_a_team_that_is_half_good_is_seen_while_it_is_fresh():
    assert runs_with_alarms([*[0.5] * 20, *[0.001] * 8], 8, 8) == 25
    assert runs_with_alarms([*[0.5] * 20, *[0.1] * 20], 8, 8) >= 20
