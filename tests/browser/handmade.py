"""Run directories made by hand, small and hostile: a chain of two with everything in it, a debate, one still empty."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
UNICODE = "Ünïcödé 数学 🧮 \u202eright to left\u202c a\u0301"
LONG = "Donaudampfschiff" * 60
CHAIN = ("planner", "solver")
DEBATERS = ("ann", "bob", "cy")
ITERATIONS = 12


def chain(path: Path, iterations: int = ITERATIONS, lr: float = 0.001, lift: float = 0.0) -> Path:
    """A chain of two agents: training play, two evaluations, alarms in iterations 5 and 6, one failed episode."""
    _config(path, [(name, f"You are {name}. {HOSTILE}") for name in CHAIN], "chain", iterations, lr)
    for iteration in range(iterations):
        append_row(path, _row(CHAIN, iteration, iterations, lift))
        _write(path / f"learnt/{iteration:06d}.jsonl", _learnt(iteration))
        _write(
            path / f"episodes/train-{iteration:06d}.jsonl", _played(f"{iteration}", iteration, iteration / iterations)
        )
    for after in (0, iterations):
        _evaluation(path, after, 0.25 + 0.5 * after / max(1, iterations), CHAIN)
        _write(path / f"episodes/evaluation-{after:06d}.jsonl", _played(f"evaluation/{after}", after, 0.5))
    return path


def debate(path: Path, iterations: int = 2) -> Path:
    """Three debaters, two rounds: in the second each reads what the others said in the first."""
    _config(path, [(name, "You debate.") for name in DEBATERS], {"debate": 2, "judge": None}, iterations, 0.001)
    for iteration in range(iterations):
        append_row(path, _row(DEBATERS, iteration, iterations, 0.0))
        episodes = [_episode(f"train-{task}", f"train-{task}/{iteration}/0", 0, 1.0, _rounds()) for task in range(2)]
        _write(path / f"episodes/train-{iteration:06d}.jsonl", episodes)
    return path


def empty(path: Path) -> Path:
    """A run whose first iteration has not ended."""
    _config(path, [(name, "") for name in CHAIN], "chain", ITERATIONS, 0.001)
    return path


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """One more iteration in metrics.jsonl."""
    with open(path / "metrics.jsonl", "a", encoding="utf8") as file:
        file.write(json.dumps(row) + "\n")


def next_row(iteration: int, success: float) -> dict[str, Any]:
    """A row of the chain whose success is told apart from all others."""
    return {**_row(CHAIN, iteration, ITERATIONS, 0.0), "success": success}


def _config(path: Path, agents: Iterable[tuple[str, str]], dependency: Any, iterations: int, lr: float) -> None:
    for folder in ("evaluations", "episodes", "learnt"):
        (path / folder).mkdir(parents=True)
    config = {
        "name": path.name,
        "seed": 0,
        "iterations": iterations,
        "model": {"name": "small"},
        "team": {
            "agents": [{"name": name, "profile": profile, "sees_task": True, "tools": []} for name, profile in agents],
            "dependency": dependency,
        },
        "update": {"level": "action", "lr": lr},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf8")
    (path / "metrics.jsonl").touch()


def _row(agents: Iterable[str], iteration: int, iterations: int, lift: float) -> dict[str, Any]:
    grown = iteration / iterations
    ill = iteration in (5, 6)
    row: dict[str, Any] = {
        "iteration": iteration,
        "reward": min(1.0, 0.2 + 0.5 * grown + lift),
        "success": min(1.0, 0.25 + 0.5 * grown + lift + (0.1 if iteration % 2 else 0.0)),
        "episodes": 5 if iteration == 3 else 4,
        "failed": int(iteration == 3),
        "failures": {f"solver: {HOSTILE} {UNICODE}": 1} if iteration == 3 else {},
        "play": {name: _play(place, grown) for place, name in enumerate(agents)},
        "entropy": {name: 0.9 - 0.3 * grown - 0.1 * place for place, name in enumerate(agents)},
        "sampler_gap": {"max": 2e-5, "mean": 1e-6},
        "update": {name: _update(place, grown, ill) for place, name in enumerate(agents)},
        "critic": {"loss": 0.2 - 0.1 * grown, "grad_norm": 0.5, "explained_variance": 0.4 * grown},
        "health": {"alarms": 1, "kl": {"solver": 0.7}} if ill else {"alarms": 0},
        "play_tokens_per_second": 900.0 + iteration,
        "update_tokens_per_second": 800.0,
        "seconds": 2.5,
        "share": {"rollout": 0.5, "score": 0.1, "critic": 0.2, "update": 0.2},
    }
    return {**row, "rollback_to": 5, "lr_scale": 0.5} if iteration == 6 else row


def _play(place: int, grown: float) -> dict[str, float]:
    return {"reward": place * grown, "replies": 1.0, "tool_calls": 0.0, "reply_tokens": 6.0 + 4 * place,
            "truncated_replies": 0.02 * place, "repeated": 0.1 * grown}  # fmt: skip


def _update(place: int, grown: float, ill: bool) -> dict[str, float]:
    return {"loss": -0.1, "grad_norm": 0.6 + place, "kl": 0.7 if ill and place else 0.01 + 0.01 * place,
            "reference_kl": 0.05 * grown, "ratio_p05": 0.8, "ratio_p50": 1.0, "ratio_p95": 1.2 + 0.1 * place,
            "ratio_max": 1.4, "clip_share": 0.1}  # fmt: skip


def _played(group: str, iteration: int, success: float) -> list[dict[str, Any]]:
    """Two tasks of two samples; in iteration 3 a third task fails."""
    found = []
    for task in range(2):
        for sample in range(2):
            won = float(task == 0 or (sample == 0 and success >= 0.5))
            actions = _chain_actions(iteration, won)
            found.append(_episode(f"train-{task}", f"train-{task}/{group}/0", sample, won, actions))
    if group == "3":
        failed = _episode("train-9", "train-9/3/0", 0, 0.0, _chain_actions(iteration, 0.0)[:1])
        found.append({**failed, "error": {"who": "solver", "reason": f"{HOSTILE} {UNICODE}"}, "answer": None})
    return found


def _episode(task: str, group: str, sample: int, won: float, actions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "task": {"id": task, "kind": "sums", "prompt": f"How much is 20 + 8? {HOSTILE} {UNICODE} {LONG}"},
        "group": group,
        "sample": sample,
        "reward": won,
        "success": won,
        "terminated": True,
        "truncated": False,
        "error": None,
        "answer": "28" if won else HOSTILE,
        "metrics": {"success": won},
        "actions": actions,
    }


def _chain_actions(iteration: int, won: float) -> list[dict[str, Any]]:
    plan = ["20", " plus", " 8", " ", HOSTILE, " ", UNICODE, "<|end|>"]
    reply = ["28", "<|end|>"] if won else [LONG, " ", HOSTILE, "<|end|>"]
    return [
        _action("planner", [], [], plan, 0.0, iteration),
        _action("solver", ["planner"], [0], reply, won, iteration),
    ]


def _rounds() -> list[dict[str, Any]]:
    first = [_action(name, [], [], ["28", "<|end|>"], 0.0, 0) for name in DEBATERS]
    second = [_action(name, list(DEBATERS), [0, 1, 2], ["I", " say", " 28", "<|end|>"], 1.0, 0) for name in DEBATERS]
    return [*first, *({**each, "step": 1} for each in second)]


def _action(
    agent: str, saw: list[str], parents: list[int], pieces: list[str], reward: float, version: int
) -> dict[str, Any]:
    logprobs = [round(-0.05 * (place + 1), 4) for place in range(len(pieces))]
    return {
        "agent": agent,
        "turn": 0,
        "step": 0,
        "saw": saw,
        "parents": parents,
        "prompt": f"<|system|>You are {agent}.<|user|>How much is 20 + 8? {HOSTILE}<|reply|>",
        "pieces": pieces,
        "logprobs": logprobs,
        "text": "".join(pieces[:-1]),
        "reward": reward,
        "stop": "stop",
        "tokens": len(pieces),
        "mean_logprob": sum(logprobs) / len(logprobs),
        "policy_version": version,
        "truncated_tokens": 0,
    }


def _learnt(iteration: int) -> list[dict[str, Any]]:
    return [
        {"group": f"train-{task}/{iteration}/0", "sample": sample, "action": action,
         "advantage": 0.5 - task + 0.1 * action, "ratio": [1.0, 1.1] if action and not task else None}
        for task in range(2) for sample in range(2) for action in range(2)
    ]  # fmt: skip


def _evaluation(path: Path, after: int, success: float, agents: Iterable[str]) -> None:
    def around(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": max(0.0, mean - 0.15), "high": min(1.0, mean + 0.15)}

    def report(mean: float) -> dict[str, Any]:
        return {
            "success": around(mean),
            "reward": around(mean),
            "tokens": 20.0,
            "failed": 0,
            "kinds": {"sums": around(mean)},
        }

    influence = {name: {"swapped": around(0.2), "drop": 0.1, "loss": around(0.1)} for name in agents}
    retention = {name: {"kl": 0.01 * after, "perplexity": 30.0 + after, "base_perplexity": 30.0} for name in agents}
    sampled = {**report(success - 0.1), "pass_at": {"1": success - 0.1}, "maj_at": {"1": success - 0.1}}
    told = {"tasks": 2, "samples": 1, "greedy": report(success), "sampled": sampled, "influence": influence,
            "retention": retention}  # fmt: skip
    (path / f"evaluations/{after:06d}.json").write_text(json.dumps(told), encoding="utf8")


def _write(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    file.write_text(text, encoding="utf8")
