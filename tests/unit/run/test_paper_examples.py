"""The full-size configs: each is accepted without weights or data, with every team that its header names."""

import itertools
import re
from pathlib import Path

import pytest

from marft.config import load_config
from marft.plan import Assumptions, forecast, machine_of
from marft.presets import preset_team
from marft.run.preflight import check_offline

FOLDER = Path(__file__).parents[3] / "examples" / "paper"
PAPER = sorted(FOLDER.glob("*.yaml"))
TEAMS = [f"team.preset={name}" for name in ("duo", "trio", "quad")]
TESTS = {
    "math": ["aime24", "math500", "amc23", "olympiad", "minerva"],
    "code": ["livecodebench", "codeforces", "humanevalplus"],
}


def header(path):
    return path.read_text(encoding="utf8").partition("\nname:")[0]


def combinations():
    return list(itertools.product(PAPER, TEAMS, ("false", "true")))


def test_two_sizes_of_both_kinds():
    assert [path.stem for path in PAPER] == ["code-3b", "code-7b", "math-3b", "math-7b"]
    names = {path.stem: load_config(path) for path in PAPER}
    assert {stem: (each.model.name, each.environment.parameters["benchmark"]) for stem, each in names.items()} == {
        f"{kind}-{size}b": (f"Qwen/Qwen2.5-{size}B-Instruct", benchmark)
        for kind, benchmark in (("math", "deepscaler"), ("code", "deepcoder"))
        for size in (3, 7)
    }


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_header_names_the_command_the_teams_and_the_tests(path):
    lines = header(path).splitlines()
    assert lines[0] == f"# marft train examples/paper/{path.stem}.yaml"
    assert load_config(path).name == path.stem
    assert re.findall(r"--on (\w+)", header(path)) == TESTS[path.stem.partition("-")[0]]
    assert "$(cat examples/paper/twin.txt)" in header(path)


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_overrides_of_the_header_make_the_larger_teams(path):
    """Theirs is a budget for the whole team, 1/n for each of n agents: so is ours."""
    one = load_config(path)
    found = {2: one.rollout.sampling.max_tokens}
    for line in re.findall(r"(team\.preset=\S+ rollout\.\S+)", header(path)):
        config = load_config(path, line.split())
        found[len(config.team.agents)] = config.rollout.sampling.max_tokens
    assert sorted(found) == [2, 3, 4]
    assert len({count * tokens for count, tokens in found.items()}) == 1


@pytest.mark.parametrize(
    ("path", "team", "anonymous"), combinations(), ids=lambda each: each.stem if isinstance(each, Path) else each
)
def test_each_is_accepted_without_weights_and_data(path, team, anonymous):
    config = load_config(path, [team, f"team.anonymous={anonymous}"])
    game, left_out = check_offline(config, str(path))
    ready = preset_team(team.partition("=")[2], anonymous == "true")["agents"]
    assert game.names == tuple(each["name"] for each in ready)
    assert all(bool(agent.profile) == (anonymous == "false") for agent in game.agents)
    assert [note.partition(":")[0] for note in left_out] == [
        "no weights were loaded",
        f"the benchmark '{config.environment.parameters['benchmark']}' was not fetched",
    ]


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_each_fits_the_gpu_that_its_header_plans_for(path):
    """With any of its teams, at the longest replies and tasks of the authors' filters (1024 and 4096 tokens)."""
    (gpu,) = re.findall(r"--gpu (\S+)", header(path))
    longest = 1024 if path.stem.startswith("math") else 4096
    for keys in ([], *(line.split() for line in re.findall(r"(team\.preset=\S+ rollout\.\S+)", header(path)))):
        given = Assumptions(machine_of(gpu), longest_task=longest)
        found = forecast(load_config(path, keys), str(path), given)
        assert max(found.peaks.values()) < found.memory, (keys, found.peaks)
