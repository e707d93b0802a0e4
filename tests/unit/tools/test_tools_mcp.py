"""An MCP server lives across rollouts, says what went wrong, comes back after a crash, and leaves no process."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marft.tools import build_tools, choose_tools
from marft.tools.base import Call, answer
from marft.tools.config import McpConfig
from marft.tools.mcp import McpServer
from marft.types import MarftError

pytest.importorskip("mcp")

SERVER = """
import os, sys, time
from mcp.server.mcpserver import MCPServer

print("chatter", file=sys.stderr)
server = MCPServer("test")

@server.tool()
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b

@server.tool()
def fail() -> str:
    raise ValueError("no such thing")

@server.tool()
def crash() -> str:
    os._exit(3)

@server.tool()
async def slow() -> str:
    import anyio
    await anyio.sleep(60)

@server.tool()
async def hang() -> str:
    time.sleep(60)  # nothing else is answered meanwhile

@server.tool()
def who() -> str:
    return f"{os.getpid()} {os.environ.get('TOKEN')}"

server.run()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("mcp") / "server.py"
    file.write_text(SERVER)
    return str(file)


@pytest.fixture(scope="module")
def tools(script):
    os.environ["MARFT_TEST_TOKEN"] = "secret"
    config = McpConfig(command=sys.executable, args=[script], env={"TOKEN": "$MARFT_TEST_TOKEN"})
    built = build_tools({"server": config})
    yield choose_tools(["server"], built, "key")
    built["server"][0].server.close()


def told(tools, *calls):
    async def all_at_once():
        return await asyncio.gather(*(answer(tools, call) for call in calls))

    return asyncio.run(all_at_once())


def pid_of(tools):
    return int(told(tools, Call("who", {}))[0].split()[0])


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_its_tools_under_their_own_names(tools):
    assert list(tools) == ["add", "fail", "crash", "slow", "hang", "who"]
    assert tools["add"].spec.description == "Adds two numbers."
    assert tools["add"].spec.parameters["required"] == ["a", "b"]


def test_calls_from_one_event_loop_after_another(tools):
    assert told(tools, Call("add", {"a": 1, "b": 2}), Call("add", {"a": 20, "b": 30})) == ["3", "50"]
    assert told(tools, Call("add", {"a": 3, "b": 4})) == ["7"]
    assert pid_of(tools) == pid_of(tools)


def test_variables_are_filled_in(tools):
    assert told(tools, Call("who", {}))[0].split()[1] == "secret"


def test_what_goes_wrong_is_told(tools):
    assert told(tools, Call("add", {"a": 1})) == ["error: add: the argument 'b' is missing"]
    [text] = told(tools, Call("fail", {}))
    assert text.startswith("error: ")
    assert "fail" in text


def test_after_a_crash_the_next_call_finds_a_new_server(tools):
    before = pid_of(tools)
    [text] = told(tools, Call("crash", {}))
    assert text.startswith("error: the server of crash does not answer")
    assert pid_of(tools) != before
    assert not is_running(before)


def test_a_cancelled_call_leaves_the_server_in_order(tools):
    async def cancelled():
        task = asyncio.ensure_future(answer(tools, Call("slow", {})))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = pid_of(tools)
    asyncio.run(cancelled())
    assert pid_of(tools) == before


def servers(script):
    """The processes of this machine that run a server's script."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if script in Path("/proc", name, "cmdline").read_text().split("\0"):
                found.append(int(name))
    return found


def test_a_call_cancelled_while_the_server_starts_again_loses_no_process(tools, script):
    async def cancelled():
        task = asyncio.ensure_future(answer(tools, Call("who", {})))
        await asyncio.sleep(0.05)  # a start takes longer
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    told(tools, Call("crash", {}))
    asyncio.run(cancelled())
    first = pid_of(tools)
    assert pid_of(tools) == first
    assert servers(script) == [first]


def test_a_call_that_takes_too_long_does_not_cost_the_server(script, monkeypatch):
    server = McpServer(McpConfig(command=sys.executable, args=[script], tools=["slow", "who"]), "key")
    tools = {tool.spec.name: tool for tool in server.tools()}
    assert list(tools) == ["slow", "who"]  # `tools` takes some
    before = pid_of(tools)
    with monkeypatch.context() as patched:
        patched.setattr(server, "config", McpConfig(command="x", seconds=0.2))
        [text] = told(tools, Call("slow", {}))
    assert text.startswith("error: slow failed:")
    assert pid_of(tools) == before
    server.close()
    assert not is_running(before)
    assert told(tools, Call("who", {})) == ["error: the tool's server was closed"]


def test_a_server_that_hangs_is_replaced(tools, monkeypatch):
    monkeypatch.setattr("marft.tools.mcp.PULSE", 0.2)
    server = tools["hang"].server
    before = pid_of(tools)
    monkeypatch.setattr(
        server, "config", McpConfig(command=server.config.command, args=server.config.args, seconds=0.3)
    )
    [text] = told(tools, Call("hang", {}))
    assert text.startswith("error: the server of hang does not answer")
    assert not is_running(before)
    monkeypatch.undo()
    assert pid_of(tools) != before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"command": "no-such-program"}, "^c.yaml: tools.x: the MCP server 'no-such-program' did not start: .*No such"),
        ({"command": sys.executable, "args": ["-c", "exit('bad key')"]}, "did not start: .*; it said: bad key"),
        ({"command": "sleep", "args": ["60"], "seconds": 0.3}, "'sleep 60' did not start: no answer within"),
        ({"url": "http://127.0.0.1:9/mcp", "seconds": 5}, "'http://127.0.0.1:9/mcp' did not start: "),
    ],
)
def test_a_server_that_does_not_start(given, says):
    with pytest.raises(MarftError, match=says):
        build_tools({"x": McpConfig(**given)}, "c.yaml")


@pytest.mark.parametrize(
    ("value", "says"),
    [("$MARFT_UNSET", "the environment variable 'MARFT_UNSET' is not set"), ("5$", r"as \$\$")],
)
def test_a_variable_that_cannot_be_filled_in(value, says):
    with pytest.raises(MarftError, match=rf"^c.yaml: tools.x.env.TOKEN: .*{says}"):
        build_tools({"x": McpConfig(command="x", env={"TOKEN": value})}, "c.yaml")


def test_a_tool_it_does_not_have(script):
    config = McpConfig(command=sys.executable, args=[script], tools=["ad"])
    with pytest.raises(MarftError, match=r"tools.x.tools: .* has no tool 'ad'; did you mean 'add'\?"):
        build_tools({"x": config}, "c.yaml")


def test_nothing_runs_on_when_the_process_exits(script):
    program = (
        "import asyncio, sys\n"
        "from marft.tools import build_tools\n"
        "from marft.tools.config import McpConfig\n"
        "built = build_tools({'x': McpConfig(command=sys.executable, args=[sys.argv[1]])})\n"
        "print(asyncio.run(built['x'][-1].call({})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    pid = int(done.stdout.split()[0])
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)
