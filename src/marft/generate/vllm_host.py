"""Where vLLM's asynchronous engine lives: its sockets belong to one event loop, and ours come and go with rollouts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from collections.abc import Coroutine
from multiprocessing import resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")
# vLLM's own switches. It would report usage over the network, and fill the screen; a process that has run torch must
# not be forked.
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


class Clock:
    """Seconds in which at least one of those who entered had not left."""

    def __init__(self) -> None:
        self._passed, self._inside, self._since = 0.0, 0, 0.0

    @property
    def total(self) -> float:
        """Until now."""
        return self._passed + (time.perf_counter() - self._since if self._inside else 0.0)

    def __enter__(self) -> None:
        if not self._inside:
            self._since = time.perf_counter()
        self._inside += 1

    def __exit__(self, *error: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._passed += time.perf_counter() - self._since


class Host:
    """An event loop in a thread of its own, and on it vLLM's engine once there is one."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="vllm", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Start a coroutine there and wait for it here."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """End vLLM's processes and the loop."""
        if self.llm is not None:
            self.run(_shut_down(self.llm))
            self.llm = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _turn(self) -> None:
        # vLLM's processes are started from here and inherit it: the terminal sends Ctrl-C to them as well, and a run
        # that wants to finish its update would find them dead. Python unblocks it when it starts its tracker: before
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.loop.run_forever()


async def _shut_down(llm: Any) -> None:
    llm.shutdown()
