"""Model cards: what an exported agent or a pushed team is, how it was trained, what it reached, and how to use it.

The numbers are those of the run's own files; the front matter is what the hub reads
(https://huggingface.co/docs/hub/model-cards).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import marft
from marft.config import Config, ModelConfig
from marft.game.drawing import draw
from marft.game.flexmg import FlexMG
from marft.run.directory import RunDirectory
from marft.run.metrics import read_metrics
from marft.run.show import PARTS

# Built-in models: what they are called on the hub, and their licence
ORIGINS = {
    "smollm2-135m-instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
    "gemma3-270m": ("google/gemma-3-270m", "gemma"),
}


@dataclass(frozen=True)
class Subject:
    """What a card speaks of: a checkpoint of a run, whose weights are adapters unless `merged`."""

    run: RunDirectory
    config: Config
    game: FlexMG
    iteration: int
    merged: bool = False

    @property
    def name(self) -> str:
        """The run's name."""
        path = self.run.path.resolve()
        # The hub's cache has models--USER--NAME/snapshots/COMMIT
        return path.parents[1].name.split("--")[-1] if path.parent.name == "snapshots" else path.name

    def models(self, agents: Sequence[str] = ()) -> list[ModelConfig]:
        """The base models of these agents (default: of all that are not played elsewhere), each once."""
        here = [each for each in self.config.team.agents if each.endpoint is None]
        chosen = [each for each in here if each.name in agents or not agents]
        return list({each.name: each for each in map(self.config.model_of, chosen)}.values())


def front_matter(subject: Subject, agents: Sequence[str] = ()) -> str:
    """The YAML block that opens a card; `agents` are those whose weights it is about (default: all).

    A base model that only this machine has is left out, and so is a licence that is not known.
    """
    from huggingface_hub import ModelCardData

    models = subject.models(agents)
    plain = subject.merged or all(model.tuning == "full" for model in models)
    bases = [base for base in (hub_name(model.name) for model in models) if base]
    licences = {ORIGINS.get(model.name, ("", ""))[1] for model in models}
    data = ModelCardData(
        library_name="transformers" if plain else "peft",
        base_model=(bases[0] if len(bases) == 1 else bases) or None,
        license=licences.pop() or None if len(licences) == 1 else None,
        pipeline_tag="text-generation",
        tags=["marft", "multi-agent", "reinforcement-learning", *([] if plain else ["lora"])],
    )
    if bases:
        data["base_model_relation"] = "finetune" if plain else "adapter"
    return f"---\n{data.to_yaml()}\n---"


def hub_name(model: str) -> str:
    """What the hub calls a model of a config; empty where it is on no hub."""
    if model in ORIGINS:
        return ORIGINS[model][0]
    here = model.startswith((".", "/", "~")) or Path(model).expanduser().is_dir()
    return "" if here or model.count("/") != 1 else model


def about_team(subject: Subject) -> str:
    """Who is in the team, who reads whom, and a drawing of it."""
    from rich.console import Console

    lines = []
    for agent in subject.game.agents:
        task = "reads the task" if agent.sees_task else "does not see the task"
        given = next(each for each in subject.config.team.agents if each.name == agent.name)
        kind = "not one of these weights: an endpoint" if given.endpoint else "trained" if agent.trainable else "frozen"
        tools = f", may call {', '.join(agent.tools)}" if agent.tools else ""
        lines.append(f"- `{agent.name}` {task}{tools}; {kind}, adapter `{agent.adapter}`")
    drawing = Console(file=io.StringIO(), width=88, no_color=True, force_terminal=False, legacy_windows=False)
    drawing.print(draw(subject.game))
    assert isinstance(drawing.file, io.StringIO)
    drawn = "\n".join(line.rstrip() for line in drawing.file.getvalue().splitlines()).rstrip()
    return f"""## Team

{chr(10).join(lines)}

An arrow leads from who is heard to who hears: the dependency function D of Flex-MG
([arXiv 2504.16129](https://arxiv.org/abs/2504.16129)).

```text
{drawn}
```"""


def about_training(subject: Subject) -> str:
    """How the checkpoint came about."""
    config = subject.config
    rows = [row for row in read_metrics(subject.run.path) if row["iteration"] < subject.iteration]
    lora = f"rank {config.lora.r}, alpha {config.lora.alpha:g}, targets {config.lora.targets}"
    full = all(model.tuning == "full" for model in subject.models())
    facts = {
        "learner": f"{config.update.level} level, {config.credit.baseline} baseline, chain per {config.credit.chain}, "
        f"{config.update.schedule} updates",
        "environment": f"`{config.environment.name}`{_which_tasks(config)}",
        "iterations": f"{subject.iteration} of {config.iterations}",
        "play per iteration": f"{config.rollout.tasks} tasks, {config.rollout.samples} episodes each",
        "episodes": f"{sum(row.get('episodes', 0) for row in rows):,}" if rows else "",
        "sampled tokens": _sampled_tokens(rows),
        "weights": "all of the model" if full else f"LoRA: {lora}",
        "learning rate": f"{config.update.lr:g}",
        "seed": str(config.seed),
        "marft": marft.__version__,
    }
    lines = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value)
    return f"## Training\n\n| | |\n|---|---|\n{lines}"


def _which_tasks(config: Config) -> str:
    given = config.environment.parameters
    return "".join(f", {key} `{given[key]}`" for key in ("dataset", "benchmark", "game") if given.get(key))


def _sampled_tokens(rows: Sequence[Mapping[str, Any]]) -> str:
    """Episodes times replies times tokens a reply, rounded: the rows hold means."""
    total = 0.0
    for row in rows:
        played = row.get("play", {}).values()
        total += row.get("episodes", 0) * sum(
            (each.get("replies") or 0) * (each.get("reply_tokens") or 0) for each in played
        )
    return f"about {float(f'{total:.2g}'):,.0f}" if total else ""


def about_results(subject: Subject) -> str:
    """Held-out play before training and at the checkpoint, with 95% intervals, from the files of the run."""
    reports = subject.run.read_evaluations()
    measured = [number for number in reports if 0 < number <= subject.iteration]
    shown = ([0] if 0 in reports else []) + measured[-1:]
    if not shown:
        return "## Results\n\nThis checkpoint and those before it were not evaluated."
    titles = {number: f"after {number} iterations" if number else "before training" for number in shown}
    last = reports[shown[-1]]
    rows = []
    for part, title in PARTS.items():
        for key in ("success", "reward"):
            cells = [_interval(reports[number].get(part, {}).get(key)) for number in shown]
            if any(cells):
                rows.append([f"{key}, {title.format(samples=last['samples'])}", *cells])
    for k in last["sampled"].get("pass_at", {}):
        if k != "1":
            values = [reports[number]["sampled"].get("pass_at", {}).get(k) for number in shown]
            rows.append([f"pass@{k}", *("" if value is None else f"{value:.3f}" for value in values)])
    parts = [
        "## Results",
        f"{last['tasks']} held-out tasks of the environment it was trained in; mean [95% interval], tasks as the unit.",
        _table(["", *(titles[number] for number in shown)], rows),
    ]
    if shown[-1] < subject.iteration:
        parts.append(f"The weights are those after {subject.iteration} iterations, which were not evaluated.")
    influence = [[f"`{name}`", _interval(each["swapped"]), _loss(each)] for name, each in _items(last, "influence")]
    if influence and measured:
        parts.append(_table(["influence of", "success, its messages swapped", "success lost"], influence))
    kept = [
        [f"`{name}`", *(f"{each[key]:.3f}" for key in ("kl", "perplexity", "base_perplexity"))]
        for name, each in _items(last, "retention")
    ]
    if kept and measured:
        parts.append(_table(["language of", "KL from base per token", "perplexity", "base"], kept))
    return "\n\n".join(parts)


def _items(report: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    return list(report.get(key, {}).items())


def _loss(worth: Mapping[str, Any]) -> str:
    return _interval(worth["loss"]) if "loss" in worth else f"{worth['drop']:.3f}"


def _interval(found: Mapping[str, float] | None) -> str:
    return "" if found is None else f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def about_serving(base: str, adapters: Mapping[str, str], rank: int) -> str:
    """How vLLM would serve a model, with adapters (name -> folder) on it; not something we have run on a GPU."""
    named = " ".join(f"{name}={folder}" for name, folder in adapters.items())
    ranks = f" --max-lora-rank {rank}" if rank > 16 else ""  # 16 is vLLM's default
    command = f"vllm serve {base}" + (f" --enable-lora{ranks} --lora-modules {named}" if named else "")
    ask = (
        "the model to ask for is called as in NAME=FOLDER" if named else "the model to ask for is called as the folder"
    )
    return f"""## Serve it

```sh
{command}
```

vLLM's server speaks OpenAI's protocol; {ask}. This command has not been run by us on a GPU."""


def about_limits(subject: Subject) -> str:
    """What nobody should expect."""
    alone = len(subject.game.agents) > 1
    return f"""## Limits

- Trained and measured on `{subject.config.environment.name}` alone; elsewhere it was not tried.
- {"The agents were trained together: beside other partners, or alone, one may do worse." if alone else "One agent."}
- Reward was all that was trained for. Nothing was done for safety or for facts, and the base model's own limits and
  licence stay."""


def team_card(subject: Subject, repository: str) -> str:
    """The README of a whole team, pushed to `repository` on the hub."""
    folder = f"checkpoints/{subject.iteration:06d}"
    trained = {agent.adapter: agent.name for agent in subject.game.agents if agent.trainable}
    models = subject.models()
    base = hub_name(models[0].name) if len(models) == 1 and models[0].tuning != "full" else ""
    parts = [
        front_matter(subject),
        f"# {repository.partition('/')[2]}",
        f"A team of {len(subject.game.agents)} language-model agents ({', '.join(subject.game.names)}), trained with "
        f"marft: checkpoint {subject.iteration:06d} of the run `{subject.name}`, on "
        f"{', '.join(model.name for model in models)}. It holds the run's config, evaluations and metrics, the agents' "
        "weights and the critic's; no optimiser, so training does not resume where it stopped.",
        f"""## Play it

With marft installed:

```sh
marft play hf://{repository} --question "…"
marft eval hf://{repository}
marft export hf://{repository} --agent {subject.game.names[0]} -o {subject.game.names[0]}
```

```python
import marft

team = marft.open_run("hf://{repository}").team()
print(team.ask("…"))
```""",
    ]
    if base and trained:
        copy = " (training was on a copy of it whose weights were rounded)" if models[0].name in ORIGINS else ""
        parts.append(f"""One agent's adapter without marft, on the model it belongs to{copy}:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("{base}")
model = PeftModel.from_pretrained(base, "{repository}", subfolder="{folder}/adapters/{next(iter(trained))}")
```""")
    parts += [about_team(subject), about_training(subject), about_results(subject)]
    if base and trained:
        adapters = {name: f"./team/{folder}/adapters/{name}" for name in trained}
        serving = about_serving(base, adapters, subject.config.lora.r)
        parts.append(serving.replace("```sh\n", f"```sh\nhf download {repository} --local-dir team\n"))
    return "\n\n".join([*parts, about_limits(subject)]) + "\n"
