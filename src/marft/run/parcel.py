"""What goes to a hub of a run, and what of a run from a hub is not trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, assert_never
from urllib.parse import urlsplit

import yaml

from marft.config import Config, FunctionConfig, load_config
from marft.models.base import BUILT_IN
from marft.run import checkpoint
from marft.run.card import Subject, hub_name, team_card
from marft.run.directory import RunDirectory, to_json, write_text
from marft.run.metrics import read_metrics
from marft.run.offline import offline_game
from marft.tools.config import CalculatorConfig, McpConfig, PythonConfig, SearchConfig, ToolConfig
from marft.types import MarftError

TRUST = "MARFT_TRUST_HUB"
ARGUMENTS = "MARFT_PUBLISH_ARGS"
WITHHELD = "the text was not published"

# Words for models: they are read as they stand, whatever they look like. By place, because names are the author's
_WORDS = re.compile(
    r"team\.agents\.\d+\.profile|team\.message|tools\.[^.]+\.description|environment\.(prompt|hint|instruction|question)"
)
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s\"'<>]+")
# A path from the root within a text: after a space, `=`, `:` and the like, or an option of one letter, as in -I/usr
_PATH = re.compile(r"(?:(?<![\w./~])|(?<=^-\w)|(?<=\s-\w))~?/[^\s\"'<>|,;:]*")
_OUR_OWN = ("marft.environments.textarena:turn_order",)  # functions for a config's `team.dependency`
# What built-in environments hand to a hosted model, or run outside of the sandbox
_HOSTED = ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions", "codeio")


def pack(run: RunDirectory, which: str, repository: str, at: Path) -> list[str]:
    """Fill the folder `at` with what others need of checkpoint `which`: a run directory to play, and a model card.

    Config, evaluations, metrics, and of the checkpoint the adapters and the critic; no optimisers, no episodes, and no
    texts of errors. Returns the keys whose paths were cut to the name of the file. Raises `MarftError` when others
    could not load it, and when something in the config may be secret.
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
        write_text(staged.metrics_file, "".join(to_json(row) + "\n" for row in _public_rows(run, config)))
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
        if isinstance(tool, McpConfig):
            _check_server(tool, f"{source}: tools.{key}")
    for key, text in _texts(config.model_dump(mode="json")):
        if not _WORDS.fullmatch(key) and any(_is_private(url) for url in _URL.findall(text)):
            raise MarftError(
                f"{source}: {key}: what stands before '@' and after '?' or '#' in an address may be secret and would "
                "be published; write the address without it"
            )


def _check_server(server: McpConfig, key: str) -> None:
    for variable, value in server.env.items():
        if not _VARIABLE.fullmatch(value):
            raise MarftError(
                f"{key}.env.{variable}: its value would be published; write it as $NAME, to be filled in from the "
                "environment"
            )
    if server.args and os.environ.get(ARGUMENTS) != "1":
        raise MarftError(
            f"{key}.args: the server's arguments would be published; hand it what is secret in `env` as $NAME, and "
            f"when nothing in them is secret, set the environment variable {ARGUMENTS}=1"
        )


def _is_private(url: str) -> bool:
    """Whether an address holds a user, a query or a fragment, where keys stand; one that cannot be read might."""
    try:
        return "@" in urlsplit(url).netloc or "?" in url or "#" in url
    except ValueError:
        return True


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a config, with the dotted keys of their places."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield from _texts(each, f"{key}.{name}" if key else str(name))
    if isinstance(value, str):
        yield key, value


def _without_places(value: Any, key: str, cut: list[str]) -> Any:
    """A config without this machine's paths: of a path from the root that exists here, only the last name is left."""
    if isinstance(value, Mapping):
        return {name: _without_places(each, f"{key}.{name}" if key else str(name), cut) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_places(each, f"{key}.{place}", cut) for place, each in enumerate(value)]
    if not isinstance(value, str):
        return value
    shown = _name_of(value) if "\n" not in value else value  # one path as a whole may hold spaces
    if shown == value and not _WORDS.fullmatch(key):
        shown = _PATH.sub(lambda found: _name_of(found[0]), value)
    if shown != value:
        cut.append(key)
    return shown


def _name_of(text: str) -> str:
    """The last name of a path from the root that exists here, or could be made in a folder here; else the text."""
    if not text.startswith(("/", "~")) or len(text) >= 1024:
        return text
    path = Path(os.path.expanduser(text))  # Path's own raises where there is no such user
    try:
        here = path.exists() or (path.parent.is_dir() and path.parent != Path("/"))
    except OSError:  # a name too long, or a folder that may not be read
        here = False
    return path.name if here and path.is_absolute() and path.name else text


def _public_rows(run: RunDirectory, config: Config) -> Iterator[dict[str, Any]]:
    """The rows of the metrics; of what went wrong, who and how often: a text of an error may hold anything."""
    names = {agent.name for agent in config.team.agents} | {"environment"}
    for row in read_metrics(run.path):
        if failures := row.get("failures"):
            counts: Counter[str] = Counter()
            for reason, count in failures.items():
                who = reason.partition(":")[0]
                counts[f"{who if who in names else 'other'}: {WITHHELD}"] += count
            row["failures"] = dict(counts)
        if diverged := row.get("diverged"):
            row["diverged"] = dict.fromkeys(diverged, WITHHELD)
        yield row


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

    Adapters are tensors and can do nothing; a config may name Python functions, tool servers and endpoints. It is
    judged by its places once it is validated, as it will be built; reading it imports nothing. What cannot be read is
    refused.
    """
    if os.environ.get(TRUST) == "1":
        return
    try:
        config = load_config(run.config_file)
    except Exception as error:  # somebody else's file: whatever it does to the parser
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MarftError(f"{target}: its config cannot be judged, so it is not opened: {reason}") from None
    for key, value in _reaching_out(config):
        raise MarftError(
            f"{target}: its config reaches outside of marft ({key}: {value[:200]!r}); read {run.config_file}, and set "
            f"the environment variable {TRUST}=1 if you trust it"
        )


def _reaching_out(config: Config) -> Iterator[tuple[str, str]]:
    """Keys with code to import, programs to start, addresses to call, and sandboxes that are not whole."""
    team, world = config.team, config.environment
    if ":" in world.name:
        yield "environment.name", world.name
    yield from _in_environment(world.parameters, "environment")
    if config.reward is not None:
        yield "reward", config.reward
    if team.workflow is not None:
        yield "team.workflow", team.workflow
    if isinstance(team.dependency, FunctionConfig) and team.dependency.function not in _OUR_OWN:
        yield "team.dependency.function", team.dependency.function
    for place, agent in enumerate(team.agents):
        if agent.endpoint is not None:
            yield f"team.agents.{place}.endpoint.url", agent.endpoint.url
    for name, tool in config.tools.items():
        yield from _in_tool(tool, f"tools.{name}")


def _in_tool(tool: ToolConfig, key: str) -> Iterator[tuple[str, str]]:
    match tool:
        case CalculatorConfig() | SearchConfig() | PythonConfig(sandbox="auto"):
            return
        case PythonConfig():
            yield f"{key}.sandbox", tool.sandbox
        case McpConfig():
            yield (f"{key}.command", tool.command) if tool.command is not None else (f"{key}.url", str(tool.url))
        case _:
            assert_never(tool)  # a new kind of tool must be judged here


def _in_environment(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """An environment's parameters are its own, and partly handed on to a library; no text but words may hold a colon.

    Every import path and every address has one. Only plain YAML is read: pydantic would make a text of bytes.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _in_environment(name, f"{key}.*")
            yield from _in_environment(each, f"{key}.{name}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _in_environment(each, f"{key}.{place}")
    elif isinstance(value, str):
        last = key.rpartition(".")[2]
        hosted = last in ("game", "dataset") and value.partition("-")[0] in _HOSTED
        if hosted or (last == "sandbox" and value != "auto") or (":" in value and not _WORDS.fullmatch(key)):
            yield key, value
    elif value is not None and not isinstance(value, int | float):
        yield key, repr(value)
