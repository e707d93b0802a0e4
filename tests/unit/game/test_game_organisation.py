"""Debates and orchestrators: who is in them, and what an orchestrator's reply means."""

import pytest

from marft.game import Debate, Orchestrated, debate, orchestrated
from marft.types import MarftError

TEAM = ("lead", "ann", "bob", "ann-2")


def test_a_debate_is_of_all_but_the_judge():
    assert debate(("ann", "bob", "judge"), 2, "judge") == Debate(("ann", "bob"), 2, "judge")
    assert debate(("ann", "bob"), 3) == Debate(("ann", "bob"), 3, None)
    with pytest.raises(MarftError, match="at least two debaters; it has: ann"):
        debate(("ann", "judge"), 2, "judge")
    with pytest.raises(MarftError, match="judge: no agent 'jugde' in the team; did you mean 'judge'"):
        debate(("ann", "bob", "judge"), 2, "jugde")


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        ("ann", "ann"),
        ("BOB, please", "bob"),
        ("Let me ask ann-2 now", "ann-2"),  # not ann, whose name it starts with
        ("stop", None),
        ("Stop. ann was right", None),  # the first word that means something decides
        ("bob, not ann", "bob"),
        ("annabel knows", "nobody"),
        ("lead", "nobody"),  # it cannot call itself
        ("", "nobody"),
    ],
)
def test_the_first_name_or_stop_in_a_reply_is_the_choice(reply, name):
    meaning = {"stop": None, "first": "ann"}
    for unreadable in ("stop", "first"):
        team = orchestrated(TEAM, "lead", unreadable=unreadable)
        assert team.choice(reply) == (meaning[unreadable] if name == "nobody" else name)
    strict = orchestrated(TEAM, "lead", unreadable="fail")
    if name == "nobody":
        with pytest.raises(MarftError, match="names nobody to speak next"):
            strict.choice(reply)
    else:
        assert strict.choice(reply) == name


def test_an_orchestrator_needs_members_it_can_tell_from_stop():
    assert orchestrated(TEAM, "lead") == Orchestrated("lead", ("ann", "bob", "ann-2"), 4, "stop", "stop")
    assert orchestrated(TEAM, "lead", stop="done").choice("done") is None
    with pytest.raises(MarftError, match="orchestrator: no agent 'boss'"):
        orchestrated(TEAM, "boss")
    with pytest.raises(MarftError, match="has nobody to call"):
        orchestrated(("lead",), "lead")
    with pytest.raises(MarftError, match="'Ann' is also an agent's name"):
        orchestrated(TEAM, "lead", stop="Ann")
    with pytest.raises(MarftError, match="differ in capitals alone"):
        orchestrated(("lead", "ann", "Ann"), "lead")
    with pytest.raises(MarftError, match="stop: must be a word"):
        orchestrated(TEAM, "lead", stop=" ")
