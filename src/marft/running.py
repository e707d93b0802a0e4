"""Running coroutines to their end: also where a loop runs already, as in a notebook, and beside other work."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


def result_of(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Where a loop runs already it has one of its own, in a thread, while the caller waits.

    What it raises is raised here; an interrupt of the waiting (Ctrl-C) cancels it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with beside(work) as result:
        return result.result()


@contextmanager
def beside(work: Coroutine[Any, Any, T]) -> Iterator[Future[T]]:
    """Run a coroutine in a thread and on a loop of its own while the body runs here; the future has its result.

    It has ended when the context is left: whatever the body raises (a second Ctrl-C too) cancels it.
    """
    result: Future[T] = Future()
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def turn() -> T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await work

    def run() -> None:
        try:
            result.set_result(asyncio.run(turn()))
        except BaseException as error:  # it belongs to whoever asks for the result
            result.set_exception(error)
            if not started.done():  # there was no loop to be had
                started.set_exception(error)

    # In the caller's context: a notebook finds the cell that a print belongs to by it
    context = contextvars.copy_context()
    # daemon: a third Ctrl-C must not wait for it
    thread = threading.Thread(target=context.run, args=(run,), name="play", daemon=True)
    thread.start()
    try:
        yield result
    except BaseException:
        if started.exception() is None:
            loop, task = started.result()
            with suppress(RuntimeError):  # the loop is closed: it has just ended
                loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()
