"""The bidirectional encoder of BERT (Devlin et al. 2018), with the heads of its two pre-training
tasks.
"""

from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Bias, Embed, row_positions
from transformer_jax.layers.linear import Dropout, Linear, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm


class BERT(nn.Module):
    """Tokens (B, L) int32 -> hidden states (B, L, M).

    Token types (B, L) tell the first text of a pair (0) from the second (1). Segment ids, from 1,
    keep the examples of a packed row apart; 0 is padding, which nothing sees. By default a row is
    one example of type 0.
    """

    vocab_size: int = 30_522  # tokens of the vocabulary
    d_model: int = 768  # width of the residual stream
    d_ff: int | None = None  # None: 4 * d_model
    num_layers: int = 12  # blocks
    num_heads: int = 12  # attention heads of a layer
    head_dim: int | None = None  # None: d_model / num_heads
    max_length: int = 512  # learned positions
    num_token_types: int = 2  # segments of a row, such as a pair's two texts
    norm_epsilon: float = 1e-12  # added to the variance in layer norms
    init_std: float = 0.02  # of all weights at first; narrow models learn sooner from more
    dropout: float = 0.1  # on each residual branch and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    # of computation; auto: bfloat16 on accelerators
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers compiled in line
    remat: Remat = "none"  # computed again in backward: nothing, all but products, all

    # parameters of pre-training alone
    HEADS: ClassVar[tuple[str, ...]] = ("mlm_transform", "mlm_norm", "mlm_bias", "nsp")

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.truncated_normal(self.init_std)
        embed = partial(Embed, features=self.d_model, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size)
        self.position_embed = embed(self.max_length, axes=(None, "embed"), key="max_length")
        self.type_embed = embed(self.num_token_types, axes=(None, "embed"), key="num_token_types")
        norm = partial(LayerNorm, self.norm_epsilon)
        self.embed_norm, self.embed_dropout = norm(), Dropout(self.dropout)
        linear = dict(kernel_init=init, dtype=dtype)
        gelu = partial(jax.nn.gelu, approximate=False)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(MLP, d_ff=self.d_ff or 4 * self.d_model, activation=gelu, **linear)
        self.encoder = Stack(
            partial(Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout),
            self.num_layers,
            self.unroll,
            self.remat,
        )
        model = (self.d_model,)
        self.pooler = Linear(model, model, ("embed", "mlp"), **linear)
        self.mlm_transform, self.mlm_norm = Linear(model, model, ("embed", "mlp"), **linear), norm()
        self.mlm_bias = Bias(self.vocab_size, "vocab")
        self.nsp = Linear(model, (2,), ("embed", None), kernel_init=init)
        self.gelu = gelu

    def __call__(self, tokens, token_types=None, positions=None, segment_ids=None, *, train=False):
        """Hidden states (B, L, M), logits of the tokens (B, L, V), and of the second text (B, 2):
        it follows the first, it does not.
        """
        hidden = self.hidden(tokens, token_types, positions, segment_ids, train=train)
        return hidden, self.logits(self.transformed(hidden)), self.next_logits(hidden)

    def hidden(self, tokens, token_types=None, positions=None, segment_ids=None, *, train=False):
        """(B, L, M)."""
        return self._encoded(tokens, token_types, positions, segment_ids, train)[-1]

    def layers(self, tokens, token_types=None, positions=None, segment_ids=None):
        """The embeddings and every layer's hidden states (layers + 1, B, L, M)."""
        x, every = self._encoded(
            tokens, token_types, positions, segment_ids, False, every_layer=True
        )
        return jnp.concatenate([x[None], every])

    def _encoded(self, tokens, token_types, positions, segment_ids, train, every_layer=False):
        """The embeddings (B, L, M), and the last hidden states, or those of every layer."""
        positions = row_positions(tokens, self.max_length) if positions is None else positions
        token_types = jnp.zeros_like(tokens) if token_types is None else token_types
        x = self.token_embed(tokens) + self.position_embed(positions) + self.type_embed(token_types)
        x = self.embed_dropout(self.embed_norm(x), train=train)
        return x, self.encoder(
            x,
            mask=Mask(query_segments=segment_ids, key_segments=segment_ids),
            train=train,
            every_layer=every_layer,
        )

    def pooled(self, hidden):
        """Hidden states (B, L, M) -> one vector an example (B, M), from its first token."""
        return jnp.tanh(self.pooler(hidden[:, 0]))

    def next_logits(self, hidden):
        """Hidden states (B, L, M) -> float32 (B, 2): the second text follows the first, it does not
        (in this order in the published code).
        """
        return self.nsp(self.pooled(hidden).astype(jnp.float32))

    def transformed(self, hidden):
        """Hidden states (..., M) -> what the output projection multiplies (..., M)."""
        # whole in M: split over both fsdp and tensor, the loss's gradients came out wrong (seen
        # with jax 0.10.2 on CPU)
        return self.mlm_norm(
            sharding.constrain(
                self.gelu(self.mlm_transform(hidden)), "batch", *(None,) * (hidden.ndim - 1)
            )
        )

    def logits(self, transformed):
        """(..., M) -> float32 (..., V)."""
        table, bias = self.output()
        return (
            jnp.dot(
                transformed, table.astype(transformed.dtype).T, preferred_element_type=jnp.float32
            )
            + bias
        )

    def output(self):
        """The output projection: the token embeddings (V, M) and a bias (V,), float32."""
        return self.token_embed.table(), self.mlm_bias()

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        `predictions` is the number of predicted positions. Padding is counted.
        """
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        next_sentence = flops.dense(1, self.d_model, self.d_model + 2)
        return self.num_layers * layer + masked_lm + next_sentence
