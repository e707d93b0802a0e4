"""Commands that look at a config before anything is trained: check, plan."""

from __future__ import annotations

from typing import Annotated

import typer

from marft.cli.app import Config, Overrides, app


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
    from marft.run.trackers import check_trackers
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
    check_trackers(loaded.run, config)
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
