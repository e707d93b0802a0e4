"""Which walls of a sandbox this system allows: found out by building them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from marft.grading.bounded import GraderFailed
from marft.grading.sandbox import PARTS, Job, Limits, run_sandboxed
from marft.types import MarftError

Walls = Literal["auto", "limits-only"]  # all of them, or none: only limits

WHAT = {
    "pid": "other processes hidden, and killed with the program (PID namespace)",
    "mount": "a file system of its own (mount namespace)",
    "net": "no network (network namespace)",
    "ipc": "no shared memory with others (IPC namespace)",
    "calls": "no system calls that get around the limits (seccomp)",
    "processes": "a limit on the number of processes",
}


@dataclass(frozen=True)
class Isolation:
    """Which walls this system lets us build: part -> "" where it stands, else why not."""

    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing and why, one sentence part each."""
        return tuple(f"{WHAT[part]}: {reason}" for part, reason in self.parts.items() if reason)


# Counts how many processes it can have besides itself; each waits on a pipe that closes when this one ends
_COUNT = """
import os, sys
children = 0
read, write = os.pipe()
try:
    while children < 64:
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children, flush=True)
"""


@cache
def isolation() -> Isolation:
    """Try every wall once, on its own, and the limit of processes inside the finished sandbox."""
    if sys.platform != "linux":
        return Isolation(dict.fromkeys(WHAT, f"needs Linux, not {sys.platform}"))
    found = {part: _try(part) for part in PARTS}
    if any(found.values()):
        found["processes"] = "is only sure inside the namespaces"
        return Isolation(found)
    limits = Limits(processes=4)
    try:
        [ending] = run_sandboxed([Job("count.py", {"count.py": _COUNT}, limits)])
    except GraderFailed as error:
        return Isolation({**found, "mount": str(error), "processes": "was not tried"})
    counted = ending.stdout.strip()
    holds = ending.reason == "processes" or (counted.isdigit() and int(counted) <= limits.processes + 2)
    found["processes"] = "" if holds else f"a program started {counted.decode(errors='replace') or 'too many'}"
    return Isolation(found)


def check_walls(walls: Walls) -> None:
    """Raise `MarftError` naming every wall that `walls` asks for and this system lacks."""
    if sys.platform != "linux":
        raise MarftError(f"sandbox: running programs needs Linux; this is {sys.platform}")
    missing = isolation().missing if walls == "auto" else ()
    if missing:
        raise MarftError(
            f"sandbox: this system lacks {'; '.join(missing)}. Allow user namespaces, or accept weaker walls with "
            "`sandbox: limits-only`"
        )


def _try(part: str) -> str:
    """Why this wall cannot be built; empty when it can."""
    try:
        run_sandboxed([Job(None, {})], [part])
    except GraderFailed as error:
        return str(error).removeprefix("a sandbox cannot be built: ")
    return ""
