"""Runs made by hand for the pages of the team and its episodes: every number in the tests can be worked out from here.

`orchestrated`: fifteen episodes of a lead who calls a coder (with a tool) and a critic.

    file                line  task  reward  who is called            what is special
    evaluation-000000   0, 1  A, B  0, 1    coder                    greedy
                        2, 3  A, B  1, 0    coder                    sampled
    train-000000        0, 1  T1    0, 1    coder, then critic       the coder asks its tool; 1 is longer by two tokens
                        2     T2    0       nobody: fails            its reason is hostile
    train-000001        0     T1    1       coder                    learnt from, with pieces
                        1     T2    0.25    coder                    says "Zebra"; hostile
    train-000002        0     T1    0       critic
                        1     T2    1       critic                   every token at -2
    evaluation-000003   0, 1  A, B  1, 0    coder                    greedy
                        2, 3  A, B  1, 1    coder                    sampled; in 3 every token at -1
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

AGENTS = ("lead", "coder", "critic")
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
ALL = [f"evaluation-000003:{line}" for line in range(4)] + ["train-000002:0", "train-000002:1", "train-000001:0"]
ALL += ["train-000001:1", "train-000000:0", "train-000000:1", "train-000000:2"]
ALL += [f"evaluation-000000:{line}" for line in range(4)]  # newest first, as the list shows them

Actions = list[dict[str, Any]]


def orchestrated(path: Path, old: bool = False) -> Path:
    """The run of the table above; `old`: as runs were written before tokens were kept with the episodes."""
    begin(path, [agent(name) for name in AGENTS], {"orchestrator": "lead", "calls": 2}, iterations=3)
    greedy = [episode("A", 0.0, called("coder")), episode("B", 1.0, called("coder"))]
    sampled = [episode("A", 1.0, called("coder")), episode("B", 0.0, called("coder"))]
    evaluation(path, 0, [*greedy, *sampled], tasks=2)
    long = called("coder", "critic", tool=True, last=["42", " for", " sure", "."])
    failed = episode("T2", 0.0, called()[:1], error={"who": "coder", "reason": f"no answer in 5 s {HOSTILE}"})
    first = [episode("T1", 0.0, called("coder", "critic", tool=True)), episode("T1", 1.0, long, sample=1), failed]
    hostile = called("coder", last=["Zebra", " ", HOSTILE])
    training(path, 0, first)
    training(path, 1, [episode("T1", 1.0, called("coder")), episode("T2", 0.25, hostile)])
    training(path, 2, [episode("T1", 0.0, called("critic")), episode("T2", 1.0, called("critic", logprob=-2.0))])
    greedy = [episode("A", 1.0, called("coder")), episode("B", 0.0, called("coder"))]
    sampled = [episode("A", 1.0, called("coder")), episode("B", 1.0, called("coder", logprob=-1.0))]
    evaluation(path, 3, [*greedy, *sampled], tasks=2)
    write(path / "learnt/000001.jsonl", LEARNT)
    return forget_tokens(path) if old else path


# Of train-000001:0: what its lead said first is learnt from token by token and measured; its coder's as one decision
LEARNT = [
    {"group": "T1", "sample": 0, "action": 0, "advantage": [-2.0, 0.5, 1.0], "ratio": [0.5, 1.0, 2.0]},
    {"group": "T1", "sample": 0, "action": 1, "advantage": 0.75, "ratio": None},
]


def called(*members: str, tool: bool = False, logprob: float = -0.1, last: Sequence[str] = ("42",)) -> Actions:
    """The lead calls one member a turn, reads it in the next one, and says the last word."""
    actions: Actions = []
    for turn, name in enumerate(members):
        heard = [len(actions) - 1] if actions else []
        speak(actions, "lead", turn, heard, ["ask", f" {name}", "<|end|>"], logprob)
        asked = len(actions) - 1
        if tool and name == "coder":
            speak(actions, name, turn, [asked], ["6*7", "\n", "<|end|>"], logprob, tool_results=["the tool says 42"])
            speak(actions, name, turn, [asked, asked + 1], ["42", "<|end|>"], logprob, step=1)
        else:
            speak(actions, name, turn, [asked], [f"{name} says", " 42", "<|end|>"], logprob)
    speak(actions, "lead", len(members), [len(actions) - 1] if actions else [], [*last, "<|end|>"], logprob)
    return actions


def speak(
    actions: Actions, name: str, turn: int, parents: Sequence[int], pieces: Sequence[str], logprob: float, **more: Any
) -> None:
    """One reply more, whose tokens all have one log-probability."""
    actions.append(
        {
            "agent": name,
            "turn": turn,
            "step": 0,
            "saw": [actions[parent]["agent"] for parent in parents],
            "parents": list(parents),
            "prompt": f"<|system|>You are {name}.<|reply|>",
            "text": "".join(pieces[:-1]),
            "reward": 0.0,
            "stop": "stop",
            "tokens": len(pieces),
            "mean_logprob": logprob,
            "policy_version": 0,
            "truncated_tokens": 0,
            "pieces": list(pieces),
            "logprobs": [logprob] * len(pieces),
            **more,
        }
    )


def episode(task: str, reward: float, actions: Actions, **more: Any) -> dict[str, Any]:
    """A record as a run directory holds it; the last action earned the reward."""
    actions[-1]["reward"] = reward
    usual = {
        "task": {"id": task, "kind": "sums", "prompt": f"How much is 6 * 7, task {task}?"},
        "group": task,
        "sample": 0,
        "reward": reward,
        "success": reward,
        "terminated": True,
        "truncated": False,
        "error": None,
        "answer": "42",
        "metrics": {"success": reward, "care": 0.5},
        "actions": actions,
    }
    return {**usual, **more}


def agent(name: str) -> dict[str, Any]:
    """An agent of a config: the critic is frozen, the coder has a tool, only the lead sees the task."""
    return {
        "name": name,
        "profile": f"You are {name}. {HOSTILE}",
        "sees_task": name == "lead",
        "trainable": name != "critic",
        "tools": ["python"] if name == "coder" else [],
    }


def begin(path: Path, agents: Sequence[Mapping[str, Any]], dependency: Any, iterations: int) -> None:
    """The folders, the config and as many rows of metrics."""
    for folder in ("episodes", "evaluations", "learnt"):
        (path / folder).mkdir(parents=True)
    config = {
        "name": path.name,
        "iterations": iterations,
        "model": {"name": "small"},
        "team": {"agents": list(agents), "dependency": dependency},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf8")
    write(path / "metrics.jsonl", [{"iteration": each, "success": 0.5, "reward": 0.5} for each in range(iterations)])


def evaluation(path: Path, after: int, episodes: Sequence[Mapping[str, Any]], tasks: int) -> None:
    """An evaluation's episodes, and a report that knows the coder's influence."""
    write(path / f"episodes/evaluation-{after:06d}.jsonl", episodes)
    influence = {"coder": {"drop": 0.25, "loss": {"mean": 0.25, "low": 0.125, "high": 0.375}}}
    told = {"tasks": tasks, "samples": 1, "influence": influence}
    (path / f"evaluations/{after:06d}.json").write_text(json.dumps(told), encoding="utf8")


def training(path: Path, iteration: int, episodes: Sequence[Mapping[str, Any]]) -> None:
    """The training play of an iteration."""
    write(path / f"episodes/train-{iteration:06d}.jsonl", episodes)


def forget_tokens(path: Path) -> Path:
    """The run without what is known of single tokens."""
    for file in (path / "episodes").glob("*.jsonl"):
        records = [json.loads(line) for line in file.read_text(encoding="utf8").splitlines()]
        for action in (action for record in records for action in record["actions"]):
            del action["pieces"], action["logprobs"]
        write(file, records)
    (path / "learnt/000001.jsonl").unlink()
    return path


def many(path: Path, count: int = 10_000, files: int = 50) -> Path:
    """So many short episodes of a single agent; every hundredth says its number, every tenth is won."""
    begin(path, [{"name": "solo", "profile": "Answer."}], "chain", iterations=files)
    each = count // files
    for iteration in range(files):
        found = []
        for line in range(each):
            number = iteration * each + line
            actions: Actions = []
            word = f"needle{number}" if number % 100 == 0 else "hay"
            speak(actions, "solo", 0, [], [word, "<|end|>"], -0.1)
            found.append(episode(f"task{number % 500}", float(number % 10 == 0), actions, sample=number))
        training(path, iteration, found)
    return path


def write(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """One record a line."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf8")
