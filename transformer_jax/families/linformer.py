"""Linformer (Wang et al. 2020): RoBERTa whose attention has a fixed number of keys."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.roberta import RoBERTa
from transformer_jax.layers import parameters
from transformer_jax.layers.longformer_attention import (
    LinformerAttention,
    Sharing,
    length_projection,
)


class Linformer(RoBERTa):
    """Tokens (B, L) int32 -> hidden states (B, L, M). A row is one example.

    Keys and values are linear combinations over all positions, so a row cannot hold several
    examples, and no token can be hidden from another.
    """

    can = RoBERTa.can - {"attend", "write"}

    rank: int = 128  # keys and values that a token sees, whatever the length
    # what shares a projection of the length: the heads of a layer, in addition its keys and values,
    # or all layers
    sharing: Sharing = "keys_and_values"

    def check(self):
        super().check()
        if not 1 <= self.rank <= self.max_length:
            raise UserError(
                f"config.model.rank={self.rank}: must be from 1 to config.model.max_length="
                f"{self.max_length}"
            )

    def setup(self):
        attention = partial(
            LinformerAttention, max_length=self.max_length, rank=self.rank, sharing=self.sharing
        )
        self._set_up_encoder(self.d_model, attention=attention)
        self._set_up_heads()
        if self.sharing == "layers":
            # It lies outside the stack, whose scan would give each layer a projection of its own.
            self.length_projection = _LengthProjection((self.max_length, self.rank))

    def _encoded(
        self, x: Float[Array, "B L M"], inputs: Inputs, **options
    ) -> Float[Array, "*layers B L M"]:
        """As in BERT. Raises UserError for several examples in a row, and for ranks.

        Under jax.jit, where the segments are unknown, several examples are not detected.
        """
        mask, segments = inputs.mask, inputs.segment_ids
        is_known = segments is not None and not isinstance(segments, jax.core.Tracer)
        if is_known and np.max(segments) > 1:
            raise UserError("Linformer reads one example a row: segment_ids must be 0 or 1")
        # Segments are allowed, because they also mark padding, whose keys and values become zeros.
        if unsupported := mask.conditions() - {"query_segments", "key_segments"}:
            raise UserError(
                f"Linformer hides no token from another: {', '.join(sorted(unsupported))}"
            )
        if self.sharing == "layers":
            options["projection"] = self.length_projection()
        return self.encoder(x, mask=mask, **options)

    def flops(self, length: int, predictions: int) -> float:
        sizes = parameters.LayerSizes.of(self)
        # Keys and values are mixed over the positions before the scores, hence the 2.
        mixtures = 2 * parameters.dense(self.rank, length, sizes.width)
        attention = sizes.attention(length, length, length * self.rank)
        masked_lm = parameters.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * (attention + mixtures + sizes.mlp(length)) + masked_lm


class _LengthProjection(nn.Module):
    """The projection (N, R) that all layers share."""

    shape: tuple[int, int]

    @nn.compact
    def __call__(self) -> Float[Array, "N R"]:
        return length_projection(self, "kernel", self.shape)
