"""From what a command names (a run's folder or a config file) to a team that can play."""

from __future__ import annotations

from pathlib import Path

from marft.config import Overrides, load_config
from marft.run import checkpoint, hub
from marft.run.directory import RunDirectory
from marft.run.state import load_weights
from marft.team import Team, build_team
from marft.types import MarftError


def open_team(target: str, name: str | None = None, overrides: Overrides = ()) -> tuple[Team, str]:
    """The team of a run as checkpoint `name` (default: the latest) has it, or an untrained one from a config file.

    A run is named by its folder, or as `hf://user/name[@revision]` when it was pushed. Also
    returns in words what was opened. Raises `MarftError` when there is no such run, checkpoint or config, or the
    checkpoint's adapters do not fit the config with its overrides.
    """
    if not is_run(target):
        if name is not None:
            raise MarftError(f"{target}: is a config file, which has no checkpoints; leave --checkpoint out")
        return build_team(load_config(target, overrides), target), f"{target}, untrained"
    run = open_directory(target)
    config = load_config(run.config_file, overrides)
    folder = checkpoint.named(run, name or "latest")
    team = build_team(config, str(run.config_file))
    load_weights(folder, team)
    team.load(version=int(folder.name))
    return team, f"{target}, checkpoint {folder.name}" if hub.is_remote(target) else str(folder)


def open_directory(target: str | Path) -> RunDirectory:
    """The run in a folder, or the copy of a pushed one; raises `MarftError` when there is none."""
    return RunDirectory.open(hub.local(target))


def is_run(target: str) -> bool:
    """Whether a command names a run, and not a config file."""
    if hub.is_remote(target):
        return True
    path = Path(target)
    return path.is_dir() or (not path.exists() and path.suffix not in (".yaml", ".yml"))
