"""What all figures share: creation, titles, and saving as PNG files."""

import pathlib
import textwrap
from typing import TYPE_CHECKING

from transformer_jax.storage import buckets

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

WEIGHT_COLOURS = "Blues"  # of attention weights and shares, since zero is white in it


def save(figure: "Figure", path: str | pathlib.Path) -> None:
    """Writes the figure to a PNG file, which appears as a whole or not at all.

    Raises UserError if the file cannot be written.
    """
    path = pathlib.Path(path)
    with buckets.writing(path), buckets.appearing(path) as temporary:
        # The format is named, because the user's path may have another suffix or none.
        figure.savefig(temporary, dpi=120, format="png")


def new_figure(size: tuple[float, float], title: str) -> "Figure":
    """Returns an empty figure of `size` inches with a wrapped title."""
    from matplotlib.figure import Figure

    # Without pyplot, which chooses a backend, perhaps one that needs a display, and keeps each
    # figure until it is closed.
    figure = Figure(figsize=size, layout="constrained")
    if title:
        figure.suptitle(verbatim(textwrap.fill(title, round(11 * size[0]))), fontsize=11)
    return figure


def verbatim(text: str) -> str:
    """Returns the text escaped for matplotlib, which reads "$5 or $10" as a formula."""
    return text.replace("$", r"\$")
