"""What the commands print: tables for people. Numbers come in, nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from marft.plan import Forecast
from marft.run.launch import Change
from marft.run.preflight import Room
from marft.run.statistics import Interval
from marft.team import Team
from marft.types import Episode

# How a task may be played: its key in a report, and what a table says of it
PARTS = {"sampled": "sampled, {samples} each", "greedy": "greedy", "no_verdict": "sampled, without verdict"}


class Phases:
    """A `Watcher` that shows only what is going on: a bar that disappears (and nothing outside a terminal)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # The text last, because it is what may be cut at the terminal's edge
        columns = (
            SpinnerColumn(),
            BarColumn(20),
            _Count(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bars = Progress(*columns, console=console, transient=True)
        self._bar = self._bars.add_task("starting", total=None)
        self._name = "starting"

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Nothing to announce."""

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Show it, with a bar and the time left where it can be counted."""
        if not self._console.is_terminal:
            return
        self._bars.start()
        if name != self._name:
            self._name = name
            self._bars.remove_task(self._bar)  # a new one, because a total once known cannot be unknown again
            self._bar = self._bars.add_task(name, total=total)
        self._bars.update(self._bar, completed=done or 0, total=total)

    def episode(self, episode: Episode) -> None:
        """Nothing by itself: the phase counts them."""

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Nothing is trained."""

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """The command prints it in full."""

    def note(self, text: str) -> None:
        """Print it."""
        self._console.print(text, markup=False, highlight=False)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bars.live.is_started:  # else it would print an empty line
            self._bars.stop()


class _Count(ProgressColumn):
    """`37/64`, and nothing for what cannot be counted."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}")


def change_table(changes: Mapping[str, Change]) -> RenderableType:
    """Before and after training, with 95% intervals; the change is paired by task."""
    rows = [(kind, str(each.before), str(each.after), _signed(each.difference)) for kind, each in changes.items()]
    return _table(("held-out success", "before", "after", "change"), rows)


def report_tables(report: Mapping[str, Any]) -> RenderableType:
    """An evaluation in full."""
    columns = {part: report[part] for part in PARTS if part in report}
    rows = [("success", *(_interval(each["success"]) for each in columns.values()))]
    kinds = report["sampled"]["kinds"]
    for kind in kinds if len(kinds) > 1 else ():
        rows.append((f"  {kind}", *(_interval(each["kinds"][kind]) for each in columns.values())))
    rows.append(("reward", *(_interval(each["reward"]) for each in columns.values())))
    for key, title in (("pass_at", "pass"), ("maj_at", "maj")):
        for k in report["sampled"].get(key, {}):
            if k != "1":
                cells = (each.get(key, {}).get(k) for each in columns.values())
                rows.append((f"{title}@{k}", *("" if cell is None else f"{cell:.2f}" for cell in cells)))
    if "vote" in report["sampled"]:
        bought = report["sampled"]["vote"]
        rows.append((f"vote of the {bought['k']} the budget buys", _interval(bought["success"])))
    rows.append(("tokens an episode", *(f"{each['tokens']:.1f}" for each in columns.values())))
    rows.append(("failed episodes", *(str(each["failed"]) for each in columns.values())))
    titles = [PARTS[part].format(samples=report["samples"]) for part in columns]
    parts = [_table((f"{report['tasks']} held-out tasks, 95% intervals", *titles), rows)]
    worths = [
        (name, _interval(each["swapped"]), _signed(Interval(**each["loss"])))
        for name, each in report.get("influence", {}).items()
    ]
    if worths:
        parts.append(_table(("influence of", "success, its messages swapped", "loss"), worths))
    words = [
        (name, f"{each['kl']:.4f}", f"{each['perplexity']:.2f}", f"{each['base_perplexity']:.2f}")
        for name, each in report.get("retention", {}).items()
    ]
    if words:
        parts.append(_table(("language of", "KL from base per token", "perplexity", "base"), words))
    return Group(*parts)


def comparison_tables(comparison: Mapping[str, Any]) -> RenderableType:
    """Runs side by side: one table for each way of playing, a run's kinds of tasks under it where there are several."""
    runs, first = comparison["runs"], comparison["first"]
    tables = []
    for part, title in PARTS.items():
        if part not in runs[first]:
            continue
        rows = []
        for name, report in runs.items():
            if part not in report:
                continue
            found, gains = report[part], comparison["difference"].get(name, {}).get(part)
            most = str(comparison["samples"])
            votes = [f"{found[key][most]:.2f}" if key in found else "" for key in ("pass_at", "maj_at")]
            rows.append((name, _interval(found["success"]), _gain(gains and gains["success"]), *votes))
            for kind, success in found["kinds"].items() if len(found["kinds"]) > 1 else ():
                rows.append((f"  {kind}", _interval(success), _gain(gains and gains["kinds"][kind]), "", ""))
        heads = [title.format(samples=comparison["samples"]), "success", "against the first"]
        heads += [f"{vote}@{comparison['samples']}" for vote in ("pass", "maj")]
        used = [place for place in range(5) if place < 3 or any(row[place] for row in rows)]
        tables.append(
            _table([heads[place] for place in used], ([row[place] for place in used] for row in rows), numbers=True)
        )
    note = f"{comparison['tasks']} held-out tasks, 95% intervals; differences are paired by task (bootstrap)"
    return Group(*tables, Text(note, style="dim"))


def room_table(rooms: Sequence[Room]) -> RenderableType:
    """Tokens each agent's prompts take, and whether the fullest one and its reply fit the context."""
    rows = [
        (
            room.agent,
            str(room.shortest) if room.shortest == room.longest else f"{room.shortest} to {room.longest}",
            str(room.fullest),
            str(room.reply),
            f"{room.fullest + room.reply} of {room.context}",
        )
        for room in rooms
    ]
    return _table(("tokens", "prompt", "longest prompt", "longest reply", "at most"), rows)


def known_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    """Things by name, with what they are and need."""
    return _table(head, rows)


def plan_tables(plan: Forecast) -> RenderableType:
    """A forecast in full: counts, bytes, seconds, and what was assumed."""
    models = [
        (
            each["name"],
            f"{each['parameters']:,}",
            f"{each['parameters of an adapter']:,}",
            f"{each['adapters']} + {each['critics']}",
            f"{each['trained parameters']:,}",
        )
        for each in plan.models
    ]
    rows = dict.fromkeys([*plan.play_bytes, *plan.learn_bytes])
    memory = [(name, *(_gib(part.get(name)) for part in (plan.play_bytes, plan.learn_bytes))) for name in rows]
    memory.append(("at most", *map(_gib, plan.peaks.values())))
    fits = [f"{'fits' if peak <= plan.memory else 'DOES NOT FIT'} {_gib(plan.memory)}" for peak in plan.peaks.values()]
    memory.append((f"on {plan.machine}", *fits))
    work = [(name, _number(plan.flops[name] / 1e12), _number(spent)) for name, spent in plan.seconds.items()]
    run = [(name, _number(value)) for name, value in plan.run.items()]
    run += [(name, _gib(size)) for name, size in plan.other_bytes.items()]
    return Group(
        _table(("model", "parameters", "of an adapter", "adapters + critics", "trained"), models),
        _table(("tokens of an iteration", ""), [(name, f"{count:,.0f}") for name, count in plan.tokens.items()]),
        _table(("memory", "play", "learn"), memory),
        _table(("an iteration", "TFLOP", "seconds"), work),
        _table(("the run", ""), run),
        _table(("assumed", ""), plan.assumptions.items()),
        *(Text(f"note: {note}") for note in plan.notes),
    )


def model_line(team: Team) -> str:
    """`tiny (float32, cpu, 1 threads), context 1024`, one after the other where agents have different models."""
    lines = [f"{each}, context {each.base.context}" for each in team.backends]
    if len(lines) > 1:
        ours = [[name for name in each.agents if name not in team.endpoints] for each in team.backends]
        lines = [f"{line} for {', '.join(names)}" for line, names in zip(lines, ours, strict=True)]
    lines += [f"{place} for {name}" for name, place in team.endpoints.items()]
    return "; ".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> RenderableType:
    """`numbers`: behind the first column there are only such, which are not broken where the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, title in enumerate(head):
        table.add_column(Text(title), overflow="fold", no_wrap=numbers and place > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names from a config are not markup
    return Padding(table, (1, 0, 0, 0))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _gib(size: float | None) -> str:
    if size is None:
        return ""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.2f} MiB"


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _gain(value: Mapping[str, float] | None) -> str:
    return "" if value is None else _signed(Interval(**value))


def _interval(value: Mapping[str, float]) -> str:
    return f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
