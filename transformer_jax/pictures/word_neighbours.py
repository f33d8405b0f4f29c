"""The figure of a word's neighbours by context."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_MAX_ROWS = 12  # occurrences that are listed
_WIDTH = 62  # characters of a text


def neighbours(
    pairs: list[tuple[str, str, float]],
    static: list[tuple[str, float]],
    accuracies: tuple[np.ndarray, float] | None,
    title: str,
) -> "Figure":
    """Returns a figure of the nearest occurrences of a word.

    `pairs` are (text, nearest text, cosine), `static` the neighbours by embedding with their
    cosines, or empty. `accuracies` is the share of occurrences whose nearest one has the same
    sense, in each layer (layers + 1,), and that of a random choice; None where the senses are not
    known.
    """
    figure = new_figure((14, 1.4 + 0.36 * min(len(pairs), _MAX_ROWS)), title)
    has_senses = accuracies is not None
    listed, *other = np.atleast_1d(
        figure.subplots(1, 1 + has_senses, width_ratios=[2.2, 1][: 1 + has_senses])
    )
    lines = [
        f"{_short(text)}\n      {cosine:.2f}  {_short(nearest)}"
        for text, nearest, cosine in pairs[:_MAX_ROWS]
    ]
    if static:
        by_embedding = ", ".join(f"{word} {cosine:.2f}" for word, cosine in static)
        lines.append(f"by embedding: {by_embedding}")
    listed.text(0, 1, verbatim("\n".join(lines)), va="top", fontsize=9.5, family="monospace")
    listed.axis("off")
    for axes in other:
        by_layer, chance = accuracies
        axes.plot(np.arange(len(by_layer)), by_layer, marker="o")
        axes.axhline(chance, color="gray", linestyle="--", label=f"random choice: {chance:.2f}")
        axes.legend()
        axes.set(
            title="nearest occurrence of the same sense",
            xlabel="layer; 0: embeddings",
            ylabel="share",
            ylim=(0, 1.05),
            xticks=np.arange(len(by_layer)),
        )
        axes.grid(alpha=0.3)
    return figure


def _short(text: str) -> str:
    return textwrap.shorten(text, _WIDTH, placeholder=" ...")
