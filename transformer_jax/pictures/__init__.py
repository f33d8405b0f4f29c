"""Figures, which are saved as PNG files or animations, and progress on a terminal.

The functions of this package, such as `pictures.attention` and `pictures.curves`, return figures.
"""

from transformer_jax.config import renamed_in
from transformer_jax.pictures.attention_maps import (
    attended_by,
    attention,
    masks,
    mean_attention,
    translation_steps,
    word_index,
)
from transformer_jax.pictures.figure import check_ending, save, save_animation, sized, style
from transformer_jax.pictures.image_grids import contact_maps, images, masked, noised, shares
from transformer_jax.pictures.learning_curves import bars, confusion, curves, growth, model_sizes
from transformer_jax.pictures.position_vectors import (
    neighbours,
    positions,
    similarity,
    word_map,
)

__all__ = [
    "attended_by",
    "attention",
    "bars",
    "check_ending",
    "confusion",
    "contact_maps",
    "curves",
    "growth",
    "images",
    "masked",
    "masks",
    "mean_attention",
    "model_sizes",
    "neighbours",
    "noised",
    "word_index",
    "positions",
    "save",
    "save_animation",
    "shares",
    "similarity",
    "sized",
    "style",
    "translation_steps",
    "word_map",
]

__getattr__ = renamed_in(__name__, {"place_of": "word_index"})
