"""Noises of denoising pre-training: `Composition` is those of `config.task.noises`, in order.

A noise maps a `Text` to a `Text`. Pure NumPy.
"""

from transformer_jax.data.noise.composition import KINDS, Composition, Piece, noised_pieces
from transformer_jax.data.noise.text import NUM_SENTINELS, Pieces, Text

__all__ = ["KINDS", "NUM_SENTINELS", "Composition", "Piece", "Pieces", "Text", "noised_pieces"]
