"""Figures of images, of corrupted texts, and of protein contacts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.pictures.figure import WEIGHT_COLOURS, new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


# --------------------------------------- figures of images in rows, and of weights of their patches

_SIDE = 1.3  # inches of an image
_SHARE_COLOURS = "inferno"


def images(
    rows: Mapping[str, np.ndarray], title: str = "", names: Sequence[str] | None = None
) -> "Figure":
    """Returns a figure with a row of images for each name, uint8 (N, H, W, C) with C = 1 or 3.

    `names` are written above the columns.
    """
    columns = max(map(len, rows.values()))
    figure = new_figure((1.2 + _SIDE * columns, 0.6 + (_SIDE + 0.1) * len(rows)), title)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for row_axes, (name, pictures) in zip(grid, rows.items()):
        row_axes[0].set_ylabel(verbatim(name), fontsize=9)
        for axes, picture in zip(row_axes, pictures):
            _show(axes, picture)
    for axes, name in zip(grid[0], names or ()):
        axes.set_title(verbatim(name), fontsize=9)
    return figure


def shares(
    pictures: np.ndarray, maps: np.ndarray, title: str = "", names: Sequence[str] | None = None
) -> "Figure":
    """Returns a figure of images (N, H, W, C), and below them the weights of their G x G patches.

    The weights (N, G, G) are drawn as colors over the image; the colors span the range of each
    image.
    """
    figure = images({"image": pictures, "attention": pictures}, title, names)
    for axes, picture, weights in zip(figure.axes[len(pictures) :], pictures, maps):
        height, width, _ = picture.shape
        # The extent of the image below, so that each weight covers its patch.
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        options = dict(cmap=_SHARE_COLOURS, alpha=0.6, interpolation="bilinear")
        axes.imshow(weights, extent=extent, **options)
    return figure


def _show(axes, picture: np.ndarray) -> None:
    if picture.shape[-1] == 1:
        # Without a fixed range, a dark image would be stretched to full contrast.
        axes.imshow(picture[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        axes.imshow(picture, interpolation="nearest")


# --------------------------------- figures of corrupted texts, for denoising and for masked tokens

_LINE = 96  # characters
_INCHES = 0.083  # width of a character
_COLORS = "rainbow"  # from the first token of a text to the last
_NOISE_COLOR = "lightgrey"  # of masks and sentinels

Pieces = Sequence[tuple[str, int | None]]


def noised(texts: Mapping[str, Pieces], title: str = "") -> "Figure":
    """Returns a figure of named texts, each a list of (token, index in the original text or None).

    The color of a token shows its index. Tokens without an index, such as masks, are gray.
    """
    from matplotlib import colormaps

    last = max((index for pieces in texts.values() for _, index in pieces if index), default=1)

    def color(index: int | None):
        return _NOISE_COLOR if index is None else colormaps[_COLORS](0.15 + 0.7 * index / last)

    colored = {
        name: [(piece, color(index)) for piece, index in pieces] for name, pieces in texts.items()
    }
    return _colored(colored, title)


# What masked language modeling does to a token that it predicts (Devlin et al. 2018, section 3.1).
_FATES = {"masked": "lightgrey", "replaced": "salmon", "unchanged": "palegreen"}


def masked(draws: Sequence[Sequence[tuple[str, str]]], title: str = "") -> "Figure":
    """Returns a figure of a text that is masked in several draws, each a list of (token, fate).

    A fate is "masked", "replaced" or "unchanged", or "" for a token that is not predicted.
    """
    texts = {"": list(_FATES.items())}
    for number, pieces in enumerate(draws, 1):
        texts[f"{number}"] = [(piece, _FATES.get(fate, "none")) for piece, fate in pieces]
    return _colored(texts, title)


def _colored(texts: Mapping[str, Sequence[tuple[str, Any]]], title: str) -> "Figure":
    """Returns a figure of named texts, each a list of (token, color of its background)."""
    margin = max(map(len, texts)) + 2
    lines = [
        ("" if number else name, line)
        for name, pieces in texts.items()
        for number, line in enumerate(_lines(pieces))
    ]
    figure = new_figure(((margin + _LINE) * _INCHES, 0.3 * len(lines) + 0.5), title)
    axes = figure.subplots()
    axes.set(xlim=(-margin, _LINE), ylim=(len(lines) - 0.5, -0.5))
    axes.set_axis_off()
    style = dict(family="monospace", fontsize=9, va="center")
    for number, (name, pieces) in enumerate(lines):
        axes.text(-margin, number, verbatim(name), **style)
        column = 0
        for piece, color in pieces:
            box = dict(boxstyle="square,pad=0.15", facecolor=color, edgecolor="none", alpha=0.6)
            axes.text(column, number, verbatim(piece), bbox=box, **style)
            column += len(piece) + 0.8
    return figure


def _lines(pieces: Sequence[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Returns the tokens, broken into lines."""
    lines, width = [[]], 0
    for piece in pieces:
        width += len(piece[0]) + 0.8
        if width > _LINE:
            lines.append([])
            width = len(piece[0]) + 0.8
        lines[-1].append(piece)
    return lines


# --------------------------------------------------------------------- a figure of protein contacts


def contact_maps(
    probabilities: Float[np.ndarray, "N N"],
    touch: Int[np.ndarray, "N N"] | None = None,
    title: str = "",
) -> "Figure":
    """Returns a figure of contact probabilities, beside the true contacts if they are known.

    `touch` is 1 for pairs of residues in contact. Residues count from 1.
    """
    panels = {"predicted": probabilities} | ({} if touch is None else {"true": touch})
    figure = new_figure((0.8 + 4.2 * len(panels), 4.6), title)
    # Half a unit more at both ends, because residues count from 1 and a pixel is centered on its
    # number.
    edges = (0.5, len(probabilities) + 0.5)
    for axes, (name, values) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items()
    ):
        image = axes.imshow(
            values,
            cmap=WEIGHT_COLOURS,
            vmin=0,
            vmax=1,
            origin="lower",
            extent=(*edges, *edges),
            interpolation="nearest",
        )
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="residue", ylabel="residue")
    figure.colorbar(image, ax=figure.axes, label="probability of a contact", shrink=0.8)
    return figure
