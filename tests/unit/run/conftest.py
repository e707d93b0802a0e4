"""A small valid config and a run made from it."""

import pytest

from marft.config import parse_config
from marft.run.directory import RunDirectory


@pytest.fixture
def config(tmp_path):
    return parse_config(
        {
            "name": "duo",
            "team": {"agents": [{"name": "planner"}, {"name": "solver"}]},
            "environment": {"name": "reasoning", "dataset": "chain_sum"},
            "run": {"folder": str(tmp_path / "runs")},
        }
    )


@pytest.fixture
def run(config, tmp_path):
    return RunDirectory.create(config, tmp_path / "run")
