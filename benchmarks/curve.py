"""The learning curves of runs as a picture: `python -m benchmarks.curve RUN [RUN …] -o curve.png`.

Thin lines are the training success of single runs, the thick line their mean; points with bars are held-out success
(temperature 1) with its 95% interval, before and after, mean over the runs.
"""

from __future__ import annotations

import argparse
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from marft.run.directory import RunDirectory
from marft.run.metrics import read_metrics

BLUE, ORANGE = "#0072B2", "#D55E00"  # told apart by people who are colour-blind (Okabe & Ito)


def main() -> None:
    """Draw and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("-o", "--output", default="curve.png")
    given = parser.parse_args()
    runs = [RunDirectory.open(path) for path in given.runs]
    curves = [[row["success"] for row in read_metrics(run.metrics_file)] for run in runs]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for curve in curves:
        axes.plot(range(1, len(curve) + 1), curve, color=BLUE, alpha=0.35, linewidth=1)
    length = min(map(len, curves))
    mean = [fmean(curve[at] for curve in curves) for at in range(length)]
    axes.plot(range(1, length + 1), mean, color=BLUE, linewidth=2.5, label="training, sampled")
    for kind, marker, label in (("sampled", "o", "held out, sampled"), ("greedy", "s", "held out, greedy")):
        for place, last in ((0, False), (length + 1, True)):
            reports = [sorted(run.read_evaluations().items())[-1 if last else 0][1] for run in runs]
            found = [report[kind]["success"] for report in reports]
            middle = fmean(each["mean"] for each in found)
            low, high = (fmean(each[end] for each in found) for end in ("low", "high"))
            shift = 0.25 if kind == "greedy" else 0.0
            axes.errorbar(
                place + shift, middle, [[middle - low], [high - middle]], fmt=marker, color=ORANGE, capsize=3,
                fillstyle="full" if kind == "sampled" else "none", label=None if last else label,
            )  # fmt: skip
    axes.set(xlabel="iteration", ylabel="success", ylim=(0, 1))
    axes.set_title(f"{runs[0].config().name}: {len(runs)} run{'s' if len(runs) > 1 else ''}")
    axes.legend(loc="lower right", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(given.output, dpi=150)
    print(given.output)


if __name__ == "__main__":
    main()
