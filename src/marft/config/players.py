"""Who plays: models, agents, their organisation, and the world they play in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from marft.section import NonNegative, Positive, Rate, Section

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class ModelConfig(Section):
    """A base model; agents that name the same one share it."""

    name: str = Field("smollm2-135m-instruct", description="a name from `marft models`, a local folder, or a hub id")
    dtype: Literal["auto", "native", "float32", "bfloat16"] = Field(
        "auto",
        description="dtype of the frozen base. auto: bfloat16 on CUDA, float32 on the CPU (exact and reproducible); "
        "native: bfloat16 wherever the processor multiplies faster in it",
    )
    context: Positive | None = Field(None, description="longest prompt + reply in tokens; default: the model's own")
    seed: NonNegative = Field(0, description="seed of a built-in random model's weights")
    tuning: Literal["lora", "full"] = Field(
        "lora", description="lora: the base stays frozen under adapters; full: each adapter is a whole set of weights"
    )
    quantise: Literal["none", "4bit"] = Field("none", description="4bit: a frozen NF4 base (needs marft[quantised])")

    @model_validator(mode="after")
    def _full_needs_whole_weights(self) -> ModelConfig:
        if self.tuning == "full" and self.quantise != "none":
            raise ValueError("quantise: rounded weights cannot be trained; use tuning 'lora', or quantise 'none'")
        return self


class LoraConfig(Section):
    """The adapters (one per agent unless agents share an `adapter`), always float32."""

    r: Positive = Field(16, description="rank")
    alpha: Rate = Field(32.0, description="the adapter's product is scaled by alpha / r")
    targets: Literal["all-linear"] | list[str] = Field(
        "all-linear",
        description="which layers carry an adapter: all linear ones of the blocks, or names such as q_proj",
    )


class SamplingConfig(Section):
    """How replies are drawn in training. top-k/top-p change the sampled distribution but not the scored one."""

    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="divides the logits, in play and in learning")
    top_k: Positive | None = Field(None, description="off by default: the ratio would be against another distribution")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="off by default, as top_k")
    max_tokens: Positive = Field(64, description="longest reply, in tokens, the end-of-turn token included")


class EndpointConfig(Section):
    """An OpenAI-compatible chat endpoint that plays an agent; it is never trained."""

    url: str = Field(description="the base address, to which /chat/completions is added")
    model: str = Field(description="the model's name there")
    key_env: str | None = Field(None, description="the environment variable that holds the key")
    timeout: Rate = Field(60.0, description="seconds for one answer")
    retries: NonNegative = Field(3, description="further tries after a failed connection, a 429 or a 5xx")
    concurrency: Positive = Field(8, description="requests under way at the same time")


class AgentConfig(Section):
    """One member of the team."""

    name: Annotated[str, Field(pattern=NAME, description="how others and all records call it")]
    profile: str = Field("", description="the system prompt; empty: an anonymous agent")
    sees_task: bool = Field(True, description="whether it reads the task itself, or only what others say")
    trainable: bool = Field(True, description="false: it plays, and its adapter stays as it is")
    adapter: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="adapter name; agents that name the same one share it"
    )
    sampling: SamplingConfig | None = Field(None, description="overrides rollout.sampling for this agent")
    model: ModelConfig | str | None = Field(
        None, description="its own base model: a section, or just a name (the rest as in `model`)"
    )
    endpoint: EndpointConfig | None = Field(None, description="a model elsewhere that plays this agent, untrained")
    tools: list[str] = Field(default_factory=list, description="names from `tools`, or `calculator`, `python`")
    tool_calls: NonNegative = Field(
        4, description="replies that may call tools each time it is asked; the next one is final"
    )

    @model_validator(mode="before")
    @classmethod
    def _an_endpoint_is_not_trained(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("endpoint") is not None:
            return {"trainable": False, **given}
        return given

    @model_validator(mode="after")
    def _is_one_thing(self) -> AgentConfig:
        if self.endpoint is not None and self.trainable:
            raise ValueError(f"agent '{self.name}' is an endpoint, which cannot be trained; leave `trainable` out")
        if self.endpoint is not None and (self.model is not None or self.adapter is not None):
            raise ValueError(f"agent '{self.name}' is an endpoint; it has no `model` and no `adapter` here")
        if self.endpoint is not None and self.tools:
            raise ValueError(f"agent '{self.name}' is an endpoint, whose form of calling tools is not known here")
        return self

    @property
    def adapter_name(self) -> str:
        """The adapter the agent acts with: its own unless it names one."""
        return self.adapter or self.name


class EdgeConfig(Section):
    """A conditional edge: it holds in turns in which the speaker's message matches `when` (a regular expression)."""

    speaker: str = Field(description="who speaks")
    reader: str = Field(description="who reads it")
    when: str = Field(description="searched for in the message, without regard to case")

    @model_validator(mode="after")
    def _is_a_pattern(self) -> EdgeConfig:
        try:
            re.compile(self.when)
        except re.error as error:
            raise ValueError(f"when: {self.when!r} is not a regular expression: {error}") from None
        return self


class GraphConfig(Section):
    """D as data: `edges` (speaker, reader) within a turn, `recall` (speaker, reader) from the previous turn."""

    edges: list[tuple[str, str] | EdgeConfig] = Field(
        default_factory=list,
        description="[speaker, reader] pairs, or conditional edges; the reader acts after the speaker",
    )
    recall: list[tuple[str, str]] = Field(
        default_factory=list, description="[speaker, reader] pairs: what the reader sees of the turn before"
    )


class DebateConfig(Section):
    """Each turn all debaters answer at once, then `rounds` - 1 times again, each having read the others."""

    debate: Annotated[int, Field(ge=1, description="rounds")]
    judge: str | None = Field(None, description="the agent that reads the last round and speaks the team's word")


class OrchestratorConfig(Section):
    """Each turn one agent says, again and again, who speaks next, until it says `stop` or `calls` are used up."""

    orchestrator: str = Field(description="the agent that chooses")
    calls: Positive = Field(4, description="agents it may call in a turn")
    stop: str = Field("stop", description="the word that ends the turn")
    unreadable: Literal["stop", "first", "fail"] = Field(
        "stop", description="what a reply that names nobody means: the end, a call of the first agent, a failed episode"
    )


class FunctionConfig(Section):
    """D as code: an import path `module:function` of a callable (state, turn) -> Graph."""

    function: str = Field(description="the import path, such as my_team:who_sees_whom")


class TeamConfig(Section):
    """Flex-MG: who plays, who sees whom, for how many turns."""

    agents: Annotated[list[AgentConfig], Field(min_length=1, description="in the order in which they act in a chain")]
    dependency: Literal["chain", "parallel"] | GraphConfig | FunctionConfig | DebateConfig | OrchestratorConfig = Field(
        "chain", description="D: who sees whose message; chain: all that spoke earlier in the turn, parallel: nobody"
    )
    turns: Positive = Field(1, description="the horizon; an episode still running after it is truncated")
    message: str = Field("{name}: {text}", description="how an agent reads another's words; must hold {text}")
    workflow: str | None = Field(
        None, description="import path of an `async def team(task, agents)` that calls the agents itself, instead of D"
    )

    @model_validator(mode="after")
    def _agents_agree(self) -> TeamConfig:
        names = [agent.name for agent in self.agents]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two agents are called '{repeated[0]}'; give each its own name")
        if "environment" in names or "critic" in names:
            raise ValueError("'environment' and 'critic' are reserved names; call the agent something else")
        if "{text}" not in self.message:
            raise ValueError("message: must hold {text}, the place of what was said")
        learnt = {agent.adapter_name: agent.name for agent in self.agents if agent.trainable}
        for agent in self.agents:
            if not agent.trainable and agent.adapter_name in learnt:
                raise ValueError(
                    f"agent '{agent.name}' is not trainable, but shares adapter '{agent.adapter_name}' with "
                    f"'{learnt[agent.adapter_name]}', which is; give it an adapter of its own"
                )
        if self.workflow is not None and (self.dependency, self.turns) != ("chain", 1):
            raise ValueError("workflow: a function that calls the agents itself needs no 'dependency' and no 'turns'")
        for agent in self.agents:
            adapter = agent.adapter_name
            if adapter == "critic" or adapter.startswith("critic-"):
                raise ValueError(f"the adapter '{adapter}' is a critic's own; call the agents' something else")
            first = next(each for each in self.agents if each.adapter_name == adapter)
            if first.model != agent.model and first.endpoint is None and agent.endpoint is None:
                raise ValueError(
                    f"agents '{first.name}' and '{agent.name}' share the adapter '{adapter}' but not the model"
                )
        return self


class EnvironmentConfig(BaseModel):
    """`name` (from `marft environments`, or `module:Class`) and that environment's own parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = Field(description="a name from `marft environments`, or module:Class")

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything but the name: checked by the environment's own schema."""
        return dict(self.model_extra or {})
