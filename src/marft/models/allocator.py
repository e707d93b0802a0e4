"""Keep memory that was freed: a pass allocates what the one before it gave back, and fresh pages cost a CPU dearly.

glibc gives large blocks back to the system at once and takes new ones, each page of which faults and is zeroed when it
is first written: a third of the time of a small model's forward and backward pass. (mallopt(3).)
"""

from __future__ import annotations

import ctypes
import os
import sys

VARIABLE = "MARFT_KEEP_MEMORY"
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # names of mallopt's parameters in malloc.h


def keep_freed_memory() -> bool:
    """Ask glibc to give nothing back; returns whether it will. `MARFT_KEEP_MEMORY=0` in the environment forbids it.

    The process then stays as large as it ever was, and what other libraries free stays with it as well. Without glibc
    (other systems, musl) nothing happens. It holds for the whole process and can be called again at will.
    """
    if not sys.platform.startswith("linux") or os.environ.get(VARIABLE) == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
