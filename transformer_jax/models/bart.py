"""The encoder-decoder BART (Lewis et al. 2019)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import Embed, row_positions
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.models.attending import Attending

# Rows of the tables of positions that belong to no position, as in the published checkpoints.
_POSITION_OFFSET = 2


class BART(Attending):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    The Transformer of Vaswani et al. 2017 with GELU, weights from N(0, 0.02) and BERT's embeddings:
    learned positions, and a norm behind the sum (section 2.1). Source, target and output share
    token embeddings. See `Attending` for segment ids and positions.
    """

    vocab_size: int = 50_265  # number of tokens in the vocabulary
    d_model: int = 768  # width of the residual stream
    d_ff: int = 3072  # width of the MLP's hidden layer
    num_heads: int = 12  # attention heads of a layer
    num_encoder_layers: int = 6  # number of encoder blocks
    num_decoder_layers: int = 6  # number of decoder blocks
    max_length: int = 1024  # number of learned positions of a source and of a target
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: float = 0.02
    dropout: float = 0.1  # on each residual branch and on the embeddings
    attention_dropout: float = 0.0  # on the attention weights
    activation_dropout: float = 0.0  # on the MLP's hidden layer
    # pads the embedding table with zeros to a multiple of this number of rows, for speed; results
    # do not change
    vocab_multiple: int = 1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, None)

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, features=self.d_model, init=init, dtype=dtype)
        self.token_embed = embed(self.vocab_size, multiple=self.vocab_multiple)
        positions = dict(axes=(None, "embed"), offset=_POSITION_OFFSET, key="max_length")
        self.position_embed = embed(self.max_length, **positions)
        self.decoder_position_embed = embed(self.max_length, **positions)
        norm = partial(LayerNorm, 1e-5)
        self.embed_norm = norm()
        self.decoder_embed_norm = norm()
        self.embed_dropout = Dropout(self.dropout)

        linear = dict(kernel_init=init, dtype=dtype)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            **linear,
        )
        mlp = partial(
            MLP,
            d_ff=self.d_ff,
            activation=partial(jax.nn.gelu, approximate=False),
            dropout=self.activation_dropout,
            **linear,
        )
        encoder_block = partial(
            Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout
        )
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self._set_up_encoder(partial(stack, (encoder_block,)))
        self.decoder = stack((decoder_block,), self.num_decoder_layers)

    def _set_up_encoder(self, stack: Callable[[int], Stack]):
        """Sets up the encoder's layers. `stack` returns so many of them."""
        self.encoder = stack(self.num_encoder_layers)

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
        x = self.token_embed(source) + self._at(self.position_embed, source, positions)
        x = self.embed_dropout(self.embed_norm(x), train=train)
        return self.encoder(x, mask=mask, train=train)

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
        x = self.token_embed(target) + self._at(self.decoder_position_embed, target, positions)
        x = self.embed_dropout(self.decoder_embed_norm(x), train=train)
        return self.decoder(x, memory, mask=mask, cross_mask=cross_mask, train=train, decode=decode)

    def _at(
        self,
        embed: Embed,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | Int[ArrayLike, "B 1"] | None,
    ) -> Float[Array, "B L M"] | Float[Array, "B 1 M"]:
        """Returns the embeddings of the positions of `tokens`."""
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        return embed(positions)

    def output(self) -> Projection:
        """Returns the output projection: the token embeddings (V, M), and bias (V,) or None.

        The bias excludes the rows that pad the vocabulary.
        """
        return self.token_embed.output()

    def num_padding(self) -> int:
        return (-self.vocab_size % self.vocab_multiple) * self.d_model

    def layer_sizes(self) -> flops.LayerSizes:
        return flops.LayerSizes(self.d_model, self.d_model, self.d_ff)
