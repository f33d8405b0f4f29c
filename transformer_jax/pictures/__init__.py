"""Figures as PNG files, learning curves, and progress on a terminal.

`pictures.attention`, `pictures.curves` and the other figures are functions of this package.
"""

from transformer_jax.pictures.attention_maps import (
    attended_by,
    attention,
    masks,
    mean_attention,
    place_of,
)
from transformer_jax.pictures.bars import bars
from transformer_jax.pictures.confusion_matrix import confusion
from transformer_jax.pictures.contact_map import contact_maps
from transformer_jax.pictures.figure import save
from transformer_jax.pictures.image_grids import images, shares
from transformer_jax.pictures.learning_curves import curves, growth
from transformer_jax.pictures.noised import noised
from transformer_jax.pictures.position_vectors import positions, similarity
from transformer_jax.pictures.word_neighbours import neighbours

__all__ = [
    "attended_by",
    "attention",
    "bars",
    "confusion",
    "contact_maps",
    "curves",
    "growth",
    "images",
    "masks",
    "mean_attention",
    "neighbours",
    "noised",
    "place_of",
    "positions",
    "save",
    "shares",
    "similarity",
]
