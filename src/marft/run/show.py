"""What the commands print: tables for people. Numbers come in, nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from marft.run.launch import Change
from marft.run.preflight import Room
from marft.run.statistics import Interval
from marft.team import Team


class Phases:
    """A `Watcher` that shows only what is going on, on a line that disappears (and nothing outside a terminal)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Nothing to announce."""

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Show it, with its count."""
        text = name if done is None else f"{name} {done}/{total}"
        if self._status is not None:
            self._status.update(text)
        elif self._console.is_terminal:
            self._status = self._console.status(text)
            self._status.start()

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Nothing is trained."""

    def evaluation(self, title: str, report: Mapping[str, Any]) -> None:
        """The command prints it in full."""

    def note(self, text: str) -> None:
        """Print it."""
        self._console.print(text, markup=False, highlight=False)

    def finish(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def change_table(changes: Mapping[str, Change]) -> RenderableType:
    """Before and after training, with 95% intervals; the change is paired by task."""
    rows = [(kind, str(each.before), str(each.after), _signed(each.difference)) for kind, each in changes.items()]
    return _table(("held-out success", "before", "after", "change"), rows)


def report_tables(report: Mapping[str, Any]) -> RenderableType:
    """An evaluation in full."""
    sampled, greedy = report["sampled"], report["greedy"]
    rows = [("success", _interval(sampled["success"]), _interval(greedy["success"]))]
    if len(sampled["kinds"]) > 1:
        for kind in sampled["kinds"]:
            rows.append((f"  {kind}", _interval(sampled["kinds"][kind]), _interval(greedy["kinds"][kind])))
    rows.append(("reward", _interval(sampled["reward"]), _interval(greedy["reward"])))
    rows += [(f"pass@{k}", f"{value:.2f}", "") for k, value in sampled.get("pass_at", {}).items() if k != "1"]
    rows.append(("failed episodes", str(sampled["failed"]), str(greedy["failed"])))
    head = f"{report['tasks']} held-out tasks, 95% intervals"
    parts = [_table((head, f"sampled, {report['samples']} each", "greedy"), rows)]
    worths = [
        (name, _interval(each["swapped"]), f"{each['drop']:+.2f}") for name, each in report.get("influence", {}).items()
    ]
    if worths:
        parts.append(_table(("influence of", "success, its messages swapped", "drop"), worths))
    words = [
        (name, f"{each['kl']:.4f}", f"{each['perplexity']:.2f}", f"{each['base_perplexity']:.2f}")
        for name, each in report.get("retention", {}).items()
    ]
    if words:
        parts.append(_table(("language of", "KL from base per token", "perplexity", "base"), words))
    return Group(*parts)


def room_table(rooms: Sequence[Room], context: int) -> RenderableType:
    """Tokens each agent's prompts take, and whether the fullest one and its reply fit the context."""
    rows = [
        (
            room.agent,
            str(room.shortest) if room.shortest == room.longest else f"{room.shortest} to {room.longest}",
            str(room.fullest),
            str(room.reply),
            f"{room.fullest + room.reply} of {context}",
        )
        for room in rooms
    ]
    return _table(("tokens", "prompt", "longest prompt", "longest reply", "at most"), rows)


def known_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """Things by name, with what they are and need."""
    return _table(head, rows)


def model_line(team: Team) -> str:
    """`tiny (float32, cpu, 1 threads), context 1024`."""
    base = team.base
    dtype = str(base.model.dtype).removeprefix("torch.")
    threads = f", {torch.get_num_threads()} threads" if base.device.type == "cpu" else ""
    return f"{base.name} ({dtype}, {base.device.type}{threads}), context {base.context}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in head:
        table.add_column(Text(title), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names from a config are not markup
    return Padding(table, (1, 0, 0, 0))


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _interval(value: Mapping[str, float]) -> str:
    return f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
