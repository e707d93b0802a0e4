"""The figures: told apart by colour (Okabe & Ito's palette, for colour-blind readers) and by line and marker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.study.conditions import Condition
from benchmarks.study.findings import Findings, Votes, band, last, smooth
from benchmarks.study.records import Record
from benchmarks.study.results import at

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7A00", "#7F7F7F", "#7A3E00")
LINES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 3)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (9, 2, 2, 2)),
)
MARKERS = "osD^vP*X<>"
PANEL = (4.2, 3.4)  # inches


def draw(findings: Findings, folder: Path) -> Path | None:
    """Write the figure of an experiment; None where nothing was measured that it could show."""
    figures: dict[str, Callable[[Findings], Any]] = {"curves": curves, "retention": retention, "budget": budget}
    figure = figures[findings.experiment.figure](findings) if findings.measured else None
    if figure is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{findings.experiment.name}.png"
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
    return path


def curves(findings: Findings) -> Any:
    """Training success by iteration, a panel for each group: mean over seeds, with its 95% interval as a band."""
    groups = [group for group in findings.experiment.groups if any(trained(findings, group))]
    if not groups:
        return None
    figure, panels = panels_of(len(groups))
    styles = styles_of(findings)
    for axes, group in zip(panels, groups, strict=True):
        members = trained(findings, group)
        for condition in (each for each in members if findings.twin(each) is None):
            alike = [each.name for each in members if findings.twin(each) == condition.name]
            label = " = ".join([condition.name, *alike])
            found = [smooth(record["curve"]) for record in findings.records[condition.key].values()]
            line(axes, range(1, len(found[0]) + 1), found, label, styles[condition.name])
        axes.set(title=group or findings.experiment.name, xlabel="iteration")
    panels[0].set(ylabel="success in training")
    legend(figure, panels)
    return figure


def retention(findings: Findings) -> Any:
    """Held-out success, and the distance from the base model, at every evaluation."""
    figure, panels = panels_of(2, share=False)
    styles = styles_of(findings)
    for condition in findings.measured:
        records = list(findings.records[condition.key].values())
        numbers = sorted(set.intersection(*(set(map(int, record["evaluations"])) for record in records)))
        for axes, measure in ((panels[0], success_at), (panels[1], kl_at)):
            line(axes, numbers, [[measure(record, number) for number in numbers] for record in records],
                 condition.name, styles[condition.name], marked=True)  # fmt: skip
    panels[0].set(xlabel="iteration", ylabel="held-out success, temperature 1")
    panels[1].set(xlabel="iteration", ylabel="KL from the base, nats per token")
    legend(figure, panels)
    return figure


def budget(findings: Findings) -> Any:
    """Held-out success against the tokens of one answer: teams are points, an agent's majority votes a line."""
    figure, (axes,) = panels_of(1, size=(6.0, 4.0))
    styles = styles_of(findings)
    for condition in findings.measured:
        records = list(findings.records[condition.key].values())
        colour, dashes, marker = styles[condition.name]
        votes = Votes.of(records)
        if votes is not None:
            axes.plot([k * votes.tokens for k in votes.success], [each.mean for each in votes.success.values()],
                      color=colour, linestyle=dashes, marker=marker,
                      label=f"{condition.name}, majority of {', '.join(map(str, votes.success))}")  # fmt: skip
        else:
            once = fmean(last(record)["answer_tokens"] for record in records)
            mean = findings.mean(condition.key, "final")
            half = 0.0 if len(records) == 1 else mean.high - mean.mean
            axes.errorbar(once, mean.mean, half, color=colour, marker=marker, markersize=9, capsize=4, linestyle="none",
                          label=condition.name)  # fmt: skip
    axes.set(xscale="log", xlabel="tokens sampled for one answer", ylabel="held-out success", ylim=(0, 1.02))
    low, high = axes.get_xlim()
    axes.set_xticks([5 * 2**power for power in range(12) if low < 5 * 2**power < high], minor=False)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def line(
    axes: Any, x: Sequence[int] | range, found: Sequence[Sequence[float]], label: str, style: Any, marked: bool = False
) -> None:
    """One condition: the mean of its curves, and the band around it."""
    colour, dashes, marker = style
    mean, half = band(found)
    x = list(x)[: len(mean)]
    axes.plot(x, mean, color=colour, linestyle=dashes, linewidth=1.8, label=label, marker=marker if marked else None)
    low, high = ([m - h for m, h in zip(mean, half, strict=True)], [m + h for m, h in zip(mean, half, strict=True)])
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.grid(alpha=0.3)


def panels_of(count: int, share: bool = True, size: tuple[float, float] = PANEL) -> tuple[Any, list[Any]]:
    """(figure, panels) in a row; a single one is wider, with room for the legend at its side."""
    if count == 1 and size is PANEL:
        size = (7.6, 3.8)
    figure, panels = plt.subplots(
        1, count, figsize=(size[0] * count, size[1]), layout="constrained", squeeze=False, sharey=share
    )
    return figure, list(panels[0])


def legend(figure: Any, panels: Sequence[Any]) -> None:
    """One for all: beside a single panel, below several."""
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    place = {"loc": "outside right upper"} if len(panels) == 1 else {"loc": "outside lower center"}
    columns = 1 if len(panels) == 1 else min(len(shown), 2 * len(panels))
    figure.legend(shown.values(), shown.keys(), ncols=columns, frameon=False, handlelength=3.5, fontsize=9, **place)


def styles_of(findings: Findings) -> dict[str, tuple[str, Any, str]]:
    """Condition name -> (colour, line, marker): the same in every panel, whatever is missing."""
    names = list(dict.fromkeys(each.name for each in findings.experiment.conditions))
    return {
        name: (COLOURS[place % len(COLOURS)], LINES[place % len(LINES)], MARKERS[place % len(MARKERS)])
        for place, name in enumerate(names)
    }


def trained(findings: Findings, group: str) -> list[Condition]:
    """The measured conditions of a group that have a learning curve."""
    return [
        each for each in findings.measured
        if each.group == group and all(record["curve"] for record in findings.records[each.key].values())
    ]  # fmt: skip


def success_at(record: Record, iteration: int) -> float:
    """Held-out success at temperature 1."""
    return float(record["evaluations"][str(iteration)]["sampled"])


def kl_at(record: Record, iteration: int) -> float:
    """Mean over agents."""
    return fmean(at(record, "evaluations", str(iteration), "kl").values())
