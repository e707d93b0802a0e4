"""A calculator: exact arithmetic on one expression, bounded in time and size. Nothing is ever evaluated as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from marft.tools.base import ToolError, ToolSpec

LONGEST = 1000  # characters of an expression
MOST_DIGITS = 1000  # of a number's numerator or denominator
MOST_BITS = math.ceil(MOST_DIGITS * math.log2(10))
SHOWN_DECIMALS = 50  # a decimal longer than this is shown as a fraction

Number = int | Fraction | float
_SPELLINGS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"})


class Calculator:
    """The tool `calculator` of one argument, `expression`."""

    def __init__(self, name: str = "calculator") -> None:
        self.spec = ToolSpec(
            name,
            f"Computes an arithmetic expression exactly, with + - * / // % ** and {', '.join(FUNCTIONS)}.",
            {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
        )

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The value, written out."""
        return show(evaluate(arguments["expression"]))


def evaluate(expression: str) -> Number:
    """The value of an expression: exact (a fraction) unless it has an irrational part, then a float.

    `^`, `×`, `÷` and `−` are understood. Raises `ToolError` for anything but arithmetic, and for numbers too large.
    """
    if len(expression) > LONGEST:
        raise ToolError(f"the expression is longer than {LONGEST} characters")
    source = expression.translate(_SPELLINGS).strip()
    try:
        return _value(ast.parse(source, mode="eval").body, source)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("a number is too large") from None
    except (SyntaxError, RecursionError, MemoryError, ValueError):  # ValueError: a zero byte
        raise ToolError("this is not an arithmetic expression") from None


def show(value: Number) -> str:
    """A whole number or finite decimal in full, another fraction as `1/3 (about 0.333…)`, a float to 15 digits."""
    if isinstance(value, float):
        return f"{value:.15g}"
    value = Fraction(value)
    twos, fives, rest = _times(value.denominator, 2), _times(value.denominator, 5), value.denominator
    rest //= 2**twos * 5**fives
    decimals = max(twos, fives)
    if rest == 1 and decimals <= SHOWN_DECIMALS:
        digits = str(abs(value.numerator) * 10**decimals // value.denominator).rjust(decimals + 1, "0")
        sign = "-" if value < 0 else ""
        return sign + (f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits)
    return f"{value} (about {float(value):.15g})"


def _value(node: ast.expr, source: str) -> Number:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return _literal(ast.get_source_segment(source, node) or "")
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, source)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, source)
        case ast.BinOp() if type(node.op) in OPERATORS:
            return _bounded(OPERATORS[type(node.op)](_value(node.left, source), _value(node.right, source)))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            try:
                return _bounded(FUNCTIONS[name](*(_value(each, source) for each in node.args)))
            except (TypeError, ValueError):
                raise ToolError(f"{name} does not take these arguments") from None
        case ast.Tuple():
            raise ToolError("write numbers without thousands separators: 1234, not 1,234")
        case _:
            raise ToolError(f"'{ast.get_source_segment(source, node)}' is not arithmetic this calculator knows")


def _literal(text: str) -> Number:
    """A number as it is written, so that 0.1 is a tenth; its size is checked before it is built."""
    text = text.replace("_", "")
    if text[:2].lower() in ("0x", "0b", "0o"):
        return int(text, 0)
    number = Decimal(text)
    if abs(number.adjusted()) > MOST_DIGITS:
        raise OverflowError
    return _exact(Fraction(number))


def _exact(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else value


def _bounded(value: Any) -> Number:
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise ToolError("the result is not a real number")
    if isinstance(value, float):
        return value
    exact = Fraction(value)
    if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > MOST_BITS:
        raise OverflowError
    return _exact(exact)


def _divide(left: Number, right: Number) -> Number:
    return left / right if isinstance(left, float) or isinstance(right, float) else Fraction(left) / Fraction(right)


def _power(base: Number, exponent: Number) -> Any:
    """Exact for a whole exponent; the size of the result is known before it is computed."""
    if not isinstance(exponent, int) or isinstance(base, float):
        return float(base) ** float(exponent)
    exact = Fraction(base)
    bits = max(abs(exact.numerator).bit_length(), exact.denominator.bit_length()) - 1
    if bits * abs(exponent) > MOST_BITS:
        raise OverflowError
    return exact**exponent


def _sqrt(value: Number) -> Number:
    if value < 0:
        raise ToolError("the square root of a negative number is not a real number")
    if isinstance(value, float):
        return math.sqrt(value)
    exact = Fraction(value)
    root = Fraction(math.isqrt(exact.numerator), math.isqrt(exact.denominator))
    return root if root * root == exact else math.sqrt(exact)


def _round(value: Number, digits: Number = 0) -> Number:
    """Halves go to the even neighbour, as in Python."""
    if not isinstance(digits, int) or abs(digits) > MOST_DIGITS:
        raise TypeError
    return round(value, digits) if isinstance(value, float) else round(Fraction(value), digits)


def _times(number: int, prime: int) -> int:
    """How often the prime divides the number."""
    count = 0
    while number % prime == 0:
        number //= prime
        count += 1
    return count


OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sqrt": _sqrt,
    "round": _round,
    "abs": abs,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "floor": math.floor,
    "ceil": math.ceil,
}
