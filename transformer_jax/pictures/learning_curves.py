"""Figures of learning curves, growing costs, model sizes, named numbers, confusion matrices."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import (
    COLORS,
    LINES,
    WEIGHT_COLOURS,
    new_figure,
    style,
    verbatim,
)

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


# ------------------------------------------------- figures of learning curves, and of growing costs

# {title of a panel: last parts of the names of its metrics}. _PANELS are drawn for every run, and
# _SCORES if the run has been evaluated by such a score.
_PANELS = {
    "loss": ("loss", "nll", "nsp_loss", "lm_loss"),
    "accuracy": ("accuracy", "nsp_accuracy"),
    "learning rate": ("learning_rate",),
    "norms": ("grad_norm", "update_norm"),
}
_SCORES = {
    "BLEU and chrF": ("bleu", "chrf"),
    "perplexity": ("perplexity",),
    "bits per byte and character": ("bits_per_byte", "bits_per_character"),
    "F1": ("f1", "best_f1", "macro_f1", "precision", "recall"),
    "exact match": ("exact_match", "best_exact_match"),
    "correlation": ("matthews", "pearson", "spearman"),
}
_MOST_MARKERS = 50  # of a line; more would cover it


def curves(
    runs: Mapping[str, Sequence[dict]],
    panels: Mapping[str, Sequence[str]] | None = None,
    against: str = "step",
    title: str = "",
) -> "Figure":
    """Returns a figure of the learning curves of runs.

    `runs` maps the name of a run to the lines of its metrics.jsonl. `panels` maps the title of a
    panel to metrics, which may be given by the last part of their names. By default there are
    panels for losses, accuracies, the learning rate, norms and all evaluated scores. `against` is
    "step" or a count in the lines, such as "train/tokens_total". Several runs differ in color, and
    the metrics of a run in their lines; the metrics of a single run differ in color.
    """
    panels = panels or _PANELS | _score_panels(runs.values())
    num_rows = -(-len(panels) // 2)
    figure = new_figure((12, 3.6 * num_rows), title)
    grid = figure.subplots(num_rows, min(len(panels), 2), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (panel, endings) in zip(grid.flat, panels.items()):
        found = sorted({name for lines in runs.values() for name in _names(lines, endings)})
        for number, (run, lines) in enumerate(runs.items()):
            for name in _names(lines, endings):
                x, y = _points(lines, name, against)
                look = style(number if len(runs) > 1 else found.index(name))
                if len(runs) > 1:
                    look["linestyle"] = LINES[found.index(name) % len(LINES)]
                # Without markers, a score that was measured once would not be seen.
                if len(x) >= _MOST_MARKERS:
                    del look["marker"]
                axes.plot(
                    x,
                    y,
                    label=verbatim(" ".join(filter(None, (run, name)))),
                    markersize=4,
                    **look,
                )
        # Norms and perplexities may change by orders of magnitude, which a linear axis would hide.
        is_wide = panel == "norms" or panel == "perplexity" and _spans_decade(axes)
        scale = "log" if axes.lines and is_wide else "linear"
        axes.set(title=panel, xlabel=against, yscale=scale)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    return figure


def _names(lines: Sequence[dict], endings: Sequence[str]) -> list[str]:
    """Returns the sorted names in the lines that match `endings`, or whose last part does."""
    names = {name for line in lines for name in line}
    return sorted(name for name in names if name in endings or name.rpartition("/")[2] in endings)


def _spans_decade(axes) -> bool:
    """Whether the largest drawn value is at least ten times the smallest."""
    if not axes.lines:
        return False
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    # NaN is skipped, because it stands for a metric without values, or for a run that has diverged.
    return bool(np.nanmax(values, initial=0) >= 10 * np.nanmin(values, initial=np.inf))


def _score_panels(runs: Iterable[Sequence[dict]]) -> dict[str, tuple[str, ...]]:
    """Returns panels for all evaluated scores; a score that is not in _SCORES has its own panel."""
    names = {name for lines in runs for line in lines for name in line}
    not_scores = ("step", "train/", "seconds/")
    endings = {name.rpartition("/")[2] for name in names if not name.startswith(not_scores)}
    panels = {title: scores for title, scores in _SCORES.items() if endings & {*scores}}
    grouped = {score for scores in (*_PANELS.values(), *panels.values()) for score in scores}
    return panels | {name.replace("_", " "): (name,) for name in sorted(endings - grouped)}


def _points(lines: Sequence[dict], name: str, against: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the x and y values of a metric.

    Only the lines of training metrics have the count `against`; for other lines it is interpolated.
    """
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    # A metric that is null in all lines becomes a NaN, which is not drawn.
    steps, values = np.array(points or [(np.nan, np.nan)], float).T
    if against == "step":
        return steps, values
    counts = [(line["step"], line[against]) for line in lines if line.get(against) is not None]
    if not counts:
        return np.full(len(steps), np.nan), values
    return np.interp(steps, *zip(*counts)), values


def accuracies(
    measured: Mapping[str, np.ndarray], xlabel: str, chance: float, title: str = ""
) -> "Figure":
    """Returns a figure of accuracies over the words or updates of a training.

    `measured` maps a name to rows (N, 4): the number of words or updates, the accuracy, and the
    bounds of its interval, which is a band. A dashed line is the accuracy of `chance`.
    """
    figure = new_figure((6.4, 4.2), title)
    axes = figure.subplots()
    for number, (name, points) in enumerate(measured.items()):
        x, accuracy, low, high = np.asarray(points, float).T
        look = style(number)
        axes.plot(x, accuracy, label=verbatim(name), markersize=4, **look)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.axhline(chance, color="gray", linestyle="--", linewidth=1)
    axes.set(xlabel=xlabel, ylabel="accuracy")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def growth(measured: Mapping[str, np.ndarray], unit: str = "s", title: str = "") -> "Figure":
    """Returns a figure of costs that grow with quantities, with a panel for each quantity.

    `measured` maps the name of a quantity to rows (N, 3) of its value, the measured cost and the
    predicted cost. Both axes are logarithmic, so that a slope is an exponent.
    """
    figure = new_figure((3.6 * len(measured), 3.6), title)
    panels = figure.subplots(1, len(measured), sharey=True, squeeze=False)[0]
    for axes, (name, points) in zip(panels, measured.items()):
        quantity, cost, predicted = np.asarray(points).T
        axes.plot(quantity, predicted, "k--", linewidth=1, label="predicted")
        axes.plot(quantity, cost, "o-", label="measured")
        axes.set(xlabel=name, xscale="log", yscale="log")
        axes.set_xticks(quantity, [f"{value:g}" for value in quantity], fontsize=8)
        # A logarithmic axis would also label minor ticks, across the measured values.
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel(unit)
    figure.axes[0].legend(fontsize=8)
    return figure


# --------------------------------------------------------------------- a bar chart of named numbers


def bars(values: list[tuple[str, float]], label: str, title: str) -> "Figure":
    """Returns a figure with a bar for each (name, number from 0 to 1), the first at the top."""
    figure = new_figure((8, 1.4 + 0.3 * len(values)), title)
    axes = figure.subplots()
    names = [verbatim(name) for name, _ in values]
    ticks = range(len(values))
    drawn = axes.barh(ticks, [number for _, number in values])
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.set(xlabel=label, xlim=(0, 1.1), yticks=ticks, yticklabels=names)
    # Inverted, because matplotlib counts bars from the bottom.
    axes.invert_yaxis()
    return figure


def model_sizes(models: Iterable[tuple[str, float, int]], title: str = "") -> "Figure":
    """Returns a figure of (name, year of publication, parameters), on a logarithmic scale.

    A year is a number such as 2018.75, for October 2018.
    """
    figure = new_figure((9, 5.5), title)
    axes = figure.subplots()
    for name, year, parameters in models:
        axes.semilogy(year, parameters, "o", color=COLORS[0])
        label = f"{verbatim(name)}, {_rounded(parameters)}"
        axes.annotate(label, (year, parameters), (6, -3), textcoords="offset points", fontsize=9)
    axes.set(xlabel="year of publication", ylabel="parameters")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(0.2, 0.1)  # the labels, on the right of their points, need the width
    axes.grid(alpha=0.3)
    return figure


def _rounded(count: int) -> str:
    """Returns a count with three digits, such as 124 M or 1.56 B."""
    unit, name = (1e9, "B") if count >= 1e9 else (1e6, "M")
    return f"{count / unit:.3g} {name}"


# ------------------------------------------------------------------------------- confusion matrices

_MAX_WITH_COUNTS = 20  # labels; with more, the counts would not be legible


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> "Figure":
    """Returns a figure of how often each label (row) was predicted as each label (column).

    Colors are shares of a row. The counts are written in the cells if there are at most 20 labels.
    """
    counts = np.asarray(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    label_length = max(map(len, labels)) * 0.09
    size = (2.2 + 0.6 * len(labels) + label_length, 1.4 + 0.45 * len(labels) + label_length)
    figure = new_figure(size, title)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=WEIGHT_COLOURS, vmin=0, vmax=1, aspect="auto")
    names = [verbatim(label) for label in labels]
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted label", ylabel="true label")
    if len(labels) <= _MAX_WITH_COUNTS:
        for (row, column), count in np.ndenumerate(counts):
            # Black is not legible on the darker half of the color map.
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=9)
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    return figure
