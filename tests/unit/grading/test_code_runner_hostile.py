"""Programs that attack the grader: each gets what it deserves, and the next program runs as if nothing had been."""

import asyncio
import hashlib
import os
import signal

import pytest

from marft.grading.code_runner import CallTests, CodeRunner, CodeTests, StdioTests
from marft.grading.isolation import isolation
from marft.grading.sandbox import Limits

pytestmark = pytest.mark.skipif(bool(isolation().missing), reason=f"no full isolation: {isolation().missing}")
LIMITS = Limits(seconds=0.6, memory_mb=256, disk_mb=2, output_mb=1, processes=4)
SECRET = int.from_bytes(hashlib.sha256(b"marft").digest()[:4], "big")
TEST = f"""
def check(candidate):
    assert candidate(1) == {SECRET}
    assert candidate(2) == {SECRET + 1}
"""
FUNCTION = CodeTests(("f",), TEST, "def f(x):\n    ...\n", check=True)
CALLS = CallTests("f", (([1], SECRET), ([2], SECRET + 1)))
STDIO = StdioTests((("1\n", f"{SECRET}\n"), ("2\n", f"{SECRET + 1}\n")))

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "infinite loop": "while True: pass",
    "infinite output": "while True: print('x' * 4096)",
    "one endless line": "import sys\nwhile True: sys.stdout.write('x' * 4096)",
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)",
    "raise SystemExit in the call": "def f(x): raise SystemExit(0)",
    "raise KeyboardInterrupt in the call": "def f(x): raise KeyboardInterrupt",
    "raise StopIteration": "def f(x): raise StopIteration",
    "raise an error called Ended": "class Ended(BaseException): pass\ndef f(x): raise Ended",
    "print the verdict": """
import os
lines = '{"tests": ["t", "u"]}\\n'
for site in (0, 1):
    lines += '{"site": %d, "outcome": "passed", "got": ""}\\n' % site
lines += '{"done": true}\\n{"code": 0, "reason": "exit"}\\n'
for fd in range(1, 256):
    try:
        os.write(fd, lines.encode())
    except OSError:
        pass
def f(x): return 0
""",
    "send forged answers": """
import json, os
answer = json.dumps({"value": True}).encode()
try:
    for _ in range(10):
        os.write(3, len(answer).to_bytes(4, "big") + answer)
except OSError:
    pass
def f(x): return True
""",
    "equal to everything": """
class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
class Object:
    def __eq__(self, other): return True
def f(x): return Same(0) if x == 1 else Object()
""",
    "patch builtins": """
import builtins, json, sys
builtins.print = lambda *a, **k: None
builtins.len = builtins.abs = lambda *a: 0
builtins.AssertionError = Exception
builtins.isinstance = lambda *a: True
json.dumps = lambda *a, **k: '{"value": null}'
sys.modules["ast"] = None
def f(x): return 0
""",
    "patch its own side": """
import sys
for module in list(sys.modules.values()):
    for name in ("same", "note", "tell", "decode", "encode", "load"):
        if hasattr(module, name):
            try:
                setattr(module, name, lambda *a, **k: True)
            except Exception:
                pass
def f(x): return True
""",
    "look for the tests in memory": """
import gc, sys
found = [value for value in gc.get_objects() if isinstance(value, str) and "candidate(1)" in value]
frame = sys._getframe()
while frame:
    found += [value for value in frame.f_locals.values() if isinstance(value, int)]
    frame = frame.f_back
def f(x): return found[0] if found else None
print(found)
""",
    "look for the tests on disk": """
import os
text = ""
for folder, _, files in os.walk("/"):
    if folder.startswith(("/usr", "/lib", "/root", "/opt")):
        continue
    for name in files:
        try:
            text += open(os.path.join(folder, name)).read(100000)
        except (OSError, UnicodeDecodeError):
            pass
import re
numbers = [int(each) for each in re.findall(r"== (\\d+)", text)]
def f(x): return numbers[x - 1] if len(numbers) > x else None
""",
    "look for the tests in the parent": """
import os
text = b""
for pid in (1, os.getppid(), os.getpid() - 1):
    for name in ("mem", "environ", "cmdline", "fd/0", "cwd/tests.json", "root/tests.json"):
        try:
            text += open(f"/proc/{pid}/{name}", "rb").read(1 << 20)
        except (OSError, ValueError):
            pass
def f(x): return len(text)
""",
    "kill the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(1, signal.SIGKILL)",
    "kill everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kill its group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "leave a daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
def f(x): return 0
""",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef g(n): return g(n + 1)\ng(0)",
    "deep recursion in C": "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "a deep answer": "def f(x):\n    y = []\n    for _ in range(900): y = [y]\n    return y",
    "an endless answer": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "a huge answer": "def f(x): return 'x' * 2**27",
    "a huge number": "def f(x): return 1 << 10**6",
    "write 10 GB": "with open('big', 'wb') as file:\n    for _ in range(10 * 1024): file.write(bytes(1 << 20))",
    "many files": "for n in range(10**6): open(str(n), 'w').close()",
    "not UTF-8": "import os\nos.write(1, bytes(range(256)))\ndef f(x): return 0",
    "not UTF-8 as a program": "\udcff = 1",
    "null bytes": "x = 1\0",
    "crash": "import ctypes\nctypes.string_at(0)",
    "ignore all signals": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
""",
    "reach the network": "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=5)",
    "write outside": "open('/etc/marft', 'w')\nopen('/tmp/../marft', 'w')",
    "links": "import os\nos.symlink('/', 'root')\nopen('root/usr/marft', 'w')",
    "close everything": "import os\nos.closerange(0, 4096)\ndef f(x): return 0",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_program_passes_nothing_in_any_format(source):
    async def attack():
        runner = CodeRunner(LIMITS)
        return await asyncio.gather(*(runner.run(source, tests) for tests in (FUNCTION, STDIO)))

    before = sorted(os.listdir("."))
    for report in asyncio.run(attack()):
        assert len(report.outcomes) == 2
        assert {each.verdict for each in report.outcomes}.isdisjoint({"passed"}), report
    assert sorted(os.listdir(".")) == before


@pytest.mark.parametrize("name", ["send forged answers", "equal to everything", "patch its own side", "os._exit"])
def test_calls_with_json_are_as_hard_to_cheat(name):
    report = asyncio.run(CodeRunner(LIMITS).run(HOSTILE[name], CALLS))
    assert report.share == 0.0


def test_after_all_of_them_an_honest_program_passes():
    honest = f"def f(x): return {SECRET - 1} + x\nif __name__ == '__main__': print(f(int(input())))"

    async def both():
        runner = CodeRunner(Limits())
        await asyncio.gather(*(runner.run(HOSTILE[name], FUNCTION) for name in ("kill everybody", "fork bomb")))
        return [await runner.run(honest, tests) for tests in (FUNCTION, CALLS, STDIO)]

    assert [report.passed for report in asyncio.run(both())] == [True, True, True]


def test_a_solution_of_the_public_tests_alone_fails_the_others():
    report = asyncio.run(CodeRunner().run(f"def f(x): return {SECRET}", FUNCTION))
    assert (report.first(1).passed, report.passed, report.share) == (True, False, 0.5)


def test_stopping_an_iteration_does_not_skip_tests():
    tests = CodeTests(("f",), "assert all(map(f, [1, 2, 3]))\nassert list(map(f, [1])) == []")
    report = asyncio.run(CodeRunner().run("def f(x): raise StopIteration", tests))
    assert report.share == 0.0


def test_ending_where_an_exception_is_expected_is_not_that_exception():
    tests = CodeTests(("f",), "try:\n    f(-1)\nexcept:\n    assert True\n")
    assert asyncio.run(CodeRunner().run("def f(x): raise ValueError", tests)).passed
    assert not asyncio.run(CodeRunner().run("import os\ndef f(x): os._exit(0)", tests)).passed


def test_this_process_is_what_it_was():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
    opened = len(os.listdir("/proc/self/fd"))
    runner = CodeRunner(LIMITS)
    for name in ("os._exit", "kill everybody", "infinite output"):
        asyncio.run(runner.run(HOSTILE[name], FUNCTION))
        asyncio.run(runner.run(HOSTILE[name], STDIO))
    assert len(os.listdir("/proc/self/fd")) <= opened
    assert handlers == {number: signal.getsignal(number) for number in handlers}
