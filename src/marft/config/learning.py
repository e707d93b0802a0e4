"""How a team plays, learns and is looked at: rollouts, credit, critic, updates, evaluation, the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from marft.config.players import SamplingConfig
from marft.section import NonNegative, Positive, Rate, Section, Unit


class VllmConfig(Section):
    """How vLLM runs with `rollout.engine: vllm`. What it can read is `model.context`, replies at a time are `slots`."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.4, description="share of the memory for vLLM's weights and cache; the rest is the learner's"
    )
    cache_gib: Rate | None = Field(None, description="GiB for keys and values alone, whatever that share would give")
    tensor_parallel_size: Positive = Field(1, description="GPUs over which each layer is split")
    max_loras: Positive | None = Field(None, description="different adapters in one batch; default: all of the model's")
    enforce_eager: bool = Field(False, description="start sooner and generate slower: no compilation, no CUDA graphs")
    sleep: bool = Field(False, description="free vLLM's GPU memory while the team learns, for one GPU that does both")


class CurriculumConfig(Section):
    """Tasks by success rate: those the team wins sometimes are played more often than those it always wins or loses."""

    pool: Annotated[int, Field(ge=2)] = Field(4, description="candidates per task that is played")
    decay: Unit = Field(0.8, description="what an older success rate keeps of its weight when a task comes again")
    floor: Annotated[float, Field(gt=0, le=1)] = Field(
        0.05, description="least weight of a candidate; one won p of the time weighs p (1 - p) / 0.25"
    )


class RolloutConfig(Section):
    """How much is played per iteration, and how."""

    tasks: Positive = Field(8, description="distinct tasks per iteration")
    samples: Positive = Field(8, description="episodes per task: the group of group-relative credit")
    resample: NonNegative = Field(
        0, description="times at most that tasks in whose episodes all agents earned the same are replaced by new ones"
    )
    curriculum: CurriculumConfig | None = Field(None, description="choose tasks by success rate; null: as they come")
    staleness: NonNegative = Field(
        0, description="iterations that learning lags behind play: an engine of its own may then play meanwhile"
    )
    reuse: NonNegative = Field(0, description="earlier iterations whose episodes are learnt from once more each time")
    sampling: SamplingConfig = Field(SamplingConfig(), description="of every agent that has no sampling of its own")
    slots: Positive = Field(64, description="replies generated at the same time")
    prefix_tokens: int = Field(
        16384, ge=0, description="tokens of prompts and replies that are kept for prompts that start like them"
    )
    engine: Literal["torch", "vllm"] = Field(
        "torch", description="torch: on the learner's own weights, on any machine; vllm: needs marft[vllm] and adapters"
    )
    vllm: VllmConfig = Field(VllmConfig(), description="how vLLM runs, if it does")
    deadline: Rate = Field(
        1800.0, description="seconds from the start of play after which an unfinished episode is recorded as failed"
    )
    max_failed: Unit = Field(0.25, description="stop the run when a larger share of an iteration's episodes failed")
    context_policy: Literal["refuse", "truncate_history"] = Field(
        "refuse", description="a prompt too long fails the episode, or loses its oldest messages (never the profile)"
    )


class CreditConfig(Section):
    """One chain of decisions; each kind of link has its own discount and lambda (docs/algorithm.md)."""

    preset: Literal["marft", "paper-code"] = Field("marft", description="paper-code: every gamma .99, every lambda .95")
    gamma: Unit = Field(0.99, description="last agent of a turn -> first of the next")
    gamma_agent: Unit = Field(1.0, description="agent -> next agent in the same turn")
    gamma_token: Unit = Field(1.0, description="token -> token inside an action")
    lam: Unit = Field(0.95, description="lambda between actions")
    lam_token: Unit = Field(1.0, description="lambda inside an action")
    chain: Literal["team", "agent"] = Field(
        "team", description="team: one chain through all actions; agent: each agent's own (independent learners)"
    )
    allocation: Literal["per_action", "team_last", "equal", "step_discounted", "own_team"] = Field(
        "per_action", description='which actions the rewards stand on (docs/algorithm.md, "Reward allocation")'
    )
    allocation_discount: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="step_discounted: an action's share over that of the next one"
    )
    own_share: Unit = Field(0.5, description="own_team: weight of an agent's own reward beside the team's mean")
    baseline: Literal["critic", "group", "running", "none"] = Field(
        "critic",
        description="critic: GAE; group: return minus its (task, agent, turn) group's mean; running: return minus a "
        "running mean per agent; none: return",
    )
    group_mean: Literal["all", "others"] = Field("all", description="mean over the group, or leave-one-out")
    group_scale: Literal["none", "std"] = Field("none", description="std: divide by the group's standard deviation")
    running_decay: Unit = Field(0.9, description="running: what the mean so far keeps of its weight in an iteration")
    normalise: Literal["batch", "agent", "none"] = Field("batch", description="mean 0, std 1 of the advantages over")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("preset") == "paper-code":
            preset = {"gamma": 0.99, "gamma_agent": 0.99, "gamma_token": 0.99, "lam": 0.95, "lam_token": 0.95}
            return {**preset, **given}
        return given


class CriticConfig(Section):
    """What values decisions: a value head on the base with an adapter of its own."""

    kind: Literal["shared", "own", "none"] = Field(
        "shared",
        description="shared: one centralised critic that reads the joint view; own: one per agent, which reads what "
        "its agent reads (independent learners)",
    )
    warmup: NonNegative = Field(1, description="first iterations that train the critic alone")
    lr: Rate = Field(1e-3, description="learning rate of the critic's adapter (AdamW)")
    head_lr: Rate = Field(0.03, description="of the value head; about what a step may move a value by")
    epochs: Positive = Field(2, description="passes over an iteration's decisions")
    minibatches: Positive = Field(1, description="optimiser steps per epoch")
    loss: Literal["huber", "mse"] = Field("huber", description="of the value's error; mse is half its square")
    huber_delta: Rate = Field(10.0, description="error from which Huber's loss is linear")
    clip: Rate | None = Field(0.2, description="PPO value clip around the old value; null: off")
    max_grad_norm: Rate = Field(1.0, description="norm to which the critic's gradient is clipped")


class UpdateConfig(Section):
    """How an agent's adapter is improved."""

    level: Literal["action", "token"] = Field("action", description="MARFT-A or MARFT-T")
    action_normalisation: Literal["sum", "token", "word"] = Field(
        "sum", description="what an action's log-probability is divided by (action level only)"
    )
    schedule: Literal["sequential", "alternate", "simultaneous"] = Field(
        "sequential", description="one agent after another; one agent per iteration, in turns; or all at once"
    )
    order: Literal["declared", "reverse", "random"] = Field("declared", description="in which agents are updated")
    carry: Literal["none", "happo"] = Field(
        "none", description="happo: weigh an agent's advantages by how earlier updates changed the team's actions"
    )
    carry_clip: Rate = Field(0.2, description="HAPPO's factor M stays within [1/(1+c), 1+c]")
    loss_mean: Literal["decision", "action"] = Field(
        "decision", description="token level: mean of the loss over all tokens, or over actions of each one's mean"
    )
    lr: Rate = Field(3e-4, description="learning rate of the agents' adapters (AdamW)")
    lr_warmup: NonNegative = Field(0, description="iterations over which the learning rate rises linearly")
    epochs: Positive = Field(1, description="passes over an agent's rows")
    minibatches: Positive = Field(1, description="optimiser steps per epoch")
    micro_tokens: Positive = Field(
        1024, description="most packed tokens in one forward pass: what bounds memory, however many agents and episodes"
    )
    clip: Rate = Field(0.2, description="how far a ratio may leave 1 and still be rewarded for it (PPO)")
    clip_high: Rate | None = Field(None, description="upper clip where it differs from `clip`")
    entropy: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the entropy bonus, per token")
    kl_stop: Rate | None = Field(None, description="stop an agent's epochs when its approximate KL passes this")
    kl_reference: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of KL to the base model")
    kl_in: Literal["reward", "loss"] = Field("loss", description="the one place the reference KL goes")
    max_grad_norm: Rate = Field(1.0, description="norm to which an adapter's gradient is clipped")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="AdamW's, of the agents' adapters")
    old_logprobs: Literal["learner", "sampler"] = Field(
        "learner",
        description="the old policy of the ratio is as the learner scores it; sampler: and importance weights correct "
        "for what the engine's log-probabilities differ by",
    )
    importance_cap: Rate = Field(2.0, description="truncation of the sampler -> learner importance weight")


class GuardConfig(Section):
    """The crash detector: what it watches in every iteration, and what it does when something runs away."""

    action: Literal["off", "warn", "rollback"] = Field(
        "warn", description="rollback: go back to the last good checkpoint, with a smaller learning rate"
    )
    window: Annotated[int, Field(ge=2)] = Field(5, description="iterations whose mean is compared with the best so far")
    collapse: Unit = Field(0.5, description="share of the best mean success below which the team has collapsed")
    kl: Rate = Field(0.5, description="nats per token between old and new policy in one update that are too many")
    reference_kl: Rate = Field(
        5.0, description="nats per token from the base model that are too many (measured with update.kl_reference > 0)"
    )
    entropy_low: Unit = Field(
        0.01,
        description="share of an agent's first entropy that is too little, unless success rises or is above 0.8",
    )
    entropy_high: Rate = Field(
        3.0, description="multiple of an agent's first entropy that is too much, where it is above 0.5 nats per token"
    )
    ratio: Rate = Field(
        20.0, description="largest 95th percentile of new / old ratios, and inverse of the least median"
    )
    critic: Rate = Field(10.0, description="a critic has run away when its explained variance is below minus this")
    shrink: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="factor on the learning rate per rollback")
    rollbacks: Positive = Field(3, description="rollbacks after which a run stops with an error")


class EvaluationConfig(Section):
    """Held-out play: the same tasks and seeds every time."""

    tasks: NonNegative = Field(32, description="held-out tasks; 0 turns evaluation off")
    samples: Positive = Field(4, description="sampled episodes per task (for success at temperature 1 and pass@k)")
    every: NonNegative = Field(0, description="also evaluate every so many iterations; 0: before and after only")
    vote_tokens: Positive | None = Field(
        None,
        description="also report the majority vote of as many samples (at most `samples`) as this many sampled tokens "
        "per task buy",
    )
    influence: bool = Field(True, description="replay with each agent's messages swapped for another task's")
    retention: bool = Field(True, description="measure KL from the base and perplexity on a neutral text")


class RunConfig(Section):
    """Where the run is written."""

    folder: str = Field("runs", description="where a new run's folder is made, as NAME-DATE-TIME")
    save_every: Positive = Field(1, description="iterations between checkpoints")
    keep_last: Positive = Field(2, description="checkpoints kept, besides the best")
    trackers: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        ["tensorboard"], description="where the numbers of metrics.jsonl and of evaluations go as well"
    )
    project: str = Field("marft", min_length=1, description="wandb's and trackio's project, mlflow's experiment")
    episodes_every: Positive = Field(1, description="write episodes/ and learnt/ every so many iterations")

    @model_validator(mode="before")
    @classmethod
    def _of_older_runs(cls, raw: Any) -> Any:
        """Runs of before `trackers` say `tensorboard: true` or `false`."""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("tensorboard"), bool) or "trackers" in raw:
            return raw
        rest = {key: value for key, value in raw.items() if key != "tensorboard"}
        return {**rest, "trackers": ["tensorboard"] if raw["tensorboard"] else []}

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_alone(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @field_validator("trackers")
    @classmethod
    def _each_once(cls, trackers: list[str]) -> list[str]:
        if len(set(trackers)) < len(trackers):
            raise ValueError("names a tracker twice; leave one of them out")
        return trackers
