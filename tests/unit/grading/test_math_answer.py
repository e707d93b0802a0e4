r"""math_answer: what is read from a reply, what counts as equal, and what no comparison may cost.

Right and wrong pairs are arithmetic; those named after an issue are reports on similar systems.
"""

import asyncio
import time

import pytest

from marft.grading import math_answer
from marft.grading.bounded import GraderFailed, Pool
from marft.grading.math_answer import (
    LONGEST,
    Grade,
    canonical,
    equal_by_algebra,
    exact_number,
    grade,
    grade_without_algebra,
    read_math_answer,
)


@pytest.fixture(scope="module")
def pool():
    pool = Pool(workers=1)
    yield pool
    pool.close()


def graded(answer, gold):
    found = grade_without_algebra(answer, gold)
    return found.right if found is not None else equal_by_algebra(answer, gold)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"first I get \boxed{5} … so the answer is \boxed{7}.", "7"),  # tinker-cookbook#903
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),  # ms-swift#10147: not cut at the first brace
        (r"\fbox{\frac{1}{2}}", r"\frac{1}{2}"),  # OpenRLHF#1285
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed {\text{(C)}}", r"\text{(C)}"),
        (r"$\boxed{x^{2^{3}}}$, not \boxed{} and not \boxed{8", "x^{2^{3}}"),
        (r"\boxed{\boxed{5}}", "{5}"),
        (r"\\boxed{5}", "5"),
        (r"$\boxed 5$", "5"),
        (r"a stray } and an open { before \boxed{5}", "5"),
        (r"I will use \boxed to answer", None),
        (r"\boxed{3} <answer>4</answer> #### 5 and 6", "3"),
        ("<answer>3</answer> or <ANSWER> 4 </ANSWER> #### 5", "4"),
        ("<answer>3 <answer>4</answer> </answer>", "4"),
        ("so\n#### 1,234\nbecause 5", "1,234"),
        ("it is 7", None),
        ("", None),
    ],
)
def test_the_answer_of_a_reply(reply, answer):
    assert read_math_answer(reply) == answer


def test_a_plain_number_counts_only_where_allowed():
    assert read_math_answer("first 5, then 1,234.", plain_number=True) == "1234"
    assert read_math_answer(r"\boxed{5}, that is 3 + 2", plain_number=True) == "5"
    assert read_math_answer("none", plain_number=True) is None


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 30_000, "<answer>" * 30_000, "{" * 200_000, "#" * 200_000, "9," * 99_999]
)
def test_reading_takes_no_longer_than_the_reply_is_long(text):
    start = time.monotonic()
    read_math_answer(text, plain_number=True)
    assert time.monotonic() - start < 2  # a quadratic reading of these takes minutes


RIGHT = [
    ("1,234", "1234"),
    (r"\$1,\!234.50", "1234.5"),
    ("11111111100", r"11,\! 111,\! 111,\! 100"),
    ("+.5", r"\frac12"),
    (r"\dfrac{1}{2}", r"\frac 12"),
    ("-1/2", r"-\frac{1}{2}"),
    ("−3", "-3"),
    ("(113)", "113"),
    ("025", "25"),
    (r"1\frac{4}{5}", r"\frac{9}{5}"),
    ("1 4/5", "9/5"),
    ("14/5", "2.8"),
    (r"137 \frac{1}{2}", "137.5"),
    ("0.333333", r"\frac{1}{3}"),
    ("12 \\text{ thousand}", "12000"),
    ("18 dollars", "18"),
    (r"15\text{ cm}^2", r"15\mbox{ cm}^2"),
    (r"15 \text{ square centimeters}", r"15\mbox{ cm}^2"),
    ("15", r"15\mbox{ cm}^2"),
    (r"2 \text{ m}", "2"),
    ("30", r"30^\circ"),
    (r"30^{\circ}", "30 degrees"),
    (r"288\pi\text{ cm}^3", r"288 \pi"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    ("0.5", r"50\%"),
    (r"50 \text{ percent}", r"50\%"),
    ("C", r"\text{(C)}"),
    (r"\textbf{(C)}", r"\text{C}"),
    ("Evelyn", r"\text{evelyn}"),
    ("5", "x=5"),
    ("x=5", "5"),
    ("-2,1", "1,-2"),
    (r"2 \text{ and } 3", "3, 2"),
    (r"\left(3, \tfrac{\pi}{2}\right)", r"( 3, \frac{\pi}{2} )"),
    (r"\left[-2,7\right]", r"x \in [-2,7]"),
    (r"(3,\infty)\cup(-\infty,2)", r"(-\infty, 2) \cup (3, \infty)"),
    (r"3-2\sqrt2, 3+2\sqrt2", r"3 \pm 2 \sqrt{2}"),
    (r"\frac{1}{\sqrt3}", r"\frac{\sqrt{3}}{3}"),
    ("(b+2)(a+5)", "(a+5)(b+2)"),
    ("-5i+6", "6 - 5i"),
    (r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}", r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}"),
    ("1.414214", r"\sqrt{2}"),
    ("52", "52_8"),
    ("52_{8}", "52_8"),
    (r"2^{2004}\cdot 2", "2^{2005}"),
    ("120", r"\binom{10}{3}"),
    (r"5^{5^{5^{5^5}}}", r"5^{5^{5^{5^5}}}"),
]
WRONG = [
    (r"\frac{1}{3}", r"\frac{1}{2}"),  # ms-swift#10147
    (r"\frac{12}{3}", r"\frac{1}{23}"),  # ms-swift#10147
    ("3.0000001", "3"),
    ("0.0000673", ".0000672"),  # equal to six decimals
    (r"0.00000300000", r"\frac{\pi}{10^6}"),  # equal to six decimals
    ("0.33333", r"\frac{1}{3}"),
    ("0.3333334", r"\frac{1}{3}"),
    ("0.1", "0.10000000000000001"),
    ("1.4142", r"\sqrt{2}"),
    (r"50\%", "5"),
    (r"0.5\%", r"50\%"),
    (r"12 \text{ thousand}", "12"),
    (r"12 \text{ or } 13", "12"),
    (r"12 \text{ or 13}", "12"),
    ("12 or 13", "12"),
    ("2 m", "2"),
    ("4", "4t"),
    ("52_7", "52_8"),
    ("(1,2)", r"\{1,2\}"),
    ("(2,1)", "(1,2)"),
    ("[1,2)", "[1,2]"),
    ("(3,4)", "(3,4]"),
    ("x=5", "y=5"),
    ("D", r"\text{(C)}"),
    ("x^3", "x^2"),
    (r"\text{none}", "k"),
    (r"5^{5^{5^{5^5}}}", "5"),  # Math-Verify#65
    (r"9^{9^9}", "9"),
    ("(x+1)^{100000}", "x+1"),
    ("100000000!", "1"),
    ("((10!)!)!", "1"),
    (r"\binom{1000000000}{500000000}", "1"),
    ("[" * 200, "1"),
    ("(" * 30 + "1" + ")" * 30, "1"),
    ("9" * 400, "1"),
    ("9" * 5000, "1"),
    ("\x00ï💥", "1"),
    ('{"name":', "1"),
    ("\\", "1"),
    ("\\frac{1}{0}", "1"),
]


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_equal_answers(answer, gold):
    assert graded(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_different_answers(answer, gold):
    start = time.monotonic()
    assert not graded(answer, gold)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("text", "number"), [("1/2", 0.5), ("-1 1/4", -1.25), ("2 dozen", 24), ("3/0", None), (r"2\frac{3}{2}", None)]
)
def test_exact_numbers(text, number):
    assert exact_number(text) == number


def test_equal_answers_vote_together():
    assert {canonical(text) for text in (r"\frac12", "0.50", "1/2", r"\dfrac{1}{2}", " .5. ")} == {"1/2"}
    assert {canonical(text) for text in (r"\text{(C)}", "(C)", "C", r"\textbf{C}")} == {"C"}
    assert {canonical(text) for text in (r"2 \sqrt{3}", r"2\sqrt{3}", r"$2\sqrt{3}$")} == {r"2\sqrt{3}"}
    assert len(canonical("x" * 10**6)) == LONGEST


def test_a_grade_says_whether_there_was_an_answer(pool):
    def grade_of(answer, gold):
        return asyncio.run(grade(answer, gold, pool))

    assert grade_of(None, "1") == Grade(False, False, "")
    assert grade_of("0.5", r"\frac12") == Grade(True, True, "1/2")
    assert grade_of(r"\sqrt{8}", r"2\sqrt{2}") == Grade(True, True, r"\sqrt{8}")
    assert grade_of(r"\sqrt{9}", r"2\sqrt{2}") == Grade(False, True, r"\sqrt{9}")


def hang(*_):
    time.sleep(60)


def fail(*_):
    raise ZeroDivisionError("a grader's own fault")


def test_what_is_too_large_to_evaluate_is_wrong_within_the_deadline(pool):  # Math-Verify#65
    assert asyncio.run(grade("5^{5^{5^{5^5}}}", "5^5", pool, deadline=5.0)) == Grade(False, True, "5^{5^{5^{5^5}}}")


@pytest.mark.parametrize(
    ("grader", "says"),
    [
        (hang, "hang: gave no result within its deadline of 2 s"),
        (fail, "fail: ZeroDivisionError: a grader's own fault"),
    ],
)
def test_a_grader_that_fails_gives_no_grade(pool, monkeypatch, grader, says):
    monkeypatch.setattr(math_answer, "equal_by_algebra", grader)
    with pytest.raises(GraderFailed, match=says):
        asyncio.run(grade(r"\sqrt{8}", r"2\sqrt{2}", pool, deadline=2.0))


def test_a_cancelled_episode_gets_no_grade(pool, monkeypatch):  # verifiers#1197
    monkeypatch.setattr(math_answer, "equal_by_algebra", hang)

    async def cancel():
        task = asyncio.create_task(grade(r"\sqrt{8}", r"2\sqrt{2}", pool, deadline=60))
        await asyncio.sleep(0.2)
        task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    [error] = asyncio.run(cancel())
    assert isinstance(error, asyncio.CancelledError)
