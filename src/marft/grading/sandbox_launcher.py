"""What runs first in a sandbox: it builds the walls, starts the program inside, and reports how that ended.

`sandbox.py` runs it in a fresh interpreter without the rest of marft, so it uses the standard library alone. Three
processes: the *launcher* (outside; maps the user ids), the *keeper* (process 1 inside; builds the file system, watches
the deadline, memory and the number of processes, and takes everything with it when it ends) and the *program*.
The report goes through a pipe that the program never holds.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import resource
import select
import signal
import time

from marft.grading.sandbox_walls import (
    INSIDE,
    WORK,
    Failed,
    build_root,
    call,
    forbid_calls,
    libc,
    set_limits,
    write_files,
)

TYPE_CHECKING = False  # loading `typing` would take longer than making a namespace
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Job = dict[str, Any]  # what `sandbox.py` orders

CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
NAMESPACES = {"mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000}
NEW_USER, NEW_UTS = 0x10000000, 0x04000000
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SUBREAPER = 1, 4, 36
FIRST_CHANNEL = 3  # the file number of the first channel in the program
HIGH = 100
TICK = 0.02  # seconds between two looks at memory and the number of processes


def main(job_fd: int, given_report_fd: int) -> None:
    """Read the job, start the keeper and wait for it; standard input stays open for as long as somebody waits."""
    report_fd = high(given_report_fd)
    os.close(given_report_fd)
    with os.fdopen(job_fd, "rb") as file:
        job = marshal.load(file)  # it comes from `sandbox.py`, and is read ten times sooner than JSON is imported
    for fd in (job["stdin"], *job["channels"]):
        os.set_inheritable(fd, False)
    try:
        child = start(job, report_fd)
    except (Failed, OSError) as error:
        report(report_fd, {"failed": str(error)})
        return
    os.waitpid(child, 0)


def high(fd: int) -> int:
    """The same file at a number of `HIGH` or above, where it closes when the program starts."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)


def report(fd: int, content: Job) -> None:
    """Whoever waits reads the first report."""
    os.write(fd, marshal.dumps(content))


# --- the launcher -----------------------------------------------------------------------------------------------------


def start(job: Job, report_fd: int) -> int:
    """Start the keeper in new namespaces and map one unprivileged user into them."""
    mapped, confirm = os.pipe()
    flags = sum(NAMESPACES.get(part, 0) for part in job["parts"])
    if flags:
        machine = os.uname().machine
        if machine not in CLONE:
            raise Failed(f"namespaces: not known how to make them on {machine}")
        flags |= NEW_USER | NEW_UTS
        arguments = [ctypes.c_long(value) for value in (CLONE[machine], flags | signal.SIGCHLD, 0, 0, 0, 0)]
        child = call("namespaces", libc.syscall, *arguments)
    else:
        child = os.fork()
    if child == 0:
        os.close(confirm)
        keep(job, report_fd, mapped)
    os.close(mapped)
    if flags:
        try:
            map_user(child)
        except OSError as error:
            os.kill(child, signal.SIGKILL)
            raise Failed(f"user: mapping ids: {error.strerror}") from None
    os.write(confirm, b"y")
    os.close(confirm)
    return child


def map_user(child: int) -> None:
    """Root gives the program an id of its own, which owns nothing here and for which limits hold; others keep theirs.

    The limit of processes is not enforced for the real root, whatever its name inside.
    """
    own_user, own_group = os.geteuid(), os.getegid()
    other = None
    if own_user == 0:
        with open("/proc/self/uid_map") as file:
            ranges = [tuple(map(int, line.split())) for line in file]
        first, _, count = max(ranges)
        if count > 4096:
            other = min(first + count, 2_000_000_000) - 2 - child % 4000
    with open(f"/proc/{child}/setgroups", "w") as file:
        file.write("deny")
    for name, own in (("uid_map", own_user), ("gid_map", own_group)):
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(f"0 0 1\n{INSIDE} {other} 1\n" if other is not None else f"{INSIDE} {own} 1\n")


# --- the keeper -------------------------------------------------------------------------------------------------------


def keep(job: Job, report_fd: int, mapped: int) -> NoReturn:
    """Build the walls, run the program, report; never returns."""
    try:
        libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 ignores what it has no handler for
        os.setsid()
        if os.read(mapped, 1) != b"y":
            os._exit(1)
        os.close(mapped)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where the machine runs out of memory, the program goes first
        libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)  # nobody traces the keeper or reads its memory
        os.umask(0o022)
        processes = None
        if "mount" in job["parts"]:
            prefix, processes = "", build_root(job)
        elif not job["parts"]:
            prefix = job["folder"]
            write_files(prefix, job)
            os.mkdir(prefix + WORK)
            call("keeping orphans", libc.prctl, SET_SUBREAPER, 1, 0, 0, 0)
            processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        if job["main"] is None:
            if "calls" in job["parts"]:
                forbid_calls()
            report(report_fd, {"reason": "exit"})
            os._exit(0)
        ending = supervise(job, report_fd, prefix, processes)
        if not job["parts"] and processes is not None:
            kill_descendants(processes)
        report(report_fd, ending)
    except BaseException as error:
        report(report_fd, {"failed": str(error) if isinstance(error, Failed) else repr(error)})
    os._exit(0)


def supervise(job: Job, report_fd: int, prefix: str, processes: int | None) -> Job:
    """Run the program until it ends, breaks a limit, or nobody waits for it any more."""
    begun = time.monotonic()
    program = os.fork()
    if program == 0:
        become(job, report_fd, prefix)
    ended = os.pidfd_open(program)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(0, 0)  # the other end of standard input is whoever waits for the report: only its end is news
    reason = ""
    while not reason:
        left = begun + job["seconds"] - time.monotonic()
        if left <= 0:
            reason = "timeout"
            break
        events = dict(waiting.poll(1000 * min(left, TICK if processes is not None else left) + 1))
        if 0 in events:
            reason = "cancelled"
        elif ended in events:
            break
        elif processes is not None:
            reason = broken_limit(job, processes)
    if reason:
        os.kill(program, signal.SIGKILL)
    _, status, used = os.wait4(program, 0)
    if not reason and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        reason = "timeout"
    return {
        "code": os.waitstatus_to_exitcode(status),
        "reason": reason or "exit",
        "seconds": time.monotonic() - begun,
        "cpu": used.ru_utime + used.ru_stime,
    }


def broken_limit(job: Job, processes: int) -> str:
    """Which limit all processes together break now: `memory`, `processes`, or none."""
    others = inside(processes)
    if len(others) > job["processes"]:
        return "processes"
    return "memory" if sum(memory for _, memory in others) > job["memory"] else ""


def inside(processes: int) -> list[tuple[int, int]]:
    """(id, bytes of memory) of all processes but the keeper's own, which without a namespace are its descendants."""
    parents, sizes = {}, {}
    for name in os.listdir(processes):
        if name.isdecimal():
            try:
                with open(os.open(f"{name}/stat", os.O_RDONLY, dir_fd=processes), "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            parents[int(name)] = int(fields[1])
            sizes[int(name)] = int(fields[21]) * resource.getpagesize()
    keeper = os.getpid()
    found = []
    for process in sizes:
        ancestor, steps = parents[process], 0
        while ancestor not in (0, 1, keeper) and ancestor in parents and steps < 100_000:
            ancestor, steps = parents[ancestor], steps + 1
        if process != keeper and ancestor == keeper:
            found.append((process, sizes[process]))
    return found


def kill_descendants(processes: int) -> None:
    """Without a process namespace: kill whatever the program left behind, until nothing is left."""
    for _ in range(1000):
        left = inside(processes)
        if not left:
            return
        for process, _ in left:
            kill(process)
        while reap():
            pass
        time.sleep(0.001)
    raise Failed("processes that the program left behind cannot be killed")


def kill(process: int) -> None:
    """Kill it if it is still there."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def reap() -> bool:
    """Whether there was a child that had ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


# --- the program ------------------------------------------------------------------------------------------------------


def become(job: Job, report_fd: int, prefix: str) -> NoReturn:
    """Take the limits, give up the last rights, and become the program; never returns."""
    try:
        os.chdir(prefix + WORK)
        os.setsid()
        channels = [high(fd) for fd in job["channels"]]
        os.dup2(job["stdin"], 0)
        for place, fd in enumerate(channels, start=FIRST_CHANNEL):
            os.dup2(fd, place)
        os.closerange(FIRST_CHANNEL + len(channels), HIGH)  # what is above closes when the program starts
        set_limits(job)
        if job["parts"]:
            os.setresgid(INSIDE, INSIDE, INSIDE)
            os.setresuid(INSIDE, INSIDE, INSIDE)
        if "calls" in job["parts"]:
            forbid_calls()
        command = [job["python"], "-s", "-P", "-S", f"{prefix}/{job['main']}"]
        os.execve(job["python"], command, dict(job["environment"], HOME=prefix + WORK, TMPDIR=prefix + WORK))
    except BaseException as error:
        report(report_fd, {"failed": f"starting the program: {error}"})
    os._exit(127)
