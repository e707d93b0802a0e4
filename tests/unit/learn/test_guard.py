"""The crash detector on rows made by hand: each alarm at and around its limit, and none on runs that are well."""

import math
import random

import pytest

from marft.config import GuardConfig
from marft.learn.guard import Diverged, alarms, first_recent, good_until, health

CONFIG = GuardConfig(
    window=4, collapse=0.5, kl=0.5, reference_kl=4.0, entropy_low=0.04, entropy_high=4.0, ratio=10.0
)  # fmt: skip


def row(iteration, success=0.5, **more):
    return {"iteration": iteration, "success": success, "reward": success, "episodes": 64, "failed": 0, **more}


def course(*successes):
    return [row(iteration, success) for iteration, success in enumerate(successes)]


def kinds(rows, config=CONFIG):
    return [(each.kind, each.who) for each in alarms(rows, config)]


def updated(**stats):
    return [row(0), row(1, update={"ann": {"kl": 0.01, "ratio_p50": 1.0, "ratio_p95": 1.3}, "bob": stats})]


def test_nothing_is_wrong_with_nothing_or_with_an_ordinary_row():
    assert alarms([], CONFIG) == ()
    assert alarms(updated(kl=0.02, ratio_p50=1.0, ratio_p95=1.4), CONFIG) == ()
    assert alarms([row(0, entropy={"ann": 2.0}, reference_kl=0.1)], CONFIG) == ()


# ---- one step too far


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"kl": 0.5}, []),
        ({"kl": 0.51}, [("kl", "bob")]),
        ({"ratio_p95": 10.0, "ratio_p50": 1.0}, []),
        ({"ratio_p95": 10.1, "ratio_p50": 1.0}, [("ratio", "bob")]),
        ({"ratio_p95": 1.0, "ratio_p50": 0.1}, []),
        ({"ratio_p95": 1.0, "ratio_p50": 0.09}, [("ratio", "bob")]),
        ({"ratio_p95": 1.0, "ratio_p50": 1.0, "ratio_p05": 0.001}, []),  # a bad reply unlearnt is no explosion
        ({"kl": 2.0, "ratio_p95": 40.0}, [("kl", "bob"), ("ratio", "bob")]),
    ],
)
def test_a_step_is_judged_at_its_limits_and_by_agent(stats, expected):
    assert kinds(updated(**stats)) == expected


def test_an_alarm_says_who_how_much_the_limit_what_to_try_and_until_when_all_was_well():
    (alarm,) = alarms(updated(kl=1.25), CONFIG)
    assert "agent 'bob': KL of 1.25 nats per token in one update (guard.kl: 0.5)" in alarm.text
    assert "lower update.lr or update.epochs, or set update.kl_stop" in alarm.text
    assert (alarm.value, alarm.since) == (1.25, 1)  # the update of iteration 1 was too much: checkpoint 1 is good
    assert health([alarm]) == {"alarms": 1, "kl": {"bob": 1.25}}
    assert health([]) == {"alarms": 0}


def test_only_the_last_row_is_judged():
    rows = updated(kl=3.0)
    assert kinds(rows) == [("kl", "bob")]
    assert kinds([*rows, row(2)]) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_found_in_memory_and_as_the_file_has_it(bad):
    (alarm,) = alarms(updated(kl=bad), CONFIG)
    assert (alarm.kind, alarm.who, alarm.since) == ("nonfinite", "team", 1)
    assert "update/bob/kl" in alarm.text
    written = {**updated(kl=None)[1], "nonfinite": {"update/bob/kl": str(bad)}}
    assert alarms([row(0), written], CONFIG) == (alarm,)
    assert all(math.isfinite(each) for each in (alarm.value, *health([alarm])["nonfinite"].values()))


def test_a_gradient_that_stopped_a_step_is_an_alarm_of_its_owner():
    rows = [row(0), row(1, diverged={"bob": str(Diverged("bob"))})]
    (alarm,) = alarms(rows, CONFIG)
    assert (alarm.kind, alarm.who, alarm.since) == ("nonfinite", "bob", 1)
    assert alarm.text.startswith("bob: the gradient is not finite; lower update.lr")


# ---- beside earlier rows


def spread(*entropies, success=0.5, **more):
    """Rows of an agent's entropies; before them its first, 2.0."""
    return [row(place, success, entropy={"ann": each}, **more) for place, each in enumerate((2.0, *entropies))]


def test_entropy_is_judged_by_the_agents_first():
    assert kinds(spread(0.081)) == []
    assert kinds(spread(0.079)) == [("entropy_low", "ann")]
    assert kinds(spread(8.0)) == []
    assert kinds(spread(8.1)) == [("entropy_high", "ann")]
    assert kinds([row(0, entropy={"ann": 0.0}), row(1, entropy={"ann": 0.0})]) == []


def test_since_is_where_entropy_was_well_inside_its_limits():
    # low: sqrt(0.04) * 2 = 0.4; high: sqrt(4) * 2 = 4
    (low,) = alarms(spread(1.0, 0.41, 0.39, 0.2, 0.07), CONFIG)
    (high,) = alarms(spread(3.0, 3.9, 4.1, 6.0, 9.0), CONFIG)
    assert (low.since, high.since) == (2, 2)


def test_a_team_that_wins_or_learns_may_be_sure_of_itself():
    assert kinds(spread(*[1.0] * 4, 0.01, success=0.9)) == []
    rising = [row(place, place / 10, entropy={"ann": each}) for place, each in enumerate([2.0, *[1.0] * 7, 0.01])]
    assert kinds(rising) == []
    assert kinds([*rising, *(row(place, 0.75, entropy={"ann": 0.01}) for place in range(9, 17))]) == [
        ("entropy_low", "ann")
    ]


def test_the_distance_from_the_base_model():
    rows = [row(place, reference_kl=each) for place, each in enumerate([0.1, 1.9, 2.1, 3.0, 4.0])]
    assert alarms(rows, CONFIG) == ()
    (alarm,) = alarms([*rows, row(5, reference_kl=4.1)], CONFIG)
    assert (alarm.kind, alarm.who, alarm.since) == ("reference_kl", "team", 1)  # half the limit is well inside


# ---- collapse


def test_success_collapses_when_a_window_is_surely_below_its_share_of_the_best():
    # best 0.8, as is its error from constant rows of 4 x 64 episodes: sqrt(.8 * .2 / 256) = 0.025; for sure 0.7375;
    # half of it 0.36875, whose error is 0.0301547: the alarm is below 0.36875 - 2.5 * 0.0301547 = 0.2934
    good = [0.8] * 8
    assert kinds(course(*good, *[0.30] * 4)) == []
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
