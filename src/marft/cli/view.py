"""Commands that show runs: view, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import app

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="Runs' folders, or a folder that holds runs", show_default=False),
]


@app.command(epilog="Examples: marft view runs/mine\n\nmarft view runs/chain runs/parallel --port 8000")
def view(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0: any that is free")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing")] = False,
) -> None:
    """Show runs in a browser: curves, the team, every transcript, health. Live while they train. Ctrl-C ends.

    Only browsers on this machine are answered; nothing is written and nothing is sent anywhere.
    """
    from marft.view.library import Library, find_runs
    from marft.view.serve import serve

    paths, notes = find_runs(runs)
    for note in notes:
        typer.echo(f"note: {note}")
    serve(Library(paths), port, browser=not no_browser)


@app.command(epilog="Example: marft report runs/chain runs/parallel -o report.html")
def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it")] = Path(
        "report.html"
    ),
    episodes: Annotated[
        int, typer.Option(min=0, metavar="N", help="Episodes of each run: evaluations first, then training play")
    ] = 2000,
) -> None:
    """Write the same page as one html file that opens anywhere, without a server or a network."""
    from marft.view.library import Library, find_runs
    from marft.view.report import check_target, write_report

    check_target(output)
    paths, notes = find_runs(runs)
    for note in notes:
        typer.echo(f"note: {note}")
    size = write_report(Library(paths), output, episodes)
    typer.echo(f"{output} ({size / 1e6:.1f} MB)")
