"""The figure of a confusion matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import WEIGHT_COLOURS, new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_MAX_WITH_COUNTS = 20  # labels


def confusion(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> "Figure":
    """Returns a figure of how often each label (row) was predicted as each label (column).

    Colours are shares of a row. Cells show their counts if there are at most 20 labels.
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
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=9)
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    return figure
