"""Figures of position vectors, and of the contextual neighbors of a word."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


# ---------------------------------------------------------------------- figures of position vectors


def positions(vectors: np.ndarray, title: str) -> "Figure":
    """Returns a figure of position vectors (L, M).

    It shows the vectors, their dot products, and the dot products by distance.
    """
    figure = new_figure((14, 4.4), title)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    # A symmetric range makes zero white, the middle of the color map.
    limit = np.abs(vectors).max()
    image = left.imshow(
        vectors, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(image, ax=left)
    left.set(title="the vectors", xlabel="dimension", ylabel="position")
    products = vectors @ vectors.T
    figure.colorbar(middle.imshow(products, cmap="viridis", interpolation="nearest"), ax=middle)
    middle.set(title="their dot products", xlabel="position", ylabel="position")
    # A set, because two of the three are the same if there are few positions.
    for position in sorted({0, len(vectors) // 2, len(vectors) - 1}):
        right.plot(
            np.arange(len(vectors)) - position,
            products[position],
            label=f"of position {position}",
            linewidth=1.2,
        )
    right.set(title="dot product by distance", xlabel="distance", ylabel="dot product")
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    return figure


def similarity(vectors: np.ndarray, title: str) -> "Figure":
    """Returns a figure of learned position vectors (L, M).

    It shows the cosine similarities of all pairs (Wang & Chen 2020, figure 1), the cosine
    similarities by distance, and the share of the variance in the first principal components.
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    # A vector of zeros stays so, whereas 0 / 0 would spoil the whole picture.
    unit = vectors / np.maximum(norms, 1e-12)
    cosines = unit @ unit.T
    figure = new_figure((14, 4.4), title)
    left, middle, right = figure.subplots(1, 3)
    image = left.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=left)
    left.set(title="cosine of positions", xlabel="position", ylabel="position")
    distances = np.arange(1, len(vectors))
    diagonals = [np.diagonal(cosines, distance) for distance in distances]
    mean = np.array([np.mean(diagonal) for diagonal in diagonals])
    deviation = np.array([np.std(diagonal) for diagonal in diagonals])
    middle.plot(distances, mean)
    middle.fill_between(distances, mean - deviation, mean + deviation, alpha=0.2)
    middle.set(
        title="cosine by distance, mean and deviation",
        xlabel="distance",
        ylabel="cosine",
        ylim=(-1.05, 1.05),
    )
    # A singular value decomposition is enough, because the squared singular values of centered
    # vectors are, up to a factor, the variances of their principal components.
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
    shares = np.cumsum(variances) / max(variances.sum(), 1e-12)
    right.plot(np.arange(1, len(variances) + 1), shares)
    right.set(
        title="share of the variance in the first components",
        xlabel="components",
        ylabel="share",
        ylim=(0, 1.05),
    )
    for axes in (middle, right):
        axes.grid(alpha=0.3)
    return figure


# ------------------------------------------------------ the figure of a word's neighbors by context

_MAX_ROWS = 12  # occurrences that are listed
_WIDTH = 62  # characters of a text


def neighbours(
    pairs: list[tuple[str, str, float]],
    static: list[tuple[str, float]],
    accuracies: tuple[np.ndarray, float] | None,
    title: str,
) -> "Figure":
    """Returns a figure of the nearest neighbors of the occurrences of a word.

    `pairs` are (text, text of the nearest neighbor, cosine). `static` has the neighbors by
    embedding with their cosines, or is empty. `accuracies` is the share of occurrences whose
    nearest neighbor has the same sense, for each layer (layers + 1,), together with the chance
    level; it is None if the senses are not known.
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
