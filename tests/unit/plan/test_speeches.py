"""Lengths and passes against arithmetic, real packs and real episodes."""

import random

import pytest

from builders import World, config_of, team_of, tiny_base
from marft.models.pack import pack
from marft.models.tiny import PRINTABLE
from marft.plan import speeches
from marft.plan.speeches import FRAME, Lengths, Speech, turn_of
from marft.run.offline import offline_game
from marft.run.preflight import rehearse

FAR = 10**6


def game(*agents, **team):
    return offline_game(config_of(*agents, team=team), "c")


def said(game_, task=100.0, context=FAR, **replies):
    lengths = Lengths(task, {name: float(replies.get(name, 10)) for name in game_.names})
    return speeches.episode(game_, lengths, dict.fromkeys(game_.names, context))


def test_a_chain_reads_all_that_was_said_before():
    duo = said(game("ann", {"name": "bob", "profile": "12345678"}), ann=30, bob=7)
    assert [(each.agent, each.prompt, each.reply, each.end) for each in duo] == [
        ("ann", FRAME + 100, 30, FRAME + 130),
        ("bob", 2 + FRAME + 100 + 30 + FRAME, 7, 2 + FRAME + 100 + 30 + FRAME + 7),  # 8 characters of profile: 2 tokens
    ]
    assert [each.shared for each in duo] == [FRAME + 100, 2 + FRAME + 100]
    assert [each.view for each in duo] == [100 + FRAME, 100 + FRAME + 30 + FRAME]


def test_later_turns_keep_what_was_read_and_said():
    found = said(game("ann", "bob", turns=2, dependency={"edges": [], "recall": [["bob", "ann"]]}))
    first, second = (each for each in found if each.agent == "ann")
    assert second.prompt == first.end + 10 + FRAME  # bob's words of the turn before, and the task once only
    assert second.fresh == second.prompt - first.end


def test_an_agent_that_does_not_see_the_task_reads_less():
    (_, bob) = said(game("ann", {"name": "bob", "sees_task": False}))
    assert (bob.prompt, bob.shared) == (FRAME + 10 + FRAME, FRAME)


def test_the_context_bounds_prompt_and_reply():
    (ann,) = said(game("ann"), task=100.0, context=50)
    assert (ann.prompt, ann.end) == (40, 50)


@pytest.mark.parametrize(
    ("agents", "team", "expected"),
    [
        (("a", "b", "c"), {}, ([("a", ()), ("b", ("a",)), ("c", ("a", "b"))], 3)),
        (("a", "b"), {"dependency": "parallel"}, ([("a", ()), ("b", ())], 1)),
        (
            ("a", "b", "j"),
            {"dependency": {"debate": 2, "judge": "j"}},
            ([("a", ()), ("b", ()), ("a", ("b",)), ("b", ("a",)), ("j", ("a", "b"))], 3),
        ),
        (
            ("lead", "a", "b"),
            {"dependency": {"orchestrator": "lead", "calls": 3}},
            (
                [
                    ("lead", ()),
                    ("a", ("lead",)),
                    ("lead", ("a",)),
                    ("b", ("lead",)),
                    ("lead", ("b",)),
                    ("a", ("lead",)),
                ],
                6,
            ),
        ),
        (
            ("a", "b", "c"),
            {"dependency": {"edges": [["a", "b"], {"speaker": "b", "reader": "c", "when": "wrong"}]}},
            ([("a", ()), ("b", ("a",)), ("c", ("b",))], 3),
        ),
    ],
)
def test_who_speaks_and_what_is_new_to_them(agents, team, expected):
    assert turn_of(game(*agents, **team)) == expected


def test_lengths_are_those_of_a_real_episode():
    """Every agent says as much as it may, in single characters: `ann: ` and a blank line around a message are 7."""
    rollout = {"tasks": 1, "samples": 1, "sampling": {"max_tokens": 20}}
    team = team_of("ann", "bob", "cyd", base=tiny_base(PRINTABLE), world=World(), rollout=rollout)
    (task,) = [team.game.environment.task("train", 0)]
    real = {each.agent: each.tokens for each in rehearse(team.stage, [task], wordy=True, source="c")}
    mine = {each.agent: each.prompt for each in said(team.game, task=float(len(task.prompt)), ann=20, bob=20, cyd=20)}
    for heard, name in enumerate(team.game.names):
        assert real[name] - real["ann"] == heard * (20 + 7)
        assert mine[name] - mine["ann"] == heard * (20 + FRAME)
    assert real["ann"] == pytest.approx(mine["ann"], abs=FRAME)


def rows_of(tasks, samples, shared, own):
    rng = random.Random(0)
    draw = lambda count: [rng.randrange(10**6) for _ in range(count)]  # noqa: E731
    return [head + draw(own) for head in (draw(shared) for _ in range(tasks)) for _ in range(samples)]


@pytest.mark.parametrize(
    ("samples", "shared", "own"), [(1, 30, 20), (4, 30, 20), (4, 0, 50), (6, 90, 10), (3, 10, 200)]
)
@pytest.mark.parametrize("budget", [100, 10**6])
def test_a_pass_over_rows_computes_what_packs_hold(samples, shared, own, budget):
    """Packs of several tasks may hold more rows of each than the formula thinks: never fewer tokens than the packs."""
    tasks = 5
    speech = Speech("ann", shared + own - 5.0, shared + own - 5.0, float(shared), 0.0, 5.0)
    reading = speeches.rows_read([speech], tasks, samples, budget)
    real = sum(len(each.tokens) for each in pack(rows_of(tasks, samples, shared, own), budget))
    assert reading.projected == tasks * samples * 5
    if budget == 10**6:
        assert reading.tokens == real
        assert reading.pairs == tasks * (shared**2 / 2 + samples * ((shared + own) ** 2 - shared**2) / 2)
    else:
        assert real <= reading.tokens <= 1.5 * real


def test_copies_are_how_often_a_token_of_a_pack_is_attended_to():
    speech = Speech("ann", 30.0, 30.0, 20.0, 0.0, 10.0)  # rows of 40 of which 20 are shared
    assert speeches.rows_read([speech], 3, 4, 10**6).copies == 4 * 40 / (20 + 4 * 20)
    assert speeches.rows_read([speech], 3, 4, 10).copies == 1.0  # each stands alone


def test_a_critic_s_last_view_holds_the_earlier_ones():
    duo = said(game("ann", "bob"), ann=30, bob=7)
    action = speeches.views_read(duo, 2, 3, FAR, tokens=False)
    assert action.tokens == 2 * ((100 + FRAME) + 3 * (30 + FRAME))
    token = speeches.views_read(duo, 2, 3, FAR, tokens=True)
    assert token.tokens - action.tokens == 2 * 3 * 7


def test_play_reads_what_is_shared_once_a_task():
    duo = said(game("ann", "bob"), ann=30, bob=7)
    prompts = speeches.prompts_read(duo, 2, 3)
    assert prompts.tokens == 2 * (100 + FRAME) * 2 + 2 * 3 * (30 + FRAME)
    assert prompts.projected == 2 * 3 * 2
    drawn = speeches.replies_drawn(duo, 2, 3)
    assert drawn.tokens == drawn.projected == 6 * 37
    assert drawn.pairs == 6 * (30 * (duo[0].prompt + 15) + 7 * (duo[1].prompt + 3.5))


def test_rows_that_stand_alone_need_no_mask():
    speech = Speech("ann", 30.0, 30.0, 20.0, 0.0, 10.0)  # rows of 40 of which 20 are shared by the samples of a task
    assert speeches.masked_pairs([speech], 4, 100) == 5 * 20 * 40
    assert speeches.masked_pairs([speech], 1, 100) == 2 * 40 * 40
    assert speeches.masked_pairs([speech], 1, 79) == speeches.masked_pairs([], 4, 79) == 0
