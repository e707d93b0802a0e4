"""Evaluation: held-out play with fixed seeds, what each agent's words are worth, and what became of the language."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from marft.environments.base import Environment
from marft.learn.collate import Layout, collate
from marft.learn.losses import reference_kl
from marft.learn.play import EVALUATION_SEED, play_plans
from marft.learn.score import rows_of
from marft.learn.update import batch_logprobs, select
from marft.models.pack import pack
from marft.rollout import Plan
from marft.run.progress import Watcher
from marft.run.statistics import (
    majority_by_task,
    mean_interval,
    mean_majority_at_k,
    mean_pass_at_k,
    paired_difference,
)
from marft.team import Backend, Team
from marft.types import Episode, MarftError, Task


class Play(Protocol):
    """Plays plans under a label for whoever watches, in another environment than the team's own if one is given."""

    def __call__(self, plans: Sequence[Plan], label: str, environment: Environment | None = None) -> list[Episode]:
        """One episode per plan, in the order of the plans."""
        ...


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
    greedy: tuple[Episode, ...]
    sampled: tuple[Episode, ...]
    no_verdict: tuple[Episode, ...] = ()

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What is kept of an evaluation: the greedy episodes, one a task, then the sampled ones."""
        return (*self.greedy, *self.sampled)

    @property
    def headline(self) -> dict[str, Any]:
        """What a person wants to see first."""
        lines: dict[str, Any] = {
            "success, sampled": self.report["sampled"]["success"],
            "success, greedy": self.report["greedy"]["success"],
        }
        if self.no_verdict:
            lines["success, sampled, nobody told right from wrong"] = self.report["no_verdict"]["success"]
        for name, worth in self.report.get("influence", {}).items():
            lines[f"success with {name}'s messages swapped"] = worth["swapped"]
        for name, kept in self.report.get("retention", {}).items():
            perplexities = f"{kept['perplexity']:.1f} (base {kept['base_perplexity']:.1f})"
            lines[f"language of {name}"] = f"KL from base {kept['kl']:.3f}, perplexity {perplexities}"
        return lines


def held_out(team: Team, watcher: Watcher, about: str = "") -> Evaluation:
    """Evaluate a team as training does: the same weights and config give the same report on the CPU, bit for bit.

    `about` tells the watcher what is evaluated, such as one run among several.
    """

    def name(label: str) -> str:
        return f"{label} ({about})" if about else label

    def play(plans: Sequence[Plan], label: str, environment: Environment | None = None) -> list[Episode]:
        there = team if environment is None else replace(team, game=replace(team.game, environment=environment))
        return play_plans(there, plans, watcher, name(label))

    return evaluate(team, play, EVALUATION_SEED, lambda label: watcher.phase(name(label)))


def evaluate(team: Team, play: Play, seed: int, phase: Callable[[str], None] = lambda label: None) -> Evaluation:
    """Play the held-out tasks greedily and sampled; the same config gives the same tasks and draws every time.

    Where the environment tells the team whether an answer was right, the sampled episodes are also played without that.
    `phase` hears of what takes long and is no play.
    """
    settings = team.config.evaluation
    phase("gathering the held-out tasks")
    tasks = heldout_tasks(team)
    count = len(tasks)

    def plan(place: int, sample: int, greedy: bool) -> Plan:
        order = place * settings.samples + sample
        return Plan(tasks[place], sample, (seed, team.config.seed, place, sample), order, greedy)

    sampled_plans = [plan(place, sample, False) for place in range(count) for sample in range(settings.samples)]
    sampled = play(sampled_plans, "evaluating, sampled")
    greedy = play([plan(place, 0, True) for place in range(count)], "evaluating, greedy")
    report: dict[str, Any] = {
        "tasks": count,
        "samples": settings.samples,
        "sampled": summarise(sampled, settings.samples, settings.vote_tokens),
        "greedy": summarise(greedy, 1),
    }
    blind = without_verdict(team.game.environment)
    no_verdict = [] if blind is None else play(sampled_plans, "evaluating without verdict", blind)
    if no_verdict:
        report["no_verdict"] = summarise(no_verdict, settings.samples)
    if settings.influence:
        report["influence"] = influence(team, play, sampled_plans, sampled)
    if settings.retention:
        phase("measuring the language")
        report["retention"] = retention(team, sampled)
    return Evaluation(report, tuple(greedy), tuple(sampled), tuple(no_verdict))


def heldout_tasks(team: Team) -> list[Task]:
    """The tasks an evaluation plays: the first `evaluation.tasks` held-out ones, or all there are."""
    environment, count = team.game.environment, team.config.evaluation.tasks
    size = environment.size("heldout")
    if size == 0:
        raise MarftError(f"environment '{environment.name}': has no held-out tasks; set evaluation.tasks to 0")
    return [environment.task("heldout", index) for index in range(count if size is None else min(count, size))]


def without_verdict(environment: Environment) -> Environment | None:
    """The same tasks without an oracle that says whether an answer was right; None where there is no such oracle."""
    blind: Callable[[], Environment] | None = getattr(environment, "without_verdict", None)
    other = None if blind is None else blind()
    return None if other is environment else other


def summarise(episodes: Sequence[Episode], samples: int, vote_tokens: int | None = None) -> dict[str, Any]:
    """Success with its 95% interval, reward, pass@k, maj@k and success per task kind; failed episodes are failures.

    maj@k (`majority_at_k`) is there when the environment reads answers: a failed episode, and one without an answer,
    does not vote. `tokens` is what an episode sampled on average; `vote_tokens` asks for the `vote` those buy.
    """
    tasks = [episode.task.id for episode in episodes]
    success = [success_of(episode) for episode in episodes]
    kinds = sorted({episode.task.kind for episode in episodes})
    by_kind = {}
    for kind in kinds:
        mine = [place for place, episode in enumerate(episodes) if episode.task.kind == kind]
        by_kind[kind] = mean_interval([success[i] for i in mine], [tasks[i] for i in mine]).as_dict()
    report: dict[str, Any] = {
        "success": mean_interval(success, tasks).as_dict(),
        "reward": mean_interval([each.reward for each in episodes], tasks, bounded=False).as_dict(),
        "tokens": sum(len(action.token_ids) for each in episodes for action in each.actions) / max(len(episodes), 1),
        "failed": sum(each.error is not None for each in episodes),
        "kinds": by_kind,
    }
    if samples > 1:
        powers = sorted({k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples} | {samples})
        report["pass_at"] = {str(k): mean_pass_at_k(success, tasks, k) for k in powers}
        answers = ["" if each.error else each.answer for each in episodes]
        if any(answers):
            report["maj_at"] = {str(k): mean_majority_at_k(answers, success, tasks, k) for k in powers}
            if vote_tokens is not None:
                report["vote"] = vote(episodes, samples, vote_tokens)
    return report


def vote(episodes: Sequence[Episode], samples: int, budget: int) -> dict[str, Any]:
    """The majority vote of as many samples a task as `budget` tokens buy, at least 1, at most the `samples` there are.

    `affordable` is the budget over the mean tokens of a sample; `k` is how many voted.
    """
    spent = sum(len(action.token_ids) for each in episodes for action in each.actions)
    affordable = budget * len(episodes) / max(spent, 1)
    k = min(max(1, int(affordable)), samples)
    answers = ["" if each.error else each.answer for each in episodes]
    wins = majority_by_task(answers, [success_of(each) for each in episodes], [each.task.id for each in episodes], k)
    return {"k": k, "affordable": affordable, "success": mean_interval(list(wins.values()), list(wins)).as_dict()}


def success_of(episode: Episode) -> float:
    """The episode's success; an episode that failed is no success, whatever it had reached."""
    return 0.0 if episode.error else episode.success


def task_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Task id -> mean success of its episodes."""
    wins: dict[str, list[float]] = {}
    for episode in episodes:
        wins.setdefault(episode.task.id, []).append(success_of(episode))
    return {task: sum(each) / len(each) for task, each in wins.items()}


def influence(team: Team, play: Play, plans: Sequence[Plan], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Per agent that another listens to: success when its messages come from another task's episode, and the loss.

    `drop` is the loss of success, `loss` the same with its 95% interval, paired by task (`paired_difference`). Near 0
    says that the others ignore the agent (Jaques et al., arXiv 1810.08647, ask the same of actions).
    """
    heard = {
        episode.actions[parent].agent
        for episode in episodes
        for action in episode.actions
        for parent in action.parents
        if episode.actions[parent].agent != action.agent
    }
    samples = max(1, len(episodes) // len({episode.task.id for episode in episodes}))
    result = {}
    for name in team.game.names:
        if name not in heard:
            continue
        swapped: list[Plan] = []
        original: list[Episode] = []  # the same episodes as they were played: the loss compares like with like
        for place, plan in enumerate(plans):
            donor = _other_task(episodes, place, samples)
            lines = _messages(donor, name) if donor else []
            if lines:
                swapped.append(replace(plan, scripted={name: lines}))
                original.append(episodes[place])
        if swapped:
            played = play(swapped, f"swapping {name}'s messages")
            after = mean_interval([success_of(each) for each in played], [each.task.id for each in played])
            loss = paired_difference(task_means(played), task_means(original))
            result[name] = {"swapped": after.as_dict(), "drop": loss.mean, "loss": loss.as_dict()}
    return result


def _messages(episode: Episode, name: str) -> list[str]:
    """What the agent said to the others, in order; its replies that called tools went to the tools alone."""
    return [action.text for action in episode.actions if action.agent == name and not action.tool_results]


def _other_task(episodes: Sequence[Episode], place: int, samples: int) -> Episode | None:
    """The nearest later episode (going round) of another task, played without failure; best the same sample of it."""
    own = episodes[place].task.id
    for step in (*range(samples, len(episodes), samples), *range(1, len(episodes))):
        other: Episode = episodes[(place + step) % len(episodes)]
        if other.task.id != own and not other.error:
            return other
    return None


@torch.no_grad()
def retention(team: Team, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Per agent: mean KL from its base per token of its own words (k3), and perplexity on a neutral text.

    An agent that is an endpoint is left out: what becomes of its language is not ours to measure.
    """
    batch = collate(episodes, team.game.names, Layout("token")).batch
    if batch is None:
        return {}
    agents, budget = team.game.agents, team.config.update.micro_tokens
    ours = torch.tensor([agent.adapter in team.backend(agent.name).policy.adapters for agent in agents])[batch.agent]
    found = {}
    for backend in team.backends:
        mine = select(batch, rows_of(team, batch, backend, ours))
        speakers = [agents[agent] for agent in mine.agent.tolist()]
        if not speakers:
            continue
        temperature = torch.tensor([agent.sampling.temperature for agent in speakers])
        own = batch_logprobs(backend.policy, mine, [agent.adapter for agent in speakers], temperature, budget)
        bare: list[str | None] = [None] * mine.rows
        base = batch_logprobs(backend.policy, mine, bare, temperature, budget)
        distance = reference_kl(own, base, mine.action_mask)
        base_perplexity = perplexity(backend, None)
        for agent in dict.fromkeys(speakers):
            rows = mine.agent == agents.index(agent)
            found[agent.name] = {
                "kl": float(distance[rows].sum() / mine.action_mask[rows].sum()),
                "perplexity": perplexity(backend, agent.adapter),
                "base_perplexity": base_perplexity,
            }
    return {name: found[name] for name in team.game.names if name in found}


def perplexity(backend: Backend, adapter: str | None) -> float:
    """exp of the mean negative log-probability per token of the neutral text, from its second token on."""
    ids = backend.base.chat.encode(NEUTRAL_TEXT)[: backend.base.context]
    (packed,) = pack([ids], len(ids))
    scores = backend.policy.score(packed, [1], adapter, 1.0, entropy="none")
    return math.exp(-float(scores.logprobs.mean()))
