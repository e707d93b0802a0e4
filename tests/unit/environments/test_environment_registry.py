"""What is built in, import paths, and the sentence for every mistake."""

import subprocess
import sys
import textwrap

import pytest

from marft.config import EnvironmentConfig
from marft.environments import build_environment, known_environments
from marft.types import MarftError


def build(**keys):
    return build_environment(EnvironmentConfig(**keys), "a.yaml")


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(text):
        (tmp_path / "worlds.py").write_text(textwrap.dedent(text))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))

    yield write
    sys.modules.pop("worlds", None)


WORLD = """
from pydantic import BaseModel
class World:
    name = "world"
    def __init__(self, size_of=3): self.size_of = size_of
    def size(self, split): return self.size_of
    def task(self, split, index): ...
    def reset(self, task, agents, seed): ...
    def observe(self, state, agent): ...
    def step(self, state, messages): ...
class Checked(World):
    class Parameters(BaseModel):
        size_of: int = 5
        model_config = {"extra": "forbid"}
class Half:
    name = "half"
    def size(self, split): return None
class Nameless(World):
    name = None
thing = 3
"""


def test_every_built_in_environment_is_described_and_can_be_found():
    known = known_environments()
    assert [each.name for each in known] == [
        "reasoning", "question_answer", "math", "code", "tools", "textarena", "split", "relay", "matrix",
    ]  # fmt: skip
    assert all(each.description and each.needs for each in known)
    assert build(name="relay").name == "relay"


def test_listing_environments_loads_no_heavy_package():
    program = (
        "import sys, marft.game, marft.environments.check\nmarft.environments.known_environments()\n"
        "print([name for name in ('torch', 'numpy', 'reasoning_gym', 'datasets', 'peft') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_a_users_class_by_import_path(module):
    module(WORLD)
    assert build(name="worlds:World").size("train") == 3
    assert build(name="worlds:World", size_of=4).size("train") == 4
    assert build(name="worlds:Checked").size("train") == 5
    assert build(name="worlds:Checked", size_of=6).size("train") == 6


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"name": "relai"}, r"a.yaml: environment.name: no environment 'relai'; did you mean 'relay'\?"),
        (
            {"name": "chess"},
            "no environment 'chess'; known here: reasoning, question_answer, math, code, tools, textarena, split, ",
        ),
        ({"name": "relay", "symbol": []}, r"a.yaml: unknown key 'environment.symbol'; did you mean 'symbols'\?"),
        ({"name": "relay", "symbols": "ab"}, "a.yaml: 'environment.symbols': input should be a valid list"),
        ({"name": "relay", "symbols": ["a", "a "]}, "a.yaml: environment.symbols: must differ"),
        ({"name": "relay", "hint": "no place"}, "a.yaml: environment.hint: must contain {symbol}"),
        ({"name": "worlds:World", "sizeof": 4}, "a.yaml: environment: 'worlds:World' cannot be made with .* 'sizeof'"),
        ({"name": "worlds:Checked", "sizeof": 4}, r"unknown key 'environment.sizeof'; did you mean 'size_of'\?"),
        ({"name": "worlds:Wrld"}, r"a.yaml: environment.name: .*worlds holds no 'Wrld'; did you mean 'World'\?"),
        ({"name": "worlds:Half"}, "'worlds:Half' is not an environment: it has no method `task`"),
        ({"name": "worlds:Nameless"}, "is not an environment: it has no `name`"),
        ({"name": "worlds:thing"}, "'worlds:thing' is a int, not a class"),
        ({"name": "wrlds:World"}, "a.yaml: environment.name: .* there is no module 'wrlds'"),
    ],
)
def test_mistakes_name_the_file_and_the_key(module, keys, says):
    module(WORLD)
    with pytest.raises(MarftError, match=says):
        build(**keys)


def test_a_fault_inside_a_users_class_is_not_hidden(module):
    module("class Broken:\n    def __init__(self): raise TypeError('inside')\n")
    with pytest.raises(TypeError, match="inside"):
        build(name="worlds:Broken")
