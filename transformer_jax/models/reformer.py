"""Reformer: a language model for long rows on little memory (Kitaev et al. 2020)."""

import math
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.chunked_attention import LocalAttention
from transformer_jax.layers.embeddings import Bias, Embed, check_ids
from transformer_jax.layers.linear import Dropout, compute_dtype
from transformer_jax.layers.lsh_attention import LSHAttention, Rotations
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.outputs import Projection
from transformer_jax.layers.reversible import ReversibleBlock, ReversibleStack
from transformer_jax.models.causal import Cached


class Reformer(Cached):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The layers are reversible, and their attention reads chunks: of the row, or of the row sorted by
    the buckets of its tokens. Segment ids start at 1 and separate the documents of a packed row; 0
    is padding. By default a row is one document, with positions 0..L-1.
    """

    can = frozenset({"cache"})
    vocabulary = ("token_embed/embedding", "output_embed/embedding", "output_bias/bias")

    vocab_size: int = 320  # number of tokens in the vocabulary
    # pads the tables of tokens with zeros to a multiple of this number of rows, for speed; results
    # and the number of parameters stay the same
    vocab_multiple: int = 1
    d_model: int = 256  # width of each half of the residual stream
    d_ff: int = 512  # width of the MLP's hidden layer
    num_layers: int = 6  # number of blocks
    num_heads: int = 12  # attention heads of a layer
    head_dim: int | None = 64  # width of a head; None: d_model / num_heads
    # attention of the layers in turn: to the chunk before and its own (local), or to the tokens of
    # its bucket (lsh)
    attention: tuple[str, ...] = ("local", "lsh")
    local_chunk: int = 64  # tokens of a chunk of local attention
    lsh_chunk: int = 64  # tokens of a chunk of LSH attention
    rounds: int = 1  # hashing rounds; each finds further keys
    # even factors of the number of buckets; twice the length / lsh_chunk is usual
    buckets: tuple[int, ...] = (128,)
    # whether a token sees all of its chunk and of the one before, also other buckets, as in the
    # published code. Then the tokens that it sees depend on later ones
    across_buckets: bool = False
    max_length: int = 4096  # number of positions
    axial_shape: tuple[int, ...] = (64, 64)  # sides of the grid of positions, whose area they are
    # columns of a position that each side has; their sum is d_model
    axial_widths: tuple[int, ...] = (64, 192)
    mlp_chunk: int | None = None  # positions that an MLP reads at a time; None: all
    norm_epsilon: float = 1e-12  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: float = 0.02
    dropout: float = 0.05  # on embeddings, hidden layers, residual branches and the last states
    attention_dropout: float = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: int = 1  # layers unrolled in each iteration of the scan over layers
    # activations computed again in the backward pass: those of each layer, from the outputs of the
    # last one (reversible), none, all except matrix products (dots), or all but inputs (full)
    remat: Literal["reversible", "none", "dots", "full"] = "reversible"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        if not self.attention or not set(self.attention) <= {"local", "lsh"}:
            raise UserError(f"config.model.attention={self.attention}: must be of local and lsh")
        if self.num_layers % len(self.attention):
            raise UserError(
                f"config.model.num_layers={self.num_layers}: must be a multiple of the "
                f"{len(self.attention)} entries of config.model.attention"
            )
        even = self.buckets and all(n > 0 and n % 2 == 0 for n in self.buckets)
        if not even or math.prod(self.buckets) > 2**16:
            raise UserError(
                f"config.model.buckets={self.buckets}: must be even numbers whose product "
                "is at most 65,536"
            )
        for key in ("local_chunk", "lsh_chunk", "rounds"):
            if getattr(self, key) < 1:
                raise UserError(f"config.model.{key}={getattr(self, key)}: must be at least 1")
        for key, total in (("max_length", math.prod), ("d_model", sum)):
            name = "axial_shape" if key == "max_length" else "axial_widths"
            if total(getattr(self, name)) != getattr(self, key):
                raise UserError(
                    f"config.model.{name}={getattr(self, name)}: the "
                    f"{'product' if total is math.prod else 'sum'} must be config.model.{key}="
                    f"{getattr(self, key)}"
                )
        if len(self.axial_shape) != len(self.axial_widths):
            raise UserError("config.model.axial_shape and axial_widths must have equal lengths")

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, self.vocab_size, multiple=self.vocab_multiple, dtype=dtype)
        self.token_embed = embed(self.d_model, init)
        self.position_embed = [
            Embed(side, width, init, axes=(None, "embed"), dtype=dtype, key="max_length")
            for side, width in zip(self.axial_shape, self.axial_widths)
        ]
        self.embed_dropout = Dropout(self.dropout)
        blocks = tuple(
            partial(
                ReversibleBlock,
                new_attention=self._attention(kind, kernel_init=init, dtype=dtype),
                new_mlp=partial(
                    MLP, self.d_ff, dropout=self.dropout, kernel_init=init, dtype=dtype
                ),
                new_norm=partial(LayerNorm, self.norm_epsilon),
                dropout=self.dropout,
                mlp_chunk=self.mlp_chunk,
            )
            for kind in self.attention
        )
        is_reversed = self.remat == "reversible"
        self.decoder = ReversibleStack(
            blocks,
            self.num_layers,
            unroll=self.unroll,
            remat="none" if is_reversed else self.remat,
            reversed=is_reversed,
        )
        self.norm = LayerNorm(self.norm_epsilon)
        self.output_dropout = Dropout(self.dropout)
        # The states are two halves.
        self.output_embed = embed(2 * self.d_model, init)
        self.output_bias = Bias(self.vocab_size + self._padding, "vocab")

    def _attention(self, kind: str, **options) -> partial:
        options = options | dict(
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            use_bias=False,
            dropout=self.attention_dropout,
        )
        if kind == "local":
            return partial(LocalAttention, chunk=self.local_chunk, **options)
        return partial(
            LSHAttention,
            chunk=self.lsh_chunk,
            rounds=self.rounds,
            num_buckets=self.buckets,
            across_buckets=self.across_buckets,
            **options,
        )

    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        rotations: Rotations | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L E"]:
        """As in Cached. All LSH layers hash with the `rotations`; None: layers/lsh_attention.py."""
        x = self.token_embed(tokens) + self._positions(positions)
        x = self.embed_dropout(x, train=train).astype(jnp.float32)
        halves = self.decoder((x, x), mask=mask, rotations=rotations, train=train, decode=decode)
        x = self.norm(jnp.concatenate(halves, axis=-1)).astype(compute_dtype(self.dtype))
        return self.output_dropout(x, train=train)

    def _positions(self, positions: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        """Returns the vectors of places in the grid: those of each side, joined (appendix)."""
        if not isinstance(positions, jax.core.Tracer):
            check_ids(np.asarray(positions), self.max_length, "max_length")
        places = []
        for side in reversed(self.axial_shape[1:]):
            positions, place = jnp.divmod(positions, side)
            places.insert(0, place)
        places.insert(0, positions)
        parts = [embed(place) for embed, place in zip(self.position_embed, places)]
        return jnp.concatenate(parts, axis=-1)

    def output(self) -> Projection:
        """Returns the output projection of both halves."""
        return self.output_embed.output().biased(self.output_bias())

    @property
    def _padding(self) -> int:
        """The rows that pad the vocabulary."""
        return -self.vocab_size % self.vocab_multiple

    def num_padding(self) -> int:
        return self._padding * (3 * self.d_model + 1)

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row.

        A query of a chunk is counted with all keys of its chunk and of the one before.
        """
        sizes = flops.LayerSizes.of(self)
        layers = 0.0
        for number in range(self.num_layers):
            kind = self.attention[number % len(self.attention)]
            layers += sizes.mlp(length)
            chunk = self.local_chunk if kind == "local" else self.lsh_chunk
            pairs = length * min(2 * chunk, length)
            attention = sizes.attention(length, length, pairs)
            if kind == "lsh":
                hashing = flops.dense(length, sizes.width, sum(self.buckets) // 2)
                one_projection = flops.dense(length, self.d_model, sizes.width)
                attention += (self.rounds - 1) * 4 * sizes.width * pairs
                attention += self.rounds * hashing - one_projection
            layers += attention
        positions = length if predictions is None else predictions
        return layers + flops.dense(positions, 2 * self.d_model, self.vocab_size)
