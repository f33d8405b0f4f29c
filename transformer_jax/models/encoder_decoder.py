"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

import math
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers.attention import Attention, check_heads
from transformer_jax.layers.blocks import Block, Remat, Stack
from transformer_jax.layers.embeddings import (
    BOUNDED,
    Bias,
    Embed,
    position_codes,
    row_positions,
)
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.models.attending import Attending

_ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "swish": jax.nn.swish,
}


class EncoderDecoder(Attending):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    See `Attending` for segment ids and positions.
    """

    vocabulary = ("target_embed/embedding", "output_embed/embedding", "logit_bias/bias")
    word_table = "target_embed/embedding"

    # number of tokens in the target vocabulary, and in the source vocabulary unless
    # source_vocab_size is set
    vocab_size: int = 37_000
    # number of tokens in the source vocabulary; None: source and target share vocabulary and
    # embeddings
    source_vocab_size: int | None = None
    d_model: int = 512  # width of the residual stream
    d_ff: int = 2048  # width of the MLP's hidden layer
    num_heads: int = 8  # attention heads of a layer
    head_dim: int | None = None  # width of a head; None: d_model / num_heads
    num_encoder_layers: int = 6  # number of encoder blocks
    num_decoder_layers: int = 6  # number of decoder blocks
    # post: as published; pre: needs less warm-up, and adds a final norm to each stack
    norm_position: Literal["post", "pre"] = "post"
    # kind of position vectors: sinusoids, a learned table, none; the index or its part of
    # max_length, in each column; the bits of the index, a column each
    positions: Literal["sinusoidal", "learned", "none", "index", "normalized", "binary"] = (
        "sinusoidal"
    )
    # position vectors are so wide, and follow word vectors that are narrower by it; 0: both have
    # d_model and are added
    position_width: int = 0
    max_length: int = 1024  # largest number of positions in a source or target
    dropout: float = 0.1  # on each residual branch and on the embeddings
    attention_dropout: float = 0.0  # on the attention weights
    tie_output: bool = True  # uses the target embeddings as output projection
    output_bias: bool = False  # a learned bias of each token's logit
    activation: Literal["relu", "gelu", "swish"] = "relu"  # of the MLP
    norm_epsilon: float = 1e-6  # added to the variance in layer normalization
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        if not self.position_width:
            return
        key = f"config.model.position_width={self.position_width}"
        if not 0 < self.position_width < self.d_model:
            raise UserError(f"{key}: must be from 0 to d_model - 1 = {self.d_model - 1}")
        if self.positions == "none":
            raise UserError(f"{key}: config.model.positions='none' has no vectors; set it to 0")
        if self.tie_output:
            raise UserError(
                f"{key}: word vectors are narrower than the states that the output layer reads; "
                "set config.model.tie_output=false"
            )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.d_model**-0.5)
        words = self.d_model - self.position_width
        embed = partial(Embed, features=words, init=init, dtype=dtype)
        self.target_embed = embed(self.vocab_size)
        if self.source_vocab_size:
            self.source_embed = embed(self.source_vocab_size, key="source_vocab_size")
        else:
            self.source_embed = self.target_embed
        if self.positions == "learned":
            self.position_embed = embed(
                self.max_length,
                features=self.position_width or self.d_model,
                axes=(None, "embed"),
                key="max_length",
            )
        if not self.tie_output:
            self.output_embed = embed(self.vocab_size, features=self.d_model)
        if self.output_bias:
            self.logit_bias = Bias(self.vocab_size, "vocab")
        self.embed_dropout = Dropout(self.dropout)

        norm = partial(LayerNorm, self.norm_epsilon)
        attention = partial(
            Attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            dtype=dtype,
        )
        encoder_block = partial(
            Block,
            attention=attention,
            mlp=partial(MLP, d_ff=self.d_ff, activation=_ACTIVATIONS[self.activation], dtype=dtype),
            norm=norm,
            norm_position=self.norm_position,
            dropout=self.dropout,
        )
        decoder_block = partial(encoder_block, cross_attention=partial(attention, cross=True))
        stack = partial(Stack, unroll=self.unroll, remat=self.remat)
        self.encoder = stack((encoder_block,), self.num_encoder_layers)
        self.decoder = stack((decoder_block,), self.num_decoder_layers)
        if self.norm_position == "pre":
            self.encoder_norm = norm()
            self.decoder_norm = norm()

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return self.source_embed(source)

    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        x = self._embed(self.source_embed, source, positions, train)
        x = self.encoder(x, mask=mask, train=train)
        return self.encoder_norm(x) if self.norm_position == "pre" else x

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
        x = self._embed(self.target_embed, target, positions, train)
        x = self.decoder(x, memory, mask=mask, cross_mask=cross_mask, train=train, decode=decode)
        return self.decoder_norm(x) if self.norm_position == "pre" else x

    def output(self) -> Projection:
        embed = self.target_embed if self.tie_output else self.output_embed
        return Projection(embed.table(), self.logit_bias() if self.output_bias else None)

    def _embed(
        self,
        embed: Embed,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | Int[ArrayLike, "B 1"] | None,
        train: bool,
    ) -> Float[Array, "B L M"]:
        """Returns scaled token embeddings with positions (sections 3.4 and 3.5)."""
        if positions is None:
            max_length = self.max_length if self.positions in BOUNDED else tokens.shape[1]
            positions = row_positions(tokens, max_length)
        x = embed(tokens) * math.sqrt(self.d_model)
        if self.positions != "none":
            positions = jnp.broadcast_to(positions, tokens.shape)
            vectors = self._position_vectors(positions).astype(x.dtype)
            if self.position_width:
                x = jnp.concatenate([x, vectors], axis=-1)
            else:
                x = x + vectors
        return self.embed_dropout(x, train=train)

    def _position_vectors(self, positions: Int[Array, "B L"]) -> Float[Array, "B L W"]:
        if self.positions == "learned":
            return self.position_embed(positions) * math.sqrt(self.d_model)
        width = self.position_width or self.d_model
        return position_codes(self.positions, positions, width, self.max_length)
