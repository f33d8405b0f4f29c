"""ALBERT (Lan et al. 2019, section 3): BERT with factorised embeddings and shared layers."""

import flax.linen as nn

from transformer_jax.distributed import sharding
from transformer_jax.layers import flops
from transformer_jax.layers.linear import Linear, compute_dtype
from transformer_jax.models.bert import BERT


class ALBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    Embeddings have the width E, and a projection takes them to the width M of the layers. All
    layers have the same parameters. The head of masked tokens works in the width E.
    """

    vocab_size: int = 30_000  # number of tokens in the vocabulary
    d_embed: int = 128  # width of the embeddings

    def setup(self):
        self._set_up_encoder(width=self.d_embed, shared=True, approximate=True)
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=compute_dtype(self.dtype))
        embed, model = (self.d_embed,), (self.d_model,)
        self.embed_projection = Linear(embed, model, axes=("embed", None), **linear)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, embed, axes=("embed", None), **linear)
        self.nsp = Linear(model, (2,), axes=("embed", None), head=True, kernel_init=init)

    def _embed(self, tokens, token_types, positions, *, train):
        """Returns the projected embeddings (B, L, M) (section 3.1)."""
        x = super()._embed(tokens, token_types, positions, train=train)  # (B, L, E)
        return sharding.constrain(self.embed_projection(x), "batch", "length", None)

    def flops(self, length: int, predictions: int) -> float:
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        projection = flops.dense(length, self.d_embed, self.d_model)
        masked_lm = flops.dense(predictions, self.d_embed, self.d_model + self.vocab_size)
        next_sentence = flops.dense(1, self.d_model, self.d_model + 2)
        return projection + self.num_layers * layer + masked_lm + next_sentence
