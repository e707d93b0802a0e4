"""The crash detector on rows made by hand: each alarm at and around its limit, and none on runs that are well."""

import math

import pytest

from marft.config import GuardConfig
from marft.learn.guard import Diverged, alarms, health, marks

CONFIG = GuardConfig(
    window=4, collapse=0.5, kl=0.5, reference_kl=4.0, entropy_low=0.04, entropy_high=4.0, ratio=10.0, critic=10.0
)  # fmt: skip


def row(iteration, success=0.5, **more):
    return {"iteration": iteration, "success": success, "reward": success, "episodes": 64, "failed": 0, **more}


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
    assert alarm.text == "bob: the gradient is not finite; lower update.lr and critic.lr"  # rollback is on already


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


def test_an_agent_that_was_sure_of_itself_from_the_start_babbles_only_above_half_a_nat():
    def from_first(first, *entropies):
        return [row(place, entropy={"ann": each}) for place, each in enumerate((first, *entropies))]

    assert kinds(from_first(0.02, 0.07)) == []
    assert kinds(from_first(0.02, 0.49)) == []
    assert kinds(from_first(0.02, 0.51)) == [("entropy_high", "ann")]
    assert kinds(from_first(0.2, 0.79)) == []  # 4 times as much is more than half a nat
    # well inside is 0.5 / sqrt(4) = 0.25
    (alarm,) = alarms(from_first(0.02, 0.07, 0.24, 0.26, 0.51), CONFIG)
    assert alarm.since == 2


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


# ---- critics


def valued(*explained, losses=None, success=0.5, name="critic"):
    """Rows of a critic's explained variance, its loss 1 where nothing else is said."""
    return [
        row(place, success, **{name: {"loss": loss, "explained_variance": each}})
        for place, (each, loss) in enumerate(zip(explained, losses or [1.0] * len(explained), strict=True))
    ]


@pytest.mark.parametrize("name", ["critic", "critic-2", "critic-ann"])
def test_a_critic_that_runs_away_is_named_and_good_until_the_row_before(name):
    assert kinds(valued(0.0, 0.3, -10.0, name=name)) == []
    (alarm,) = alarms(valued(0.0, 0.3, -10.1, name=name), CONFIG)
    assert (alarm.kind, alarm.who, alarm.value, alarm.since) == ("critic", name, -10.1, 1)
    assert alarm.text.startswith(f"{name}: explained variance of -10.1 (guard.critic: -10), so its values")
    assert alarm.text.endswith("lower critic.lr and critic.head_lr")
    assert kinds([{"other": {"explained_variance": -99.0, "loss": 9.0}, **row(0)}]) == []


def test_a_critics_first_values_may_be_bad_already_and_a_slow_decline_leads_back_to_its_begin():
    (alarm,) = alarms(valued(-20.0), CONFIG)
    assert alarm.since == 0
    (alarm,) = alarms(valued(0.1, 0.2, -4.9, -5.1, -9.0, -12.0), CONFIG)
    assert alarm.since == 2  # half the limit is well inside
    assert kinds(valued(0.1, -12.0, -12.0)) == [("critic", "critic")]  # while it lasts


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_where_all_episodes_end_alike_only_a_loss_higher_than_ever_tells_that_a_critic_ran_away(success):
    def rows(loss):
        found = valued(0.0, 0.1, -320.0, losses=[0.03, 0.02, loss])
        return [*found[:2], found[2] | {"success": success, "reward": success}]

    assert kinds(rows(0.03)) == []  # the returns are the critic's own values, a little moved on
    assert marks(rows(0.03), CONFIG) == (2, 2)
    assert kinds(rows(0.031)) == [("critic", "critic")]
    # what it lost while it ran away sets no mark
    assert kinds([*rows(9.0), *(each | {"iteration": 3} for each in rows(8.0)[2:])]) == [("critic", "critic")]


def test_while_nobody_has_earned_anything_a_critic_is_not_judged():
    assert kinds(valued(0.0, -50000.0, losses=[1e-14, 1e-7], success=0.0)) == []
    # two sides whose rewards add up to 0 do earn something
    sides = {"play": {"ann": {"reward": 0.5}, "bob": {"reward": -0.5}}}
    rows = [{**each, **sides} for each in valued(0.0, -50.0, losses=[0.5, 7.0], success=0.0)]
    assert kinds(rows) == [("critic", "critic")]


# ---- where to go back to


def test_every_slow_alarm_marks_where_it_would_lead_back_to():
    assert marks([], CONFIG) == (0,)
    well = [
        row(place, entropy={"ann": 2.0, "bob": 1.0}, reference_kl=0.1, critic={"explained_variance": 0.1, "loss": 1.0})
        for place in range(6)
    ]
    assert marks(well, CONFIG) == (5,) * 5
    # reference_kl: half of 4; ann: at least sqrt(0.04) * 2 = 0.4; bob: at most sqrt(4) * 1 = 2; the critic: -5
    ill = [
        {"entropy": {"ann": 0.5, "bob": 1.0}, "reference_kl": 2.0},
        {"entropy": {"ann": 0.3, "bob": 1.9}, "reference_kl": 2.1},
        {"entropy": {"ann": 0.2, "bob": 2.1}, "critic": {"explained_variance": -6.0, "loss": 3.0}},
    ]
    rows = [*well, *(row(6 + place, **each) for place, each in enumerate(ill))]
    assert marks(rows, CONFIG) == (8, 6, 5, 6, 7)  # success, reference_kl, critic, ann, bob
    assert alarms(rows, CONFIG) == ()
    rows[-1]["rollback_to"] = 5
    assert marks([*rows, row(9)], CONFIG) == (9,) * 5  # what was given up is no place to go back to
