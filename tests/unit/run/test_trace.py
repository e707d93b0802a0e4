"""D as it was played, in words."""

from builders import action, episode
from marft.run.trace import played


def test_every_turn_is_a_line_of_who_read_whom():
    found = played(
        episode(
            action("lead"),
            action("ann", parents=(0,)),
            action("lead", step=1, parents=(1,)),
            action("bob", parents=(1, 2)),
            action("lead", turn=1, parents=(3,)),
            action("lead", turn=2, parents=(4,)),  # recalls itself
        )
    )
    assert found == ["lead; ann ← lead; lead ← ann; bob ← ann, lead", "lead ← bob", "lead ← lead"]


def test_calls_of_tools_are_part_of_the_message_they_led_to():
    found = played(
        episode(
            action("ann"),
            action("bob", parents=(0,), tool_results=("4",)),
            action("bob", step=1, parents=(0, 1)),
        )
    )
    assert found == ["ann; bob ← ann"]


def test_nothing_said_is_no_line():
    assert played(episode()) == []
