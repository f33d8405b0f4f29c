"""Figures of a comparison: its differences as a forest plot, and the curves of all runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

# Colors that people with any kind of color vision tell apart (Wong 2011, Nature Methods), and
# markers that differ without them.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*"


def comparison(result: Mapping[str, Any], curves: Mapping[str, Sequence[list[dict]]]) -> "Figure":
    """Returns a figure with a row for each score: paired differences, and curves by updates.

    `result` is that of `Comparison.result`, and `curves` are the lines of metrics.jsonl by arm and
    seed. The left panel has the difference of each arm from the first one, every pair as a dot and
    the mean with its interval. The right panel has the mean curve of each arm, and a band from the
    lowest to the highest run.
    """
    scores = list(result["scores"])
    height = 1.6 + 0.35 * len(curves)
    figure = new_figure((10, max(3.2, height) * len(scores)), "")
    panels = figure.subplots(len(scores), 2, squeeze=False)
    for (left, right), score in zip(panels, scores):
        _forest(left, result, score)
        _curves(right, curves, score)
    return figure


def _forest(axes, result: Mapping[str, Any], score: str) -> None:
    rows = [row for row in result["differences"] if row["score"] == score]
    by_arm = result["scores"][score]
    for place, row in enumerate(rows):
        color, marker = _style(1 + place)
        pairs = np.subtract(by_arm[row["arm"]]["values"], by_arm[row["against"]]["values"])
        axes.plot(pairs, np.full(len(pairs), place - 0.18), ".", color=color, alpha=0.5)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [place, place], color=color, linewidth=2)
        axes.plot([row["mean"]], [place], marker, color=color)
        axes.annotate(
            row["verdict"], (row["mean"], place), (0, -16), textcoords="offset points", ha="center"
        )
        if row["margin"]:
            axes.axvspan(-row["margin"], row["margin"], color="0.9", zorder=0)
    axes.axvline(0, color="0.4", linewidth=1)
    axes.set_yticks(range(len(rows)), [verbatim(row["arm"]) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    against = rows[0]["against"] if rows else ""
    axes.set_xlabel(verbatim(f"{score} minus that of {against}"))
    axes.grid(axis="x", alpha=0.3)
    axes.margins(x=0.2)


def _curves(axes, curves: Mapping[str, Sequence[list[dict]]], score: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, (name, runs) in enumerate(curves.items()):
        points = [
            {line["step"]: line[score] for line in lines if line.get(score) is not None}
            for lines in runs
        ]
        steps = sorted(set.intersection(*map(set, points))) if points else []
        if not steps:
            continue
        values = np.array([[each[step] for step in steps] for each in points])
        color, marker = _style(number)
        axes.plot(
            steps,
            values.mean(axis=0),
            color=color,
            marker=marker if len(steps) < 30 else None,
            label=verbatim(name),
        )
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2)
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(verbatim(score))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)


def _style(number: int) -> tuple[str, str]:
    return COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
