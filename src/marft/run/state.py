"""What a checkpoint of a training run holds: adapters in peft's own format, critic, optimisers and RNG states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from marft.run import checkpoint
from marft.run.directory import RunDirectory
from marft.team import Team
from marft.types import MarftError

ADAPTER_FILE = "adapter_model.safetensors"


def save_training(
    run: RunDirectory, team: Team, optimisers: Mapping[str, torch.optim.Optimizer], iteration: int, score: float
) -> None:
    """Write checkpoint `iteration` whole or not at all, mark it if it is the best so far, and prune older ones."""
    with checkpoint.writing(run, iteration) as folder:
        for adapter in team.policy.adapters:
            save_adapter(team, adapter, folder / "adapters" / adapter)
        if team.critic is not None:
            checkpoint.save_tensors(folder / "critic_head.safetensors", dict(team.critic.head.state_dict()))
        for name, optimiser in optimisers.items():
            checkpoint.save_state(folder / f"optimiser-{name}", optimiser.state_dict())
        checkpoint.save_state(folder / "rng", checkpoint.rng_state())
        state = {"iteration": iteration, "success": score}
        (folder / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf8")
    best = checkpoint.best(run)
    if best is None or score > best[1]:
        checkpoint.mark_best(run, iteration, score)
    checkpoint.prune(run, team.config.run.keep_last)


def load_training(run: RunDirectory, team: Team, optimisers: Mapping[str, torch.optim.Optimizer]) -> int:
    """Put everything back as the newest checkpoint has it; returns the iteration to go on with (0: none saved yet)."""
    folder = checkpoint.latest(run)
    if folder is None:
        return 0
    load_weights(folder, team)
    for name, optimiser in optimisers.items():
        optimiser.load_state_dict(checkpoint.load_state(folder / f"optimiser-{name}", str(team.base.device)))
    checkpoint.restore_rng(checkpoint.load_state(folder / "rng"))
    return int(json.loads((folder / "state.json").read_text(encoding="utf8"))["iteration"])


def load_weights(folder: Path, team: Team) -> None:
    """Load adapters and critic from a verified checkpoint. Raises `MarftError` for a damaged or unfitting one."""
    checkpoint.verify(folder)
    for adapter in team.policy.adapters:
        file = folder / "adapters" / adapter / ADAPTER_FILE
        if not file.is_file():
            raise MarftError(f"{folder}: holds no adapter '{adapter}'; was the team in the config changed?")
        try:
            team.policy.load_parameters(adapter, checkpoint.load_tensors(file))
        except MarftError as error:
            raise MarftError(f"{file}: {error}") from None
    if team.critic is not None:
        team.critic.head.load_state_dict(checkpoint.load_tensors(folder / "critic_head.safetensors"))


def save_adapter(team: Team, adapter: str, folder: Path) -> None:
    """Write one adapter as a folder that plain `peft` loads on the same base model."""
    folder.mkdir(parents=True)
    team.policy.peft.peft_config[adapter].save_pretrained(folder)
    checkpoint.save_tensors(
        folder / ADAPTER_FILE, {name: each.detach() for name, each in team.policy.parameters(adapter).items()}
    )
