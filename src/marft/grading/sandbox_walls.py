"""The walls of a sandbox, built from inside: a file system, refused system calls, limits. Standard library alone.

Refusing calls takes a dozen instructions for the kernel; the packages that write them (`pyseccomp`) need a C library
that is not on every machine, and would have to be imported in every sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct

TYPE_CHECKING = False  # loading `typing` would take longer than making a namespace
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Job = dict[str, Any]  # what `sandbox.py` orders

WORK = "/sandbox"  # the working folder; not /tmp, where the interpreter itself may lie
INSIDE = 1000  # the program's user and group id inside
BIND, RECURSIVE, PRIVATE, READ_ONLY, NO_SUID, NO_DEV, REMOUNT = 0x1000, 0x4000, 0x40000, 1, 2, 4, 32
DETACH = 2
SET_SECCOMP, SECCOMP_FILTER, NO_NEW_PRIVILEGES = 22, 2, 38
X32 = 0x40000000  # from here on x86_64 has the same calls again under other numbers
# What a program is refused: memory that no limit counts, and doors into the kernel or another process that no honest
# program uses. AUDIT_ARCH of the machine, then the numbers of the calls
CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "ptrace": 101, "process_vm_readv": 310,
            "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165, "bpf": 321, "userfaultfd": 323,
            "io_uring_setup": 425, "perf_event_open": 298, "add_key": 248, "request_key": 249, "keyctl": 250,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "ptrace": 117, "process_vm_readv": 270,
            "process_vm_writev": 271, "unshare": 97, "setns": 268, "mount": 40, "bpf": 280, "userfaultfd": 282,
            "io_uring_setup": 425, "perf_event_open": 241, "add_key": 217, "request_key": 218, "keyctl": 219,
        },
    ),
}  # fmt: skip
SPARE_PROCESSES = 2  # the keeper counts, and so does the program itself while it starts

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter lock, which `clone` must not lose


class Failed(Exception):
    """A wall that this system did not let us build."""


def call(part: str, function: Callable[..., int], *arguments: Any) -> int:
    """The result of a C function; raises `Failed` naming the part of the walls when it is negative."""
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise Failed(f"{part}: {os.strerror(number)}")
    return result


def build_root(job: Job) -> int | None:
    """A file system of the readable paths, the files of the job and an empty working folder; nothing else is there.

    Returns an open folder of the processes inside, which no path leads to (None where it cannot be had).
    """
    root = "/proc"  # a mount point that every system has and that holds nothing the program may read
    mount("none", "/", None, RECURSIVE | PRIVATE, None)
    mount("tmpfs", root, "tmpfs", NO_SUID, "mode=755,size=64m")
    for folder in ("/dev", WORK, "/.old", "/.processes"):
        os.mkdir(root + folder)
    for path in job["readable"]:
        bind(path, root, read_only=True)
    if not os.path.lexists(root + "/tmp"):
        os.symlink(WORK, root + "/tmp")
    for device in ("null", "zero", "full", "random", "urandom"):
        bind(f"/dev/{device}", root, read_only=False)
    write_files(root, job)
    processes = open_processes(root + "/.processes") if "pid" in job["parts"] else None
    size = f"mode=700,uid={INSIDE},gid={INSIDE},size={job['disk']},nr_inodes=4096"
    mount("tmpfs", root + WORK, "tmpfs", NO_SUID | NO_DEV, size)
    call("mount: pivot_root", libc.pivot_root, root.encode(), (root + "/.old").encode())
    os.chdir("/")
    call("mount: leave the old root", libc.umount2, b"/.old", DETACH)
    os.rmdir("/.old")
    os.rmdir("/.processes")
    mount("none", "/", None, REMOUNT | READ_ONLY | NO_SUID, None)
    return processes


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    """`mount(2)`; without `kind`, a bind or a change of what is mounted at `target`."""
    texts = [text.encode() if text is not None else None for text in (source, target, kind)]
    data = options.encode() if options is not None else None
    call(f"mount: {kind or 'change'} at {target}", libc.mount, *texts, ctypes.c_ulong(flags), data)


def bind(path: str, root: str, read_only: bool) -> None:
    """Show `path` of the system at the same place under `root`."""
    target = root + path
    if os.path.lexists(target) or not os.path.exists(path):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    mount(path, target, None, BIND | RECURSIVE, None)
    if read_only:
        attributes = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID | NO_DEV, 0, 0, 0)
        arguments = (ctypes.c_int(-1), target.encode(), ctypes.c_uint(0x8000), attributes, ctypes.c_size_t(32))
        call(f"mount: make {path} read-only", libc.syscall, ctypes.c_long(442), *arguments)  # mount_setattr, recursive


def open_processes(place: str) -> int | None:
    """An open folder of the processes inside, or None where the system (a container, say) forbids it."""
    try:
        mount("proc", place, "proc", NO_SUID, None)
    except Failed:
        return None
    try:
        # No user namespace within this one: the program would be its root and could reach more of the kernel
        with open(f"{place}/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        call("mount: hide the processes", libc.umount2, place.encode(), DETACH)


def write_files(prefix: str, job: Job) -> None:
    """Write the files of the job under `prefix`, which is not its working folder."""
    for name, text in job["files"].items():
        os.makedirs(os.path.dirname(f"{prefix}/{name}"), exist_ok=True)
        with open(f"{prefix}/{name}", "w", encoding="utf8", errors="surrogatepass", newline="") as file:
            file.write(text)


def forbid_calls() -> None:
    """Refuse the calls of `CALLS` from now on, to this process and all that it becomes or starts (seccomp)."""
    call("calls: no new privileges", libc.prctl, NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    machine = os.uname().machine
    if machine not in CALLS:
        raise Failed(f"calls: their numbers on {machine} are not known here")
    architecture, numbers = CALLS[machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM
    checks = [(at_least, X32), *((equal, number) for number in numbers.values())]
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    # Every check that holds jumps over the ones that follow and over `allow`
    steps += [(how, len(checks) - place, 0, value) for place, (how, value) in enumerate(checks)]
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    call("calls: seccomp", libc.prctl, SET_SECCOMP, SECCOMP_FILTER, program, 0, 0)


def threads_of_user(user: int) -> int:
    """How many threads this user has on the machine now."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended meanwhile
    return count


def set_limits(job: Job) -> None:
    """Limit this process and all that it becomes or starts.

    Inside a namespace the program's processes are counted on their own, outside with all others of the user; the root
    user's are never limited there.
    """
    seconds = int(job["seconds"]) + 1
    limits = {
        resource.RLIMIT_AS: job["memory"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: job["disk"],
        resource.RLIMIT_NOFILE: job["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    others = 0 if job["parts"] else threads_of_user(os.geteuid())
    limits[resource.RLIMIT_NPROC] = others + job["processes"] + SPARE_PROCESSES
    for kind, limit in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        limit = limit if ceiling == resource.RLIM_INFINITY else min(limit, ceiling)
        resource.setrlimit(kind, (limit, limit))
