"""The command line. Every command loads what it needs only when it runs, so that `--help` is instant."""

from marft.cli import runs, configs, view, known  # isort: skip  # the order of the commands in the help
from marft.cli.app import main

__all__ = ["configs", "known", "main", "runs", "view"]
