"""What is freed stays with the process, where glibc can be asked for that."""

import platform
import subprocess
import sys

import pytest

# Touch 64 MiB twice; count the page faults of the second time
SCRIPT = """
import ctypes, resource
from marft.models.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
kept = keep_freed_memory()
def touch():
    block = libc.malloc(2**26)
    libc.memset(block, 1, 2**26)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
@pytest.mark.parametrize("wanted", ["1", "0"])
def test_freed_memory_is_kept_unless_the_environment_forbids_it(wanted, monkeypatch):
    monkeypatch.setenv("MARFT_KEEP_MEMORY", wanted)
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == str(wanted == "1")
    assert (int(faults) < 16) == (wanted == "1")
