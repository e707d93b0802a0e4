"""A sandbox: one program in one fresh child, which may use this much and touch nothing.

Linux namespaces take away the network, the file system (what is left: the interpreter and the system's libraries,
read-only, and an empty working folder in memory) and every other process; resource limits bound the rest.
`sandbox_launcher.py` builds the walls from inside; this module starts it and collects what comes back. How the program
ended is reported by a process that the program can neither write to, signal nor trace.
"""

from __future__ import annotations

import marshal
import os
import selectors
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from marft.grading.bounded import GraderFailed

Reason = Literal["exit", "timeout", "memory", "processes", "output", "cancelled"]

PARTS = ("pid", "mount", "net", "ipc", "calls")
# Importing marft itself would take a second: the launcher finds its modules in empty packages of the same names
LAUNCHER = f"""
import sys
for name, folder in (("marft", {str(Path(__file__).parents[1])!r}), ("marft.grading", {str(Path(__file__).parent)!r})):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [folder]
from marft.grading.sandbox_launcher import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""
LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo", "/nix/store")
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
GRACE = 30.0  # seconds after which a sandbox that should have ended counts as broken
CHUNK = 1 << 16
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one program may use. `seconds` of wall clock, and of processor time for each of its processes.

    `memory_mb`: address space of each process, and resident memory of all together. `disk_mb`: the working folder and
    any file. `output_mb`: what it may print. `processes` counts threads too.
    """

    seconds: float = 10.0
    memory_mb: int = 512
    disk_mb: int = 16
    output_mb: int = 4
    processes: int = 8
    open_files: int = 64


@dataclass(frozen=True)
class Job:
    """One program: the texts of its files, which of them is run, what it may use, and what its standard input holds.

    Without `main`, the sandbox is only built. `channel`: a socket that it gets as file number 3; it is closed here.
    """

    main: str | None
    files: Mapping[str, str]
    limits: Limits = field(default_factory=Limits)
    stdin: bytes = b""
    channel: socket.socket | None = None


@dataclass(frozen=True)
class Ending:
    """How a program ended: why, its exit code (negative: the signal that killed it), and what it had printed."""

    reason: Reason
    code: int
    stdout: bytes
    stderr: bytes
    seconds: float = 0.0
    cpu: float = 0.0


class Stop:
    """A switch that ends the sandboxes of one call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._on = False

    def add(self, child: _Child) -> None:
        """From now on this child ends with the others."""
        with self._lock:
            self._children.append(child)
            if self._on:
                child.end()

    def end(self) -> None:
        """End them all, and whatever is added later."""
        with self._lock:
            self._on = True
            for child in self._children:
                child.end()


def run_sandboxed(jobs: Sequence[Job], parts: Sequence[str] = PARTS, stop: Stop | None = None) -> tuple[Ending, ...]:
    """Run the jobs at once, each in its own sandbox, and wait; when the first one ends, the others are ended.

    `parts`: which walls are built besides the limits; without any, a program gets a folder of its own and limits, and
    may do else what its user may. Blocks. Raises `GraderFailed` when a sandbox cannot be built or does not report.
    """
    stop = stop or Stop()
    with ExitStack() as stack:
        children: list[_Child] = []
        for job in jobs:
            child = stack.enter_context(_Child(job, parts))
            children.append(child)
            stop.add(child)
            if job.channel is not None:
                job.channel.close()  # so that its end is seen when the program ends
        _collect(children, max(job.limits.seconds for job in jobs) + GRACE)
        return tuple(child.ending() for child in children)


class _Child:
    """A sandbox while it runs, seen from outside."""

    def __init__(self, job: Job, parts: Sequence[str]) -> None:
        self.room = job.limits.output_mb * MEGABYTE
        self.read: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self.too_much = False
        self._lock = threading.Lock()
        with ExitStack() as opened:
            folder = None
            if not parts:
                folder = opened.enter_context(tempfile.TemporaryDirectory("-marft", ignore_cleanup_errors=True))
            stdin = _memory(job.stdin, opened)
            channels = [job.channel.fileno()] if job.channel is not None else []
            whole = {**_description(job), "parts": list(parts), "folder": folder, "stdin": stdin, "channels": channels}
            ordered = _memory(marshal.dumps(whole), opened)
            reading, writing = os.pipe()
            opened.callback(os.close, reading)
            try:
                self.process = subprocess.Popen(
                    [_interpreter(), "-I", "-S", "-c", LAUNCHER, str(ordered), str(writing)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env={},
                    pass_fds=(ordered, writing, stdin, *channels),
                    start_new_session=True,
                )
            except OSError as error:
                raise GraderFailed(f"a sandbox cannot be started: {error}") from error
            finally:
                os.close(writing)
            self.sources = {"stdout": self.process.stdout.fileno(), "stderr": self.process.stderr.fileno()}  # type: ignore[union-attr]
            self.sources["report"] = reading
            self._kept = opened.pop_all()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self._kept.close()

    def end(self) -> None:
        """The keeper inside waits for this pipe to close, and takes everything with it."""
        with self._lock:
            if self.process.stdin is not None:
                self.process.stdin.close()

    def kill(self) -> None:
        """The hard way, for a sandbox that does not answer; the keeper dies with the launcher."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def take(self, source: str) -> bool:
        """Read what has come; False at the end. Too much output ends the child, and the rest is thrown away."""
        chunk = os.read(self.sources[source], CHUNK)
        kept = self.read[source]
        kept += chunk[: max(0, self.room - len(kept))]
        if source != "report" and len(chunk) > 0 and len(kept) >= self.room:
            self.too_much = True
            self.end()
        return bool(chunk)

    def ending(self) -> Ending:
        """Raises `GraderFailed` when the sandbox did not report."""
        if not self.read["report"]:
            said = bytes(self.read["stderr"][-500:]).decode(errors="replace").split()
            raise GraderFailed(f"a sandbox ended without a report: {' '.join(said) or 'it was killed'}")
        report = marshal.loads(self.read["report"])
        if "failed" in report:
            raise GraderFailed(f"a sandbox cannot be built: {report['failed']}")
        reason: Reason = "output" if self.too_much else report["reason"]
        output = bytes(self.read["stdout"]), bytes(self.read["stderr"])
        return Ending(reason, report.get("code", 0), *output, report.get("seconds", 0.0), report.get("cpu", 0.0))


def _memory(content: bytes, opened: ExitStack) -> int:
    """A file in memory with this content, read from its start."""
    fd = os.memfd_create("marft")
    opened.callback(os.close, fd)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _collect(children: Sequence[_Child], seconds: float) -> None:
    """Read from all until all have ended; when the first has ended, end the others."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for child in children:
            for source, fd in child.sources.items():
                selector.register(fd, selectors.EVENT_READ, (child, source))
        while selector.get_map():
            if time.monotonic() > deadline:
                raise GraderFailed(f"a sandbox did not end {GRACE:g} s after its deadline")
            for key, _ in selector.select(1.0):
                child, source = key.data
                if not child.take(source):
                    selector.unregister(key.fd)
                    if child is children[0] and source == "report":
                        for other in children[1:]:
                            other.end()


def _description(job: Job) -> dict[str, Any]:
    """What the launcher needs to know."""
    packages = [path for path in _package_folders() if os.path.isdir(path)]
    limits = job.limits
    return {
        "python": _interpreter(),
        "main": job.main,
        "files": dict(job.files),
        "readable": sorted({*LIBRARIES, *SETTINGS, os.path.realpath(sys.base_prefix), *packages}, key=len),
        "environment": {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONHASHSEED": "0",  # the same program prints the same twice
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        "seconds": limits.seconds,
        "memory": limits.memory_mb * MEGABYTE,
        "disk": limits.disk_mb * MEGABYTE,
        "processes": limits.processes,
        "open_files": limits.open_files,
    }


@cache
def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


@cache
def _package_folders() -> tuple[str, ...]:
    """Installed packages, which programs may import (numpy in solutions, say)."""
    return tuple(dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")))
