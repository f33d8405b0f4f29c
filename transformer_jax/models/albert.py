"""ALBERT (Lan et al. 2019, section 3): BERT with factorised embeddings and shared layers."""

from functools import partial

import flax.linen as nn
import jax

from transformer_jax.distributed import sharding
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, Stack
from transformer_jax.layers.embeddings import Bias, Embed
from transformer_jax.layers.linear import Dropout, Linear, compute_dtype
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.models.bert import BERT


class ALBERT(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M), as in BERT.

    Embeddings have the width E, and a projection takes them to the width M of the layers. All
    layers have the same parameters. The head of masked tokens works in the width E.
    """

    vocab_size: int = 30_000  # number of tokens in the vocabulary
    d_embed: int = 128  # width of the embeddings

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.truncated_normal(self.init_std)
        embed = partial(Embed, features=self.d_embed, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size)
        self.position_embed = embed(self.max_length, axes=(None, "embed"), key="max_length")
        self.type_embed = embed(self.num_token_types, axes=(None, "embed"), key="num_token_types")
        norm = partial(LayerNorm, self.norm_epsilon)
        self.embed_norm = norm()
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, dtype=dtype)
        model = (self.d_model,)
        self.embed_projection = Linear((self.d_embed,), model, axes=("embed", None), **linear)
        self.gelu = partial(jax.nn.gelu, approximate=True)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(MLP, d_ff=self.d_ff or 4 * self.d_model, activation=self.gelu, **linear)
        block = partial(Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout)
        self.encoder = Stack(
            (block,), self.num_layers, shared=True, unroll=self.unroll, remat=self.remat
        )

        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, (self.d_embed,), axes=("embed", None), **linear)
        self.mlm_norm = norm()
        self.mlm_bias = Bias(self.vocab_size, "vocab")
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
