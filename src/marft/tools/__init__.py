"""Tools that agents call within their turns: a calculator, Python, a document search, the tools of any MCP server.

Nothing here imports a tool before it is asked for: some need packages that take a second to load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marft.tools.base import Call, Malformed, Tool, ToolError, ToolSpec, answer
from marft.tools.config import CalculatorConfig, McpConfig, PythonConfig, SearchConfig, ToolConfig
from marft.types import MarftError
from marft.validation import suggestion

__all__ = ["Call", "Malformed", "Tool", "ToolConfig", "ToolError", "ToolSpec", "answer", "build_tools", "choose_tools"]

READY_MADE: Mapping[str, ToolConfig] = {"calculator": CalculatorConfig(), "python": PythonConfig()}


def build_tools(configs: Mapping[str, ToolConfig], source: str = "config") -> dict[str, tuple[Tool, ...]]:
    """What each entry of a config's `tools` stands for: one tool, or several of an MCP server.

    MCP servers are started (this blocks until they have listed their tools) and stop when the process exits.
    Raises `MarftError` naming `source` and the key.
    """
    return {name: _build(name, config, f"{source}: tools.{name}") for name, config in configs.items()}


def choose_tools(names: Sequence[str], built: Mapping[str, tuple[Tool, ...]], key: str) -> dict[str, Tool]:
    """The tools an agent may call, by the names in its calls.

    `built` is what there is besides `READY_MADE`, the environment's own tools included. Raises `MarftError` naming
    `key` for an unknown name, and for two tools of one name.
    """
    chosen: dict[str, Tool] = {}
    for name in names:
        if name not in built and name not in READY_MADE:
            raise MarftError(f"{key}: there is no tool '{name}'{suggestion(name, [*built, *READY_MADE])}")
        for tool in built[name] if name in built else _build(name, READY_MADE[name], key):
            if tool.spec.name in chosen:
                raise MarftError(f"{key}: two tools are called '{tool.spec.name}'; take only one of them")
            chosen[tool.spec.name] = tool
    return chosen


def _build(name: str, config: ToolConfig, key: str) -> tuple[Tool, ...]:
    match config:
        case CalculatorConfig():
            from marft.tools.calculator import Calculator

            return (Calculator(name),)
        case PythonConfig():
            from marft.tools.python import Python

            try:
                return (Python(config, name),)
            except MarftError as error:
                raise MarftError(f"{key}: {error}") from None
        case SearchConfig():
            from marft.tools.search import Search, read_documents

            try:
                return (Search(read_documents(config.path), config.results, name, config.description),)
            except MarftError as error:
                raise MarftError(f"{key}.path: {error}") from None
        case McpConfig():
            from marft.tools.mcp import McpServer

            return McpServer(config, key).tools()
