"""The team as its config describes it, and D as it was played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from marft.view.episodes import Edge
from marft.view.index import Played
from marft.view.reading import section


def agents(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members of the team, as declared; what a config leaves out is what it means by that."""
    found = []
    for each in members(config):
        endpoint = each.get("endpoint")
        model = each.get("model") or section(config, "model", "name")
        if isinstance(model, Mapping):
            model = model.get("name") or section(config, "model", "name")
        if isinstance(endpoint, Mapping):
            model = f"{endpoint.get('model')} at {endpoint.get('url')}"
        trainable = bool(each.get("trainable", endpoint is None))
        found.append(
            {
                "name": each["name"],
                "profile": each.get("profile") or "",
                "sees_task": bool(each.get("sees_task", True)),
                "trainable": trainable,
                "adapter": None if endpoint is not None else each.get("adapter") or each["name"],
                "model": model,
                "tools": list(each.get("tools") or ()),
            }
        )
    return found


def members(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the config says of each agent; none where it says nothing that could be read."""
    listed = section(config, "team", "agents")
    if not isinstance(listed, list):
        return []
    return [each for each in listed if isinstance(each, Mapping) and isinstance(each.get("name"), str)]


def organisation(config: Mapping[str, Any]) -> str:
    """How the team is organised, in a few words."""
    workflow = section(config, "team", "workflow")
    if workflow:
        return f"workflow {workflow}"
    given = section(config, "team", "dependency")
    if not isinstance(given, Mapping):
        return str(given) if given is not None else ""
    if "debate" in given:
        judge = f", judged by {given['judge']}" if given.get("judge") else ""
        return f"debate of {given['debate']} {'round' if given['debate'] == 1 else 'rounds'}{judge}"
    if "orchestrator" in given:
        return f"{given['orchestrator']} calls up to {given.get('calls', 4)} members a turn"
    if "function" in given:
        return f"function {given['function']}"
    parts = [", ".join(_edge(each) for each in given.get("edges") or ())]
    recalls = [f"{reader} recalls {speaker}" for speaker, reader in given.get("recall") or ()]
    return "graph " + "; ".join(part for part in [*parts, *recalls] if part)


def played(files: Iterable[Played]) -> dict[str, Any]:
    """{"episodes", "edges"}: D as it was played in some files of episodes, the busiest edge first."""
    episodes, total = 0, Counter[Edge]()
    for each in files:
        episodes += each.episodes
        total += each.edges
    found = [
        {"from": speaker, "to": reader, "count": count, "per_episode": count / episodes, "recall": recall}
        for (speaker, reader, recall), count in sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return {"episodes": episodes, "edges": found}


def influence(reports: Mapping[int, Mapping[str, Any]], until: int | None = None) -> dict[str, Any]:
    """What the latest evaluation (after at most `until` iterations) says of each agent's influence: the loss of success
    when its messages are swapped, with its interval where the run is new enough to have one."""
    told = [n for n, report in reports.items() if report.get("influence") and (until is None or n <= until)]
    if not told:
        return {}
    found = {}
    for name, worth in reports[max(told)]["influence"].items():
        loss = worth.get("loss") or {"mean": worth.get("drop"), "low": None, "high": None}
        found[name] = {key: loss.get(key) for key in ("mean", "low", "high")}
    return found


def _edge(edge: Any) -> str:
    if isinstance(edge, Mapping):
        return f"{edge.get('speaker')} → {edge.get('reader')} if /{edge.get('when')}/"
    speaker, reader = edge
    return f"{speaker} → {reader}"
