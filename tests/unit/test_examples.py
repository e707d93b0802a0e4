"""The examples: each loads, and begins with the command that runs it."""

import re
from pathlib import Path

import pytest

from marft.config import load_config

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_says_how_it_is_run(path):
    config = load_config(path)
    first = path.read_text(encoding="utf8").partition("\n")[0]
    assert re.fullmatch(rf"# marft train examples/{path.stem}\.yaml( \S+=\S+)*", first)
    assert config.name == path.stem


def test_the_quickstart_is_among_them():
    assert "quickstart" in [path.stem for path in EXAMPLES]
