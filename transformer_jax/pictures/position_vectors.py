"""Figures of position vectors, of the contextual neighbors of a word, and maps of word vectors."""

import itertools
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import new_figure, style, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


# ---------------------------------------------------------------------- figures of position vectors

# A table of at most this many positions and columns has its numbers written into it.
_MOST_NUMBERED, _MOST_COLUMNS = 20, 8


def positions(vectors: np.ndarray, title: str) -> "Figure":
    """Returns a figure of position vectors (L, M).

    It shows the vectors, their dot products, and the dot products by distance. A small table of
    vectors has its numbers in it.
    """
    figure = new_figure((14, 4.4), title)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
    # A symmetric range makes zero white, the middle of the color map.
    limit = np.abs(vectors).max()
    is_whole = (vectors == vectors.round()).all()
    image = left.imshow(
        vectors, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(image, ax=left)
    left.set(title="the vectors", xlabel="dimension", ylabel="position")
    if vectors.shape[0] <= _MOST_NUMBERED and vectors.shape[1] <= _MOST_COLUMNS:
        for (position, column), value in np.ndenumerate(vectors):
            # Of a code of whole numbers, such as the bits of a position, no decimals are written.
            number = f"{value:.0f}" if is_whole else f"{value:.2f}"
            is_dark = abs(value) > 0.6 * limit
            color = "white" if is_dark else "black"
            left.text(column, position, number, ha="center", va="center", fontsize=8, color=color)
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


# ------------------------------------------------------------------ maps of word vectors in a plane

_FONT = 8  # points
_LETTER, _ROW = 0.62 * _FONT, 1.35 * _FONT  # width of a letter and height of a label, in points
# Around a point: to the right, the left, above, below, and at the corners.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def word_map(
    vectors: np.ndarray, labels: Sequence[str], groups: Sequence[str] = (), title: str = ""
) -> "Figure":
    """Returns a figure of vectors (N, M) in the plane of their first two principal components.

    `groups`, such as the senses of the words, are drawn in different colors.
    """
    centered = vectors - vectors.mean(axis=0)
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : min(2, len(values))] = (left * values)[:, :2]
    shares = np.pad(values**2, (0, 2))[:2] / max((values**2).sum(), 1e-12)
    figure = new_figure((9, 7), title)
    axes = figure.subplots()
    groups = groups or [""] * len(labels)
    for number, group in enumerate(dict.fromkeys(groups)):
        chosen = points[[each == group for each in groups]]
        look = style(number)
        axes.scatter(
            *chosen.T, s=14, color=look["color"], marker=look["marker"], label=verbatim(group)
        )
    if any(groups):
        axes.legend(fontsize=_FONT)
    first, second = (f"{share:.0%} of the variance" for share in shares)
    axes.set(xlabel=f"first component, {first}", ylabel=f"second component, {second}")
    axes.margins(0.12)
    # Drawn once, because the size of the axes, and so the distances on paper, are known only then.
    figure.draw_without_rendering()
    paper = axes.transData.transform(points) * 72 / figure.dpi
    frame = tuple(axes.get_window_extent().extents * 72 / figure.dpi)
    offsets = _offsets(paper, labels, frame)
    for point, label, (offset, is_far) in zip(points, labels, offsets, strict=True):
        line = dict(arrowstyle="-", linewidth=0.5, color="gray") if is_far else None
        text = axes.annotate(
            verbatim(label),
            point,
            offset,
            textcoords="offset points",
            fontsize=_FONT,
            va="center",
            arrowprops=line,
        )
        # Otherwise the layout would shrink the axes when the figure is saved, and move the points.
        text.set_in_layout(False)
    return figure


def _offsets(
    points: np.ndarray, labels: Sequence[str], frame: tuple[float, float, float, float]
) -> list[tuple[tuple[float, float], bool]]:
    """Returns the offset in points at which each label starts, and whether that is far away.

    `points` (N, 2) are positions on paper in points, and `frame` the box of the axes. A label takes
    the nearest free space in the frame, so that it covers neither another label nor a point.
    """
    # A point takes space, too.
    taken = [(x - 2, y - 2, x + 2, y + 2) for x, y in points]
    offsets = []
    for (x, y), label in zip(points, labels):
        width = _LETTER * len(label)
        candidates = []
        for distance, (across, up) in itertools.product(range(8), _SIDES):
            right = 5 + distance * _ROW
            start = {1: right, -1: -right - width, 0: -width / 2}[across]
            middle = up * (0.9 + distance) * _ROW
            box = (x + start, y + middle - _ROW / 2, x + start + width, y + middle + _ROW / 2)
            covered = sum(_overlap(box, other) for other in taken)
            covered += width * _ROW - _overlap(box, frame)  # what sticks out
            # By their number, so that of equally good spaces the first is taken.
            candidates.append((covered, len(candidates), (start, middle), box, distance > 0))
            if covered < 1e-6:
                break
        _, _, offset, box, is_far = min(candidates)
        taken.append(box)
        offsets.append((offset, is_far))
    return offsets


def _overlap(one: tuple, other: tuple) -> float:
    """Returns the area that two boxes (left, bottom, right, top) have in common."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
