"""Calls with a deadline: each runs in a child process that can be killed, taken from a warm pool.

A thread cannot be stopped, and symbolic algebra can hold the interpreter's lock for hours; only killing a process ends
it. Children come from multiprocessing's `forkserver`: never a plain fork of this process, whose torch, threads and
locks would be copied in the middle of whatever they are doing, nor a fresh interpreter, which needs a second to load
sympy. The fork server has loaded the graders once, so that a killed child is replaced within milliseconds.

Written here because no permissively licensed library has a deadline per call: `concurrent.futures` and `joblib` cannot
end a call that runs, and `pebble`, which can, is LGPL.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import functools
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from marft.types import MarftError

T = TypeVar("T")

DEADLINE = 10.0  # seconds that a call may take when it names no deadline of its own
MEMORY = 2 * 2**30  # bytes of address space of a child; the graders themselves take a quarter of a GiB
MOST_WORKERS = 8
START_LIMIT = 120.0  # seconds for the fork server to load the graders, once, on a machine that is busy
READY = b"ready"
PRELOAD = ["marft.grading.preload"]

_FORKSERVER = multiprocessing.get_context("forkserver")
_PROCESSES = threading.Lock()  # multiprocessing reads the exit codes of all children whenever it starts one


class GraderFailed(MarftError):
    """A grader gave no grade (deadline, crash, error): the episode has no reward, which is not the same as 0."""


class Pool:
    """Child processes that run functions under a deadline; usable from any thread and any event loop at once."""

    def __init__(self, workers: int | None = None, deadline: float = DEADLINE, memory: int = MEMORY) -> None:
        """`workers`: children at once (default: one per core, at most 8). `deadline` s. `memory`: bytes per child."""
        self.workers = workers or min(os.cpu_count() or 1, MOST_WORKERS)
        self.deadline, self.memory = deadline, memory
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="marft-grading")
        self._busy: set[_Worker] = set()  # at most one per thread
        self._idle: list[_Worker] = []  # the last one used is the first to be used again
        self._lock = threading.Lock()
        self._closed = False

    async def run(self, function: Callable[..., T], *args: Any, deadline: float | None = None) -> T:
        """`function(*args)`, computed in a child; a cancelled caller ends the child, and the cancellation propagates.

        The deadline counts from when a child starts on the call. Raises `GraderFailed` when it passes, when the child
        dies, and when the function raises. Function and arguments travel by pickle: no lambdas, nothing from a script.
        """
        job = _Job(function, args, deadline or self.deadline)
        try:
            return await asyncio.wrap_future(self._submit(job))
        finally:
            job.drop()

    def call(self, function: Callable[..., T], *args: Any, deadline: float | None = None) -> T:
        """As `run`, for callers that are no coroutine: blocks until the result is there."""
        job = _Job(function, args, deadline or self.deadline)
        future: Future[T] = self._submit(job)
        try:
            return future.result()
        finally:
            future.cancel()
            job.drop()

    def close(self) -> None:
        """End all children; calls that still run fail. Calls that come later are refused."""
        with self._lock:
            self._closed = True
            busy, idle = set(self._busy), list(self._idle)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in busy:
            worker.kill()  # the thread that waits for it does the rest
        for worker in idle:
            worker.end()

    def _submit(self, job: _Job) -> Future[Any]:
        if self._closed:
            raise GraderFailed(f"{job.name}: the pool of graders is closed")
        return self._threads.submit(self._do, job)

    def _do(self, job: _Job) -> Any:
        """In one of the pool's threads: find or start a child and have it do the job."""
        worker = self._take()
        try:
            return worker.do(job)
        finally:
            self._put_back(worker)

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker(self.memory)
        with self._lock:
            self._busy.add(worker)
        return worker

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.remove(worker)
            usable = worker.alive and not self._closed
            if usable:
                self._idle.append(worker)
        if not usable:
            worker.end()


@functools.cache
def shared_pool() -> Pool:
    """The pool that all graders of this process share, made when first asked for and closed when the process ends."""
    pool = Pool()
    atexit.register(pool.close)
    return pool


class _Job:
    """One call: what goes to the child, and who works on it now."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], deadline: float) -> None:
        self.name, self.deadline = _name(function), deadline
        try:
            self.payload = pickle.dumps((function, args))
        except Exception as error:  # pickle raises whatever the objects raise
            raise GraderFailed(f"{self.name}: cannot be sent to a child process: {_describe(error)}") from error
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._dropped = False

    def begin(self, worker: _Worker) -> bool:
        """Note who works on it; False when nobody waits for the result any more."""
        with self._lock:
            self._worker = None if self._dropped else worker
            return not self._dropped

    def over(self) -> bool:
        """From now on a `drop` leaves the worker alone; False when an earlier one has killed it."""
        with self._lock:
            self._worker = None
            return not self._dropped

    def drop(self) -> None:
        """Nobody waits any more: kill the child that works on it, if one does."""
        with self._lock:
            self._dropped = True
            if self._worker is not None:
                self._worker.kill()


class _Worker:
    """One child process and this end of the pipe to it."""

    def __init__(self, memory: int) -> None:
        self.alive = True
        self._pipe, theirs = _FORKSERVER.Pipe()
        self._process = _FORKSERVER.Process(target=_serve, args=(theirs, memory), daemon=True)
        with _PROCESSES, _without_main():
            _FORKSERVER.set_forkserver_preload(PRELOAD)
            self._process.start()
        theirs.close()
        try:
            started = self._replies(START_LIMIT) and self._pipe.recv_bytes() == READY
        except (EOFError, OSError):
            started = False
        if not started:
            death = self._death()
            self.end()
            raise GraderFailed(f"a grader could not be started: {death}")

    def do(self, job: _Job) -> Any:
        """The result of the job; raises `GraderFailed`. Afterwards `alive` says whether the child can go on."""
        if not job.begin(self):
            return None
        self.alive = False  # until it has answered
        try:
            self._pipe.send_bytes(job.payload)
            if not self._replies(job.deadline):
                late = f"gave no result within its deadline of {job.deadline:g} s"
                raise GraderFailed(f"{job.name}: {late if self._lives() else self._death()}")
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError):
            job.over()
            raise GraderFailed(f"{job.name}: {self._death()}") from None
        self.alive = job.over()
        try:
            done, result = pickle.loads(reply)
        except Exception as error:
            raise GraderFailed(f"{job.name}: its result cannot be read: {_describe(error)}") from error
        if not done:
            raise GraderFailed(f"{job.name}: {result}")
        return result

    def kill(self) -> None:
        """End the child at once; whoever reads from it sees that it is gone."""
        self.alive = False
        self._process.kill()

    def end(self) -> None:
        """Kill the child and give back what it holds."""
        self.kill()
        with _PROCESSES:
            self._process.join()
        self._pipe.close()

    def _replies(self, seconds: float) -> bool:
        """Wait for a reply; also true at once when the child dies, whoever else holds its end of the pipe."""
        return self._pipe in wait([self._pipe, self._process.sentinel], seconds)

    def _lives(self) -> bool:
        with _PROCESSES:
            return self._process.is_alive()

    def _death(self) -> str:
        with _PROCESSES:
            self._process.join(1.0)
            code = self._process.exitcode
        if code is None:
            return "its process did not answer"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended itself with exit code {code}"
        return f"its process {how}"


def _serve(pipe: Connection, memory: int) -> None:
    """What a child does all its life: read a job, do it, send back the result."""
    _die_with_parent()
    os.setsid()  # the terminal's Ctrl-C is for the parent, which ends its children itself
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_CORE, 0)
    quiet = os.open(os.devnull, os.O_WRONLY)  # parsers print what they stumble over, into the parent's display
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send_bytes(READY)
    while True:
        try:
            payload = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(_reply(payload))


def _reply(payload: bytes) -> bytes:
    """The pickled (True, result) or (False, what went wrong)."""
    try:
        function, args = pickle.loads(payload)
        return pickle.dumps((True, function(*args)))
    except BaseException as error:  # SystemExit too: a grader that wants to exit has given no grade
        return pickle.dumps((False, _describe(error)))


def _die_with_parent() -> None:
    """Have the kernel kill this child when the parent is gone, however it went, even inside a long multiplication.

    The parent holds the other end of a pipe. When that closes, the kernel sends SIGIO, which nothing here handles. (A
    thread that watches the pipe could not run while C code holds the interpreter's lock, and the fork server, whose
    death `prctl` would tell of, lives for as long as its children do.)
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([parent.sentinel], 0):  # it went before the signal was armed
        os._exit(1)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the running script while a child starts: multiprocessing would run the script again in every child.

    That is slow, and a script without `if __name__ == "__main__"` would train within its graders.
    """
    main: dict[str, Any] = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def _name(function: Callable[..., Any]) -> str:
    """What to call the function in a message; a `functools.partial` has no name of its own."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _describe(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
