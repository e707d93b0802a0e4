"""The code and the configs in the documentation are run as they stand."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from marft.config import parse_config
from marft.environments import known_environments
from marft.game import build_game
from marft.imports import import_object
from marft.validation import validate

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page, language):
    found = re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found


@pytest.mark.parametrize("page", ["environments.md", "game.md"])
def test_every_python_block_runs(page):
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {"__name__": "example"})


def test_writing_your_own_takes_about_thirty_lines():
    [block] = blocks("environments.md", "python")
    body = block[block.index("@dataclass") : block.index("check_environment(High")]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 30


@pytest.mark.parametrize("page", ["environments.md", "game.md"])
def test_every_config_is_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for block in blocks("environments.md", "python"):
        (tmp_path / "high_low.py").write_text(block)
    paths = {known.name: known.path for known in known_environments()}
    for block in blocks(page, "yaml"):
        raw = yaml.safe_load(block)
        if "team" in raw:
            build_game(parse_config(raw))
        else:
            name = raw["environment"].pop("name")
            validate(import_object(paths[name], "environment").Parameters, raw["environment"], page)
    sys.modules.pop("high_low", None)


@pytest.mark.parametrize("name", ["reasoning", "question_answer", "relay", "matrix"])
def test_every_key_is_documented(name):
    text = (DOCS / "environments.md").read_text()
    section = text.split(f"### `{name}`")[1].split("\n### ")[0]
    path = next(known.path for known in known_environments() if known.name == name)
    for key in import_object(path, "environment").Parameters.model_fields:
        assert f"`{key}`" in section or f"  {key}:" in section
