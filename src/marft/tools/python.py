"""Python: runs a program in the sandbox of the code graders. Every call starts afresh, with nothing of the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.grading.code_runner import CodeRunner, Execution
from marft.grading.sandbox import Limits
from marft.tools.base import LIMIT, ToolSpec, cut
from marft.tools.config import PythonConfig

SHOWN_ERROR = 1000  # characters of a traceback, its end first
PATIENCE = 600.0  # seconds: programs wait for a free processor, and the sandbox has a deadline of its own


class Python:
    """The tool `python` of one argument, `code`; what the program prints is the result."""

    def __init__(self, config: PythonConfig, name: str = "python") -> None:
        """Raises `MarftError` when this system cannot make the sandbox that the config asks for."""
        self.runner = CodeRunner(Limits(seconds=config.seconds, memory_mb=config.memory_mb), config.sandbox)
        self.spec = ToolSpec(
            name,
            "Runs a Python program from a clean start and returns what it prints. It has no network and no files.",
            {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
            PATIENCE,
        )

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """What was printed, and why the program stopped where it did not end well."""
        return _told(await self.runner.execute(arguments["code"]), self.runner.limits)


def _told(run: Execution, limits: Limits) -> str:
    printed = cut(run.stdout.rstrip(), LIMIT - 2 * SHOWN_ERROR)
    stopped = {
        "timeout": f"stopped after {limits.seconds:g} seconds",
        "memory": f"stopped: it used more than {limits.memory_mb} MB",
        "processes": "stopped: it started too many processes",
        "output": f"stopped: it printed more than {limits.output_mb} MB",
        "cancelled": "stopped",
    }.get(run.reason)
    error = f"error: {stopped}" if stopped else f"error:\n{run.stderr.strip()[-SHOWN_ERROR:]}" if run.code else ""
    return "\n".join(each for each in (printed, error) if each) or "(nothing was printed)"
