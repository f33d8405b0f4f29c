"""Sparse Transformer: a language model with sparse attention (Child et al. 2019)."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Cached
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Embed, Projection, check_ids
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.sparse_attention import Pattern, SparseAttention

# Each entry is a block of the pattern that the scan over layers repeats. Alternated layers attend
# to different sets of keys in turn, and so need two blocks.
_ATTENDS = {"merged": ("both",), "alternated": ("near", "far"), "split": ("split",)}


class SparseTransformer(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    A pre-LN Transformer (section 5.2). Each position attends to near and far positions among itself
    and earlier ones, such that information from any position reaches all later ones in two layers.
    Positions are embedded as rows and columns of a matrix whose width is the stride (section 5.3).
    The output projection is not tied to the embeddings.

    Segment ids start at 1 and separate the documents of a packed row; 0 is padding. By default, a
    row is one document with positions 0..L-1.
    """

    vocabulary = ("token_embed/embedding", "output_embed/embedding")

    vocab_size: PositiveInt = 256  # number of tokens in the vocabulary
    d_model: PositiveInt = 512  # width of the residual stream
    d_ff: PositiveInt | None = None  # width of the MLP's hidden layer; None: 4 * d_model
    num_layers: PositiveInt = 30  # number of blocks
    num_heads: PositiveInt = 8  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    max_length: PositiveInt = 12_288  # largest number of positions
    # keys of a position; strided: the last `stride` positions (near) and every stride-th one (far);
    # fixed: its own block of `stride` positions (near) and the last ones of each block (far)
    pattern: Literal["strided", "fixed"] = "fixed"
    stride: int = 128  # length of a block; best near the square root of the length of a row
    # number of positions at the end of a block to which all later blocks attend (fixed)
    num_summaries: PositiveInt = 32
    # merged: all heads attend to near and far keys; alternated: layers attend to near and far keys
    # in turn; split: half of the heads attend to near keys, half to far keys
    combination: Literal["merged", "alternated", "split"] = "merged"
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the variance in layer norms
    # standard deviation of the initial weights, times the square root of their number of inputs
    init_scale: float = 0.125
    # standard deviation of the initial output projection; 0 as in section 6; short runs learn much
    # faster with a larger value
    output_std: float = 0.0
    dropout: Fraction = 0.1  # on each residual branch and on the embeddings
    attention_dropout: Fraction = 0.0  # on the attention weights
    # pads the embedding tables with zeros to a multiple of this number of rows, for speed; results
    # do not change
    vocab_multiple: PositiveInt = 1
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        _check_range("stride", self.stride, "max_length", self.max_length)
        _check_range("num_summaries", self.num_summaries, "stride", self.stride)
        halved = {"split": "num_heads", "alternated": "num_layers"}.get(self.combination)
        if halved and getattr(self, halved) % 2:
            raise UserError(
                f"config.model.{halved}={getattr(self, halved)}: must be even with "
                f"config.model.combination={self.combination}"
            )

    def setup(self):
        dtype = compute_dtype(self.dtype)
        embed = partial(Embed, features=self.d_model, dtype=dtype)
        tokens = partial(embed, self.vocab_size, multiple=self.vocab_multiple)
        std = self.init_scale * self.d_model**-0.5
        self.token_embed = tokens(init=nn.initializers.normal(std))
        self.output_embed = tokens(init=nn.initializers.normal(self.output_std))
        # The factor gives the sum of two position embeddings the variance of one token embedding.
        positions = partial(embed, init=nn.initializers.normal(std * 2**-0.5), axes=(None, "embed"))
        self.row_embed = positions(-(-self.max_length // self.stride))
        self.column_embed = positions(self.stride)
        self.embed_dropout = Dropout(self.dropout)
        norm = partial(LayerNorm, self.norm_epsilon)
        attends = _ATTENDS[self.combination]
        blocks = tuple(self._block(norm=norm, attends=each, dtype=dtype) for each in attends)
        self.decoder = Stack(blocks, self.num_layers, unroll=self.unroll, remat=self.remat)
        self.norm = norm()

    def _block(self, *, norm, attends, dtype):
        """Returns the constructor of a layer."""
        init = partial(nn.initializers.variance_scaling, mode="fan_in", distribution="normal")
        variance = self.init_scale**2  # of a weight, times the number of its inputs
        linear = dict(
            kernel_init=init(variance),
            # The factor keeps the ratio of the scale of the embeddings to that of the residual
            # branches the same for any depth (section 5.2).
            output_init=init(variance / (2 * self.num_layers)),
            dtype=dtype,
        )
        attention = partial(
            SparseAttention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            dropout=self.attention_dropout,
            pattern=Pattern(self.pattern, self.stride, self.num_summaries),
            attends=attends,
            **linear,
        )
        mlp = partial(MLP, d_ff=self.d_ff or 4 * self.d_model, activation=_gelu, **linear)
        return partial(
            Block,
            attention=attention,
            mlp=mlp,
            norm=norm,
            norm_position="pre",
            dropout=self.dropout,
        )

    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        # The tables alone may accept a position that is too large, because the number of rows is
        # rounded up, and columns repeat.
        if not isinstance(positions, jax.core.Tracer):
            check_ids(np.asarray(positions), self.max_length, "max_length")
        rows, columns = positions // self.stride, positions % self.stride
        x = self.token_embed(tokens) + self.row_embed(rows) + self.column_embed(columns)
        x = self.embed_dropout(x, train=train)
        return self.norm(self.decoder(x, mask=mask, train=train, decode=decode))

    def output(self) -> Projection:
        return self.output_embed.output()

    def num_padding(self) -> int:
        return 2 * (-self.vocab_size % self.vocab_multiple) * self.d_model

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row, two for each multiply-add.

        Attention counts the visible keys of a row that is one document.
        """
        pattern = Pattern(self.pattern, self.stride, self.num_summaries)
        # Unless merged, half of the layers or heads attend to near keys and half to far keys.
        attends = "both" if self.combination == "merged" else "split"
        layer = parameters.LayerSizes.of(self).layer(length, pattern.num_pairs(length, attends))
        positions = length if predictions is None else predictions
        return self.num_layers * layer + parameters.dense(positions, self.d_model, self.vocab_size)


def _gelu(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The approximation x sigmoid(1.702 x) of GELU (section 5.2)."""
    return x * jax.nn.sigmoid(1.702 * x)


def _check_range(key: str, value: int, upper: str, highest: int) -> None:
    if not 1 <= value <= highest:
        raise UserError(
            f"config.model.{key}={value}: must be from 1 to config.model.{upper}={highest}"
        )
