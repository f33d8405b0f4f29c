"""Linformer (Wang et al. 2020): RoBERTa whose attention has a fixed number of keys."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.linformer_attention import (
    LinformerAttention,
    Sharing,
    length_projection,
)
from transformer_jax.layers.masks import Mask
from transformer_jax.models.roberta import RoBERTa


class Linformer(RoBERTa):
    """Tokens (B, L) int32 -> hidden states (B, L, M). A row is one example.

    Keys and values are mixtures of all positions, so a row cannot hold several examples, and no
    token can be hidden from another.
    """

    can = RoBERTa.can - {"attend", "write"}

    rank: int = 128  # keys and values that a token sees, whatever the length
    # what has one projection of the length: the heads of a layer, also its keys and values, or also
    # all layers
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
            self.length_projection = _LengthProjection((self.max_length, self.rank))

    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M).

        Raises UserError for a row of several examples. Under jax.jit the segments are not known.
        """
        x = self._embed(tokens, token_types, positions, train=train)
        return self._encoded(x, segment_ids, train=train)

    def layers(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
    ) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the states of all layers (layers + 1, B, L, M)."""
        x = self._embed(tokens, token_types, positions, train=False)
        outputs = self._encoded(x, segment_ids, every_layer=True)  # (layers, B, L, M)
        return jnp.concatenate([x[None], outputs])

    def _encoded(
        self, x: Float[Array, "B L M"], segment_ids: Int[ArrayLike, "B L"] | None, **options
    ) -> Float[Array, "*layers B L M"]:
        if segment_ids is not None and not isinstance(segment_ids, jax.core.Tracer):
            if np.max(segment_ids) > 1:
                raise UserError("Linformer reads one example a row: segment_ids must be 0 or 1")
        if self.sharing == "layers":
            options["projection"] = self.length_projection()
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        return self.encoder(x, mask=mask, **options)

    def flops(self, length: int, predictions: int) -> float:
        sizes = flops.LayerSizes.of(self)
        mixtures = 2 * flops.dense(self.rank, length, sizes.width)
        attention = sizes.attention(length, length, length * self.rank)
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * (attention + mixtures + sizes.mlp(length)) + masked_lm


class _LengthProjection(nn.Module):
    """The projection (N, R) of all layers."""

    shape: tuple[int, int]

    @nn.compact
    def __call__(self) -> Float[Array, "N R"]:
        return length_projection(self, "kernel", self.shape)
