"""The sandbox from outside: what a program sees, what it may use, and that nothing of it is left.

What is expected is what Linux documents: errno of a missing network, a read-only file system, rlimits.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import pytest

from marft.grading import isolation as walls_module
from marft.grading import sandbox
from marft.grading.bounded import GraderFailed
from marft.grading.isolation import Isolation, check_walls, isolation
from marft.grading.sandbox import PARTS, Job, Limits, Stop, run_sandboxed
from marft.types import MarftError

pytestmark = pytest.mark.skipif(bool(isolation().missing), reason=f"no full isolation: {isolation().missing}")
QUICK = Limits(seconds=1.5, memory_mb=256, disk_mb=2, output_mb=1, processes=4)


def run(source, limits=QUICK, walls="auto", stdin=b"", **more):
    [ending] = run_sandboxed(
        [Job("program.py", {"program.py": source}, limits, stdin, **more)], PARTS if walls == "auto" else ()
    )
    return ending


def told(source, **more):
    """What a program found out, which it prints as JSON."""
    ending = run(source, **more)
    assert (ending.reason, ending.code) == ("exit", 0), ending
    return json.loads(ending.stdout)


def alive(marker):
    """Processes of this machine with `marker` in their command line."""
    return [pid for pid, _, command in processes() if marker in command]


def family(ancestor):
    """The processes that descend from another one."""
    found = {ancestor}
    parents = {pid: parent for pid, parent, _ in processes()}
    for _ in parents:
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {ancestor}


def processes():
    """(id, parent, command line) of every process of this machine."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", errors="replace") as file:
                found.append((int(name), parent, file.read()))
    return found


def test_standard_input_output_error_and_exit_code():
    ending = run("import sys\nprint(input() * 2)\nprint('e', file=sys.stderr)\nsys.exit(7)", stdin=b"ab\n")
    assert (ending.stdout, ending.stderr, ending.reason, ending.code) == (b"abab\n", b"e\n", "exit", 7)
    assert 0 < ending.cpu < 1.5


def test_a_program_sees_an_empty_folder_and_nothing_of_this_machine(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("42")
    seen = told(f"""
import json, os, sys
def can(do, *arguments):
    try:
        do(*arguments)
        return True
    except OSError:
        return False
print(json.dumps({{
    "here": os.listdir("."),
    "root": sorted(os.listdir("/")),
    "secret": can(open, {str(secret)!r}),
    "repository": can(open, {os.path.abspath(__file__)!r}),
    "passwd": can(open, "/etc/passwd"),
    "proc": os.path.exists("/proc"),
    "write": [path for path in ("/", "/dev", "/usr/lib", os.path.dirname(os.__file__)) if can(open, path + "/x", "w")],
    "write here": can(open, "x", "w"),
    "environment": sorted(set(os.environ) & {{"HOME", "USER", "PATH", "SSH_AUTH_SOCK", "HF_TOKEN"}}),
    "home": os.environ["HOME"],
    "pid": os.getpid() < 10,
    "root user": os.getuid() == 0,
}}))
""")
    assert seen.pop("root") == sorted(
        {"dev", "etc", "program.py", "sandbox", "tmp", "usr"}
        | {part for part in ("lib", "lib32", "lib64", "nix") if os.path.exists(f"/{part}")}
        | {os.path.realpath(path).split("/")[1] for path in (sys.base_prefix, sysconfig.get_path("purelib"))}
    )
    assert seen == {
        "here": [],
        "secret": False,
        "repository": False,
        "passwd": False,
        "proc": False,
        "write": [],
        "write here": True,
        "environment": ["HOME", "PATH"],
        "home": "/sandbox",
        "pid": True,
        "root user": False,
    }


def test_no_file_of_this_process_is_open_in_a_program():
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(150)]  # so that the sandbox's own have high numbers
    for fd in held:
        os.set_inheritable(fd, True)
    try:
        opened = told("""
import json, os
found = []
for fd in range(4096):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(json.dumps(found))
""")
    finally:
        for fd in held:
            os.close(fd)
    assert opened == [0, 1, 2]


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = told(f"""
import json, socket
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=1)
    except OSError as error:
        return error.errno
print(json.dumps([reach("127.0.0.1", {port}), reach("192.0.2.1", 80)]))
""")
    assert seen == [101, 101]  # ENETUNREACH


def test_no_way_to_more_rights():
    seen = told("""
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
def number(result):
    return ctypes.get_errno() if result < 0 else 0
results = {
    "user namespace": number(libc.unshare(0x10000000)),
    "mount": number(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "trace the keeper": number(libc.ptrace(16, 1, 0, 0)),
    "chroot": number(libc.chroot(b"/tmp")),
}
for signal in (9, 2, 15):
    try:
        os.kill(1, signal)
    except PermissionError:  # where it has an id of its own; else the signal is not delivered
        pass
try:
    os.setuid(0)
except OSError as error:
    results["root"] = "refused"
print(json.dumps(results))
""")
    assert seen == {"user namespace": 1, "mount": 1, "trace the keeper": 1, "chroot": 1, "root": "refused"}


@pytest.mark.parametrize("walls", ["auto", "limits-only"])
@pytest.mark.parametrize(
    ("source", "reason", "code"),
    [
        ("while True: pass", "timeout", -signal.SIGKILL),
        ("import time\ntime.sleep(60)", "timeout", -signal.SIGKILL),
        (
            "import signal\nfor s in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT):\n"
            "    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
            -signal.SIGKILL,
        ),
        ("while True: print('x' * 1000)", "output", -signal.SIGKILL),
        ("import ctypes\nctypes.string_at(0)", "exit", -signal.SIGSEGV),
        ("x = [bytearray(1 << 20) for _ in range(1 << 14)]", "exit", 1),
        ("open('big', 'wb').write(bytes(3 << 20))", "exit", 1),
        ("import os\nos._exit(0)", "exit", 0),
    ],
    ids=["loop", "sleep", "deaf", "output", "segfault", "memory", "disk", "exit"],
)
def test_limits(source, reason, code, walls):
    seconds = 0.7 if reason == "timeout" else 10.0
    ending = run(source, Limits(seconds=seconds, memory_mb=256, disk_mb=2, output_mb=1), walls)
    assert (ending.reason, ending.code) == (reason, code)
    assert len(ending.stdout) <= 1 << 20
    assert ending.seconds < seconds + 3


def test_many_files_do_not_pass_the_limit_of_the_folder():
    written = told("""
import json
count = 0
try:
    for number in range(100):
        with open(str(number), "wb") as file:
            file.write(bytes(1 << 20))
        count += 1
except OSError as error:
    print(json.dumps([count, error.errno]))
""")
    assert written == [2, 28]  # ENOSPC after 2 MB


def test_a_fork_bomb_ends_and_leaves_nothing():
    before = family(os.getpid())  # graders of other tests may be at home
    ending = run("""
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""")
    assert ending.reason in ("processes", "timeout")
    assert family(os.getpid()) <= before


@pytest.mark.skipif(os.geteuid() == 0, reason="the kernel does not limit root's processes")
def test_a_fork_bomb_without_walls_ends_and_leaves_nothing():
    ending = run(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", walls="limits-only"
    )
    assert ending.reason in ("processes", "timeout")
    assert not family(os.getpid())


def test_all_processes_together_have_one_limit_of_memory():
    ending = run("""
import os, time
for _ in range(2):
    os.fork()
kept = bytearray(120 << 20)
for page in range(0, len(kept), 4096):
    kept[page] = 1
time.sleep(60)
""")
    assert ending.reason == "memory"  # 4 x 120 MB, each below the 256 MB of one


def test_there_is_no_memory_that_no_limit_counts():
    seen = told("""
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
results = [libc.shmget(0, 1 << 30, 0o1600) >= 0]
try:
    os.memfd_create("x")
    results.append(True)
except PermissionError:
    results.append(False)
print(json.dumps(results))
""")
    assert seen == [False, False]


@pytest.mark.parametrize("walls", ["auto", "limits-only"])
def test_a_daemon_dies_with_the_program(walls):
    marker = f"marft-daemon-{os.getpid()}-{walls}"
    ending = run(
        f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(30)", {marker!r}])
    os._exit(0)
os.wait()
print("done")
""",
        walls=walls,
    )
    assert (ending.reason, ending.stdout) == ("exit", b"done\n")
    assert ending.seconds < 1.5
    assert not alive(marker)


def test_links_out_of_the_folder_lead_nowhere_and_are_not_followed_afterwards(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    source = f"import os\nos.symlink({str(kept)!r}, 'link')\nprint(os.path.exists('link/file'))"
    assert run(source).stdout == b"False\n"
    assert run(source, walls="limits-only").stdout == b"True\n"
    assert (kept / "file").read_text() == "x"


def test_killing_everything_it_can_reaches_nothing_outside():
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        kill = "try:\n    os.kill({}, 9)\nexcept OSError:\n    pass\n"
        ending = run(f"import os\n{kill.format('os.getppid()')}{kill.format(-1)}print('alive')")
        assert (ending.reason, ending.code, ending.stdout) == ("exit", 0, b"alive\n")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_program_may_use_threads_and_installed_packages():
    assert run("import threading\nt = threading.Thread(target=print, args=(5,))\nt.start()\nt.join()").stdout == b"5\n"
    assert run("import numpy\nprint(numpy.arange(3).sum())").stdout == b"3\n"


def test_stopping_from_another_thread():
    stop = Stop()
    timer = threading.Timer(0.3, stop.end)
    timer.start()
    begun = time.monotonic()
    [ending] = run_sandboxed([Job("p.py", {"p.py": "while True: pass"}, Limits(seconds=20))], stop=stop)
    assert ending.reason == "cancelled"
    assert time.monotonic() - begun < 5
    [ending] = run_sandboxed([Job("p.py", {"p.py": "while True: pass"}, Limits(seconds=20))], stop=stop)
    assert ending.reason == "cancelled"


def test_when_this_process_dies_its_sandboxes_die():
    source = "from marft.grading.sandbox import *\n"
    source += "job = Job('p.py', {'p.py': 'while True: pass'}, Limits(seconds=60))\n"
    source += "run_sandboxed([job])"
    victim = subprocess.Popen([sys.executable, "-c", source])
    deadline = time.monotonic() + 20
    while len(started := family(victim.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    victim.kill()
    victim.wait()
    while (left := started & {pid for pid, _, _ in processes()}) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(started) == 3  # launcher, keeper, program
    assert not left


def test_what_is_missing_is_named_and_only_limits_only_goes_on(monkeypatch):
    lacking = Isolation({"pid": "", "mount": "Operation not permitted", "net": "no such thing", "ipc": ""})
    monkeypatch.setattr(walls_module, "isolation", lambda: lacking)
    with pytest.raises(MarftError, match=r"mount namespace\): Operation not permitted; no network .*: no such thing"):
        check_walls("auto")
    check_walls("limits-only")


def test_this_system_s_walls_were_tried_one_by_one():
    assert set(isolation().parts) == {"pid", "mount", "net", "ipc", "calls", "processes"}
    assert isolation().missing == ()


def test_a_sandbox_that_cannot_start_is_a_failed_grader(monkeypatch):
    monkeypatch.setattr(sandbox, "_interpreter", lambda: "/no/such/python")
    with pytest.raises(GraderFailed, match="cannot be started"):
        run("print(1)")
    monkeypatch.undo()
    monkeypatch.setattr(sandbox, "LAUNCHER", "import no_such_module")
    with pytest.raises(GraderFailed, match=r"without a report: .*no_such_module"):
        run("print(1)")
