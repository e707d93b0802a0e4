"""What goes to a hub of a run, and what of a run from a hub is not trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from marft.config import Config
from marft.models.base import BUILT_IN
from marft.run import checkpoint
from marft.run.card import Subject, hub_name, team_card
from marft.run.directory import RunDirectory, write_text
from marft.run.offline import offline_game
from marft.tools.config import McpConfig
from marft.types import MarftError

TRUST = "MARFT_TRUST_HUB"
TEXTS = ("profile", "message", "prompt", "hint", "description")  # keys of words for models, which may look like code
_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def pack(run: RunDirectory, which: str, repository: str, at: Path) -> list[str]:
    """Fill the folder `at` with what others need of checkpoint `which`: a run directory to play, and a model card.

    Config, evaluations, metrics, and of the checkpoint the adapters and the critic; no optimisers and no episodes.
    Returns the keys whose paths were cut to the name of the file. Raises `MarftError` when others could not load it.
    """
    config = run.config()
    _check_public(config, str(run.config_file))
    source = checkpoint.named(run, which)
    checkpoint.verify(source)
    iteration, staged = int(source.name), RunDirectory(at)
    cut: list[str] = []
    raw = _without_places(config.model_dump(mode="json"), "", cut)
    raw["run"]["folder"] = "runs"
    write_text(staged.config_file, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))
    if run.metrics_file.is_file():
        shutil.copyfile(run.metrics_file, staged.metrics_file)
    if (run.path / "evaluations").is_dir():
        shutil.copytree(run.path / "evaluations", at / "evaluations", ignore=shutil.ignore_patterns(".*"))
    with checkpoint.writing(staged, iteration) as folder:
        _copy_weights(config, source, folder)
    marked = checkpoint.best(run)
    if marked is not None and marked[0] == iteration:
        checkpoint.mark_best(staged, iteration, marked[1])
    subject = Subject(run, config, offline_game(config, str(run.config_file)), iteration)
    write_text(at / "README.md", team_card(subject, repository))
    return [key for key in cut if key != "run.folder"]


def _check_public(config: Config, source: str) -> None:
    """Nobody else has this machine's folders, and what stands in a config goes up with it."""
    for agent in config.team.agents:
        name = config.model_of(agent).name
        if agent.endpoint is None and name not in BUILT_IN and not hub_name(name):
            raise MarftError(
                f"{source}: model.name: '{name}' is a folder of this machine, so others could not load the team; push "
                "the model to the hub first, and train on its name there"
            )
    for key, tool in config.tools.items():
        for variable, value in tool.env.items() if isinstance(tool, McpConfig) else ():
            if not value.startswith("$"):
                raise MarftError(
                    f"{source}: tools.{key}.env.{variable}: its value would be published; write it as $NAME, to be "
                    "filled in from the environment"
                )


def _without_places(value: Any, key: str, cut: list[str]) -> Any:
    """A config without this machine's paths: of a path from the root that exists here, only the last name is left."""
    if isinstance(value, Mapping):
        return {name: _without_places(each, f"{key}.{name}" if key else str(name), cut) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_places(each, f"{key}.{place}", cut) for place, each in enumerate(value)]
    if isinstance(value, str) and value.startswith(("/", "~")) and "\n" not in value:
        path = Path(value).expanduser()
        if len(value) < 1024 and (path.exists() or (path.parent.is_dir() and path.parent != Path("/"))):
            cut.append(key)
            return path.name
    return value


def _copy_weights(config: Config, source: Path, folder: Path) -> None:
    """Adapters and the critic's head; peft's settings name the base model as the hub does, not by a local folder."""
    models = {agent.adapter_name: config.model_of(agent).name for agent in config.team.agents}
    first = config.model_of(config.team.agents[0]).name  # the critic's
    shutil.copytree(source / "adapters", folder / "adapters")
    for file in folder.glob("adapters/*/adapter_config.json"):
        settings = json.loads(file.read_text(encoding="utf8"))
        model = models.get(file.parent.name, first)
        settings["base_model_name_or_path"] = hub_name(model) or model
        write_text(file, json.dumps(settings, indent=2, sort_keys=True) + "\n")
    for file in (*source.glob("*_head.safetensors"), source / "state.json"):
        shutil.copyfile(file, folder / file.name)


def check_trusted(run: RunDirectory, target: str) -> None:
    """Raise `MarftError` when a run from a hub would start programs or send words elsewhere, unless that was allowed.

    Adapters are tensors and can do nothing; a config may name Python functions, tool servers and endpoints.
    """
    if os.environ.get(TRUST) == "1":
        return
    try:
        raw = yaml.safe_load(run.config_file.read_text(encoding="utf8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return  # reading it as a config says what is wrong with it
    for key, value in _reaching_out(raw):
        raise MarftError(
            f"{target}: its config reaches outside of marft ({key}: '{value}'); read {run.config_file}, and set the "
            f"environment variable {TRUST}=1 if you trust it"
        )


def _reaching_out(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys with code to import, programs to start, addresses to call, and sandboxes that are not whole."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        if name in TEXTS:
            continue
        where = f"{key}.{name}" if key else str(name)
        if isinstance(each, str) and (
            name in ("command", "url") or each == "limits-only" or "://" in each or _CODE.fullmatch(each)
        ):
            yield where, each
        yield from _reaching_out(each, where)
