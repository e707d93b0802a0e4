"""Does D matter? Teams in which information is split, under the right D and under wrong ones.

    python -m benchmarks.dependency [--seeds 5] [--iterations 50] [--json FILE] [--quick]

Two games of the environment `split`. `combine`: ann and bob read one of four letters each, cat must say both. `ask`:
the lead reads a topic (1, 2 or 3), and p, q and r know the letter of one topic each; the answer that counts is the last
to be said, so an orchestrating lead has to find out whom to call. All agents start from one small random Llama that was
taught for seconds to speak: in most of its replies it repeats the letters it reads, and it answers a digit with the
name of a member, drawn at random. What to ask whom, it cannot know.

Each run trains one team (MARFT-A with the centralised critic, one adapter an agent) and then plays 192 held-out tasks,
a whole number of rounds through all of them, at temperature 1. Printed are means over seeds with 95% Student intervals,
beside the best that is possible without the information that D withholds (`SplitInformation.chance`).
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from marft.config import Config, parse_config
from marft.environments.split import SplitInformation
from marft.learn.clock import Clock
from marft.learn.play import EVALUATION_SEED, play_plans
from marft.learn.train import Training, iterate
from marft.models.base import quiet
from marft.models.chat import Chat, Exchange
from marft.models.tiny import build_tiny
from marft.rollout import Plan
from marft.run.progress import Silent
from marft.run.statistics import mean_interval
from marft.team import build_team
from marft.types import Episode

LETTERS, TOPICS, NAMES = "abcd", "123", "pqr"
HELDOUT = 192
COMBINE = {"name": "split", "mode": "combine", "symbols": list(LETTERS), "hint": "{symbol}"}
ASK = {
    "name": "split", "mode": "ask", "parts": 3, "symbols": list(LETTERS), "topics": list(TOPICS), "hint": "{symbol}",
    "question": "{topic}",
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """One game under one D; `missing` are the parts that can never reach the one who answers."""

    game: str
    d: str
    agents: tuple[str, ...]
    environment: Mapping[str, Any]
    dependency: Any
    missing: tuple[int, ...]

    @property
    def bound(self) -> float:
        """The best possible success."""
        return SplitInformation(**{k: v for k, v in self.environment.items() if k != "name"}).chance(self.missing)


CONDITIONS = (
    Condition("combine", "ann → cat, bob → cat", ("ann", "bob", "cat"), COMBINE,
              {"edges": [["ann", "cat"], ["bob", "cat"]]}, ()),
    Condition("combine", "ann → cat (bob's edge missing)", ("ann", "bob", "cat"), COMBINE,
              {"edges": [["ann", "cat"]]}, (1,)),
    Condition("combine", "no edges", ("ann", "bob", "cat"), COMBINE, "parallel", (0, 1)),
    Condition("ask", "orchestrated by the lead, one call", ("lead", *NAMES), ASK,
              {"orchestrator": "lead", "calls": 1}, ()),
    Condition("ask", "no edges (r always answers)", ("lead", *NAMES), ASK, "parallel", (0, 1)),
)  # fmt: skip


def teach(folder: Path, seed: int = 0, steps: int = 300) -> None:
    """Write a small Llama that speaks a little to a folder, as any other local model."""
    model, tokenizer = build_tiny(seed, LETTERS + TOPICS + NAMES + "\n")
    chat = Chat(tokenizer, (tokenizer.eos_token_id,))
    lessons = spoken(random.Random(seed))
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        rows, targets = [], []
        for _, (heard, reply) in zip(range(64), lessons, strict=False):
            prompt, said = chat.prompt("", [Exchange(heard)]), [*chat.encode(reply), *chat.stop_ids]
            rows.append(torch.tensor([*prompt, *said]))
            targets.append(torch.tensor([-100] * len(prompt) + said))
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        wanted = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
        logits = model(input_ids=ids).logits  # padding stands to the right, where causal attention never looks
        optimiser.zero_grad()
        cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()).backward()
        optimiser.step()
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def spoken(draw: random.Random, noise: float = 0.4) -> Iterator[tuple[str, str]]:
    """What the model hears and says: letters are repeated, names passed over, a topic answered with any name.

    A share `noise` of the replies are random symbols: what is taught is a habit, not a rule.
    """
    while True:
        letters = "".join(draw.choices(LETTERS, k=draw.choice((1, 1, 2))))
        heard, reply = draw.choice(
            [
                ("\n\n".join(letters), letters),
                (f"{letters[0]}\n\n{draw.choice(NAMES)}", letters[0]),
                (draw.choice(TOPICS), draw.choice(NAMES)),
            ]
        )
        if draw.random() < noise:
            reply = "".join(draw.choices(LETTERS + NAMES, k=draw.choice((1, 2))))
        yield heard, reply


def config_of(condition: Condition, base: Path, seed: int, iterations: int) -> Config:
    """The config of one run, as it could stand in a YAML file."""
    return parse_config(
        {
            "seed": seed,
            "iterations": iterations,
            "model": {"name": str(base), "dtype": "float32"},
            "team": {
                "agents": [{"name": name, "sees_task": False} for name in condition.agents],
                "dependency": condition.dependency,
                "message": "{text}",
            },
            "environment": dict(condition.environment),
            "rollout": {"tasks": 48, "samples": 4, "sampling": {"max_tokens": 3}},
            "critic": {"lr": 3e-3, "head_lr": 3e-2},
            "update": {"lr": 1e-3, "entropy": 0.02},
            "evaluation": {"tasks": 0},
        }
    )


def run(condition: Condition, base: Path, seed: int, iterations: int) -> dict[str, Any]:
    """Train one team; its held-out success before and after, and how often the right member was called."""
    training = Training.of(build_team(config_of(condition, base, seed, iterations)))
    before = held_out(training)
    started = time.perf_counter()
    for iteration in range(iterations):
        iterate(training, iteration, Clock(), Silent())
        training.team.load(iteration + 1)
    seconds = time.perf_counter() - started
    after = held_out(training)
    return {
        "seed": seed,
        "before": success(before),
        "after": success(after),
        "asked_right": (asked_right(before), asked_right(after)) if "lead" in condition.agents else None,
        "seconds": seconds,
    }


def held_out(training: Training) -> list[Episode]:
    """The held-out tasks, each played once at temperature 1."""
    team = training.team
    tasks = [team.game.environment.task("heldout", index) for index in range(HELDOUT)]
    plans = [Plan(task, 0, (EVALUATION_SEED, team.config.seed, place, 0), place) for place, task in enumerate(tasks)]
    return play_plans(team, plans, Silent(), "held out")


def success(episodes: list[Episode]) -> float:
    """The share of episodes that were won."""
    return sum(each.success for each in episodes) / len(episodes)


def asked_right(episodes: list[Episode]) -> float:
    """The share of episodes in which the member that knows the topic spoke last."""
    return sum(each.actions[-1].agent == NAMES[each.task.data["topic"]] for each in episodes) / len(episodes)


def main() -> None:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--json", help="also write every run to this file")
    parser.add_argument("--quick", action="store_true", help="one seed, ten iterations")
    given = parser.parse_args()
    seeds, iterations = (1, 10) if given.quick else (given.seeds, given.iterations)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "speaker"
        teach(base)
        print(f"{seeds} seeds, {iterations} iterations of 192 episodes, {torch.get_num_threads()} threads, float32\n")
        print("| game | D | best possible | before | after | right member speaks last |")
        print("|---|---|---|---|---|---|")
        for condition in CONDITIONS:
            runs = [run(condition, base, seed, iterations) for seed in range(seeds)]
            found.append({"game": condition.game, "d": condition.d, "bound": condition.bound, "runs": runs})
            asked = [each["asked_right"][1] for each in runs] if runs[0]["asked_right"] else []
            cells = (over_seeds([each[key] for each in runs]) for key in ("before", "after"))
            print(f"| {condition.game} | {condition.d} | {condition.bound:.3f} | {' | '.join(cells)} | "
                  f"{over_seeds(asked) if asked else '–'} |", flush=True)  # fmt: skip
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1), encoding="utf8")


def over_seeds(values: list[float]) -> str:
    """Mean over seeds, with a 95% Student interval where there are several."""
    interval = mean_interval(values, list(range(len(values))), bounded=False)
    return f"{interval.mean:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
