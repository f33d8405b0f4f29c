"""The figure of noised texts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_LINE = 96  # characters
_INCHES = 0.083  # width of a character
_COLOURS = "rainbow"  # from the first piece of a text to the last
_OF_NOISE = "lightgrey"  # of masks and sentinels

Pieces = Sequence[tuple[str, int | None]]


def noised(texts: Mapping[str, Pieces], title: str = "") -> "Figure":
    """Returns a figure of texts by name, each a list of (piece, place in the text as it was).

    The colour of a piece is that of its place. Pieces without a place, such as masks, are grey.
    """
    from matplotlib import colormaps

    last = max((place for pieces in texts.values() for _, place in pieces if place), default=1)
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
        for piece, place in pieces:
            colour = _OF_NOISE if place is None else colormaps[_COLOURS](0.15 + 0.7 * place / last)
            box = dict(boxstyle="square,pad=0.15", facecolor=colour, edgecolor="none", alpha=0.6)
            axes.text(column, number, verbatim(piece), bbox=box, **style)
            column += len(piece) + 0.8
    return figure


def _lines(pieces: Pieces) -> list[Pieces]:
    """Returns the pieces in lines."""
    lines, width = [[]], 0
    for piece in pieces:
        width += len(piece[0]) + 0.8
        if width > _LINE:
            lines.append([])
            width = len(piece[0]) + 0.8
        lines[-1].append(piece)
    return lines
