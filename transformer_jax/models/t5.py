"""The encoder-decoder T5 (Raffel et al. 2020) and its version 1.1 (Shazeer 2020, section 3)."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Embed
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.layers.positions import RelativeBias
from transformer_jax.models.attending import Attending


class T5(Attending):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    Pre-LN blocks with RMSNorm and no biases (section 2.1). Positions reach self-attention as a bias
    of the scores by distance, with one table for each stack. The scores are not divided by
    sqrt(head_dim): the initial weights of the queries are smaller. Source and target share token
    embeddings. See `Attending` for segment ids.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding")
    max_length = None

    vocab_size: int = 32_128  # number of tokens in the vocabulary
    d_model: int = 512  # width of the residual stream
    d_ff: int = 2048  # width of the MLP's hidden layer
    num_heads: int = 8  # attention heads of a layer
    head_dim: int = 64  # width of a head
    num_encoder_layers: int = 6  # number of encoder blocks
    num_decoder_layers: int = 6  # number of decoder blocks
    num_buckets: int = 32  # of distances between positions, each with a bias
    max_distance: int = 128  # distances from here on share a bucket
    gated: bool = False  # gated GELU in place of ReLU in the MLP (version 1.1)
    # uses the token embeddings as output projection, scaled by 1 / sqrt(d_model); false: a
    # projection of its own, without scale (version 1.1)
    tie_output: bool = True
    # on each residual branch, the attention weights, the MLP's hidden layer, the embeddings and the
    # states of the last layers
    dropout: float = 0.1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise UserError(
                f"config.model.num_buckets={self.num_buckets}: must be even and at least 4"
            )
        if self.max_distance <= self.num_buckets // 2:
            raise UserError(
                f"config.model.max_distance={self.max_distance}: must be above half of "
                f"config.model.num_buckets={self.num_buckets}"
            )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        width = self.num_heads * self.head_dim
        # The published code has N(0, 1) for embeddings, and 1 / sqrt(inputs) for projections.
        embed = partial(Embed, self.vocab_size, self.d_model, dtype=dtype)
        self.token_embed = embed(init=nn.initializers.normal(1.0))
        if not self.tie_output:
            self.output_embed = embed(init=nn.initializers.normal(self.d_model**-0.5))
        self.state_dropout = Dropout(self.dropout)

        inner = nn.initializers.normal(self.d_model**-0.5)
        linear = dict(kernel_init=inner, use_bias=False, dtype=dtype, dropout=self.dropout)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            scale=1.0,
            query_init=nn.initializers.normal((self.d_model * self.head_dim) ** -0.5),
            output_init=nn.initializers.normal(width**-0.5),
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff,
            activation=jax.nn.gelu if self.gated else jax.nn.relu,
            gated=self.gated,
            output_init=nn.initializers.normal(self.d_ff**-0.5),
            **linear,
        )
        encoder_block = partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=RMSNorm,
            norm_position="pre",
            dropout=self.dropout,
        )
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        bias = partial(
            RelativeBias,
            self.num_heads,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            table_init=inner,
        )
        self.encoder_bias = bias(causal=False)
        self.decoder_bias = bias(causal=True)
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self.encoder = stack((encoder_block,), self.num_encoder_layers)
        self.decoder = stack((decoder_block,), self.num_decoder_layers)
        self.encoder_norm = RMSNorm()
        self.decoder_norm = RMSNorm()

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return self.token_embed(source)

    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        """Returns the memory of source tokens. Distances in a row stand for `positions`."""
        length = source.shape[1]
        bias = self.encoder_bias(mask.distance(length, length))
        x = self.state_dropout(self.token_embed(source), train=train)
        x = self.encoder(x, mask=mask, bias=bias, train=train)
        return self.state_dropout(self.encoder_norm(x), train=train)

    def decoded(
        self,
        target: Int[ArrayLike, "B T"],
        positions: Int[ArrayLike, "B T"] | Int[ArrayLike, "B 1"] | None,
        memory: Float[Array, "B S M"] | None,
        *,
        mask: Mask,
        cross_mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B T M"]:
        length = target.shape[1]
        num_keys = decode or length
        if mask.ancestors is not None:
            num_keys = length * mask.ancestors.shape[2]
        bias = self.decoder_bias(mask.distance(length, num_keys))
        x = self.state_dropout(self.token_embed(target), train=train)
        options = dict(mask=mask, cross_mask=cross_mask, bias=bias, train=train, decode=decode)
        x = self.decoder(x, memory, **options)
        return self.state_dropout(self.decoder_norm(x), train=train)

    def transformed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B M"]:
        """Scales states for the tied output projection; other states stay as they are."""
        return hidden * self.d_model**-0.5 if self.tie_output else hidden

    def output(self) -> Projection:
        """Returns the output projection: the table (V, M), and no bias."""
        return Projection((self.token_embed if self.tie_output else self.output_embed).table())

    def layer_sizes(self) -> flops.LayerSizes:
        width = self.num_heads * self.head_dim
        return flops.LayerSizes(self.d_model, width, self.d_ff, mlp_inputs=2 if self.gated else 1)
