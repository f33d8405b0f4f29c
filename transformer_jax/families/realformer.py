"""RealFormer: BERT with residual attention scores (He et al. 2020)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.contracts.model import Inputs
from transformer_jax.families.bert import BERT
from transformer_jax.layers.relative_attention import ResidualAttention, ResidualBlock


class RealFormer(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), with the arguments of BERT.

    Each layer adds its attention scores to the scores of the layer below. The parameters are the
    same as in BERT, so that a run may be initialized from a run of BERT.
    """

    can = BERT.can - {"write"}
    begins_with = {"bert": {"": {}}}

    def setup(self):
        self._set_up_encoder(self.d_model, attention=ResidualAttention, block=ResidualBlock)
        self._set_up_heads()

    def _encoded(
        self, x: Float[Array, "B L M"], inputs: Inputs, **options
    ) -> Float[Array, "*layers B L M"]:
        batch, length, _ = x.shape
        # There is no layer below the first one, so it adds its scores to zeros. They are float32
        # like the scores of all layers, because the carry of the scan over layers keeps its dtype.
        scores = jnp.zeros((batch, self.num_heads, length, length), jnp.float32)
        states, _ = self.encoder((x, scores), mask=inputs.mask, **options)
        return states
