"""Make the small model for studies (minutes, on the CPU), and show what untrained teams do with it.

    python -m benchmarks.nano [--seed 0] [--steps N] [--folder DIR] [--tasks 256]

Without `--folder` the model is kept in marft's cache, under a name that carries a hash of all that decides its weights,
and is not trained again. Held-out problems are played greedily and at temperature 1; `--tasks 0` leaves that out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.nano.measure import held_out, success
from benchmarks.nano.teams import experiment, team
from benchmarks.nano.train import Recipe, nano_model, write
from marft.config import parse_config
from marft.team import build_team

TEAMS = {
    "single": team(1),
    "duo": team(2),
    "trio": team(3),
    "quad": team(4),
    "duo, all read the question": team(2, hidden=False),
    "trio, all read the question": team(3, hidden=False),
    "quad, all read the question": team(4, hidden=False),
    "anonymous duo": team(2, anonymous=True),
    "anonymous trio": team(3, anonymous=True),
    "anonymous quad": team(4, anonymous=True),
}


def main() -> None:
    """Make the model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--folder", type=Path, help="write the model here, where nothing may be yet")
    parser.add_argument("--tasks", type=int, default=256, help="held-out problems for each team")
    given = parser.parse_args()
    if given.folder and given.folder.exists():
        parser.error(f"--folder: {given.folder} exists already; name one that does not")
    recipe = Recipe(seed=given.seed, steps=given.steps)
    started = time.perf_counter()

    def progress(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step + 1} of {recipe.steps}: loss {loss:.3f}, {seconds:.0f} s", flush=True)

    if given.folder:
        write(recipe, given.folder, progress)
    folder = given.folder or nano_model(recipe=recipe, progress=progress)
    print(f"{folder} ({time.perf_counter() - started:.0f} s)\n")
    if given.tasks:
        print("| team | greedy | temperature 1 | right plan | right calculation |\n|---|---|---|---|---|")
        for name, section in TEAMS.items():
            print(row(name, section, folder, given.tasks), flush=True)


def row(name: str, section: dict[str, object], folder: Path, tasks: int) -> str:
    """How often an untrained team is right; its parts at temperature 1."""
    playing = build_team(parse_config(experiment(folder, section)))
    sampled = held_out(playing, tasks)
    parts = [sum(each.metrics[part] for each in sampled) / len(sampled) for part in ("plan", "calculation")]
    shares = (success(held_out(playing, tasks, greedy=True)), success(sampled), *parts)
    return f"| {name} | {' | '.join(f'{share:.2f}' for share in shares)} |"


if __name__ == "__main__":
    main()
