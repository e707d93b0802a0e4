"""A team ready to play: the game, and behind each base model its adapters, its critic and its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from marft.config import Config, ModelConfig
from marft.game.flexmg import Agent, FlexMG, build_game
from marft.generate.base import Generator, Usage
from marft.generate.endpoint import EndpointGenerator
from marft.generate.torch_engine import TorchEngine
from marft.generate.vllm import VllmEngine
from marft.models.base import Base, load_base
from marft.models.critic import Critic
from marft.models.policy import Policy
from marft.rollout import Seat, Stage
from marft.run.answer import Answer
from marft.tools import Tool, build_tools, choose_tools
from marft.types import Action, MarftError, Spelt

UNKNOWN = 2**31  # tokens: a context that only the endpoint knows


@dataclass(frozen=True)
class Backend:
    """One base model of a team: its adapters, the critics that read in its tokens, by the agents whose decisions they
    value (empty: the config asks for none), the engine that generates with it, and the agents whose rows it scores."""

    policy: Policy
    critics: Mapping[str, Critic]
    generator: Generator
    agents: tuple[str, ...]

    @property
    def base(self) -> Base:
        """The base model with its chat format."""
        return self.policy.base

    def __str__(self) -> str:
        """`tiny (float32, cpu, 1 threads)`."""
        dtype = str(self.base.model.dtype).removeprefix("torch.")
        threads = f", {torch.get_num_threads()} threads" if self.base.device.type == "cpu" else ""
        return f"{self.base.name} ({dtype}, {self.base.device.type}{threads})"


@dataclass(frozen=True)
class Team:
    """Everything a config describes, built. Agents of one base model share a backend; an endpoint's agent, whose
    words must be read by some critic, belongs to the first."""

    config: Config
    game: FlexMG
    backends: tuple[Backend, ...]
    seats: Mapping[str, Seat]

    @property
    def stage(self) -> Stage:
        """The rules under which this team's episodes are played."""
        play = self.config.rollout
        return Stage(self.game, self.seats, play.context_policy, play.deadline)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the agents that learn, as declared."""
        return tuple(agent.name for agent in self.game.agents if agent.trainable)

    @property
    def critics(self) -> dict[str, Critic]:
        """The critics by adapter name; empty when the config asks for none."""
        return {critic.name: critic for each in self.backends for critic in each.critics.values()}

    @property
    def usage(self) -> Usage:
        """Totals of all engines."""
        return sum((each.generator.usage for each in self.backends), Usage())

    @property
    def endpoints(self) -> dict[str, str]:
        """The agents that are played elsewhere, each with where."""
        found = {each.name: each.endpoint for each in self.config.team.agents if each.endpoint is not None}
        return {name: f"{endpoint.url} (model {endpoint.model})" for name, endpoint in found.items()}

    def backend(self, agent: str) -> Backend:
        """The backend of an agent."""
        return next(each for each in self.backends if agent in each.agents)

    def policy_of(self, adapter: str) -> Policy:
        """The policy that holds an adapter (an agent's or a critic's)."""
        return next(each.policy for each in self.backends if adapter in each.policy.adapters)

    def spell(self, action: Action) -> Spelt:
        """What the agent read before an action, and what it said token by token."""
        chat = self.seats[action.agent].chat
        return Spelt(chat.show(action.prompt_ids), chat.pieces(action.token_ids))

    def ask(self, question: str, greedy: bool = True, turns: int = 0, number: int = 0) -> Answer:
        """Put a question to the team, as a new episode in which nothing is graded.

        With `greedy=False` replies are drawn as in training; `number` then varies the draws. `turns` 0: the config's
        if agents recall earlier turns, else 1. Raises `MarftError` naming the agent that could not speak.
        """
        from marft.run.play import answer  # it needs this module

        return answer(self, question, number, greedy, turns)

    def load(self, version: int) -> None:
        """Announce to everything that generates that the adapters now hold `version`."""
        for generator in self._generators():
            generator.load(version)

    def rest(self) -> None:
        """Let everything that generates give its memory to the learner."""
        for generator in self._generators():
            generator.rest()

    def _generators(self) -> list[Generator]:
        return list({id(seat.generator): seat.generator for seat in self.seats.values()}.values())


def build_team(config: Config, source: str = "config", base: Base | None = None) -> Team:
    """Build a team; `base` is a model that is already loaded, for agents without a `model` of their own.

    Raises `MarftError` naming `source` and the key.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    game = build_game(config, source)
    try:
        backends = _backends(config, game, base)
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from error.__cause__
    return Team(config, game, backends, _seats(config, game, backends, source))


def _backends(config: Config, game: FlexMG, base: Base | None) -> tuple[Backend, ...]:
    models: dict[ModelConfig, list[Agent]] = {}
    elsewhere = []
    for given, agent in zip(config.team.agents, game.agents, strict=True):
        if given.endpoint is not None:
            elsewhere.append(agent)
        else:
            models.setdefault(config.model_of(given), []).append(agent)
    backends = []
    for number, (model, agents) in enumerate(models.items()):
        try:
            loaded = base if base is not None and model == config.model else load_base(model, config.device)
        except MarftError as error:
            owner = "" if model == config.model else f"team.agents.{agents[0].name}: "
            raise MarftError(f"{owner}{error}") from error.__cause__
        members = [*agents, *(elsewhere if number == 0 else [])]
        valued = _critic_names(config, members, number)
        adapters = dict.fromkeys([*(agent.adapter for agent in agents), *valued.values()])
        policy = Policy(loaded, config.lora, list(adapters), config.seed, model.tuning)
        critics = {name: Critic(policy, name) for name in dict.fromkeys(valued.values())}
        backends.append(
            Backend(
                policy,
                {agent: critics[name] for agent, name in valued.items()},
                _engine(config, policy, loaded),
                tuple(agent.name for agent in members),
            )
        )
    return tuple(backends)


def _critic_names(config: Config, agents: Sequence[Agent], number: int) -> dict[str, str]:
    """Agent -> name of the critic that values its decisions, for the agents of base model `number`."""
    if config.critic.kind == "none":
        return {}
    if config.critic.kind == "own":  # nobody learns from what would be said of the others
        return {agent.name: f"critic-{agent.name}" for agent in agents if agent.trainable}
    return {agent.name: "critic" if number == 0 else f"critic-{number + 1}" for agent in agents}


def _engine(config: Config, policy: Policy, base: Base) -> Generator:
    """What generates with a policy; `base` is its model as loaded, before the adapters."""
    play = config.rollout
    if play.engine == "vllm":
        return VllmEngine(policy, base, play.slots, play.vllm)
    return TorchEngine(policy, play.slots, play.prefix_tokens)


def _seats(config: Config, game: FlexMG, backends: tuple[Backend, ...], source: str) -> dict[str, Seat]:
    theirs: Mapping[str, Tool] = getattr(game.environment, "tools", {})
    for name in theirs.keys() & config.tools.keys():
        raise MarftError(f"{source}: tools.{name}: the environment brings a tool of that name; call yours otherwise")
    named = {tool for agent in game.agents for tool in agent.tools}  # building starts servers: only what is used
    wanted = {name: each for name, each in config.tools.items() if name in named}
    built = {**build_tools(wanted, source), **{name: (tool,) for name, tool in theirs.items()}}
    seats = {}
    for given, agent in zip(config.team.agents, game.agents, strict=True):
        backend = next(each for each in backends if agent.name in each.agents)
        chat, context = backend.base.chat, backend.base.context
        tools = choose_tools(agent.tools, built, f"{source}: team.agents.{agent.name}.tools")
        reply = agent.sampling.max_tokens
        if given.endpoint is None:
            seats[agent.name] = Seat(chat, backend.generator, context, max(1, context - reply), tools)
        else:  # its own limits are not known here; the critic of the first model reads what it says
            reply = min(reply, context // 2)
            try:
                partner = EndpointGenerator(given.endpoint, chat, reply)
            except MarftError as error:
                raise MarftError(f"{source}: team.agents.{agent.name}: {error}") from None
            seats[agent.name] = Seat(chat, partner, UNKNOWN, context - reply, tools)
    return seats
