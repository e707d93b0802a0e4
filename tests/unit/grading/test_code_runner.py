"""Programs and tests: what each format counts as passed, what is reported, and who is to blame."""

import asyncio
import time

import pytest

from marft.grading import code_runner
from marft.grading.bounded import GraderFailed
from marft.grading.code_runner import CallTests, CodeRunner, CodeTests, StdioTests, same_output
from marft.grading.isolation import isolation
from marft.grading.sandbox import Limits

pytestmark = pytest.mark.skipif(bool(isolation().missing), reason=f"no full isolation: {isolation().missing}")
QUICK = Limits(seconds=5.0, memory_mb=256, disk_mb=2, output_mb=1, processes=4)
ADD = CodeTests(
    ("add",), "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n", check=True
)


def run(program, tests, limits=QUICK, **more):
    return asyncio.run(CodeRunner(limits, **more).run(program, tests))


def verdicts(program, tests, limits=QUICK, **more):
    return [each.verdict for each in run(program, tests, limits, **more).outcomes]


@pytest.mark.parametrize("sandbox", ["auto", "limits-only"])
def test_a_right_function_passes_and_a_half_right_one_gets_its_share(sandbox):
    right = run("def add(a, b):\n    return a + b", ADD, sandbox=sandbox)
    assert (right.passed, right.share) == (True, 1.0)
    half = run("def add(a, b):\n    return a - b", ADD, sandbox=sandbox)
    assert (half.passed, half.share) == (False, 0.5)
    assert [each.test for each in half.outcomes] == ["assert candidate(1, 2) == 3", "assert candidate(0, 0) == 0"]
    assert half.outcomes[0].got == "add(1, 2) returned -1"
    assert half.first(1).share == 0.0


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("", ["error", "error"]),
        ("def add(a, b):\n    pass", ["failed", "failed"]),
        ("def add(a, b):\n    return 1 // a", ["failed", "error"]),
        ("def add(a, b):\n    if a: return 3\n    while True: pass", ["passed", "timeout"]),
        ("def add(a, b):\n    import os\n    os._exit(0)", ["error", "missing"]),
        ("def add(a, b", ["missing", "missing"]),
        ("1 / 0", ["missing", "missing"]),
        ("while True: pass", ["missing", "missing"]),
        ("input()", ["missing", "missing"]),
        ("exit()\ndef add(a, b):\n    return a + b", ["missing", "missing"]),
        ("def add(a, b):\n    return [0] * 10**6", ["error", "missing"]),
        ("def add(a, b):\n    print('x' * 2**21)\n    return a + b", ["error", "missing"]),
        ("if __name__ == '__main__':\n    input()\ndef add(a, b):\n    return a + b", ["passed", "passed"]),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", ["passed", "passed"]),
        ("import numpy\ndef add(a, b):\n    return numpy.int64(a) + b", ["passed", "passed"]),
    ],
    ids=lambda value: None if isinstance(value, list) else value[:24].replace("\n", " "),
)
def test_what_functions_come_to(program, expected):
    looping = "while True" in program
    assert verdicts(program, ADD, Limits(seconds=0.7, output_mb=1) if looping else QUICK) == expected


def test_a_loop_around_one_assertion_passes_only_if_every_round_does():
    tests = CodeTests(("f",), "def check(f):\n    for i in range(5):\n        assert f(i) == i\n", check=True)
    assert verdicts("def f(i): return i", tests) == ["passed"]
    assert verdicts("def f(i): return min(i, 3)", tests) == ["failed"]
    assert verdicts("import os\ndef f(i):\n    return i if i < 3 else os._exit(0)", tests) == ["error"]


def test_ending_outside_of_an_assertion_is_no_pass():
    tests = CodeTests(
        ("f",), "def check(f):\n    for i in range(3):\n        y = f(i)\n        assert y == i\n", check=True
    )
    assert verdicts("def f(i): return i", tests) == ["passed"]
    assert verdicts("def f(i): return i if i < 2 else 1 // 0", tests) == ["error"]
    assert verdicts("import os\ndef f(i): return i if i < 2 else os._exit(0)", tests) == ["error"]


def test_the_names_that_the_data_defines_are_its_own():
    prompt = "def double(x):\n    return 2 * x\n\ndef half(x):\n    ...\n"
    tests = CodeTests(("half",), "def check(candidate):\n    assert double(candidate(4)) == 4\n", prompt, check=True)
    assert verdicts("def half(x): return x // 2", tests) == ["passed"]
    assert verdicts("def double(x): return 4\ndef half(x): return 0", tests) == ["failed"]


@pytest.mark.parametrize(
    "value",
    ["None", "True", "-7", "2**200", "7**10000", "1.5", "float('inf')", "1 + 2j", "'é\\ud800'", "b'\\x00'",
     "(1, [2, (3,)])",
     "{1: 'a', (2,): None}", "{1, 2}", "frozenset({(1,)})", "bytearray(b'ab')", "''", "[[]]"],
)  # fmt: skip
def test_plain_values_go_there_and_come_back(value):
    test = f"value = {value}\nassert same(value) == value and type(same(value)) is type(value)"
    assert verdicts("def same(x): return x", CodeTests(("same",), test)) == ["passed"]


def test_tests_may_make_and_hand_back_objects_of_the_program():
    program = """
class Node:
    def __init__(self, value):
        self.value, self.left = value, None
def depth(node):
    return 1 + depth(node.left) if node else 0
def count(n):
    yield from range(n)
"""
    test = """
root = Node(1)
root.left = Node(2)
assert depth(root) == 2
assert root.left.value == 2
assert list(count(3)) == [0, 1, 2]
"""
    assert verdicts(program, CodeTests(("Node", "depth", "count"), test)) == ["passed"] * 3


def test_a_test_may_expect_an_exception():
    test = "try:\n    f(0)\n    assert False\nexcept ZeroDivisionError:\n    assert True\n"
    assert verdicts("def f(x): return 1 / x", CodeTests(("f",), test)) == ["missing", "passed"]


def test_calls_with_json_arguments():
    tests = CallTests("f", (([1, 2], 3), ([[0.1], 0.2], 0.3), ([1, 1], [1, [2]])))
    program = "def f(a, b):\n    return 3 if b == 2 else 0.1 + 0.2 if b == 0.2 else (1, (2,))"
    report = run(program, tests)
    assert report.passed
    wrong = run("class Solution:\n    def f(self, a, b):\n        return 3", tests)
    assert [each.verdict for each in wrong.outcomes] == ["passed", "failed", "failed"]
    assert (wrong.outcomes[1].test, wrong.outcomes[1].expected) == ("f([0.1], 0.2)", "0.3")
    assert wrong.outcomes[1].got == "f([0.1], 0.2) returned 3"


def test_standard_input_and_output():
    tests = StdioTests((("1 2\n", "3\n"), ("4 5", "9"), ("x", "1")))
    report = run("a, b = map(int, input().split())\nprint(a + b, '  ')\nprint()", tests)
    assert [each.verdict for each in report.outcomes] == ["passed", "passed", "error"]
    assert report.outcomes[2].got.startswith("ValueError: invalid literal for int()")
    assert report.share == pytest.approx(2 / 3)


def test_after_a_test_out_of_time_the_rest_is_missing():
    tests = StdioTests((("1", "1"), ("2", "2"), ("3", "3")))
    program = "n = input()\nwhile n == '2': pass\nprint(n)"
    assert verdicts(program, tests, Limits(seconds=0.5)) == ["passed", "timeout", "missing"]


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n3", "1 2\n3\n", True),
        ("1  2 \n3\n\n", "1 2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("1", "1.0", True),
        ("1.0", "1", False),  # an integer was asked for
        ("0.3333333", "0.33333333333", True),
        ("0.3334", "0.33333333333", False),
        ("1e3", "1000.0", True),
        ("nan", "0.5", False),
        ("1_0.0", "10.0", False),
        ("", "", True),
        ("", "0", False),
        ("yes", "YES", False),
        ("\ufffd", "é", False),
    ],
)
def test_printed_answers_are_compared_word_by_word(got, expected, same):
    assert same_output(got, expected) is same


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("assert f(1) ==", "SyntaxError"),
        ("import no_such_module\nassert f(1) == 1", "ModuleNotFoundError"),
        ("assert f(lambda: 1) == 1", "hands the program a function"),
    ],
)
def test_broken_tests_are_the_grader_s_failure(test, says):
    with pytest.raises(GraderFailed, match=says):
        run("def f(x): return x", CodeTests(("f",), test))


def test_a_test_side_that_dies_is_the_grader_s_failure():
    with pytest.raises(GraderFailed, match=r"without a report"):
        run("def f(x): return x", CodeTests(("f",), "import os\nassert f(1) == 1\nos._exit(3)"))


def test_a_test_that_loops_on_what_it_got_is_out_of_time():
    tests = CodeTests(("f",), "assert f(1) == 1\nwhile f(1): pass")
    assert verdicts("def f(x): return x", tests, Limits(seconds=0.5)) == ["timeout"]


def test_running_one_program():
    done = asyncio.run(CodeRunner(QUICK).execute("print(input()[::-1])", "ab"))
    assert (done.stdout, done.stderr, done.reason, done.code) == ("ba\n", "", "exit", 0)
    failed = asyncio.run(CodeRunner(QUICK).execute("\n1 / 0"))
    assert failed.code == 1
    assert failed.stderr.startswith('Traceback (most recent call last):\n  File "/program.py", line 2, in <module>')
    assert asyncio.run(CodeRunner(QUICK).execute("exit(3)")).code == 3


def test_a_cancelled_call_ends_its_program(monkeypatch):
    endings = []
    real = code_runner.run_sandboxed
    monkeypatch.setattr(code_runner, "run_sandboxed", lambda *given: endings.extend(real(*given)) or tuple(endings))

    async def cancel():
        runner = CodeRunner(Limits(seconds=30))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.execute("while True: pass"), 0.5)

    asyncio.run(cancel())
    deadline = time.monotonic() + 5
    while not endings and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [each.reason for each in endings] == ["cancelled"]


def test_many_at_once_from_one_loop():
    async def all_of_them():
        runner = CodeRunner(QUICK)
        return await asyncio.gather(*(runner.execute(f"print({number})") for number in range(8)))

    assert [each.stdout for each in asyncio.run(all_of_them())] == [f"{number}\n" for number in range(8)]
