"""attempts: what ends an episode, which attempt pays, and what the team hears."""

import pytest

from marft.environments.attempts import WRONG, Attempts, judge


def played(feedback, scores, limit=3, passed=(), news=()):
    """Rewards, news and whether it was over, attempt by attempt; an answer that scores 1 is right."""
    attempts, told = Attempts(), []
    for place, score in enumerate(scores):
        public = place in passed
        said = news[place] if news else ""
        judged = judge(attempts, feedback, limit, score, score == 1, public, said)
        attempts = judged.attempts
        told.append((judged.reward, attempts.news, judged.over))
    return told, attempts


def test_with_a_verdict_an_episode_earns_its_best_answer_once():
    told, attempts = played("verdict", [0.5, 0.25, 1.0], limit=4)
    assert told == [(0.5, WRONG, False), (0.0, WRONG, False), (0.5, "", True)]
    assert (attempts.made, attempts.first_right) == (3, False)
    told, attempts = played("verdict", [1.0])
    assert told == [(1.0, "", True)]
    assert attempts.first_right
    assert played("verdict", [0.0, 0.0])[0][-1] == (0.0, WRONG, False)
    assert played("verdict", [0.0, 0.0, 0.0])[0][-1] == (0.0, "", True)


def test_without_feedback_all_attempts_are_played_and_the_last_pays():
    told, attempts = played("none", [1.0, 1.0, 0.5], news=["a", "b", "c"])
    assert told == [(0.0, "", False), (0.0, "", False), (0.5, "", True)]
    assert (attempts.best, attempts.first_right) == (1.0, True)


def test_public_tests_tell_their_results_and_end_the_episode_when_they_pass():
    told, _ = played("public-tests", [0.0, 0.75], passed=[1], news=["1 of 2 failed", "all passed"])
    assert told == [(0.0, "1 of 2 failed", False), (0.75, "", True)]


@pytest.mark.parametrize("feedback", ["none", "verdict", "public-tests"])
def test_one_attempt_pays_its_score(feedback):
    assert played(feedback, [0.5], limit=1)[0] == [(0.5, "", True)]
