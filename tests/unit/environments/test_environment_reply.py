"""Reading the answer out of a reply."""

from decimal import Decimal

import pytest

from marft.environments.reply import answering_message, check_answerer, deciding_answer, number, read_answer
from marft.types import MarftError


@pytest.mark.parametrize(
    ("reading", "text", "answer"),
    [
        ("whole", "  7 apples\n", "7 apples"),
        ("whole", " \n\t", None),
        ("last_line", "first\n 42 \n\n", "42"),
        ("last_line", "", None),
        ("tag", "<answer>1</answer> no, <Answer>\n2\n</Answer>", "2"),
        ("boxed", r"\boxed{1} then \fbox{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} then \boxed{2", "1"),
        ("boxed", "1", None),
        ("tag", "<answer>1", None),
        ("tag", "<answer> </answer>", None),
        ("after_hashes", "so #### 5\n#### 1,234 \nbye", "1,234"),
        ("after_hashes", "no hashes", None),
        ("after_hashes", "####\n ", None),
        ("last_number", "3 then 1,234,567.50.", "1234567.50"),
        ("last_number", "it is -4", "-4"),
        ("last_number", "it is −4", "-4"),
        ("last_number", "$-4", "-4"),
        ("last_number", "5-3", "3"),
        ("last_number", "(5)-3", "3"),
        ("last_number", "+8", "8"),
        ("last_number", "about .5", ".5"),
        ("last_number", "1, 2, 3", "3"),
        ("last_number", "12,34", "34"),
        ("last_number", "x2", "2"),
        ("last_number", "none at all", None),
        ("last_number", "", None),
    ],
)
def test_read_answer(reading, text, answer):
    assert read_answer(reading, text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", Decimal(1000)),
        ("$1,000.50", Decimal("1000.5")),
        ("-$3", Decimal(-3)),
        ("50%", Decimal(50)),
        ("7.", Decimal(7)),
        ("007", Decimal(7)),
        ("−2", Decimal(-2)),
        ("1,00", None),
        ("NaN", None),
        ("Infinity", None),
        ("1e5", None),
        ("seven", None),
        ("3 4", None),
        ("", None),
    ],
)
def test_number(text, value):
    assert number(text) == value


def test_the_last_to_act_answers_unless_one_is_named():
    messages = {"a": "1", "b": "2"}
    assert answering_message(None, messages) == "2"
    assert answering_message("a", messages) == "1"
    assert answering_message("c", messages) is None
    assert answering_message(None, {}) is None


def test_the_answerer_must_be_in_the_team():
    check_answerer(None, ("a",))
    check_answerer("a", ("a",))
    with pytest.raises(MarftError, match=r"answerer: no agent 'solvr' in the team; did you mean 'solver'\?"):
        check_answerer("solvr", ("planner", "solver"))


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (["7", "5", "5"], "5"),
        (["7", "5"], "7"),  # a tie goes to the earliest
        (["7", "5.0", "5"], "5.0"),  # one answer in two spellings; the first of them is graded
        (["none", "5"], "5"),
        (["none", "?"], None),
    ],
)
def test_a_vote(replies, answer):
    said = dict(zip("abc", replies, strict=False))
    found = deciding_answer("vote", None, said, lambda text: read_answer("last_number", text), lambda text: text[:1])
    assert found == (True, answer)


def test_a_turn_in_which_nobody_acts_is_no_attempt():
    assert deciding_answer("vote", None, {}, str.strip, str.strip) == (False, None)
    assert deciding_answer("answerer", "a", {"b": "5"}, str.strip, str.strip) == (False, None)
    assert deciding_answer("answerer", None, {"a": "5", "b": " 6 "}, str.strip, str.strip) == (True, "6")
