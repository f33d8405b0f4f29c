"""Figures of images in rows, and of shares of their patches over them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_SIDE = 1.3  # inches of an image
_SHARE_COLOURS = "inferno"


def images(
    rows: Mapping[str, np.ndarray], title: str = "", names: Sequence[str] | None = None
) -> "Figure":
    """Returns a figure with a row of images for each name, uint8 (N, H, W, C) with C = 1 or 3.

    `names` stand above the columns.
    """
    columns = max(map(len, rows.values()))
    figure = new_figure((1.2 + _SIDE * columns, 0.6 + (_SIDE + 0.1) * len(rows)), title)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for of_row, (name, pictures) in zip(grid, rows.items()):
        of_row[0].set_ylabel(verbatim(name), fontsize=9)
        for axes, picture in zip(of_row, pictures):
            _show(axes, picture)
    for axes, name in zip(grid[0], names or ()):
        axes.set_title(verbatim(name), fontsize=9)
    return figure


def shares(
    pictures: np.ndarray, maps: np.ndarray, title: str = "", names: Sequence[str] | None = None
) -> "Figure":
    """Returns a figure of images (N, H, W, C), and below each the shares of its patches (N, G, G).

    The shares are colours over the image, from the smallest to the largest of each image.
    """
    figure = images({"image": pictures, "attention": pictures}, title, names)
    for axes, picture, of_patches in zip(figure.axes[len(pictures) :], pictures, maps):
        height, width, _ = picture.shape
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        options = dict(cmap=_SHARE_COLOURS, alpha=0.6, interpolation="bilinear")
        axes.imshow(of_patches, extent=extent, **options)
    return figure


def _show(axes, picture: np.ndarray) -> None:
    if picture.shape[-1] == 1:
        axes.imshow(picture[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    else:
        axes.imshow(picture, interpolation="nearest")
