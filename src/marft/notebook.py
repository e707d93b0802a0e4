"""A figure of a run that is drawn anew in a notebook while the run goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from marft.run.directory import RunDirectory
from marft.run.metrics import read_metrics
from marft.types import Episode, MarftError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("success", ("success",), "share of episodes"),
    ("reward", ("reward",), "mean of an episode"),
    ("KL of the update", ("update", "kl"), "nats per decision"),
    ("entropy", ("entropy",), "nats per token"),
)
STYLES = ("-", "--", ":", "-.")  # agents differ by more than colour
DPI = 110


class LiveFigure:
    """A watcher that draws success, reward, KL and entropy: `marft.train(config, watcher=marft.LiveFigure())`.

    In a notebook the figure is drawn anew at most every `seconds`, and at the end. Elsewhere nothing is shown: `figure`
    and `savefig` have it. Held-out success of sampled play stands in it with its 95% intervals. Raises `MarftError`
    where matplotlib is not installed.
    """

    def __init__(self, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise MarftError("LiveFigure needs matplotlib: pip install 'marft[plot]'") from None
        self.figure: Figure = Figure(figsize=(10, 5.5), layout="constrained")
        self._seconds, self._clock = seconds, clock
        self._rows: list[Mapping[str, Any]] = []
        self._heldout: dict[int, Mapping[str, float]] = {}
        self._iterations = self._done = 0
        self._name = ""
        self._shown: Any = None  # IPython's handle of the output
        self._since = -float("inf")

    def start(self, summary: Mapping[str, object], iterations: int = 0, first: int = 0) -> None:
        """Begin; of a run that goes on, what it did before is drawn too."""
        folder = summary.get("run")
        self._name, self._iterations, self._done = str(folder or ""), iterations, first
        self._rows, self._heldout = [], {}
        if first and folder:
            run = RunDirectory(Path(str(folder)))
            self._rows = [row for row in read_metrics(run.path) if row["iteration"] < first]
            reports = run.read_evaluations().items()
            self._heldout = {done: report["sampled"]["success"] for done, report in reports if done <= first}
        self._show()

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Nothing."""

    def episode(self, episode: Episode) -> None:
        """Nothing."""

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """Draw it, unless the figure was drawn a moment ago."""
        self._rows.append(metrics)
        self._done = int(metrics["iteration"]) + 1
        if self._clock() - self._since >= self._seconds:
            self._show()

    def evaluation(self, title: str, report: Mapping[str, Any], done: int) -> None:
        """Draw held-out success beside that of training play."""
        found = report.get("success, sampled")
        if isinstance(found, Mapping):
            self._heldout[done] = found
            self._show()

    def note(self, text: str) -> None:
        """Print it."""
        print(text)

    def finish(self) -> None:
        """Draw the last of it."""
        self._draw()
        self._show()

    def savefig(self, path: str | Path, **settings: Any) -> None:
        """Write the figure to a file, as matplotlib's `savefig` does."""
        self._draw()
        self.figure.savefig(path, **settings)

    def _show(self) -> None:
        self._since = self._clock()
        if not _in_notebook():
            return
        from IPython import display

        notebook: Any = display  # its functions have no types
        self._draw()
        picture = BytesIO()
        self.figure.savefig(picture, format="png", dpi=DPI)
        image = notebook.Image(data=picture.getvalue(), format="png", alt=self._words())
        if self._shown is None:
            self._shown = notebook.display(image, display_id=True)
        else:
            self._shown.update(image)

    def _draw(self) -> None:
        self.figure.clear()
        self.figure.suptitle(self._words())
        for axes, (title, path, unit) in zip(self.figure.subplots(2, 2).flat, PANELS, strict=True):
            axes.set(title=title, ylabel=unit, xlabel="iteration")
            axes.grid(alpha=0.3)
            for number, (name, at, values) in enumerate(_lines(self._rows, path)):
                axes.plot(at, values, STYLES[number % len(STYLES)], marker=".", label=name)
            if title == "success":
                self._mark_heldout(axes)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize="small")

    def _mark_heldout(self, axes: Axes) -> None:
        axes.set_ylim(-0.03, 1.03)
        if self._heldout:
            means = [each["mean"] for each in self._heldout.values()]
            down = [each["mean"] - each["low"] for each in self._heldout.values()]
            up = [each["high"] - each["mean"] for each in self._heldout.values()]
            axes.errorbar(list(self._heldout), means, [down, up], fmt="s", capsize=3, label="held out, 95%")

    def _words(self) -> str:
        success = self._rows[-1].get("success") if self._rows else None
        latest = f", success {success:.2f}" if isinstance(success, int | float) else ""
        return f"{self._name}: iteration {self._done}/{self._iterations}{latest}"


def _lines(rows: list[Mapping[str, Any]], path: tuple[str, ...]) -> Iterator[tuple[str, list[int], list[float]]]:
    """Curves of one panel: (label, iterations, values), one per agent where the metric is one of agents."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        value = row.get(path[0])
        named = value if isinstance(value, Mapping) else {"training play": value}
        for name, each in named.items():
            if len(path) > 1:
                each = each.get(path[1]) if isinstance(each, Mapping) else None
            if isinstance(each, SupportsFloat):
                at, values = found.setdefault(name, ([], []))
                at.append(int(row["iteration"]))
                values.append(float(each))
    return ((name, at, values) for name, (at, values) in found.items())


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this: it alone can change an output that it has shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
