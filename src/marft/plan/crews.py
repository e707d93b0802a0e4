"""The agents of each base model, and the adapters and critics they need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marft.config import AgentConfig, Config, ModelConfig
from marft.models.catalogue import Architecture, find_architecture
from marft.plan import shapes
from marft.plan.shapes import FLOAT, MOMENTS
from marft.types import MarftError


@dataclass(frozen=True)
class Crew:
    """The agents of one base model.

    `adapter`: parameters of one adapter. `playing`: adapters of agents; `learning`: those of agents that learn, which
    an optimiser moves, as it moves the adapters of the `critics`. `element`: bytes of a number of the base. `low`: the
    ranks of all adapted layers of one decoder layer together.
    """

    model: ModelConfig
    shape: Architecture
    element: int
    agents: tuple[str, ...]
    playing: int
    learning: int
    critics: int
    adapter: int
    low: int

    @property
    def trained(self) -> int:
        """Parameters that an optimiser moves: adapters, and of each critic a head of H + 1."""
        return (self.learning + self.critics) * self.adapter + self.critics * (self.shape.hidden + 1)

    @property
    def whole(self) -> bool:
        """Whether an adapter is a whole set of weights."""
        return self.model.tuning == "full"

    @property
    def weights(self) -> int:
        """Bytes of the frozen base."""
        return shapes.weight_bytes(self.shape, self.element, self.model.quantise == "4bit")

    @property
    def adapters(self) -> int:
        """Bytes of all adapters and heads, float32."""
        heads = self.critics * (self.shape.hidden + 1)
        return FLOAT * ((self.playing + self.critics) * self.adapter + heads)

    @property
    def moments(self) -> int:
        """Bytes of AdamW's two moments."""
        return MOMENTS * FLOAT * self.trained

    @property
    def context(self) -> int:
        """The longest prompt and reply."""
        return self.model.context or self.shape.context

    def as_dict(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "name": self.model.name,
            "agents": list(self.agents),
            "parameters": self.shape.parameters,
            "bytes a number": self.element,
            "adapters": self.playing,
            "critics": self.critics,
            "parameters of an adapter": self.adapter,
            "trained parameters": self.trained,
        }


def crews_of(config: Config, shape_file: str | None = None, cpu: bool = False) -> list[Crew]:
    """The crews of a config, the first the one whose critic reads for everybody. Raises `MarftError` naming the key."""
    models: dict[ModelConfig, list[AgentConfig]] = {}
    for agent in config.team.agents:
        if agent.endpoint is None:
            models.setdefault(config.model_of(agent), []).append(agent)
    return [_crew(config, model, agents, shape_file, cpu) for model, agents in models.items()]


def element_of(model: ModelConfig, cpu: bool) -> int:
    """Bytes of a number: `auto` is bfloat16 on a GPU and float32 on a CPU; whole weights are trained in float32."""
    if model.dtype == "auto":
        return FLOAT if cpu or model.tuning == "full" else 2
    return FLOAT if model.dtype == "float32" else 2


def _crew(config: Config, model: ModelConfig, agents: list[AgentConfig], shape_file: str | None, cpu: bool) -> Crew:
    shape = find_architecture(model.name, shape_file)
    if model.context is not None and model.context > shape.context:
        raise MarftError(
            f"model.context: {model.context} is longer than the {shape.context} tokens {model.name} can read"
        )
    full = model.tuning == "full"
    adapted = {} if full else shapes.adapted(shape, config.lora.targets)
    if not full and not adapted:
        raise MarftError(
            f"lora.targets: {config.lora.targets} do not fit {model.name}, whose linear layers are "
            f"{', '.join(shape.linear)}"
        )
    learning = {agent.adapter_name for agent in agents if agent.trainable}
    kind = config.critic.kind
    critics = 0 if kind == "none" else sum(agent.trainable for agent in agents) if kind == "own" else 1
    return Crew(
        model=model,
        shape=shape,
        element=element_of(model, cpu),
        agents=tuple(agent.name for agent in agents),
        playing=len({agent.adapter_name for agent in agents}),
        learning=len(learning),
        critics=critics,
        adapter=shape.parameters if full else shapes.lora_parameters(shape, config.lora.r, config.lora.targets),
        low=0 if full else config.lora.r * len(adapted),
    )
