"""What the pages on environments and tools say is so, and every key stands in them; tests/docs runs their blocks."""

import asyncio
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from marft.config import AgentConfig, parse_config
from marft.environments import known_environments
from marft.game import build_game
from marft.imports import import_object
from marft.models.tool_format import HERMES
from marft.tools import Call, answer, build_tools, choose_tools
from marft.tools.config import ToolConfig
from marft.validation import validate

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("environments.md", "game.md", "tools.md")
PATHS = {known.name: known.path for known in known_environments()}
TOOL_KINDS = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(ToolConfig)[0])}
SAVED = re.compile(r"^```python\n(# file: (\w+)\.py\n.*?)^```", re.DOTALL | re.MULTILINE)


def text_of(page):
    return (DOCS / page).read_text(encoding="utf8")


def blocks(page, language):
    found = re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    assert found
    return found


def section(page, name):
    """What stands under the heading that begins with `name`, up to the next heading."""
    return re.split(r"^##", text_of(page).split(f"### `{name}`")[1], flags=re.MULTILINE)[0]


def first_column(found):
    """The first cells of the tables, those that hold code."""
    return "\n".join(re.findall(r"^\| (`[^|]*)\|", found, re.MULTILINE))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to start from, in which the modules lie that the pages say are saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    saved = [found for page in PAGES for found in SAVED.findall(text_of(page))]
    for block, module in saved:
        (tmp_path / f"{module}.py").write_text(block)
    yield tmp_path
    for _, module in saved:
        sys.modules.pop(module, None)


def test_writing_your_own_takes_about_thirty_lines():
    [block] = [each for each in blocks("environments.md", "python") if "@dataclass" in each]
    body = block[block.index("@dataclass") :]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 30


@pytest.mark.parametrize("name", PATHS)
def test_every_key_of_an_environment_is_documented(name):
    found = section("environments.md", name)
    # Where there is a table, a key's place is its first column; `relay` and `matrix` have so few that they need none
    place = first_column(found) or found
    for key in import_object(PATHS[name], "environment").Parameters.model_fields:
        assert f"`{key}`" in place or f"  {key}:" in place


@pytest.mark.parametrize("kind", TOOL_KINDS)
def test_every_key_of_a_tool_is_documented(kind):
    place = first_column(section("tools.md", kind))
    for key in TOOL_KINDS[kind].model_fields:
        assert f"`{key}`" in place
    for key in AgentConfig.model_fields:
        assert not key.startswith("tool") or f"| `{key}` |" in text_of("tools.md")


@pytest.mark.parametrize(("page", "names"), [("environments.md", PATHS), ("tools.md", TOOL_KINDS)])
def test_there_are_no_sections_of_what_is_not_there(page, names):
    assert sorted(re.findall(r"^### `(\w+)`", text_of(page), re.MULTILINE)) == sorted(names)


def test_the_fall_back_is_quoted_as_the_model_reads_it():
    [quoted] = blocks("tools.md", "text")
    before, _, after = quoted.partition("<tools>\n")
    told_before, _, told_after = f"{HERMES.describe([])}\n".partition("<tools>\n")
    assert before == told_before
    assert after.partition("</tools>")[2] == told_after.partition("</tools>")[2]


def test_the_server_answers_the_call(folder):
    [raw] = [found["tools"] for found in map(yaml.safe_load, blocks("tools.md", "yaml")) if "tools" in found]
    server = validate(TOOL_KINDS["mcp"], {**raw["dates"], "command": sys.executable}, "tools.md")
    built = build_tools({"dates": server})
    call = Call("days_between", {"first": "2024-02-28", "second": "2024-03-01"})
    try:
        assert asyncio.run(answer(choose_tools(["dates"], built, "key"), call)) == "2"
    finally:
        built["dates"][0].server.close()


def test_what_the_split_section_says_of_chance(folder):
    [raw] = [
        found
        for found in map(yaml.safe_load, blocks("environments.md", "yaml"))
        if found.get("environment", {}).get("name") == "split"
    ]
    world = build_game(parse_config(raw)).environment
    assert "1 with both edges, 1/3 without bob's, 1/6 with none" in section("environments.md", "split")
    assert [world.chance(), world.chance([1]), world.chance([0, 1])] == [1, 1 / 3, 1 / 6]
