"""What `marft eval` does: one run on any benchmark, or several side by side.

Runs that are compared play the same tasks with the same seeds, and each is set against the first, task by task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.run.benchmark import Terms, Worlds, teams_on
from marft.run.evaluate import Evaluation, held_out, task_means
from marft.run.opening import is_run, open_team
from marft.run.preflight import check_prompts
from marft.run.progress import Watcher
from marft.run.statistics import paired_bootstrap
from marft.team import Team
from marft.types import Episode, MarftError


def evaluate_run(team: Team, terms: Terms, source: str, watcher: Watcher) -> dict[str, Any]:
    """The team's report on each benchmark by name; under "" where none is asked for.

    Whatever can be wrong with any of them raises `MarftError` naming `source` before the first is played.
    """
    teams = teams_on(team, terms, Worlds(watcher), source)
    for name, each in teams.items():
        check_prompts(each, f"{source} on {name}" if name else source, ("heldout",))
    return {name: held_out(each, watcher, name).report for name, each in teams.items()}


def compare_runs(
    targets: Sequence[str], checkpoint: str | None, overrides: Sequence[str], terms: Terms, watcher: Watcher
) -> dict[str, Any]:
    """The comparison on each benchmark by name; under "" where none is asked for.

    Then all play the held-out tasks of the first run's environment, each team answering its own way (`carried`). Seed,
    tasks and samples are the first run's; influence is measured only if asked for, language not at all. Each is paid as
    `reward_in` says, so rewards of runs with different ones are no comparison. Whatever can be wrong with any of the
    runs raises `MarftError` before the first is played.
    """
    for target in targets:
        if targets.count(target) > 1:
            raise MarftError(f"{target}: is named twice; a comparison needs different runs")
    worlds = Worlds(watcher)
    first: Team | None = None
    for target in targets:
        watcher.phase(f"looking at {target}")
        teams, first = _entrants(target, checkpoint, overrides, terms, worlds, first)
        for name, team in teams.items():
            check_prompts(team, f"{target} on {name}" if name else target, ("heldout",))
    evaluations: dict[str, dict[str, Evaluation]] = {}
    for number, target in enumerate(targets, start=1):
        watcher.phase(f"loading {target}")
        teams, _ = _entrants(target, checkpoint, overrides, terms, worlds, first)
        for name, team in teams.items():
            about = f"{number} of {len(targets)}: {target}{f' on {name}' if name else ''}"
            evaluations.setdefault(name, {})[target] = held_out(team, watcher, about)
    return {name: comparison(each) for name, each in evaluations.items()}


def comparison(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Each run's report, and how much more success than the first it had: paired by task, bootstrap intervals of 95%.

    `difference` -> run -> `sampled`, `greedy`, `no_verdict` (where both have it) -> `success` and `kinds`.
    """
    (first, baseline), *others = evaluations.items()
    return {
        "first": first,
        "tasks": baseline.report["tasks"],
        "samples": baseline.report["samples"],
        "runs": {name: each.report for name, each in evaluations.items()},
        "difference": {name: _difference(baseline, each) for name, each in others},
    }


def _entrants(
    target: str, checkpoint: str | None, overrides: Sequence[str], terms: Terms, worlds: Worlds, first: Team | None
) -> tuple[dict[str, Team], Team]:
    """A run's team on each benchmark, under the first run's conditions (None: this is the first); and the first."""
    # An untrained team, from a config, may be among the runs
    team, _ = open_team(target, checkpoint if is_run(target) else None, overrides)
    first = first or team
    retention = {"retention": False, "influence": bool(terms.influence)}
    same = {"seed": first.config.seed, "evaluation": first.config.evaluation.model_copy(update=retention)}
    team = replace(team, config=team.config.model_copy(update=same))
    return teams_on(team, terms, worlds, target, first.config.environment), first


def _difference(baseline: Evaluation, other: Evaluation) -> dict[str, Any]:
    found = {}
    for part in ("sampled", "greedy", "no_verdict"):
        before, after = _by_kind(getattr(baseline, part)), _by_kind(getattr(other, part))
        if before and after:
            whole = [{task: win for each in kinds.values() for task, win in each.items()} for kinds in (before, after)]
            found[part] = {
                "success": paired_bootstrap(whole[0], whole[1]).as_dict(),
                "kinds": {kind: paired_bootstrap(before[kind], after[kind]).as_dict() for kind in sorted(before)},
            }
    return found


def _by_kind(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Kind -> task -> mean success."""
    kinds: dict[str, list[Episode]] = {}
    for episode in episodes:
        kinds.setdefault(episode.task.kind, []).append(episode)
    return {kind: task_means(each) for kind, each in kinds.items()}
