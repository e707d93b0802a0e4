"""The tools a config's `tools` may hold, by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from marft.section import Positive, Rate, Section


class CalculatorConfig(Section):
    """Exact arithmetic on one expression."""

    kind: Literal["calculator"] = Field("calculator", description="which tool this is")


class PythonConfig(Section):
    """Python programs in the sandbox of the code graders; every call starts afresh."""

    kind: Literal["python"] = Field("python", description="which tool this is")
    seconds: Rate = Field(5.0, description="how long a program may run")
    memory_mb: Positive = Field(512, description="MiB that a program may use")
    sandbox: Literal["auto", "limits-only"] = Field(
        "auto", description="limits-only: run even where the system allows no network and file isolation"
    )


class SearchConfig(Section):
    """Search by words in local documents, best passages first."""

    kind: Literal["search"] = Field("search", description="which tool this is")
    path: str = Field(description="a folder of .txt and .md files, or a JSONL file whose lines hold `id` and `text`")
    results: Positive = Field(3, description="how many passages a search gives")
    description: str = Field("Searches a collection of documents.", description="what the model reads about it")


class McpConfig(Section):
    """The tools of an MCP server, under their own names: a program (`command`), or a `url` (streamable HTTP)."""

    kind: Literal["mcp"] = Field("mcp", description="which tool this is")
    command: str | None = Field(None, description="the program that serves the tools")
    args: list[str] = Field(default_factory=list, description="its arguments")
    env: dict[str, str] = Field(
        default_factory=dict, description="the program's environment variables; $NAME in a value is filled in"
    )
    url: str | None = Field(None, description="of a server that runs already (streamable HTTP)")
    tools: list[str] | None = Field(None, description="which of its tools to take; default: all")
    seconds: Rate = Field(30.0, description="how long the start, and each call, may take")

    @model_validator(mode="after")
    def _names_one_server(self) -> McpConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either `command` (a program) or `url` (a server that runs already)")
        if self.url is not None and (self.args or self.env):
            raise ValueError("`args` and `env` go with `command`, not with `url`")
        return self


ToolConfig = Annotated[CalculatorConfig | PythonConfig | SearchConfig | McpConfig, Field(discriminator="kind")]
