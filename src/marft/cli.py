"""The command line. Every command loads what it needs only when it runs, so that `--help` is instant."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from marft.types import MarftError

app = typer.Typer(
    name="marft",
    help="Fine-tune teams of language-model agents with reinforcement learning.",
    epilog="Start with: marft check examples/quickstart.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Change a key of the config, such as update.lr=0.001", show_default=False),
]
Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML config", show_default=False)]
RunOrConfig = Annotated[
    str, typer.Argument(metavar="RUN_OR_CONFIG", help="A run's folder, or a config (untrained)", show_default=False)
]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="latest|best|NNN", help="Which checkpoint of the run [default: latest]")
]

On = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Play a benchmark instead of the run's own held-out tasks: gsm8k, math500, aime24, humaneval, "
        "reasoning:SET for any reasoning-gym set, …; may be given several times",
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0, 2 for a mistake of the user's (in one sentence), 128 + n after signal n."""
    # Torch's threads spin for long while they wait, which makes two processes on one machine ten times slower; if they
    # did not spin at all, one process would be up to four times slower. Read as torch loads
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if not sys.warnoptions:  # what libraries tell each other's authors is of no use to who runs a command
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|peft")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="marft")
    except MarftError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Show the version and exit")] = False) -> None:
    """Options that need no command."""
    if version:
        from marft import __version__

        print(f"marft {__version__}")
        raise typer.Exit


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
            help="Runs' folders, or configs (untrained); several are compared. Then keys of their configs to change",
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
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder", show_default=False)],
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
    from marft.run.directory import RunDirectory
    from marft.run.export import export_agent

    folder = export_agent(RunDirectory.open(run), agent, output, merge, checkpoint or "latest")
    ready = "peft" if (folder / "adapter_config.json").is_file() else "transformers"
    print(f"{folder}: agent '{agent}', ready for {ready}; see README.md there")


@app.command(
    epilog="Examples: marft check examples/quickstart.yaml model.context=512\n\n"
    "marft check --no-weights examples/paper/math-7b.yaml team.preset=quad"
)
def check(
    config: Config,
    overrides: Overrides = None,
    no_weights: Annotated[
        bool, typer.Option("--no-weights", help="Load no weights and fetch nothing: for a config of another machine")
    ] = False,
) -> None:
    """Validate a config without training: agents, who reads whom, model, environment, and that prompts fit.

    Prompts are measured on a few tasks of each split: with everyone silent, and with everyone speaking as
    long as they may. Without weights there is no tokenizer to measure them with.
    """
    from rich.console import Console

    from marft.config import load_config
    from marft.game.drawing import draw
    from marft.run import preflight, show
    from marft.team import build_team

    console = Console()
    loaded = load_config(config, overrides or ())
    if no_weights:
        game, left_out = preflight.check_offline(loaded, config)
        console.print(draw(game))
        for note in left_out:
            console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
        console.print("ok", style="bold green")
        return
    team = build_team(loaded, config)
    preflight.check_prompts(team, config)
    preflight.check_world(team.game, config)
    rooms = preflight.rooms(team, config)
    console.print(f"model: {show.model_line(team)}", markup=False, highlight=False, soft_wrap=True)
    console.print(draw(team.game))
    console.print(show.room_table(rooms))
    for room in rooms:
        if room.fullest + room.reply > room.context:
            refuse = team.config.rollout.context_policy == "refuse"
            what = "the episode fails" if refuse else "the oldest messages are left out"
            console.print(
                f"note: '{room.agent}' may not fit when everyone speaks at full length; then {what}", soft_wrap=True
            )
    for note in preflight.notes(team):
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    console.print("ok", style="bold green")


@app.command(
    epilog="Examples: marft plan examples/paper/math-3b.yaml\n\n"
    "marft plan examples/paper/code-7b.yaml team.preset=quad --gpu h200 --reply 600"
)
def plan(
    config: Config,
    overrides: Overrides = None,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="a100-40, a100, h100, h200, or any with the next three")
    ] = "h100",
    memory: Annotated[float | None, typer.Option(metavar="GB", help="Memory of one device")] = None,
    tflops: Annotated[float | None, typer.Option(metavar="N", help="Its dense bfloat16 TFLOP/s")] = None,
    bandwidth: Annotated[float | None, typer.Option(metavar="GB/S", help="What its memory moves")] = None,
    mfu: Annotated[float, typer.Option(metavar="SHARE", help="Of the TFLOP/s, in learning and over prompts")] = 0.25,
    decode: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of the bandwidth, while replies grow [default: 0.5 vllm, 0.1 torch]"),
    ] = None,
    task: Annotated[int, typer.Option(metavar="TOKENS", help="A task, on average")] = 200,
    longest_task: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="The longest task [default: 4 times the mean]")
    ] = None,
    reply: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="A reply, on average [default: half of max_tokens]")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="FILE", help="config.json of a model whose shape is not known here")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON")] = False,
) -> None:
    """Memory, time and GPU-hours that training would take, from the config and the model's shape alone.

    Nothing is loaded or fetched. What the config does not say is assumed, and stands in the answer;
    docs/plan.md has every formula.
    """
    from marft.config import load_config
    from marft.plan import Assumptions, forecast, machine_of

    given = Assumptions(machine_of(gpu, memory, tflops, bandwidth), mfu, decode, task, longest_task, reply)
    found = forecast(load_config(config, overrides or ()), config, given, shape)
    if json:
        from json import dumps

        print(dumps(found.as_dict()))
        return
    from rich.console import Console

    from marft.run import show

    Console().print(show.plan_tables(found))


@app.command(epilog="Example: marft models")
def models() -> None:
    """The models that are built in, and what each needs."""
    from rich.console import Console

    from marft.models.base import BUILT_IN
    from marft.run import show

    rows = [(name, each.description, each.needs) for name, each in BUILT_IN.items()]
    others = "any Llama-, Qwen- or Gemma-3-style chat model that transformers loads"
    rows.append(("(a folder or hub id)", others, "its weights"))
    Console().print(show.known_table(("model.name", "what it is", "needs"), rows))


@app.command(epilog="Example: marft environments")
def environments() -> None:
    """The environments that are built in, and what each needs."""
    from rich.console import Console

    from marft.environments import known_environments
    from marft.run import show

    rows = [(each.name, each.description, each.needs) for each in known_environments()]
    rows.append(("(module:Class)", "your own; see docs/environments.md", "a module that can be imported from here"))
    Console().print(show.known_table(("environment.name", "what it is", "needs"), rows))


@app.command(epilog="Example: marft teams")
def teams() -> None:
    """The teams that are ready made, for `team.preset` in a config."""
    from rich.console import Console

    from marft.presets import description, preset_names, preset_team
    from marft.run import show

    rows = [
        (name, ", ".join(each["name"] for each in preset_team(name)["agents"]), description(name))
        for name in preset_names()
    ]
    Console().print(show.known_table(("team.preset", "agents", "what it is"), rows))


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


if __name__ == "__main__":
    main()
