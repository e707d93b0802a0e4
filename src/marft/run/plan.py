"""The planner: memory and time of a training run from its config and the model's shape, before anything is loaded.

Bytes and FLOPs are counted (`shapes`, `speeches`); seconds follow from them under assumptions, which are part of the
answer. docs/plan.md derives both and compares them with what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from marft.config import Config, ModelConfig
from marft.game import FlexMG
from marft.models.catalogue import Architecture, find_architecture
from marft.run import shapes, speeches
from marft.run.offline import offline_game
from marft.run.shapes import FLOAT, MOMENTS, Reading
from marft.run.speeches import Lengths, Speech
from marft.types import MarftError
from marft.validation import suggestion

GIB = 2**30
RESERVE = 1 * GIB  # of a process: the CUDA context and libraries, or Python with torch and transformers
AFTER = 0.25  # share of an agent's rows that are scored again after its update
ENGINE_DECODE = {"vllm": 0.5, "torch": 0.1}  # share of the bandwidth that a step of decoding reaches


@dataclass(frozen=True)
class Machine:
    """One accelerator: bytes of memory, dense bfloat16 FLOP/s without sparsity, bytes/s of its memory."""

    name: str
    memory: float
    flops: float
    bandwidth: float


MACHINES: Mapping[str, Machine] = {  # NVIDIA's data sheets: GB, TFLOP/s, TB/s
    name: Machine(name, memory * 1e9, flops * 1e12, bandwidth * 1e12)
    for name, memory, flops, bandwidth in (
        ("a100-40", 40, 312, 1.555),
        ("a100", 80, 312, 2.039),
        ("h100", 80, 989, 3.35),
        ("h200", 141, 989, 4.8),
    )
}


@dataclass(frozen=True)
class Assumptions:
    """What a config does not say; None takes the default that `settled` names.

    `mfu`: share of the peak FLOP/s that passes over prompts and learning reach; `decode`: share of the bandwidth that
    steps of decoding reach. `task`, `longest_task`: tokens of a task, on average and at most. `reply`: mean tokens of a
    reply.
    """

    machine: Machine
    mfu: float = 0.25
    decode: float | None = None
    task: int = 200
    longest_task: int | None = None
    reply: int | None = None

    def __post_init__(self) -> None:
        for name in ("mfu", "decode"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise MarftError(f"--{name} {value}: must be above 0 and at most 1")
        for name in ("task", "longest_task", "reply"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MarftError(f"--{name.replace('_', '-')} {value}: must be at least 1")


@dataclass(frozen=True)
class Crew:
    """The agents of one base model, and what they need of it; all counts are parameters.

    `adapters` are all of them, the critics' included, `learning` those that an optimiser moves.
    """

    name: str
    shape: Architecture
    config: ModelConfig
    element: int
    agents: tuple[str, ...]
    adapters: int
    playing: int
    learning: int
    critics: int
    adapter_parameters: int
    critic_heads: int

    @property
    def trained(self) -> int:
        """Parameters that an optimiser moves."""
        return self.learning * self.adapter_parameters + self.critic_heads

    @property
    def whole(self) -> bool:
        """Whether an adapter is a whole set of weights."""
        return self.config.tuning == "full"


@dataclass(frozen=True)
class Forecast:
    """What a run takes: numbers by name, each group in one unit."""

    source: str
    machine: str
    assumptions: dict[str, str]
    models: list[dict[str, Any]]
    tokens: dict[str, float]  # per iteration
    play_bytes: dict[str, float]
    learn_bytes: dict[str, float]
    other_bytes: dict[str, float]
    flops: dict[str, float]  # per iteration
    seconds: dict[str, float]  # per iteration
    run: dict[str, float]
    notes: list[str] = field(default_factory=list)

    @property
    def peaks(self) -> dict[str, float]:
        """Bytes at most, in play and while learning."""
        return {"play": sum(self.play_bytes.values()), "learn": sum(self.learn_bytes.values())}

    def as_dict(self) -> dict[str, Any]:
        """Everything, with the peaks."""
        return {**asdict(self), "peaks": self.peaks}


def machine_of(
    name: str, memory: float | None = None, tflops: float | None = None, bandwidth: float | None = None
) -> Machine:
    """A machine by name, or one described by its GB, TFLOP/s and GB/s. Raises `MarftError` for an unknown name."""
    given = {"memory": memory, "tflops": tflops, "bandwidth": bandwidth}
    for option, value in given.items():
        if value is not None and value <= 0:
            raise MarftError(f"--{option} {value:g}: must be above 0")
    known = MACHINES.get(name.casefold())
    if known is None and None in given.values():
        missing = ", ".join(f"--{option}" for option, value in given.items() if value is None)
        raise MarftError(f"--gpu {name}: no such machine{suggestion(name, list(MACHINES))}; or describe it: {missing}")
    parts = (
        (memory and memory * 1e9, known and known.memory),
        (tflops and tflops * 1e12, known and known.flops),
        (bandwidth and bandwidth * 1e9, known and known.bandwidth),
    )
    return Machine(name, *(float(mine or theirs or 0) for mine, theirs in parts))


def forecast(config: Config, source: str, given: Assumptions, shape_file: str | None = None) -> Forecast:
    """What training with `config` takes on one machine. Raises `MarftError` for a model of unknown shape."""
    game = offline_game(config, source)
    crews = crews_of(config, game, shape_file)
    mean, longest = lengths_of(config, given)
    contexts = {name: context_of(crew) for crew in crews for name in crew.agents}
    played, widest = speeches.episode(game, mean, contexts), speeches.episode(game, longest, contexts)
    work = Work(config, game, crews, played, widest, given)
    play, learn = play_flops(work), learn_flops(work)
    seconds = {name: flops / (given.machine.flops * given.mfu) for name, flops in {**play, **learn}.items()}
    seconds["play: replies"] = sum(decode_seconds(work, crew) for crew in crews)
    return Forecast(
        source=source,
        machine=given.machine.name,
        assumptions=settled(work, mean, longest),
        models=[describe(crew) for crew in crews],
        tokens=tokens_of(work),
        play_bytes={**held_bytes(work), **play_bytes(work)},
        learn_bytes={**held_bytes(work), **learn_bytes(work)},
        other_bytes={
            "checkpoint": checkpoint_bytes(crews),
            "host memory while loading": max(FLOAT * crew.shape.parameters for crew in crews),
        },
        flops={**play, **learn},
        seconds=seconds,
        run=totals(config, game, played, seconds),
        notes=notes_of(work),
    )


@dataclass(frozen=True)
class Work:
    """One iteration: the episode at mean lengths (`played`) and at the longest ones (`widest`)."""

    config: Config
    game: FlexMG
    crews: Sequence[Crew]
    played: Sequence[Speech]
    widest: Sequence[Speech]
    given: Assumptions

    @property
    def size(self) -> tuple[int, int]:
        """Tasks and samples."""
        return self.config.rollout.tasks, self.config.rollout.samples

    def of(self, agents: Sequence[str], which: Sequence[Speech] | None = None) -> list[Speech]:
        """The replies of some agents."""
        return [each for each in (self.played if which is None else which) if each.agent in agents]

    @property
    def lanes(self) -> float:
        """Replies that grow at a time on average: all that need not wait, and no more than slots."""
        lines, depth = speeches.turn_of(self.game)
        return min(self.config.rollout.slots, self.size[0] * self.size[1] * len(lines) / depth)
