"""The figure of a protein's contacts."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.pictures.figure import WEIGHT_COLOURS, new_figure

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


def contact_maps(
    probabilities: Float[np.ndarray, "N N"],
    touch: Int[np.ndarray, "N N"] | None = None,
    title: str = "",
) -> "Figure":
    """Returns a figure of the probabilities that residues touch, beside the truth if it is known.

    `touch` is 1 where two residues touch. Residues count from 1.
    """
    panels = {"predicted": probabilities} | ({} if touch is None else {"true": touch})
    figure = new_figure((0.8 + 4.2 * len(panels), 4.6), title)
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
