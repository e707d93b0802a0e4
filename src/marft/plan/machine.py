"""The machine a run is planned for, and what a config does not say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marft.types import MarftError
from marft.validation import suggestion

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """One accelerator: bytes of memory, dense bfloat16 FLOP/s, bytes/s that its memory moves."""

    name: str
    memory: float
    flops: float
    bandwidth: float


# NVIDIA's data sheets of the SXM versions: GB, TFLOP/s without sparsity, TB/s
_SHEETS = (("a100-40", 40, 312, 1.555), ("a100", 80, 312, 2.039), ("h100", 80, 989, 3.35), ("h200", 141, 989, 4.8))
MACHINES: Mapping[str, Machine] = {
    name: Machine(name, memory * 1e9, flops * 1e12, bandwidth * 1e12) for name, memory, flops, bandwidth in _SHEETS
}


@dataclass(frozen=True)
class Assumptions:
    """What a config does not say; None stands for a default that depends on the config.

    `mfu`: share of the peak FLOP/s that learning and passes over prompts reach. `decode`: share of the bandwidth that
    steps of decoding reach (default: by engine). `task`, `longest_task`: tokens of a task, on average and at most
    (default: four times that). `reply`: mean tokens of a reply (default: half of the agent's `max_tokens`).
    """

    machine: Machine
    mfu: float = 0.25
    decode: float | None = None
    task: int = 200
    longest_task: int | None = None
    reply: int | None = None

    def __post_init__(self) -> None:
        for name in ("mfu", "decode"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise MarftError(f"--{name} {share:g}: must be above 0 and at most 1")
        for name in ("task", "longest_task", "reply"):
            tokens = getattr(self, name)
            if tokens is not None and tokens < 1:
                raise MarftError(f"--{name.replace('_', '-')} {tokens}: must be at least 1")


def machine_of(
    name: str, memory: float | None = None, tflops: float | None = None, bandwidth: float | None = None
) -> Machine:
    """A machine by name, with what else is said of it: GB, TFLOP/s and GB/s; all three make one of any name.

    Raises `MarftError` naming the option.
    """
    given = {"memory": memory, "tflops": tflops, "bandwidth": bandwidth}
    for option, value in given.items():
        if value is not None and value <= 0:
            raise MarftError(f"--{option} {value:g}: must be above 0")
    known = MACHINES.get(name.casefold())
    if known is None:
        missing = [f"--{option}" for option, value in given.items() if value is None]
        if missing:
            raise MarftError(
                f"--gpu {name}: no such machine{suggestion(name, list(MACHINES))}; or add {', '.join(missing)}"
            )
        known = Machine(name, 0.0, 0.0, 0.0)
    return Machine(
        known.name,
        known.memory if memory is None else memory * 1e9,
        known.flops if tflops is None else tflops * 1e12,
        known.bandwidth if bandwidth is None else bandwidth * 1e9,
    )
