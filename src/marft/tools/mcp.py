"""The tools of an MCP server, through the official SDK (the extra `marft[tools]`).

A server outlives every rollout's event loop, so each has a thread with a loop of its own. A server that dies answers
the calls under way with an error, and is started again by the next call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from string import Template
from typing import IO, Any

from marft.tools.base import ToolError, ToolSpec
from marft.tools.config import McpConfig
from marft.types import MarftError
from marft.validation import suggestion

GRACE = 10.0  # seconds for a server to stop; the SDK itself kills it after about 4
PULSE = 5.0  # seconds a server may take to show that it is alive after a call that did not end


@dataclass(frozen=True)
class McpTool:
    """One tool of a server."""

    spec: ToolSpec
    server: McpServer

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The text parts of the result; raises `ToolError` with what the server says went wrong."""
        return await self.server.call(self.spec.name, arguments)


@dataclass(frozen=True)
class Connection:
    """One life of a server: the client once it is up, the task that holds it, and the wish that it ends."""

    client: asyncio.Future[Any]
    task: asyncio.Task[None]
    leave: asyncio.Event


class McpServer:
    """A connection to one server, which other threads and event loops may share. `close` ends it, at exit at last."""

    def __init__(self, config: McpConfig, key: str) -> None:
        try:
            import mcp
        except ImportError:
            raise MarftError(f"{key}: MCP servers need the package `mcp`; install marft[tools]") from None
        self._env = {name: _filled_in(value, f"{key}.env.{name}") for name, value in config.env.items()}
        self._sdk: Any = mcp
        self.config, self.key = config, key
        self._connection: Connection | None = None
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf8", errors="replace")  # noqa: SIM115
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mcp {key}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def tools(self) -> tuple[McpTool, ...]:
        """Start the server and list the tools the config takes; blocks. Raises `MarftError` naming the command."""
        try:
            listed = self._submit(self._list()).result(self.config.seconds + GRACE)
        except Exception as error:
            self.close()
            reason = "no answer within its `seconds`" if isinstance(error, TimeoutError) else describe(error)
            raise MarftError(f"{self.key}: the MCP server {self._name} did not start: {reason}{self._said()}") from None
        names = [each.name for each in listed]
        wanted = names if self.config.tools is None else self.config.tools
        for name in wanted:
            if name not in names:
                self.close()
                raise MarftError(f"{self.key}.tools: {self._name} has no tool '{name}'{suggestion(name, names)}")
        # The server's own deadline fires first; the second one is for a loop that hangs
        return tuple(
            McpTool(ToolSpec(each.name, each.description or "", each.input_schema, self.config.seconds + GRACE), self)
            for each in listed
            if each.name in wanted
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call, from any event loop; cancelling it cancels the request."""
        return await asyncio.wrap_future(self._submit(self._call(name, dict(arguments))))

    def close(self) -> None:
        """Stop the server and its thread; more calls are errors."""
        atexit.unregister(self.close)
        if not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):  # a server that will not stop in order is killed by the SDK
            self._submit(self._stop()).result(GRACE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GRACE)

    @property
    def _name(self) -> str:
        return f"'{self.config.url or ' '.join([str(self.config.command), *self.config.args])}'"

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if not self._thread.is_alive():
            work.close()
            raise ToolError("the tool's server was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _list(self) -> list[Any]:
        client = await asyncio.shield(self._connect().client)
        page = await client.list_tools()
        listed = list(page.tools)
        while page.next_cursor:
            page = await client.list_tools(cursor=page.next_cursor)
            listed += page.tools
        return listed

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        connection = self._connect()
        try:
            client = await asyncio.shield(connection.client)  # others may wait for the same start
            result = await client.call_tool(name, arguments, read_timeout_seconds=self.config.seconds)
        except Exception as error:  # the SDK, its transports and the system each raise their own
            if await _is_alive(connection):
                raise ToolError(f"{name} failed: {describe(error)}") from error
            if self._connection is connection:  # else another call has seen to it already
                await self._stop()
            raise ToolError(f"the server of {name} does not answer ({describe(error)})") from error
        text = "\n".join(_shown(part) for part in result.content)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    def _connect(self) -> Connection:
        """The running server, or one that begins to start."""
        if self._connection is None:
            client: asyncio.Future[Any] = self._loop.create_future()
            leave = asyncio.Event()
            self._connection = Connection(client, self._loop.create_task(self._live(client, leave)), leave)
        return self._connection

    async def _live(self, client: asyncio.Future[Any], leave: asyncio.Event) -> None:
        """One connection from start to end: the SDK's scopes must be left by the task that entered them."""
        try:
            # A server that hangs must not hold its caller: the start has a deadline, and so has every request
            opened = self._sdk.Client(self._transport(), read_timeout_seconds=self.config.seconds)
            async with asyncio.timeout(self.config.seconds) as starting, opened:
                starting.reschedule(None)
                client.set_result(opened)
                await leave.wait()
        except Exception as error:
            if not client.done():
                client.set_exception(error)

    def _transport(self) -> Any:
        if self.config.url is not None:
            return self.config.url
        program = self._sdk.StdioServerParameters(command=self.config.command, args=self.config.args, env=self._env)
        return self._sdk.stdio_client(program, errlog=self._errors)  # its chatter would break the live display

    async def _stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave.set()
            if not connection.client.done():
                connection.task.cancel()
            await asyncio.wait([connection.task])

    def _said(self) -> str:
        """The last line the program wrote to its standard error."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f"; it said: {lines[-1][:300]}" if lines else ""


async def _is_alive(connection: Connection) -> bool:
    if not connection.client.done() or connection.client.exception() is not None:
        return False
    try:
        async with asyncio.timeout(PULSE):
            await connection.client.result().list_tools(cache_mode="bypass")
    except Exception:
        return False
    return True


def describe(error: BaseException) -> str:
    """An exception in one line; of a group of them (anyio raises those) the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__


def _filled_in(value: str, key: str) -> str:
    """The value with every $NAME replaced by that environment variable: secrets stay out of configs."""
    try:
        return Template(value).substitute(os.environ)
    except KeyError as error:
        raise MarftError(f"{key}: the environment variable {error} is not set") from None
    except ValueError:
        raise MarftError(f"{key}: write a dollar sign that names no variable as $$") from None


def _shown(part: Any) -> str:
    """A part of a result as text; what has no text is named."""
    text = getattr(part, "text", None) or getattr(getattr(part, "resource", None), "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"
