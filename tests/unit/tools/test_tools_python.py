"""Python's result is what the program prints; how it stopped is said; nothing is left for the next call."""

import asyncio

import pytest

from marft.tools.base import LIMIT, Call, answer
from marft.tools.config import PythonConfig
from marft.tools.python import Python
from marft.types import MarftError


def python(**settings):
    try:
        return Python(PythonConfig(**settings))
    except MarftError:  # this system has no namespaces
        return Python(PythonConfig(**settings, sandbox="limits-only"))


@pytest.fixture(scope="module")
def told():
    tools = {"python": python()}

    def tell(*programs):
        async def all_at_once():
            return await asyncio.gather(*(answer(tools, Call("python", {"code": code})) for code in programs))

        return asyncio.run(all_at_once())

    return tell


def test_what_a_program_prints(told):
    assert told("print(2**100)\nprint('so')") == [f"{2**100}\nso"]
    assert told("x = 1") == ["(nothing was printed)"]


def test_what_went_wrong_stands_after_what_was_printed(told):
    [text] = told("print('first')\n1 / 0")
    assert text.startswith("first\nerror:\nTraceback")
    assert text.endswith("ZeroDivisionError: division by zero")
    [text] = told("print(")
    assert "SyntaxError" in text
    assert told("raise SystemExit(0)") == ["(nothing was printed)"]


def test_much_output_does_not_hide_the_error(told):
    [text] = told("print('a' * 50_000)\nraise ValueError('the end')")
    assert len(text) <= LIMIT
    assert "[cut: the first" in text
    assert text.endswith("ValueError: the end")


def test_every_call_starts_afresh(told):
    assert told("x = 5\nopen('file', 'w').write('x')\nprint(x)") == ["5"]
    [text] = told("import os\nprint(os.path.exists('file'))\nprint(x)")
    assert text.startswith("False\nerror:")
    assert "NameError" in text


def test_a_program_that_does_not_end_is_stopped_and_says_so():
    tools = {"python": python(seconds=0.5)}
    text = asyncio.run(answer(tools, Call("python", {"code": "print('on', flush=True)\nwhile True: pass"})))
    assert text == "on\nerror: stopped after 0.5 seconds"


def test_a_program_that_wants_too_much_memory():
    tools = {"python": python(memory_mb=256)}
    text = asyncio.run(answer(tools, Call("python", {"code": "x = bytearray(10**9)\nprint(len(x))"})))
    assert "error" in text
    assert "1000000000" not in text


def test_several_at_once_keep_their_places(told):
    assert told(*(f"print({n})" for n in range(4))) == ["0", "1", "2", "3"]
