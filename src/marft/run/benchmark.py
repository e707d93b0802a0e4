"""Benchmarks by name: the held-out tasks of another environment, for a team that was trained on something else."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marft.config import Config, EnvironmentConfig, EvaluationConfig
from marft.environments import build_environment
from marft.environments.base import Environment
from marft.game.flexmg import paid_by
from marft.run.progress import Watcher
from marft.team import Team
from marft.types import MarftError

REASONING = "reasoning:"  # stands before the name of a reasoning-gym set
# Whose message counts is the team's affair, not the tasks'; and which environments let a config say it
TEAM = ("answerer", "decide")
TAKES = {"reasoning": TEAM, "question_answer": TEAM, "math": TEAM, "code": ("answerer",)}
# How a team was taught to answer in an environment of the same kind. Its feedback stays behind: no oracle on a
# benchmark that is not its own world
HABITS = {
    "reasoning": ("answer", "attempts"),
    "question_answer": ("reply",),
    "math": ("instruction", "plain_number", "attempts"),
    "code": ("attempts",),
}


@dataclass(frozen=True)
class Benchmark:
    """What `--on` names, and the local file its tasks are in (None: the environment knows where to find them)."""

    name: str
    path: str | None = None


@dataclass(frozen=True)
class Terms:
    """What is to be played: benchmarks (none: the run's own held-out tasks), and how much of it.

    None means what the run's config says, and for `limit` of a benchmark all of its tasks.
    """

    benchmarks: tuple[Benchmark, ...] = ()
    limit: int | None = None
    samples: int | None = None
    influence: bool | None = None

    def __post_init__(self) -> None:
        for option, number in (("limit", self.limit), ("samples", self.samples)):
            if number is not None and number < 1:
                raise MarftError(f"--{option} {number}: must be at least 1")

    def settings(self, own: EvaluationConfig, environment: Environment) -> EvaluationConfig:
        """A run's own settings with what was asked for; raises `MarftError` when that leaves nothing to play."""
        tasks = self.limit or (environment.size("heldout") if self.benchmarks else None) or own.tasks
        if not tasks:
            raise MarftError("evaluation.tasks is 0, so there is nothing to play; add --limit 32")
        asked = {"tasks": tasks, "samples": self.samples, "influence": self.influence}
        return own.model_copy(update={key: value for key, value in asked.items() if value is not None})


class Worlds:
    """Environments, each loaded once however many teams play in it: it holds no game in itself."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._loaded: dict[str, Environment] = {}

    def environment(self, config: EnvironmentConfig, reward: str | None, source: str) -> Environment:
        """The environment a config describes, paid by `reward` if there is one; raises `MarftError` naming `source`."""
        key = json.dumps(config.model_dump(mode="json"), sort_keys=True)
        if key not in self._loaded:
            self._watcher.phase(f"loading environment {config.name}")
            self._loaded[key] = build_environment(config, source)
        return paid_by(reward, self._loaded[key], source)


def benchmark_names() -> tuple[str, ...]:
    """The benchmarks that have a name of their own; `reasoning:SET` comes on top."""
    return tuple(name for names in _tables().values() for name in names)


def read_benchmarks(names: Sequence[str], paths: Sequence[str]) -> tuple[Benchmark, ...]:
    """What `--on NAME …` and `--path FILE …` say; with several names, a path is `NAME=FILE`.

    Raises `MarftError` for a name that comes twice, and for a path that belongs to no name.
    """
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise MarftError(f"--on {twice[0]}: is named twice")
    files: dict[str, str] = {}
    for path in paths:
        name, sign, file = path.partition("=")
        if not sign or name not in names:
            if not names:
                raise MarftError(f"--path {path}: goes with --on, which says what kind of tasks the file holds")
            if len(names) > 1:
                raise MarftError(f"--path {path}: say which benchmark it is for: --path {names[0]}={path}")
            name, file = names[0], path
        if name in files:
            raise MarftError(f"--path {path}: '{name}' already has the file {files[name]}")
        files[name] = file
    return tuple(Benchmark(name, files.get(name)) for name in names)


def benchmark_environment(benchmark: Benchmark, own: EnvironmentConfig) -> EnvironmentConfig:
    """The environment of a benchmark: `own`, a run's, if that is the same benchmark.

    Raises `MarftError` for an unknown name, and for a file where tasks are made and not read.
    """
    given = _named(benchmark.name)
    if own.name == given.name and given.parameters.items() <= own.parameters.items():
        given = own
    if benchmark.path is None:
        return given
    if given.name == "reasoning":
        raise MarftError(f"--path {benchmark.path}: '{benchmark.name}' makes its tasks and reads no file")
    return EnvironmentConfig(name=given.name, **{**given.parameters, "heldout_path": benchmark.path})


def carried(given: EnvironmentConfig, own: EnvironmentConfig) -> EnvironmentConfig:
    """`given` for the team of `own`: its answerer, and in an environment of the same kind its way to answer.

    What `own` leaves to the default is left to the default.
    """
    keys: tuple[str, ...] = TAKES.get(given.name, ())
    if own.name == given.name:
        keys = TEAM + HABITS.get(given.name, ())
    rest = {key: value for key, value in given.parameters.items() if key not in keys}
    mine = {key: own.parameters[key] for key in keys if own.parameters.get(key) is not None}
    return EnvironmentConfig(name=given.name, **rest, **mine)


def reward_in(environment: EnvironmentConfig, config: Config) -> str | None:
    """The reward function that pays a run's team in an environment: the run's own in its own environment, else none.

    It is the run's own also with a file of other held-out tasks. Elsewhere a function that knows its tasks' data would
    fail, and with it the episode, so there the environment's own rewards count.
    """
    there, own = (
        {key: value for key, value in each.parameters.items() if key != "heldout_path" and value is not None}
        for each in (environment, config.environment)
    )
    return config.reward if environment.name == config.environment.name and there == own else None


def team_in(team: Team, config: EnvironmentConfig, environment: Environment, settings: EvaluationConfig) -> Team:
    """The same team in another world, paid there by `reward_in`, with other settings of its evaluation.

    Tools that its own world brought are the other one's of that name, or gone.
    """
    reward = reward_in(config, team.config)
    changed = team.config.model_copy(update={"environment": config, "reward": reward, "evaluation": settings})
    left, found = (getattr(each, "tools", {}) for each in (team.game.environment, environment))
    seats = {}
    for name, seat in team.seats.items():
        kept = {each: tool for each, tool in seat.tools.items() if each not in left}
        seats[name] = replace(
            seat, tools=kept | {each: found[each] for each in seat.tools if each in left and each in found}
        )
    return replace(team, config=changed, game=replace(team.game, environment=environment), seats=seats)


def teams_on(
    team: Team, terms: Terms, worlds: Worlds, source: str, first: EnvironmentConfig | None = None
) -> dict[str, Team]:
    """The team on each benchmark by name; where none is asked for, under "", on held-out tasks.

    They are the team's own, or those of another run's environment `first`, which also says what that run knows of a
    benchmark. Raises `MarftError` naming `--on` or `source`.
    """
    own = team.config.environment
    if terms.benchmarks:
        configs = {each.name: carried(benchmark_environment(each, first or own), own) for each in terms.benchmarks}
    else:
        configs = {"": own if first is None else carried(first, own)}
    rewards = {name: reward_in(config, team.config) for name, config in configs.items()}
    if terms.benchmarks:
        loaded = {each.name: _load(each, configs[each.name], rewards[each.name], worlds) for each in terms.benchmarks}
    elif first is None:
        loaded = {"": team.game.environment}
    else:
        loaded = {"": worlds.environment(configs[""], rewards[""], source)}
    try:
        settings = {name: terms.settings(team.config.evaluation, each) for name, each in loaded.items()}
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from None
    return {name: team_in(team, configs[name], loaded[name], settings[name]) for name in loaded}


def _load(benchmark: Benchmark, config: EnvironmentConfig, reward: str | None, worlds: Worlds) -> Environment:
    try:
        return worlds.environment(config, reward, f"--on {benchmark.name}")
    except MarftError as error:
        if benchmark.path is not None or config.name == "reasoning":
            raise
        raise MarftError(f"{error}; --path FILE reads the tasks from a local file") from error.__cause__


def _named(name: str) -> EnvironmentConfig:
    if name.startswith(REASONING):
        return EnvironmentConfig(name="reasoning", dataset=name.removeprefix(REASONING))
    for environment, names in _tables().items():
        if name in names:
            return EnvironmentConfig(name=environment, benchmark=name)
    from reasoning_gym.factory import DATASETS

    known = [*benchmark_names(), *(REASONING + each for each in DATASETS)]
    near = [REASONING + name] if name in DATASETS else difflib.get_close_matches(name.casefold(), known, n=1)
    all_of_them = f"known here: {', '.join(benchmark_names())}, and {REASONING}SET for any reasoning-gym set"
    raise MarftError(f"--on {name}: no such benchmark; {f'did you mean {near[0]!r}?' if near else all_of_them}")


def _tables() -> Mapping[str, Sequence[str]]:
    """Environments, with the benchmarks that each knows by name."""
    from marft.environments.code_problems import SOURCES
    from marft.environments.math_benchmarks import BENCHMARKS

    return {"math": tuple(BENCHMARKS), "code": tuple(SOURCES)}
