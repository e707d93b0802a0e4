"""What a person sees while a run goes on: a live display in a terminal, one plain line per iteration elsewhere."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marft.types import Episode, MarftError

# What an iteration's line shows, if the metrics have it: key, label, format
COLUMNS = (
    ("success", "success ", "{:.2f}"),
    ("reward", "reward ", "{:.2f}"),
    ("play_tokens_per_second", "play ", "{:.0f} tok/s"),
    ("update_tokens_per_second", "update ", "{:.0f} tok/s"),
    ("seconds", "", "{:.1f} s"),
)


class Watcher(Protocol):
    """Anyone who follows a run: told of its start, of phases, episodes, iterations and evaluations, and of its end.

    It is told of one thing at a time. Phases and episodes may come from the thread that plays. What a watcher raises
    ends the run.
    """

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """The run begins: what to show of its config, how many iterations in all, and the first one to be played."""
        ...

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """What is going on now, such as ("playing", 37, 64) or ("updating planner")."""
        ...

    def episode(self, episode: Episode) -> None:
        """An episode has ended, as played or failed: in training, or in an evaluation (with swapped messages too)."""
        ...

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """An iteration is over; `iteration` counts from 0, `failed` is a number of episodes, the rest as `COLUMNS`."""
        ...

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """An evaluation after `done` iterations: numbers, {mean, low, high} intervals and text, nested as wished.

        `iteration` has been told of these iterations, but perhaps not yet of the latest.
        """
        ...

    def note(self, text: str) -> None:
        """Something a person should know."""
        ...

    def finish(self) -> None:
        """The run is over, however it ended; calling it twice does no harm."""
        ...


METHODS = tuple(name for name in vars(Watcher) if not name.startswith("_"))  # in the order in which they stand there
QUIET = 30.0  # seconds


def check_watcher(watcher: object) -> None:
    """Raise `MarftError` naming the method that `watcher` lacks or that does not take what it will be told."""
    kind = type(watcher).__name__
    for name in METHODS:
        method = getattr(watcher, name, None)
        if not callable(method):
            raise MarftError(
                f"watcher: a {kind} has no method '{name}'; a watcher needs {', '.join(METHODS)} "
                "(to hear of iterations or episodes alone, give functions as on_iteration and on_episode)"
            )
        _, *told = inspect.signature(getattr(Watcher, name)).parameters
        try:
            inspect.signature(method).bind(*told)
        except TypeError as error:
            call = f"{name}({', '.join(told)})"
            raise MarftError(f"watcher: the method of a {kind} cannot be called as {call}: {error}") from None
        except ValueError:  # written in C: it has no signature to be read
            pass


class Silent:
    """A watcher that shows nothing."""

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Nothing."""

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Nothing."""

    def episode(self, episode: Episode) -> None:
        """Nothing."""

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Nothing."""

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


class Progress:
    """A watcher that prints, with a live panel underneath when `console` is a terminal; in a notebook plain lines."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or _console()
        self._clock = clock
        self._live: Live | None = None
        self._iterations = 0
        self._next = 0
        self._phase = "starting"
        self._success: list[float | None] = []
        self._last: Mapping[str, Any] = {}
        self._seconds: list[float] = []
        self._since = self._printed = clock()

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Print the summary and, in a terminal, open the live panel."""
        self._iterations, self._next, self._since = iterations, first, self._clock()
        width = max((len(key) for key in summary), default=0)
        for key, value in summary.items():
            self._print(f"{key:<{width}}  {value}")
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self.panel, refresh_per_second=4, transient=True)
            self._live.start()

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Show it in the panel; in a log only when nothing was printed for `QUIET` seconds, as a sign of life."""
        count = "" if done is None else f" {done}" if total is None else f" {done}/{total}"
        self._phase = f"{name}{count}"
        if self._live is None and self._clock() - self._printed > QUIET:
            self._print(f"… {self._phase}")

    def episode(self, episode: Episode) -> None:
        """Nothing by itself: the phase counts them."""

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Print one line and move the bar."""
        self._next = int(metrics["iteration"]) + 1
        now = self._clock()
        self._seconds.append(now - self._since)
        self._since = now
        self._success.append(_number(metrics.get("success")))
        self._last = metrics
        self._print(iteration_line(metrics, self._iterations))

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Print the title and one indented line per number."""
        self._print(title)
        rows = list(_report_lines(report))
        width = max((len(key) for key, _ in rows), default=0)
        for key, value in rows:
            self._print(f"  {key:<{width}}  {value}")
        self._since = self._clock()  # an evaluation is no part of the next iteration's time

    def note(self, text: str) -> None:
        """Print it above the panel."""
        self._print(text)

    def finish(self) -> None:
        """Close the panel and give the terminal back as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def panel(self) -> RenderableType:
        """The live panel: bar and time left, latest numbers with the course of success, and the phase."""
        top = Table.grid(padding=(0, 1))
        left = time_left(self._seconds, self._iterations - self._next, self._clock() - self._since)
        bar = ProgressBar(total=max(self._iterations, 1), completed=self._next, width=30)
        end = "" if left is None else f"{duration(left)} left"
        top.add_row(f"iteration {self._next}/{self._iterations}", bar, end)
        lines: list[RenderableType] = [top]
        if self._success:
            blocks = " .:-=+*#" if self._console.options.ascii_only else "▁▂▃▄▅▆▇█"
            latest = [part for part in _parts(self._last) if not part.endswith(" s")]
            lines.append(Text(f"{'  '.join(latest)}  |{sparkline(self._success, 24, blocks)}|", no_wrap=True))
        return Group(*lines, Text(self._phase, style="dim", no_wrap=True))

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        # A model's words must not be taken for markup, and a log line must stay one line
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    console = Console()
    if not console.is_jupyter:
        return console
    # Else every line is an output of its own, set in HTML: the notebook of a long run would hold thousands of them
    return Console(force_jupyter=False, force_terminal=False)


def iteration_line(metrics: Mapping[str, Any], iterations: int) -> str:
    """`iter 3/20  success 0.41  reward 0.41  play 310 tok/s  update 900 tok/s  12.3 s`, less what metrics lack."""
    total = f"/{iterations}" if iterations else ""
    failed = int(_number(metrics.get("failed")) or 0)
    return "  ".join([f"iter {int(metrics['iteration']) + 1}{total}", *_parts(metrics)]) + (
        f"  {failed} failed" if failed else ""
    )


def sparkline(values: Sequence[float | None], width: int, blocks: str = "▁▂▃▄▅▆▇█") -> str:
    """Values in [0, 1] as at most `width` blocks, the mean of neighbours where there are more; a gap for None."""
    columns = min(width, len(values))
    line = ""
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        known = [value for value in part if value is not None]
        level = min(max(fmean(known), 0.0), 1.0) if known else 0.0
        line += blocks[min(int(level * len(blocks)), len(blocks) - 1)] if known else " "
    return line


def time_left(seconds: Sequence[float], remaining: int, elapsed: float) -> float | None:
    """Seconds until the last iteration ends, from the median of the latest five; None before the first is over."""
    if not seconds or remaining <= 0:
        return None
    typical = median(seconds[-5:])
    return max(typical - elapsed, 0.0) + typical * (remaining - 1)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _parts(metrics: Mapping[str, Any]) -> Iterator[str]:
    for key, label, form in COLUMNS:
        value = _number(metrics.get(key))
        if value is not None:
            yield label + form.format(value)


def _number(value: Any) -> float | None:
    return float(value) if hasattr(value, "__float__") else None


def _report_lines(report: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in report.items():
        if isinstance(value, Mapping) and {"mean", "low", "high"} <= value.keys():
            yield f"{prefix}{key}", f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
        elif isinstance(value, Mapping):
            yield from _report_lines(value, f"{prefix}{key} ")
        elif isinstance(value, float):
            yield f"{prefix}{key}", f"{value:.4g}"
        elif value is not None:
            yield f"{prefix}{key}", str(value)
