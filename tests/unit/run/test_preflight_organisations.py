"""Prompts are measured for every agent that may act, also where it depends on what others say."""

import pytest

from builders import team_of, tiny_base
from marft.models.tiny import PRINTABLE
from marft.run.preflight import notes, rooms


def test_every_member_is_called_and_every_condition_holds():
    lead = team_of(
        "lead", "ann", "bob", base=tiny_base(PRINTABLE), team={"dependency": {"orchestrator": "lead", "calls": 1}}
    )
    assert [each.agent for each in rooms(lead, "c")] == ["lead", "ann", "bob"]
    edge = {"speaker": "ann", "reader": "bob", "when": "never said"}
    conditional = team_of("ann", "bob", base=tiny_base(PRINTABLE), team={"dependency": {"edges": [edge]}})
    found = {each.agent: each for each in rooms(conditional, "c")}
    assert set(found) == {"ann", "bob"}
    # bob reads what ann says: with everyone at full length it is longer by her words, 3 tokens, and a speaker's name
    assert found["bob"].fullest > found["bob"].longest


@pytest.mark.parametrize(
    ("credit", "told"),
    [({"chain": "agent"}, True), ({"chain": "agent", "allocation": "own_team"}, False), ({}, False)],
)
def test_it_is_said_when_only_the_last_agent_would_be_paid(credit, told):
    found = [note for note in notes(team_of("ann", "bob", credit=credit)) if "own_team" in note]
    assert bool(found) == told
