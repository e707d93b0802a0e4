"""The answer: what a run takes, with everything that was assumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from marft.config import Config
from marft.plan import speeches
from marft.plan.cost import (
    DECODE,
    Work,
    decode_seconds,
    held_bytes,
    lanes,
    learn_bytes,
    learn_flops,
    play_bytes,
    play_flops,
    vllm_tokens,
)
from marft.plan.crews import crews_of
from marft.plan.machine import Assumptions
from marft.plan.shapes import FLOAT
from marft.plan.speeches import Lengths
from marft.run.offline import offline_game
from marft.types import MarftError

TASKS_LONGEST = 4  # times the mean, the longest task where none is given


@dataclass(frozen=True)
class Forecast:
    """What a run takes, by name: counts of parameters and tokens, bytes, FLOPs and seconds of one iteration."""

    source: str
    machine: str
    memory: float  # bytes that the machine has
    assumptions: dict[str, str]
    models: list[dict[str, Any]]
    tokens: dict[str, float]
    play_bytes: dict[str, float]
    learn_bytes: dict[str, float]
    other_bytes: dict[str, float]
    flops: dict[str, float]
    seconds: dict[str, float]
    run: dict[str, float]
    notes: list[str]

    @property
    def peaks(self) -> dict[str, float]:
        """Bytes at most in play and while learning."""
        return {"play": sum(self.play_bytes.values()), "learn": sum(self.learn_bytes.values())}

    def as_dict(self) -> dict[str, Any]:
        """All of it, the peaks included."""
        return {**asdict(self), "peak_bytes": self.peaks}


def forecast(config: Config, source: str, given: Assumptions, shape_file: str | None = None) -> Forecast:
    """What training takes on one machine. Raises `MarftError` naming `source` and the key, for an unknown model too."""
    game = offline_game(config, source)
    cpu = "cpu" in (config.device, given.machine.name)
    try:
        crews = crews_of(config, shape_file, cpu)
    except MarftError as error:
        raise MarftError(f"{source}: {error}") from error.__cause__
    mean, most = lengths_of(config, given)
    contexts = {agent.name: crews[0].context for agent in config.team.agents}
    contexts |= {name: crew.context for crew in crews for name in crew.agents}
    played, widest = (speeches.episode(game, each, contexts) for each in (mean, most))
    work = Work(config, game, crews, played, widest, given, cpu)
    play, learn = play_flops(work), learn_flops(work)
    peak = given.machine.flops * given.mfu
    seconds = {"play: prompts": play["play: prompts"] / peak / work.gpus}
    seconds["play: replies"] = sum(decode_seconds(work, crew) for crew in crews)
    seconds |= {name: flops / peak for name, flops in learn.items()}
    memory = {**held_bytes(work), **play_bytes(work)}, {**held_bytes(work), **learn_bytes(work)}
    return Forecast(
        source=source,
        machine=given.machine.name,
        memory=given.machine.memory,
        assumptions=settled(work, mean, most),
        models=[crew.as_dict() for crew in crews],
        tokens=tokens_of(work),
        play_bytes=memory[0],
        learn_bytes=memory[1],
        other_bytes=other_bytes(work),
        flops={**play, **learn},
        seconds=seconds,
        run=totals(work, seconds),
        notes=notes_of(work),
    )


def lengths_of(config: Config, given: Assumptions) -> tuple[Lengths, Lengths]:
    """Mean and longest: a reply is never longer than its `max_tokens`."""
    most = {agent.name: config.sampling(agent).max_tokens for agent in config.team.agents}
    mean = {name: min(limit, given.reply or max(1, limit // 2)) for name, limit in most.items()}
    longest_task = given.longest_task or TASKS_LONGEST * given.task
    return Lengths(given.task, dict(mean)), Lengths(longest_task, dict(most))


def tokens_of(work: Work) -> dict[str, float]:
    """Tokens of one iteration: what is read, what of it play computes, drawn, learnt from, computed by a learner's pass
    over all rows and by a critics' pass over all views."""
    episodes = work.size[0] * work.size[1]
    learnt = [each for each in work.played if each.agent in work.learners]
    return {
        "episodes": episodes,
        "prompts": episodes * sum(each.prompt for each in work.played),
        "prompts, computed": speeches.prompts_read(work.played, *work.size).tokens,
        "drawn": episodes * sum(each.reply for each in work.played),
        "learnt from": episodes * sum(each.reply for each in learnt),
        "of a pass over all rows": sum(work.rows(name).tokens for name in work.learners),
        "of a pass over the critics' views": sum(work.views(crew).tokens for crew in work.crews),
        "longest prompt and reply": max(each.end for each in work.widest),
    }


def other_bytes(work: Work) -> dict[str, float]:
    """A checkpoint, what all that are kept take on disk, and what the host needs while it loads a model in float32."""
    checkpoint = sum(crew.adapters + crew.moments for crew in work.crews)
    return {
        "a checkpoint": checkpoint,
        # And the best one; a guard that may go back keeps at least the last good one and the newest besides
        "checkpoints kept": checkpoint * (work.config.run.keep_last + 1 + 2 * (work.config.guard.action == "rollback")),
        "host memory while loading": max(FLOAT * crew.shape.parameters for crew in work.crews),
    }


def totals(work: Work, seconds: dict[str, float]) -> dict[str, float]:
    """Seconds of an iteration and of an evaluation, hours and GPU-hours of the run, tokens drawn and FLOPs in training.

    An evaluation plays each of its tasks greedily once and `samples` times, and once more for every agent that another
    one hears (without its own words), as its influence asks. There is one before, one after, and those in between.
    """
    config, iteration = work.config, sum(seconds.values())
    settings, lines = config.evaluation, speeches.turn_of(work.game)[0]
    heard = {each for _, others in lines for each in others} if settings.influence else set()
    episodes = settings.tasks * (1 + settings.samples * (1 + len(heard) * (1 - 1 / len(work.game.agents))))
    play = seconds["play: prompts"] + seconds["play: replies"]
    evaluation = play * episodes / (work.size[0] * work.size[1])
    count = 0
    if settings.tasks:
        count = 2 + (max(0, config.iterations - 1) // settings.every if settings.every else 0)
    hours = (config.iterations * iteration + count * evaluation) / 3600
    drawn = work.size[0] * work.size[1] * sum(each.reply for each in work.played)
    return {
        "seconds of an iteration": iteration,
        "seconds of an evaluation": evaluation,
        "evaluations": count,
        "hours": hours,
        "GPUs": work.gpus,
        "GPU-hours": hours * work.gpus,
        "tokens drawn in training": config.iterations * drawn,
    }


def settled(work: Work, mean: Lengths, most: Lengths) -> dict[str, str]:
    """Every assumption in words, with its option."""
    given, play = work.given, work.config.rollout
    machine = given.machine
    reply = ", ".join(f"{name} {tokens:g}" for name, tokens in mean.replies.items())
    share = given.decode or DECODE[play.engine]
    return {
        "machine": f"{machine.name}: {machine.memory / 1e9:.0f} GB, {machine.flops / 1e12:g} TFLOP/s, "
        f"{machine.bandwidth / 1e9:g} GB/s (--gpu, --memory, --tflops, --bandwidth)",
        "learning and prompts": f"{given.mfu:.0%} of the peak FLOP/s (--mfu)",
        "decoding": f"{share:.0%} of the bandwidth, {lanes(work):.0f} replies at a time (--decode)",
        "task": f"{mean.task:g} tokens, at most {most.task:g} (--task, --longest-task)",
        "mean reply": f"{reply} (--reply); memory is counted for replies of max_tokens",
        "episodes": "use all turns; every reply speaks, no tool is called, no task is drawn again",
    }


def notes_of(work: Work) -> list[str]:
    """What a person should know of the plan."""
    found = []
    play, update = work.config.rollout, work.config.update
    for crew in work.crews:
        longest = work.longest(crew)
        if longest > update.micro_tokens:
            found.append(
                f"the longest row ({longest:,.0f} tokens) stands alone in a pass and sets the peak: "
                f"update.micro_tokens is {update.micro_tokens:,}"
            )
        if play.engine == "vllm":
            room = vllm_tokens(work, crew)
            found.append(f"vLLM's cache holds {room:,.0f} tokens, {room / longest:,.0f} rows of the longest kind")
            if not room:
                found.append("vLLM's share of the memory is too small for the weights: raise gpu_memory_utilization")
        if any(each.end >= crew.context for each in work.of(crew.agents, widest=True)):
            found.append(
                f"the longest rows reach the context of {crew.context:,}; rollout.context_policy says what happens then"
            )
    if play.resample:
        found.append("tasks that are drawn again (rollout.resample) are not counted")
    return found
