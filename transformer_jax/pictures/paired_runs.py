"""Figures of a comparison: its differences as a forest plot, and the curves of all runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.pictures.figure import COLORS, new_figure, style, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


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
        look = style(1 + place)
        color, marker = look["color"], look["marker"]
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
        look = style(number)
        if len(steps) >= 30:
            del look["marker"]
        axes.plot(steps, values.mean(axis=0), label=verbatim(name), **look)
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.2)
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(verbatim(score))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)


def sweep(result: Mapping[str, Any], keys: Sequence[str]) -> "Figure":
    """Returns a figure of a sweep, the result of `Sweep.run` over these keys.

    One key gives the score by its value, with the range of the seeds; two give a map of the mean;
    more, or values that are no numbers, give a list of the points, the best at the top.
    """
    # A point of which a run diverged has no place in a picture.
    result = dict(result) | {"points": [x for x in result["points"] if x["mean"] is not None]}
    numbers = _numbers(result["points"], keys)
    figure = new_figure((7, max(3.6, 0.3 * len(result["points"]) + 1.4)), "")
    axes = figure.subplots()
    if numbers is None or len(keys) > 2 or not len(numbers):
        _listed(axes, result)
    elif len(keys) == 1:
        _by_value(axes, result, numbers[:, 0], keys[0])
    else:
        _map(figure, axes, result, numbers, keys)
    return figure


def _numbers(points: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> np.ndarray | None:
    """Returns the values of the keys (points, keys), or None if some are no numbers."""
    try:
        return np.array([[float(point["keys"][key]) for key in keys] for point in points])
    except ValueError:
        return None


def _by_value(axes, result, values: np.ndarray, key: str) -> None:
    order = np.argsort(values)
    points = [result["points"][index] for index in order]
    axes.plot(values[order], [point["mean"] for point in points], "o-", color=COLORS[0])
    low, high = ([pick(point["values"]) for point in points] for pick in (min, max))
    axes.fill_between(values[order], low, high, color=COLORS[0], alpha=0.2)
    if values.min() > 0 and values.max() >= 10 * values.min():
        axes.set_xscale("log")
    axes.set_xlabel(verbatim(key))
    axes.set_ylabel(verbatim(result["score"]))
    axes.grid(alpha=0.3)


def _map(figure, axes, result, numbers: np.ndarray, keys: Sequence[str]) -> None:
    means = np.array([point["mean"] for point in result["points"]])
    columns, rows = (np.unique(numbers[:, axis]) for axis in (0, 1))
    if len(columns) * len(rows) == len(means):
        table = np.full((len(rows), len(columns)), np.nan)
        table[np.searchsorted(rows, numbers[:, 1]), np.searchsorted(columns, numbers[:, 0])] = means
        shown = axes.imshow(table, origin="lower", cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(columns)), [f"{x:g}" for x in columns])
        axes.set_yticks(range(len(rows)), [f"{x:g}" for x in rows])
        for (row, column), value in np.ndenumerate(table):
            axes.text(column, row, f"{value:.4g}", ha="center", va="center", color="white")
    else:
        shown = axes.scatter(numbers[:, 0], numbers[:, 1], c=means, cmap="viridis", s=60)
        for scale, values in ((axes.set_xscale, columns), (axes.set_yscale, rows)):
            if values.min() > 0 and values.max() >= 10 * values.min():
                scale("log")
    axes.set_xlabel(verbatim(keys[0]))
    axes.set_ylabel(verbatim(keys[1]))
    figure.colorbar(shown, label=verbatim(result["score"]))


def _listed(axes, result) -> None:
    sign = 1 if result["lower_is_better"] else -1
    points = sorted(result["points"], key=lambda point: sign * point["mean"])
    for place, point in enumerate(points):
        axes.plot(point["values"], [place] * len(point["values"]), ".", color="0.5")
        axes.plot([point["mean"]], [place], "o", color=COLORS[0])
    axes.set_yticks(range(len(points)), [verbatim(point["name"]) for point in points])
    axes.invert_yaxis()
    axes.set_xlabel(verbatim(result["score"]))
    axes.grid(axis="x", alpha=0.3)
