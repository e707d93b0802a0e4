"""A team ready to play: the game, the model with its adapters, the critic and the generator, from one config."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from marft.config import Config
from marft.game.flexmg import FlexMG, build_game
from marft.generate.base import Generator
from marft.generate.torch_engine import TorchEngine
from marft.models.base import Base, load_base
from marft.models.critic import ADAPTER as CRITIC
from marft.models.critic import Critic
from marft.models.policy import Policy
from marft.rollout import Stage
from marft.types import MarftError


@dataclass(frozen=True)
class Team:
    """Everything a config describes, built; `critic` is None when the config asks for none."""

    config: Config
    game: FlexMG
    base: Base
    policy: Policy
    critic: Critic | None
    generator: Generator

    @property
    def stage(self) -> Stage:
        """The rules under which this team's episodes are played."""
        play = self.config.rollout
        return Stage(self.game, self.base.chat, self.generator, self.base.context, play.context_policy, play.deadline)

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the agents that learn, as declared."""
        return tuple(agent.name for agent in self.game.agents if agent.trainable)


def build_team(config: Config, source: str = "config", base: Base | None = None) -> Team:
    """Build a team; `base` is a model that is already loaded. Raises `MarftError` naming `source` and the key."""
    if config.threads:
        torch.set_num_threads(config.threads)
    game = build_game(config, source)
    try:
        base = base or load_base(config.model, config.device)
        adapters = dict.fromkeys(agent.adapter for agent in game.agents)
        if config.critic.kind == "shared":
            adapters[CRITIC] = None
        policy = Policy(base, config.lora, list(adapters), config.seed)
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from error.__cause__
    critic = Critic(policy) if config.critic.kind == "shared" else None
    return Team(config, game, base, policy, critic, TorchEngine(policy, config.rollout.slots))
