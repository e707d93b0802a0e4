"""The reference of the command line, from the application that parses it."""

from __future__ import annotations

from typing import Any

import typer

from marft.cli.app import app


def commands_page() -> str:
    """Every command with its usage, arguments, options and examples, as Markdown."""
    import marft.cli  # noqa: F401  # the commands add themselves

    group: Any = typer.main.get_command(app)
    lines = [f"{group.help} {group.epilog}.", ""]
    lines += [f"- [`marft {name}`](#marft-{name}): {_first(command)}" for name, command in group.commands.items()]
    for name, command in group.commands.items():
        lines += ["", *_command(name, command)]
    return "\n".join(lines) + "\n"


def _first(command: Any) -> str:
    return str(command.help or "").partition("\n")[0]


def _command(name: str, command: Any) -> list[str]:
    context = typer.Context(command, info_name=f"marft {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## marft {name}", "", str(command.help or "").strip(), "", f"```text\nmarft {name} {usage}\n```", ""]
    lines += ["| argument or option | meaning |", "|---|---|"]
    lines += [_row(each.get_help_record(context)) for each in command.get_params(context) if each.name != "help"]
    return [*lines, *_examples(command)]


def _row(record: tuple[str, str]) -> str:
    """The two columns of `--help`; an argument's type, which comes behind its name, is left out."""
    name, meaning = (" ".join(each.split()) for each in record)
    meaning = meaning.replace("|", "&#124;").replace("[", r"\[")  # no column, no link
    return f"| `{name.partition(' <')[0]}` | {meaning or '–'} |"


def _examples(command: Any) -> list[str]:
    text = str(command.epilog or "").replace("Examples:", "").replace("Example:", "")
    found = [line.strip() for line in text.splitlines() if line.strip()]
    return ["", "```sh", *found, "```"] if found else []
