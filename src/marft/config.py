"""The whole YAML schema. An unknown key is an error with a suggestion; every error names the file and the key."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from marft.presets import expand_preset
from marft.section import NonNegative as NonNegative
from marft.section import Positive as Positive
from marft.section import Rate as Rate
from marft.section import Section as Section
from marft.section import Unit as Unit
from marft.tools.config import ToolConfig
from marft.types import MarftError
from marft.validation import validate

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

    r: Positive = 16
    alpha: Rate = 32.0
    targets: Literal["all-linear"] | list[str] = "all-linear"


class SamplingConfig(Section):
    """How replies are drawn in training. top-k/top-p change the sampled distribution but not the scored one."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Positive | None = Field(None, description="off by default: the ratio would be against another distribution")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="off by default, as top_k")
    max_tokens: Positive = Field(64, description="longest reply, in tokens, the end-of-turn token included")


class EndpointConfig(Section):
    """An OpenAI-compatible chat endpoint that plays an agent; it is never trained."""

    url: str = Field(description="the base address, to which /chat/completions is added")
    model: str
    key_env: str | None = Field(None, description="the environment variable that holds the key")
    timeout: Rate = Field(60.0, description="seconds for one answer")
    retries: NonNegative = Field(3, description="further tries after a failed connection, a 429 or a 5xx")
    concurrency: Positive = Field(8, description="requests under way at the same time")


class AgentConfig(Section):
    """One member of the team."""

    name: Annotated[str, Field(pattern=NAME)]
    profile: str = Field("", description="the system prompt; empty: an anonymous agent")
    sees_task: bool = True
    trainable: bool = True
    adapter: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="adapter name; agents that name the same one share it"
    )
    sampling: SamplingConfig | None = Field(None, description="overrides rollout.sampling for this agent")
    model: ModelConfig | str | None = Field(
        None, description="its own base model: a section, or just a name (the rest as in `model`)"
    )
    endpoint: EndpointConfig | None = Field(None, description="a model elsewhere that plays this agent, untrained")
    tools: list[str] = Field(default_factory=list, description="names from `tools`, or `calculator`, `python`")
    tool_calls: NonNegative = Field(4, description="replies of one turn that may call tools; the next one is final")

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

    speaker: str
    reader: str
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

    edges: list[tuple[str, str] | EdgeConfig] = Field(default_factory=list)
    recall: list[tuple[str, str]] = Field(default_factory=list)


class DebateConfig(Section):
    """Each turn all debaters answer at once, then `rounds` - 1 times again, each having read the others."""

    debate: Annotated[int, Field(ge=1, description="rounds")]
    judge: str | None = Field(None, description="the agent that reads the last round and speaks the team's word")


class OrchestratorConfig(Section):
    """Each turn one agent says, again and again, who speaks next, until it says `stop` or `calls` are used up."""

    orchestrator: str
    calls: Positive = Field(4, description="agents it may call in a turn")
    stop: str = Field("stop", description="the word that ends the turn")
    unreadable: Literal["stop", "first", "fail"] = Field(
        "stop", description="what a reply that names nobody means: the end, a call of the first agent, a failed episode"
    )


class FunctionConfig(Section):
    """D as code: an import path `module:function` of a callable (state, turn) -> Graph."""

    function: str


class TeamConfig(Section):
    """Flex-MG: who plays, who sees whom, for how many turns."""

    agents: Annotated[list[AgentConfig], Field(min_length=1)]
    dependency: Literal["chain", "parallel"] | GraphConfig | FunctionConfig | DebateConfig | OrchestratorConfig = (
        "chain"
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
    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything but the name: checked by the environment's own schema."""
        return dict(self.model_extra or {})


class RolloutConfig(Section):
    """How much is played per iteration, and how."""

    tasks: Positive = Field(8, description="distinct tasks per iteration")
    samples: Positive = Field(8, description="episodes per task: the group of group-relative credit")
    sampling: SamplingConfig = SamplingConfig()
    slots: Positive = Field(64, description="replies generated at the same time")
    deadline: Rate = Field(
        1800.0, description="seconds from the start of play after which an unfinished episode is recorded as failed"
    )
    max_failed: Unit = Field(0.25, description="stop the run when a larger share of an iteration's episodes failed")
    context_policy: Literal["refuse", "truncate_history"] = Field(
        "refuse", description="a prompt too long fails the episode, or loses its oldest messages (never the profile)"
    )


class CreditConfig(Section):
    """One chain of decisions; each kind of link has its own discount and lambda (design, equation of section 2)."""

    preset: Literal["marft", "paper-code"] = Field("marft", description="paper-code: every gamma .99, every lambda .95")
    gamma: Unit = Field(0.99, description="last agent of a turn -> first of the next")
    gamma_agent: Unit = Field(1.0, description="agent -> next agent in the same turn")
    gamma_token: Unit = Field(1.0, description="token -> token inside an action")
    lam: Unit = Field(0.95, description="lambda between actions")
    lam_token: Unit = Field(1.0, description="lambda inside an action")
    baseline: Literal["critic", "group", "none"] = Field(
        "critic", description="critic: GAE; group: return minus its (task, agent, turn) group's mean; none: return"
    )
    normalise: Literal["batch", "agent", "none"] = Field("batch", description="mean 0, std 1 of the advantages over")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("preset") == "paper-code":
            preset = {"gamma": 0.99, "gamma_agent": 0.99, "gamma_token": 0.99, "lam": 0.95, "lam_token": 0.95}
            return {**preset, **given}
        return given


class CriticConfig(Section):
    """The centralised critic: a value head on the base with an adapter of its own, reading the joint view."""

    kind: Literal["shared", "none"] = "shared"
    warmup: NonNegative = Field(1, description="first iterations that train the critic alone")
    lr: Rate = 1e-3
    head_lr: Rate = 1e-2
    epochs: Positive = 2
    minibatches: Positive = 1
    loss: Literal["huber", "mse"] = "huber"
    huber_delta: Rate = 10.0
    clip: Rate | None = Field(0.2, description="PPO value clip around the old value; null: off")
    max_grad_norm: Rate = 1.0


class UpdateConfig(Section):
    """How an agent's adapter is improved."""

    level: Literal["action", "token"] = Field("action", description="MARFT-A or MARFT-T")
    action_normalisation: Literal["sum", "token", "word"] = Field(
        "sum", description="what an action's log-probability is divided by (action level only)"
    )
    schedule: Literal["sequential", "alternate", "simultaneous"] = "sequential"
    order: Literal["declared", "reverse", "random"] = "declared"
    carry: Literal["none", "happo"] = "none"
    carry_clip: Rate = Field(0.2, description="HAPPO's factor M stays within [1/(1+c), 1+c]")
    lr: Rate = 3e-4
    lr_warmup: NonNegative = Field(0, description="iterations over which the learning rate rises linearly")
    epochs: Positive = 1
    minibatches: Positive = 1
    micro_tokens: Positive = Field(
        1024, description="most packed tokens in one forward pass: what bounds memory, however many agents and episodes"
    )
    clip: Rate = 0.2
    clip_high: Rate | None = Field(None, description="upper clip where it differs from `clip`")
    entropy: Annotated[float, Field(ge=0)] = 0.0
    kl_stop: Rate | None = Field(None, description="stop an agent's epochs when its approximate KL passes this")
    kl_reference: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of KL to the base model")
    kl_in: Literal["reward", "loss"] = Field("loss", description="the one place the reference KL goes")
    max_grad_norm: Rate = 1.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    old_logprobs: Literal["learner", "sampler"] = "learner"
    importance_cap: Rate = Field(2.0, description="truncation of the sampler -> learner importance weight")


class EvaluationConfig(Section):
    """Held-out play: the same tasks and seeds every time."""

    tasks: NonNegative = Field(32, description="held-out tasks; 0 turns evaluation off")
    samples: Positive = Field(4, description="sampled episodes per task (for success at temperature 1 and pass@k)")
    every: NonNegative = Field(0, description="also evaluate every so many iterations; 0: before and after only")
    influence: bool = Field(True, description="replay with each agent's messages swapped for another task's")
    retention: bool = Field(True, description="measure KL from the base and perplexity on a neutral text")


class RunConfig(Section):
    """Where the run is written."""

    folder: str = "runs"
    save_every: Positive = 1
    keep_last: Positive = 2
    tensorboard: bool = True
    episodes_every: Positive = Field(1, description="write episodes/*.jsonl every so many iterations")


class Config(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    seed: NonNegative = 0
    device: str = Field("auto", description="auto: CUDA where there is one, else the CPU")
    threads: Positive | None = Field(None, description="CPU threads; default: torch's own choice")
    iterations: NonNegative = 20
    model: ModelConfig = ModelConfig()
    lora: LoraConfig = LoraConfig()
    team: TeamConfig
    environment: EnvironmentConfig
    tools: dict[Annotated[str, Field(pattern=NAME)], ToolConfig] = Field(
        default_factory=dict, description="tools that agents may name: kind `calculator`, `python`, `search` or `mcp`"
    )
    rollout: RolloutConfig = RolloutConfig()
    credit: CreditConfig = CreditConfig()
    critic: CriticConfig = CriticConfig()
    update: UpdateConfig = UpdateConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _parts_agree(self) -> Config:
        if not any(agent.trainable for agent in self.team.agents):
            raise ValueError("team.agents: no agent is trainable; set `trainable: true` on at least one")
        if self.credit.baseline == "critic" and self.critic.kind == "none":
            raise ValueError("credit.baseline: 'critic' needs critic.kind 'shared'; or choose 'group' or 'none'")
        if self.critic.kind == "shared" and self.credit.baseline != "critic":
            raise ValueError(
                f"critic.kind: 'shared' goes unused with credit.baseline '{self.credit.baseline}'; set it to 'none'"
            )
        if self.credit.baseline == "group" and self.rollout.samples < 2:
            raise ValueError("rollout.samples: a group baseline needs at least 2 samples per task")
        return self

    def sampling(self, agent: AgentConfig) -> SamplingConfig:
        """The agent's own sampling, else the team's."""
        return agent.sampling or self.rollout.sampling

    def model_of(self, agent: AgentConfig) -> ModelConfig:
        """The agent's own base model, else the team's; a bare name takes everything else from the team's."""
        if isinstance(agent.model, str):
            return self.model.model_copy(update={"name": agent.model})
        return agent.model or self.model


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML config and apply `key.path=value` overrides (values are YAML).

    Raises `MarftError` with one sentence naming the file and the key.
    """
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        raise MarftError(f"{path}: there is no such config file{_nearby(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MarftError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise MarftError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise MarftError(f"{path}: must hold a mapping of keys such as `team:` and `environment:`")
    # What a preset is made of can be overridden like anything written out, so the choice of preset comes first
    first = [each for each in overrides if each.startswith(("team.preset=", "team.anonymous="))]
    for override in first:
        _apply_override(raw, override)
    raw = expand_preset(raw, str(path))
    for override in overrides:
        if override not in first:
            _apply_override(raw, override)
    return parse_config(raw, source=str(path))


def parse_config(raw: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a mapping, its `team.preset` written out first; `source` names where it came from in errors."""
    return validate(Config, expand_preset(raw, source), source)


def dump_config(config: Config) -> str:
    """The resolved config as YAML, loadable by `load_config`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    if not sign or not key:
        raise MarftError(f"override '{override}': write it as key=value, for example update.lr=0.001")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise MarftError(f"override '{override}': the value is not valid YAML") from None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text; a person means the number
        with contextlib.suppress(ValueError):
            value = float(value)
    *path, last = key.split(".")
    place: Any = raw
    for part in path:
        place = _item(place, part, override)
    if isinstance(place, list):
        place[_index(place, last, override)] = value
    else:
        place[last] = value


def _item(place: Any, part: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, override)]
    if place.get(part) is None:
        place[part] = {}
    if not isinstance(place[part], dict | list):
        raise MarftError(f"override '{override}': '{part}' is a value, not a section")
    return place[part]


def _index(place: list[Any], part: str, override: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in place]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(place):
        return int(part)
    raise MarftError(f"override '{override}': '{part}' names no entry; there are {', '.join(map(str, names))}")


def _nearby(path: Path) -> str:
    folder = path.parent
    names = [each.name for each in folder.glob("*.y*ml")] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean '{folder / near[0]}'?" if near else ""
