"""The application, what its commands share, and how every one of them ends."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
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
