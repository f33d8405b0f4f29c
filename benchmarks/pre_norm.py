"""BERT with pre-LN layers (Xiong et al. 2020), for the comparison in realformer.py."""

from functools import partial

import jax.numpy as jnp

from transformer_jax.families.bert import BERT
from transformer_jax.layers.blocks import Block, LayerNorm


class PreNormBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), with the arguments of BERT.

    A norm follows the last layer, whose residual stream has none.
    """

    def setup(self):
        self._set_up_encoder(self.d_model, block=partial(Block, norm_position="pre"))
        self._set_up_heads()
        self.encoder_norm = LayerNorm(self.norm_epsilon)

    def _encoded(self, x, inputs, **options):
        states = super()._encoded(x, inputs, **options)
        if options.get("every_layer"):  # the last of them is that of `hidden`
            return jnp.concatenate([states[:-1], self.encoder_norm(states[-1:])])
        return self.encoder_norm(states)
