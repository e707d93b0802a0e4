"""Evaluation: held-out play with fixed seeds, what each agent's words are worth, and what became of the language."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from marft.learn.collate import collate
from marft.learn.losses import reference_kl
from marft.learn.update import batch_logprobs
from marft.models.pack import pack
from marft.rollout import Plan
from marft.run.statistics import mean_interval, mean_pass_at_k
from marft.team import Team
from marft.types import Episode

Play = Callable[[Sequence[Plan], str], list[Episode]]

# Written for this purpose; everyday English that no task of ours resembles
NEUTRAL_TEXT = (
    "The library stood at the end of the street, a low brick building with tall windows. In the mornings the "
    "reading room was quiet, and the light fell across the long tables where people sat with their newspapers. An "
    "old man came every day at nine, hung his coat on the same hook, and asked for the same atlas. Nobody knew what "
    "he was looking for. Sometimes he traced a river with his finger from the mountains to the sea; sometimes he "
    "closed the book after a minute and looked out at the rain. When the library moved to its new home by the "
    "station, the staff packed the atlas last, and on the first morning it was waiting for him on the table by the "
    "window."
)


@dataclass(frozen=True)
class Evaluation:
    """A report of plain numbers, its few most important lines, and the episodes it was made from."""

    report: dict[str, Any]
    episodes: tuple[Episode, ...]

    @property
    def headline(self) -> dict[str, Any]:
        """What a person wants to see first."""
        lines: dict[str, Any] = {
            "success, sampled": self.report["sampled"]["success"],
            "success, greedy": self.report["greedy"]["success"],
        }
        for name, worth in self.report.get("influence", {}).items():
            lines[f"success with {name}'s messages swapped"] = worth["swapped"]
        for name, kept in self.report.get("retention", {}).items():
            perplexities = f"{kept['perplexity']:.1f} (base {kept['base_perplexity']:.1f})"
            lines[f"language of {name}"] = f"KL from base {kept['kl']:.3f}, perplexity {perplexities}"
        return lines


def evaluate(team: Team, play: Play, seed: int) -> Evaluation:
    """Play the held-out tasks greedily and sampled; the same config gives the same tasks and draws every time."""
    settings = team.config.evaluation
    environment = team.game.environment
    size = environment.size("heldout")
    count = settings.tasks if size is None else min(settings.tasks, size)
    tasks = [environment.task("heldout", index) for index in range(count)]

    def plan(place: int, sample: int, greedy: bool) -> Plan:
        order = place * settings.samples + sample
        return Plan(tasks[place], sample, (seed, team.config.seed, place, sample), order, greedy)

    sampled_plans = [plan(place, sample, False) for place in range(count) for sample in range(settings.samples)]
    sampled = play(sampled_plans, "evaluating, sampled")
    greedy = play([plan(place, 0, True) for place in range(count)], "evaluating, greedy")
    report: dict[str, Any] = {
        "tasks": count,
        "samples": settings.samples,
        "sampled": summarise(sampled, settings.samples),
        "greedy": summarise(greedy, 1),
    }
    if settings.influence:
        report["influence"] = influence(team, play, sampled_plans, sampled)
    if settings.retention:
        report["retention"] = retention(team, sampled)
    return Evaluation(report, (*greedy, *sampled))


def summarise(episodes: Sequence[Episode], samples: int) -> dict[str, Any]:
    """Success with its 95% interval, reward, pass@k and success per task kind; failed episodes count as failures."""
    tasks = [episode.task.id for episode in episodes]
    success = [0.0 if episode.error else episode.success for episode in episodes]
    kinds = sorted({episode.task.kind for episode in episodes})
    by_kind = {}
    for kind in kinds:
        mine = [place for place, episode in enumerate(episodes) if episode.task.kind == kind]
        by_kind[kind] = mean_interval([success[i] for i in mine], [tasks[i] for i in mine]).as_dict()
    powers = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
    return {
        "success": mean_interval(success, tasks).as_dict(),
        "reward": mean_interval([each.reward for each in episodes], tasks, bounded=False).as_dict(),
        "failed": sum(each.error is not None for each in episodes),
        "kinds": by_kind,
        **({"pass_at": {str(k): mean_pass_at_k(success, tasks, k) for k in powers}} if samples > 1 else {}),
    }


def influence(team: Team, play: Play, plans: Sequence[Plan], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Per agent that someone listens to: success when its messages come from another task's episode, and the drop.

    A drop near 0 says that the others ignore it (Jaques et al., arXiv 1810.08647, ask the same of actions).
    """
    heard = {
        episode.actions[parent].agent for episode in episodes for action in episode.actions for parent in action.parents
    }
    result = {}
    for name in team.game.names:
        if name not in heard:
            continue
        swapped: list[Plan] = []
        original: list[Episode] = []  # the same episodes as they were played: the drop compares like with like
        for place, plan in enumerate(plans):
            donor = _other_task(episodes, place)
            lines = [action.text for action in donor.actions if action.agent == name] if donor else []
            if lines:
                # A game that goes on longer than the donor's hears its last line again
                lines += lines[-1:] * (team.game.turns - len(lines))
                swapped.append(replace(plan, scripted={name: lines}))
                original.append(episodes[place])
        if swapped:
            played = play(swapped, f"swapping {name}'s messages")
            tasks = [each.task.id for each in played]
            after, before = (
                mean_interval([0.0 if each.error else each.success for each in some], tasks)
                for some in (played, original)
            )
            result[name] = {"swapped": after.as_dict(), "drop": before.mean - after.mean}
    return result


def _other_task(episodes: Sequence[Episode], place: int) -> Episode | None:
    """The nearest later episode (going round) of another task, played without failure."""
    own = episodes[place].task.id
    for step in range(1, len(episodes)):
        other = episodes[(place + step) % len(episodes)]
        if other.task.id != own and not other.error:
            return other
    return None


@torch.no_grad()
def retention(team: Team, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Per agent: mean KL from the base per token of its own words (k3), and perplexity on a neutral text."""
    batch = collate(episodes, team.game.names, "token").batch
    if batch is None:
        return {}
    budget = team.config.update.micro_tokens
    temperature = torch.tensor([team.game.agents[agent].sampling.temperature for agent in batch.agent.tolist()])
    adapters = [team.game.agents[agent].adapter for agent in batch.agent.tolist()]
    own = batch_logprobs(team.policy, batch, adapters, temperature, budget)
    bare: list[str | None] = [None] * batch.rows
    base = batch_logprobs(team.policy, batch, bare, temperature, budget)
    distance = reference_kl(own, base, batch.action_mask)
    base_perplexity = perplexity(team, None)
    result = {}
    for number, agent in enumerate(team.game.agents):
        rows = batch.agent == number
        if bool(rows.any()):
            result[agent.name] = {
                "kl": float(distance[rows].sum() / batch.action_mask[rows].sum()),
                "perplexity": perplexity(team, agent.adapter),
                "base_perplexity": base_perplexity,
            }
    return result


def perplexity(team: Team, adapter: str | None) -> float:
    """exp of the mean negative log-probability per token of the neutral text, from its second token on."""
    ids = team.base.chat.encode(NEUTRAL_TEXT)[: team.base.context]
    (packed,) = pack([ids], len(ids))
    scores = team.policy.score(packed, [1], adapter, 1.0, entropy="none")
    return math.exp(-float(scores.logprobs.mean()))
