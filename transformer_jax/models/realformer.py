"""RealFormer: BERT whose attention scores have a residual path (He et al. 2020)."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers.masks import Mask
from transformer_jax.layers.residual_attention import ResidualAttention, ResidualBlock
from transformer_jax.models.bert import BERT


class RealFormer(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), with the arguments of BERT.

    Each layer adds the scores of its attention to those of the layer below. The parameters are
    those of BERT, and a run may begin with one of BERT.
    """

    can = BERT.can - {"write"}
    begins_with = {"bert": {"": {}}}

    def setup(self):
        self._set_up_encoder(self.d_model, attention=ResidualAttention, block=ResidualBlock)
        self._set_up_heads()

    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M)."""
        x = self._embed(tokens, token_types, positions, train=train)
        return self._encoded(x, segment_ids, train=train)[0]

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
        outputs, _ = self._encoded(x, segment_ids, every_layer=True)  # (layers, B, L, M)
        return jnp.concatenate([x[None], outputs])

    def _encoded(
        self, x: Float[Array, "B L M"], segment_ids: Int[ArrayLike, "B L"] | None, **options
    ) -> tuple[Float[Array, "*layers B L M"], Float[Array, "*layers B H L L"]]:
        batch, length, _ = x.shape
        scores = jnp.zeros((batch, self.num_heads, length, length), jnp.float32)
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        return self.encoder((x, scores), mask=mask, **options)
