"""One experiment: every section of the YAML file together."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from marft.config.learning import (
    CreditConfig,
    CriticConfig,
    EvaluationConfig,
    GuardConfig,
    RolloutConfig,
    RunConfig,
    UpdateConfig,
)
from marft.config.players import (
    NAME,
    AgentConfig,
    EnvironmentConfig,
    LoraConfig,
    ModelConfig,
    SamplingConfig,
    TeamConfig,
)
from marft.section import NonNegative, Positive, Section
from marft.tools.config import ToolConfig


class Config(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        "run", description="what the run's folder is called"
    )
    seed: NonNegative = Field(0, description="of adapters, tasks and draws: equal seeds give equal runs")
    device: str = Field("auto", description="auto: CUDA where there is one, else the CPU")
    threads: Positive | None = Field(None, description="CPU threads; default: torch's own choice")
    iterations: NonNegative = Field(20, description="how often the team plays and learns")
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    team: TeamConfig
    environment: EnvironmentConfig
    reward: str | None = Field(
        None, description="module:function that pays instead of the environment: reward(task, messages, outcome)"
    )
    tools: dict[Annotated[str, Field(pattern=NAME)], ToolConfig] = Field(
        default_factory=dict, description="tools that agents may name: kind `calculator`, `python`, `search` or `mcp`"
    )
    rollout: RolloutConfig = RolloutConfig()
    credit: CreditConfig = CreditConfig()
    critic: CriticConfig = CriticConfig()
    update: UpdateConfig = UpdateConfig()
    guard: GuardConfig = GuardConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    @field_validator("reward", mode="before")
    @classmethod
    def _is_named(cls, given: Any) -> Any:
        if callable(given):
            raise ValueError(
                "name the function, as in 'my_module:pay' ('__main__:pay' in a notebook): a run records it"
            )
        return given

    @model_validator(mode="after")
    def _parts_agree(self) -> Config:
        if not any(agent.trainable for agent in self.team.agents):
            raise ValueError("team.agents: no agent is trainable; set `trainable: true` on at least one")
        if self.credit.baseline == "critic" and self.critic.kind == "none":
            raise ValueError(
                "credit.baseline: 'critic' needs critic.kind 'shared' or 'own'; or choose 'group', 'running' or 'none'"
            )
        if self.critic.kind != "none" and self.credit.baseline != "critic":
            raise ValueError(
                f"critic.kind: '{self.critic.kind}' goes unused with credit.baseline '{self.credit.baseline}'; set it "
                "to 'none'"
            )
        if self.critic.kind == "own" and self.credit.chain != "agent":
            raise ValueError("critic.kind: 'own' values an agent's own chain; set credit.chain to 'agent'")
        if self.credit.allocation == "own_team" and self.credit.chain != "agent":
            raise ValueError(
                "credit.allocation: 'own_team' pays every agent the team's reward, which one chain through all of them "
                "would count several times; set credit.chain to 'agent'"
            )
        if self.credit.chain == "agent" and self.update.carry == "happo":
            raise ValueError("update.carry: 'happo' belongs to one chain of the team; credit.chain is 'agent'")
        if self.update.carry == "happo" and self.update.schedule == "simultaneous":
            raise ValueError("update.carry: 'happo' corrects for earlier updates; schedule 'simultaneous' has none")
        if self.credit.baseline == "group" and self.rollout.samples < 2:
            raise ValueError("rollout.samples: a group baseline needs at least 2 samples per task")
        if self.rollout.resample and self.rollout.samples < 2:
            raise ValueError("rollout.resample: compares the episodes of a task; set rollout.samples to at least 2")
        if 0 < self.iterations <= self.rollout.staleness:
            raise ValueError(
                f"rollout.staleness: {self.rollout.staleness} iterations behind play, {self.iterations} iterations "
                "learn nothing; set iterations higher"
            )
        if self.evaluation.vote_tokens is not None and self.evaluation.samples < 2:
            raise ValueError("evaluation.vote_tokens: a vote needs samples; set evaluation.samples to at least 2")
        return self

    def sampling(self, agent: AgentConfig) -> SamplingConfig:
        """The agent's own sampling, else the team's."""
        return agent.sampling or self.rollout.sampling

    def model_of(self, agent: AgentConfig) -> ModelConfig:
        """The agent's own base model, else the team's; a bare name takes everything else from the team's."""
        if isinstance(agent.model, str):
            return self.model.model_copy(update={"name": agent.model})
        return agent.model or self.model
