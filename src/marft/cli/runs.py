"""Commands that train and use teams: train, eval, play, export, push."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import Overrides, app
from marft.types import MarftError

RunOrConfig = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_CONFIG", help="A run's folder, hf://user/name, or a config (untrained)", show_default=False
    ),
]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="latest|best|NNN", help="Which checkpoint of the run [default: latest]")
]

On = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Play a benchmark instead of the run's own held-out tasks: gsm8k, math500, aime24, humaneval, "
        "reasoning:SET for any reasoning-gym set, …; may be given several times. A run's `reward` pays in its own "
        "environment alone",
    ),
]
TasksFile = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="A local file of the benchmark's tasks (NAME=FILE with several benchmarks)"),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="The first N tasks [default: evaluation.tasks, or the whole benchmark]")
]
Samples = Annotated[
    int | None, typer.Option(metavar="K", help="Sampled episodes per task [default: evaluation.samples]")
]
Influence = Annotated[
    bool | None,
    typer.Option(
        "--influence/--no-influence",
        help="Swap each agent's messages with those of another task [default: evaluation.influence; not in a "
        "comparison]",
    ),
]


@app.command(
    epilog="Examples: marft train examples/quickstart.yaml update.lr=0.001 --run runs/mine\n\n"
    "marft train --run runs/mine --resume iterations=40"
)
def train(
    config: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A YAML config (may be left out with --resume)")
    ] = None,
    overrides: Overrides = None,
    run: Annotated[
        str | None, typer.Option(metavar="DIR", help="The run's folder [default: a new one in run.folder]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --run from its last checkpoint")
    ] = False,
) -> None:
    """Train a team, evaluating it on held-out tasks before and after.

    Ctrl-C or SIGTERM finishes the update under way and saves; --resume goes on from there. A run is resumed with its
    own config, of which only iterations, device and threads may change.
    """
    file, changed = _split(config, overrides, optional=resume)
    if resume and run is None:
        raise MarftError("--resume needs the run to go on with: add --run DIR")

    from rich.console import Console

    from marft.run import launch, show
    from marft.run.progress import Progress

    console = Console()
    watcher = Progress(console)
    try:
        if run is not None and resume:
            outcome = launch.resume(file, changed, run, watcher)
        else:
            assert file is not None, "_split gives a config unless resuming"
            outcome = launch.start(file, changed, run, watcher)
    finally:
        watcher.finish()
    if outcome.done < outcome.iterations or outcome.exit_code:
        console.print(f"Stopped after {outcome.done} of {outcome.iterations} iterations. Go on with:", soft_wrap=True)
        console.print(f"  marft train --run {outcome.run.path} --resume", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(outcome.exit_code)
    found = launch.changes(outcome.run)
    if found:
        console.print(show.change_table(found))
    console.print(
        f"All {outcome.done} iterations are done; the run is in {outcome.run.path}", markup=False, soft_wrap=True
    )


@app.command(
    "eval",
    epilog="Examples: marft eval runs/mine --checkpoint best evaluation.tasks=200\n\n"
    "marft eval runs/mine --on gsm8k --on reasoning:chain_sum --limit 100 --samples 8\n\n"
    "marft eval runs/chain runs/parallel --limit 100",
)
def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_CONFIG|KEY=VALUE",
            help="Runs' folders, hf://user/name, or configs (untrained); several are compared. Then keys of their "
            "configs to change",
            show_default=False,
        ),
    ],
    checkpoint: Checkpoint = None,
    on: On = None,
    path: TasksFile = None,
    limit: Limit = None,
    samples: Samples = None,
    influence: Influence = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON")] = False,
) -> None:
    """Play held-out tasks: success with 95% intervals, pass@k, majority vote, influence of each agent, language.

    With the run's own config this gives exactly the numbers that training logged at that checkpoint. Several runs play
    the same tasks with the same seeds, and each is compared with the first, task by task. Where the environment tells
    the team that an answer was wrong, the score without being told stands beside it.
    """
    targets, overrides = _targets(words)

    from rich.console import Console

    from marft.run import show
    from marft.run.benchmark import Terms, read_benchmarks
    from marft.run.compare import compare_runs, evaluate_run
    from marft.run.directory import to_json
    from marft.run.opening import open_team

    terms = Terms(read_benchmarks(on or (), path or ()), limit, samples, influence)
    console, watcher = Console(), show.Phases(Console(stderr=True))
    opened = ""
    try:
        if len(targets) > 1:
            found = compare_runs(targets, checkpoint, overrides, terms, watcher)
        else:
            watcher.phase(f"loading {targets[0]}")
            team, name = open_team(targets[0], checkpoint, overrides)
            opened = f"{name}\n{show.model_line(team)}"
            found = evaluate_run(team, terms, targets[0], watcher)
    finally:
        watcher.finish()
    if json:
        print(to_json(found if on else found[""]))
        return
    if opened:
        console.print(opened, markup=False, highlight=False, soft_wrap=True)
    for name, report in found.items():
        if name:
            console.print(f"\non {name}", style="bold", markup=False, highlight=False)
        console.print(show.comparison_tables(report) if len(targets) > 1 else show.report_tables(report))


@app.command(epilog='Example: marft play runs/mine --question "What is 17 + 25?"')
def play(
    target: RunOrConfig,
    overrides: Overrides = None,
    question: Annotated[str | None, typer.Option("--question", "-q", metavar="TEXT", help="Ask this and exit")] = None,
    checkpoint: Checkpoint = None,
    greedy: Annotated[
        bool, typer.Option("--greedy/--sample", help="The most probable replies, or draw as in training")
    ] = True,
    turns: Annotated[
        int,
        typer.Option(
            min=0,
            help="Turns to play [default: the config's if agents recall earlier turns, else 1]",
            show_default=False,
        ),
    ] = 0,
) -> None:
    """Ask the team a question and hear each agent speak. Without --question: one question a line, until Ctrl-D."""
    from rich.console import Console

    from marft.run import show
    from marft.run.opening import open_team
    from marft.run.play import ask

    team, opened = open_team(target, checkpoint, overrides or ())
    console = Console(highlight=False)
    if question is not None:
        ask(team, question, console, greedy=greedy, turns=turns)
        return
    console.print(f"{opened}\n{show.model_line(team)}", markup=False, soft_wrap=True)
    console.print("Each question is a new episode: the team remembers nothing of the last. Ctrl-D ends.", style="dim")
    number = 0
    while True:
        try:
            line = console.input("[bold]you:[/bold] ").strip()
        except EOFError:
            console.print()
            return
        if not line:
            continue
        try:
            ask(team, line, console, number, greedy, turns)
        except MarftError as error:  # such as a question too long: the next one may fit
            console.print(str(error), style="red", markup=False, soft_wrap=True)
        number += 1


@app.command(epilog="Example: marft export runs/mine --agent solver --merge -o solver-model")
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or hf://user/name", show_default=False)],
    agent: Annotated[str, typer.Option(metavar="NAME", help="Which agent")],
    merge: Annotated[bool, typer.Option("--merge", help="Write a full model instead of an adapter")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="A new folder [default: in the run, under exports/]"),
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write one agent as a folder that plain peft and transformers load without marft.

    The folder's README says how, with the agent's profile. A built-in base model, which is on no hub, is written beside
    the adapter.
    """
    from marft.run import hub
    from marft.run.export import export_agent
    from marft.run.opening import open_directory

    if hub.is_remote(run) and output is None:
        raise MarftError(f"{run}: name a folder for the agent with -o")  # the hub's cache is no place for it
    folder = export_agent(open_directory(run), agent, output, merge, checkpoint or "latest")
    ready = "peft" if (folder / "adapter_config.json").is_file() else "transformers"
    print(f"{folder}: agent '{agent}', ready for {ready}; see README.md there")


@app.command(epilog="Example: marft push runs/mine user/name --checkpoint best --private")
def push(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder", show_default=False)],
    repository: Annotated[
        str, typer.Argument(metavar="USER/NAME", help="The repository on the Hugging Face hub", show_default=False)
    ],
    checkpoint: Checkpoint = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository that only you and yours can read")
    ] = False,
) -> None:
    """Put a team on the Hugging Face hub: config, weights, evaluations, metrics and a model card, in one commit.

    Others play it with `marft play hf://user/name`. Episodes, optimisers and this machine's paths stay here.
    """
    from marft.run import hub
    from marft.run.directory import RunDirectory

    pushed = hub.push(RunDirectory.open(run), repository, checkpoint or "latest", private)
    for key in pushed.cut:
        print(f"note: of {key} only the name of the file went up")
    print(f"{pushed.url}: marft play hf://{repository}")


def _targets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The runs and configs, and the overrides: words with a `=` that name nothing on the disk."""
    targets = [word for word in words if "=" not in word or Path(word).exists()]
    if not targets:
        raise MarftError("RUN_OR_CONFIG is missing: name a run or a config first, as in marft eval runs/mine")
    return targets, [word for word in words if word not in targets]


def _split(config: str | None, overrides: list[str] | None, optional: bool) -> tuple[str | None, list[str]]:
    """The config file and the overrides, where the first word may be either."""
    words = ([] if config is None else [config]) + (overrides or [])
    if words and ("=" not in words[0] or Path(words[0]).exists()):
        return words[0], words[1:]
    if not optional:
        raise MarftError("CONFIG is missing: name a YAML config first, as in marft train examples/quickstart.yaml")
    return None, words
