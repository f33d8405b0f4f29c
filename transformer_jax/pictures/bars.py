"""A figure of numbers by name."""

from typing import TYPE_CHECKING

from transformer_jax.pictures.figure import new_figure, verbatim

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


def bars(values: list[tuple[str, float]], label: str, title: str) -> "Figure":
    """Returns a figure with a bar for each (name, number from 0 to 1), the first at the top."""
    figure = new_figure((8, 1.4 + 0.3 * len(values)), title)
    axes = figure.subplots()
    names = [verbatim(name) for name, _ in values]
    places = range(len(values))
    drawn = axes.barh(places, [number for _, number in values])
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.set(xlabel=label, xlim=(0, 1.1), yticks=places, yticklabels=names)
    axes.invert_yaxis()
    return figure
