"""Stopping a run politely: the first signal asks for the current update to be finished, the second stops at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_REPEAT_SECONDS = 0.3


def _to_stderr(text: str) -> None:
    os.write(2, f"{text}\n".encode())  # not print: a handler may run in the middle of another print


class GracefulStop:
    """While entered, SIGINT and SIGTERM set `requested`; a later one raises KeyboardInterrupt or SystemExit at once.

    `announce` is told, once, that the run is stopping. Python delivers signals to the main thread only, so elsewhere
    this does nothing and `requested` stays False. A signal within 0.3 s of the first counts as the same request:
    `timeout` and some process managers send theirs to the process *and* to its group.
    """

    def __init__(self, announce: Callable[[str], None] = _to_stderr) -> None:
        self._announce = announce
        self._signal: int | None = None
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has asked the run to stop."""
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 128 + the signal's number (130 or 143), or 0 when none came."""
        return 0 if self._signal is None else 128 + self._signal

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is threading.main_thread():
            # Also where SIGINT was ignored, as a shell does for `command &`: a signal sent to us means us
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that C code installed, which Python cannot put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number
            self._since = time.monotonic()
            self._announce("Stopping after the current update; the same signal again stops at once, without saving.")
        elif time.monotonic() - self._since >= _REPEAT_SECONDS:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
