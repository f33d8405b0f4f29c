"""Everything that draws: figures as PNG, curves, progress on a terminal.

`pictures.attention`, `pictures.curves` and the other figures are functions of this package.
"""

from transformer_jax.pictures.figures import (
    attended_by,
    attention,
    confusion,
    curves,
    growth,
    masks,
    mean_attention,
    place_of,
    positions,
    save,
    similarity,
)

__all__ = [
    "attended_by",
    "attention",
    "confusion",
    "curves",
    "growth",
    "masks",
    "mean_attention",
    "place_of",
    "positions",
    "save",
    "similarity",
]
