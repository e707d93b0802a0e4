"""The calculator is exact, knows arithmetic and nothing else, and is done at once whatever it is given."""

import asyncio
import math
import time

import pytest

from marft.tools.base import Call, ToolError, answer
from marft.tools.calculator import Calculator, evaluate, show


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * -3", "-9"),
        ("0.1 + 0.2", "0.3"),
        ("12345678901234567890 * 98765432109876543210", "1219326311370217952237463801111263526900"),
        ("7 / 2", "3.5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("6 / 3", "2"),
        ("1 / 3", "1/3 (about 0.333333333333333)"),
        ("-1/8", "-0.125"),
        ("0.000001", "0.000001"),
        ("100/8", "12.5"),
        ("2 ** 10 + 1", "1025"),
        ("2^10 + 1", "1025"),  # not 2 xor 11
        ("2 ** -2", "0.25"),
        ("3 × 4 ÷ 6 − 1", "1"),
        ("sqrt(49/4)", "3.5"),
        ("sqrt(2)", "1.4142135623731"),  # 1.41421356237309505 to 15 digits, the last a zero
        ("2 ** 0.5", "1.4142135623731"),
        ("round(2.567, 2)", "2.57"),
        ("round(5/2)", "2"),
        ("round(1234, -2)", "1200"),
        ("max(1, 7/2, sqrt(2))", "3.5"),
        ("min(3, 2)", "2"),
        ("abs(-3/4)", "0.75"),
        ("floor(-1/3) + ceil(1/3)", "0"),
        ("1_000 + 0x1F", "1031"),
        ("1e3", "1000"),
        ("0 ** 0", "1"),
        ("1 ** 99999999999", "1"),
    ],
)
def test_values(expression, value):
    assert show(evaluate(expression)) == value


def test_a_large_power_to_the_last_digit():
    assert show(evaluate("3**2000")) == str(3**2000)
    assert show(evaluate("1/2**50")) == f"{0.5**50:.50f}"  # a float holds this one exactly


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("x = 1", "not an arithmetic expression"),
        ("1\x002", "not an arithmetic expression"),
        ("(" * 400 + "1", "not an arithmetic expression"),
        ("x + 1", "'x' is not arithmetic"),
        ("__import__('os').system('true')", "is not arithmetic"),
        ("().__class__", "is not arithmetic"),
        ("'a' * 5", "is not arithmetic"),
        ("True + 1", "'True' is not arithmetic"),
        ("[1][0]", "is not arithmetic"),
        ("1 if 1 else 2", "is not arithmetic"),
        ("lambda: 1", "is not arithmetic"),
        ("1j", "is not arithmetic"),
        ("max(1, *[2])", "is not arithmetic"),
        ("round(1.5, ndigits=0)", "is not arithmetic"),
        ("1,234 + 1", "thousands separators"),
        ("1 / 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(-1)", "square root of a negative"),
        ("(-1) ** 0.5", "not a real number"),
        ("min()", "min does not take these arguments"),
        ("sqrt(1, 2)", "sqrt does not take these arguments"),
        ("round(1.5, 1/2)", "round does not take these arguments"),
        ("1" * 1001, "longer than 1000 characters"),
    ],
)
def test_what_is_not_arithmetic(expression, says):
    with pytest.raises(ToolError, match=says):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "10**1001",
        "(1/3)**5000",
        "1e999999999",
        "1e-999999999",
        "2**-99999999999",
        "(10**900)**2",
        "10**900*10**900",
        "sqrt(2)*10**400",
        "sqrt(10**801)",
        "(1/7)**(10**50)",
        "*".join(["(10**999)"] * 90),
        "round(1, 10**9)",
        "1.5**1e300",
    ],
)
def test_what_would_take_too_long_or_too_much(expression):
    started = time.perf_counter()
    with pytest.raises(ToolError):
        evaluate(expression)
    assert time.perf_counter() - started < 0.5


def test_the_longest_work_it_accepts_is_short():
    started = time.perf_counter()
    value = evaluate("+".join(f"1/{n}" for n in range(2, 160)))
    assert time.perf_counter() - started < 0.5
    assert math.isclose(float(value), sum(1 / n for n in range(2, 160)))


def test_as_a_tool():
    tools = {"calculator": Calculator()}
    assert asyncio.run(answer(tools, Call("calculator", {"expression": "6*7"}))) == "42"
    assert asyncio.run(answer(tools, Call("calculator", {"expression": "6*"}))).startswith("error: ")
    assert asyncio.run(answer(tools, Call("calculator", {"expression": 42}))).startswith("error: ")
