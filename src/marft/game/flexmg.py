"""A flexible Markov game: the agents, who depends on whom, and the world they play in."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from marft.config import (
    AgentConfig,
    Config,
    DebateConfig,
    EdgeConfig,
    FunctionConfig,
    GraphConfig,
    OrchestratorConfig,
    SamplingConfig,
    TeamConfig,
)
from marft.environments import build_environment
from marft.environments.base import Environment
from marft.environments.paid import Paid, RewardFault, own_state
from marft.game.dependency import Dependency, Graph, Static, chain, graph, parallel
from marft.game.organisation import Debate, Orchestrated, Organisation, debate, orchestrated
from marft.game.workflow import Workflow
from marft.imports import import_object
from marft.types import MarftError
from marft.validation import suggestion


@dataclass(frozen=True)
class Agent:
    """One member of the team.

    `profile` is its system prompt (empty: anonymous); without `sees_task` it reads only observations and messages;
    `adapter` names the weights it acts with, which it may share; only a `trainable` agent's actions are learnt from.
    `tools` are names of tools it may call, in up to `tool_calls` replies each time it is asked, before the one that
    others read.
    """

    name: str
    profile: str
    sees_task: bool
    trainable: bool
    adapter: str
    sampling: SamplingConfig
    tools: tuple[str, ...] = ()
    tool_calls: int = 0


@dataclass(frozen=True)
class FlexMG:
    """A team in its world; an episode still running after `turns` turns is truncated.

    `message` is how a reader sees another agent's words. A `workflow` takes the place of D and turns: it calls the
    agents itself, and the world then has its one step.
    Raises `MarftError` for two agents of one name, and for a fixed D that does not fit the team.
    """

    agents: tuple[Agent, ...]
    dependency: Dependency | Organisation
    environment: Environment
    turns: int
    workflow: Workflow | None = None
    message: str = "{name}: {text}"

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise MarftError(f"a team needs agents of different names; it has: {', '.join(self.names) or 'none'}")
        if self.turns < 1:
            raise MarftError(f"a game needs at least 1 turn; it has {self.turns}")
        if isinstance(self.dependency, Static):
            self.dependency.graph.order(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in declared order."""
        return tuple(agent.name for agent in self.agents)

    def agent(self, name: str) -> Agent:
        """The agent of that name; raises `MarftError` when there is none."""
        for agent in self.agents:
            if agent.name == name:
                return agent
        raise MarftError(f"no agent '{name}' in the team{suggestion(name, self.names)}")

    def graph_at(self, state: Any, turn: int) -> Graph:
        """D(state, turn), checked against the team: raises `MarftError` naming the turn when it does not fit."""
        assert not isinstance(self.dependency, Debate | Orchestrated), "an organisation is played by its own rules"
        found: Any = self.dependency(own_state(state), turn)
        if not isinstance(found, Graph):
            raise MarftError(f"turn {turn}: the dependency function gave a {type(found).__name__}, not a Graph")
        try:
            found.order(self.names)
        except MarftError as error:
            raise MarftError(f"turn {turn}: the dependency function's graph does not fit the team: {error}") from None
        return found


def build_game(config: Config, source: str = "config") -> FlexMG:
    """The game a config describes; raises `MarftError` naming `source` and the key."""
    agents = tuple(_build_agent(agent, config) for agent in config.team.agents)
    dependency = _build_dependency(config.team, source)
    environment = paid_by(config.reward, build_environment(config.environment, source), source)
    attempts = getattr(environment, "attempts", 1)
    if attempts > config.team.turns:  # the last attempt, which pays, would never be made
        raise MarftError(
            f"{source}: team.turns: environment.attempts {attempts} needs as many turns; set turns to {attempts}"
        )
    workflow = _import_function(config.team.workflow, f"{source}: team.workflow") if config.team.workflow else None
    if workflow is not None and not inspect.iscoroutinefunction(workflow):
        raise MarftError(f"{source}: team.workflow: '{config.team.workflow}' must be an `async def`")
    return FlexMG(agents, dependency, environment, config.team.turns, workflow, config.team.message)


def paid_by(reward: str | None, environment: Environment, source: str) -> Environment:
    """The environment a team plays in: paid by the function at `reward`, if there is one, in place of its own rewards.

    Raises `MarftError` naming `source` and the key.
    """
    if reward is None:
        return environment
    key = f"{source}: reward"
    try:
        return Paid(environment, _import_function(reward, key, "reward function"), reward)
    except RewardFault as error:
        raise MarftError(f"{key}: {error}") from None


def _build_agent(agent: AgentConfig, config: Config) -> Agent:
    return Agent(
        name=agent.name,
        profile=agent.profile,
        sees_task=agent.sees_task,
        trainable=agent.trainable,
        adapter=agent.adapter_name,
        sampling=config.sampling(agent),
        tools=tuple(agent.tools),
        tool_calls=agent.tool_calls if agent.tools else 0,
    )


def _build_dependency(team: TeamConfig, source: str) -> Dependency | Organisation:
    names = tuple(agent.name for agent in team.agents)
    given = team.dependency
    if isinstance(given, FunctionConfig):
        return _import_dependency(given, names, source)
    if isinstance(given, GraphConfig):
        return _build_graph(given, names, source)
    if isinstance(given, DebateConfig | OrchestratorConfig):
        try:
            if isinstance(given, DebateConfig):
                return debate(names, given.debate, given.judge)
            return orchestrated(names, given.orchestrator, given.calls, given.stop, given.unreadable)
        except MarftError as error:
            raise MarftError(f"{source}: team.dependency: {error}") from None
    return chain(names) if given == "chain" else parallel()


def _build_graph(given: GraphConfig, names: tuple[str, ...], source: str) -> Static:
    conditional = [each for each in given.edges if isinstance(each, EdgeConfig)]
    edges = [(each.speaker, each.reader) if isinstance(each, EdgeConfig) else each for each in given.edges]
    conditions = [(each.speaker, each.reader, each.when) for each in conditional]
    _check(graph(edges), names, f"{source}: team.dependency.edges")
    _check(graph((), given.recall), names, f"{source}: team.dependency.recall")
    return graph(edges, given.recall, conditions)


def _import_function(path: str, key: str, kind: str = "function") -> Any:
    try:
        found = import_object(path, kind)
    except MarftError as error:
        raise MarftError(f"{key}: {error}") from error.__cause__
    if not callable(found):
        raise MarftError(f"{key}: '{path}' is a {type(found).__name__}, not a {kind}")
    return found


def _import_dependency(given: FunctionConfig, names: tuple[str, ...], source: str) -> Dependency:
    key = f"{source}: team.dependency.function"
    found = _import_function(given.function, key, "dependency function")
    if isinstance(found, Static):
        _check(found, names, key)
    dependency: Dependency = found
    return dependency


def _check(dependency: Static, names: tuple[str, ...], key: str) -> None:
    try:
        dependency.graph.order(names)
    except MarftError as error:
        raise MarftError(f"{key}: {error}") from None
