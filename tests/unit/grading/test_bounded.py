"""bounded: what a hang, a crash, a cancelled caller and a killed parent cost."""

import asyncio
import ctypes
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from marft.grading.bounded import GraderFailed, Pool, shared_pool
from marft.types import MarftError


def spin():
    while True:
        pass


def hold_the_lock():
    return math.factorial(10**8)  # C code that never lets another thread of its process run


def crash():
    ctypes.string_at(0)


def raise_error():
    raise ValueError("two\nlines")


def fork_and_die():
    """A grandchild inherits the pipe, so the pipe stays open when the child is gone."""
    if os.fork():
        os._exit(5)
    time.sleep(20)
    os._exit(0)


def sleep_after_writing(path, seconds):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(seconds)


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def pool():
    pool = Pool(workers=2, deadline=20.0)
    yield pool
    pool.close()


def test_a_result_from_the_main_thread_another_thread_and_new_event_loops(pool):
    assert pool.call(math.gcd, 12, 18) == 6
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda n: pool.call(math.factorial, n), range(6))) == [1, 1, 2, 6, 24, 120]
    for _ in range(2):  # a pool outlives the loop it was used in
        assert asyncio.run(pool.run(math.gcd, 12, 18)) == 6

    async def together():
        return await asyncio.gather(*(pool.run(math.factorial, n) for n in range(6)))

    assert asyncio.run(together()) == [1, 1, 2, 6, 24, 120]
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.append(asyncio.run(pool.run(math.gcd, 4, 6))))
    thread.start()
    thread.join()
    assert in_thread == [2]


def test_the_same_child_is_used_again():
    pool = Pool(workers=2)
    assert len({pool.call(os.getpid) for _ in range(5)} - {os.getpid()}) == 1
    pool.close()


@pytest.mark.parametrize("stuck", [spin, hold_the_lock])
def test_a_hang_costs_one_call_and_its_child(pool, stuck):
    before = pool.call(os.getpid)
    start = time.monotonic()
    with pytest.raises(GraderFailed, match=rf"^{stuck.__name__}: gave no result within its deadline of 0.3 s$"):
        pool.call(stuck, deadline=0.3)
    assert time.monotonic() - start < 3
    assert not runs(before)
    after = pool.call(os.getpid)
    assert after != before
    assert pool.call(os.getpid) == after


def test_a_killed_child_is_replaced_without_loading_the_graders_again(pool):
    pool.call(os.getpid)
    with pytest.raises(GraderFailed):
        pool.call(os._exit, 1)
    # A new child has math-verify's algebra before its first grade: it was loaded in the fork server
    assert pool.call(eval, "'sympy' in __import__('sys').modules")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (functools.partial(os._exit, 3), "_exit: its process ended itself with exit code 3"),
        (crash, "crash: its process was killed by SIGSEGV"),
        (fork_and_die, "fork_and_die: its process ended itself with exit code 5"),
        (raise_error, "raise_error: ValueError: two lines"),
        (functools.partial(sys.exit, 0), "exit: SystemExit: 0"),
        (functools.partial(bytearray, 2**32), "bytearray: MemoryError"),
        (threading.Lock, "allocate_lock: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_failures_say_what_happened_and_the_next_call_works(pool, function, says):
    with pytest.raises(GraderFailed) as raised:
        pool.call(function)
    assert str(raised.value) == says
    assert isinstance(raised.value, MarftError)
    assert pool.call(math.gcd, 12, 18) == 6


def test_what_cannot_be_sent_is_refused_at_once(pool):
    with pytest.raises(GraderFailed, match="<lambda>: cannot be sent to a child process"):
        pool.call(lambda: 1)
    with pytest.raises(GraderFailed, match="len: cannot be sent to a child process"):
        asyncio.run(pool.run(len, threading.Lock()))


def test_large_arguments_and_results_do_not_block(pool):
    assert pool.call(len, b"x" * 50_000_000) == 50_000_000  # a pipe holds 64 KiB
    assert len(pool.call(bytes, 50_000_000)) == 50_000_000
    small = Pool(workers=1, memory=2**29)
    with pytest.raises(GraderFailed, match=r"^len: (MemoryError|its process)"):
        small.call(len, b"x" * 2**29)
    assert small.call(len, b"x") == 1
    small.close()


def test_the_deadline_does_not_count_the_time_in_the_queue():
    pool = Pool(workers=1)

    async def queue():
        return await asyncio.gather(*(pool.run(time.sleep, 0.2, deadline=0.6) for _ in range(5)))

    assert asyncio.run(queue()) == [None] * 5  # 1 s in all, with 0.6 s for each
    pool.close()


def test_a_cancelled_caller_is_cancelled_and_its_child_killed(pool, tmp_path):
    note = tmp_path / "pid"

    async def cancel():
        task = asyncio.create_task(pool.run(sleep_after_writing, str(note), 60))
        while not (note.exists() and note.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    wait_until(lambda: not runs(int(note.read_text())))
    assert pool.call(math.gcd, 12, 18) == 6


def test_a_call_cancelled_while_it_waits_never_runs(tmp_path):
    pool = Pool(workers=1)
    note = tmp_path / "pid"

    async def cancel():
        first = asyncio.create_task(pool.run(time.sleep, 0.5))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(pool.run(sleep_after_writing, str(note), 0))
        await asyncio.sleep(0.1)
        second.cancel()
        await asyncio.wait([first, second])
        return first.exception(), second.cancelled()

    assert asyncio.run(cancel()) == (None, True)
    pool.call(math.gcd, 1, 1)
    assert not note.exists()
    pool.close()


SCRIPT = """
import sys, threading, time
sys.path.insert(0, {folder!r})
import test_bounded
from marft.grading.bounded import Pool
pool = Pool(workers=2)
pool.call(len, "")
print(*[worker._process.pid for worker in pool._idle], flush=True)
threading.Thread(target=pool.call, args=(test_bounded.hold_the_lock,), daemon=True).start()
time.sleep({seconds})
"""


def start(seconds):
    """A script without `if __name__ == "__main__"`, whose one child is busy in C code; and that child's number."""
    code = SCRIPT.format(folder=os.path.dirname(__file__), seconds=seconds)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    return parent, int(parent.stdout.readline())


def test_children_die_with_a_killed_parent():
    parent, child = start(60)
    time.sleep(0.3)
    assert runs(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not runs(child))


def test_a_script_is_not_run_again_in_its_children_and_ends_with_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import math, os\nfrom marft.grading.bounded import shared_pool\n"
        "print('once', shared_pool().call(math.gcd, 4, 6), shared_pool().call(os.getpid))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    once, two, child = done.stdout.split()
    assert (once, two, done.stderr) == ("once", "2", "")
    assert not runs(int(child))


def test_a_closed_pool_ends_what_runs_and_refuses_what_comes():
    pool = Pool(workers=1)
    child = pool.call(os.getpid)
    errors = []

    def wait_for_it():
        with pytest.raises(GraderFailed) as raised:
            pool.call(time.sleep, 60)
        errors.append(str(raised.value))

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    time.sleep(0.2)
    pool.close()
    thread.join(5)
    assert errors
    assert "SIGKILL" in errors[0]
    assert not runs(child)
    with pytest.raises(GraderFailed, match="closed"):
        pool.call(len, "")


def test_a_child_that_cannot_start_fails_its_call():
    pool = Pool(workers=1, memory="no number")
    with pytest.raises(GraderFailed, match="a grader could not be started: its process "):
        pool.call(len, "")
    pool.close()


def test_the_shared_pool_is_one():
    assert shared_pool() is shared_pool()
