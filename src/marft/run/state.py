"""What a checkpoint of a training run holds: adapters in peft's own format, critic, optimisers and RNG states."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from marft.learn.memory import Memory
from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.team import Team
from marft.types import MarftError


def save_training(
    run: RunDirectory,
    team: Team,
    optimisers: Mapping[str, torch.optim.Optimizer],
    iteration: int,
    memory: Memory | None = None,
    keep: Collection[int] = (),
) -> None:
    """Write checkpoint `iteration` whole or not at all, and prune older ones, but those in `keep` and the best."""
    with checkpoint.writing(run, iteration) as folder:
        for backend in team.backends:
            for adapter in backend.policy.adapters:
                backend.policy.weights.save(adapter, folder / "adapters" / adapter)
        for name, critic in team.critics.items():
            checkpoint.save_tensors(folder / f"{name}_head.safetensors", dict(critic.head.state_dict()))
        for name, optimiser in optimisers.items():
            checkpoint.save_state(folder / f"optimiser-{name}", optimiser.state_dict())
        checkpoint.save_state(folder / "rng", checkpoint.rng_state())
        checkpoint.save_state(folder / "memory", (memory or Memory()).state())
        (folder / "state.json").write_text(json.dumps({"iteration": iteration}) + "\n", encoding="utf8")
    checkpoint.prune(run, team.config.run.keep_last, also=keep)


def load_training(
    run: RunDirectory, team: Team, optimisers: Mapping[str, torch.optim.Optimizer], memory: Memory | None = None
) -> int:
    """Put everything back as the newest checkpoint has it; returns the iteration to go on with (0: none saved yet)."""
    folder = checkpoint.latest(run)
    if folder is None:
        return 0
    load_learners(folder, team, optimisers)
    checkpoint.restore_rng(checkpoint.load_state(folder / "rng"))
    if memory is not None:
        memory.restore(checkpoint.load_state(folder / "memory"))
    return int(json.loads((folder / "state.json").read_text(encoding="utf8"))["iteration"])


def load_learners(folder: Path, team: Team, optimisers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Load weights and optimisers from a verified checkpoint, and nothing else."""
    load_weights(folder, team)
    for name, optimiser in optimisers.items():
        device = str(team.policy_of(name).base.device)
        optimiser.load_state_dict(checkpoint.load_state(folder / f"optimiser-{name}", device))


def load_weights(folder: Path, team: Team) -> None:
    """Load adapters and critic from a verified checkpoint. Raises `MarftError` for a damaged or unfitting one."""
    checkpoint.verify(folder)
    for backend in team.backends:
        for adapter in backend.policy.adapters:
            if not (folder / "adapters" / adapter).is_dir():
                raise MarftError(f"{folder}: holds no adapter '{adapter}'; was the team in the config changed?")
            backend.policy.weights.load(adapter, folder / "adapters" / adapter)
    for name, critic in team.critics.items():
        critic.head.load_state_dict(checkpoint.load_tensors(folder / f"{name}_head.safetensors"))
