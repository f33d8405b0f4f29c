"""Encoders of images and of sound: their inputs are no tokens, and they have no vocabulary."""

from typing import ClassVar

from transformer_jax.config import UserError
from transformer_jax.layers.outputs import Output
from transformer_jax.models.model import Encoder


class Sensory(Encoder):
    """Images or sound (B, ...) float32 -> states (B, L, M), each of which sees the whole row.

    A family names in `modality` the data that it reads. Its `hidden` and `layers` have these data
    in place of tokens.
    """

    vocab_size: ClassVar[int] = 0
    vocabulary = ()
    word_table = None
    max_length: ClassVar[int | None] = None

    def output(self) -> Output:
        raise UserError(f"a model of {self.modality} predicts no tokens")
