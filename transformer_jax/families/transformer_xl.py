"""Transformer-XL: a language model with a memory of earlier segments (Dai et al. 2019)."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import Fraction, NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.model import Recurrent
from transformer_jax.layers import parameters
from transformer_jax.layers.adaptive import AdaptiveEmbed, AdaptiveOutput, Clusters
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Remat, Stack
from transformer_jax.layers.embeddings import Bias, Embed, Output
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.relative_attention import (
    Relations,
    RelativeAttention,
    encoded_distances,
)

# The inputs of all layers at the positions of the memory, and 1 where a position is filled. Rows
# come first, as decoding needs them to reorder hypotheses.
Carry = tuple[Float[Array, "B layers K M"], Int[Array, "B K"]]


class TransformerXL(Recurrent):
    """Tokens (B, L) int32 -> logits of the next tokens (B, L, V) float32.

    The state of a row is a memory, which holds the inputs of all layers at the preceding tokens
    (section 3.2). Attention depends only on distances, so that rows may have any length (section
    3.3).

    With `adaptive_cutoffs`, embeddings and softmax are adaptive, as in the paper's word-level
    models. The ids of the vocabulary must then be sorted by frequency.
    """

    vocabulary = ("token_embed/embedding", "output_bias/bias")

    vocab_size: PositiveInt = 267_735  # number of tokens in the vocabulary
    # pads embedding tables with zeros to a multiple of this number of rows, for speed; results
    # and the number of parameters stay the same
    vocab_multiple: PositiveInt = 1
    # ids at which the vocabulary is divided for an adaptive softmax; the published ones for
    # WikiText-103 are (20_000, 40_000, 200_000); (): no adaptive softmax
    adaptive_cutoffs: tuple[int, ...] = ()
    # factor by which embeddings become narrower after each cutoff
    adaptive_divisor: int = 1
    d_model: PositiveInt = 410  # width of the residual stream
    d_ff: PositiveInt = 2100  # width of the MLP's hidden layer
    num_layers: PositiveInt = 16  # number of blocks
    num_heads: PositiveInt = 10  # attention heads of a layer
    head_dim: PositiveInt | None = None  # width of a head; None: d_model / num_heads
    memory_length: PositiveInt = 150  # preceding tokens that the tokens of a row see
    # limits all tokens to a context of memory_length tokens; otherwise, the context of a token also
    # contains the preceding tokens of its row
    same_length: bool = False
    norm_epsilon: NonNegativeFloat = 1e-5  # added to the variance in layer norms
    # standard deviation of the initial weights; narrow models learn faster with a larger value
    init_std: NonNegativeFloat = 0.02
    # on embeddings, residual branches, hidden layers, encoded distances and the last layer
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0  # on the attention weights
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    unroll: PositiveInt = 1  # layers unrolled in each iteration of the scan over layers
    # activations recomputed in the backward pass: none, all except matrix products (dots), or all
    # (full)
    remat: Remat = "none"

    def check(self):
        check_heads(self.d_model, self.num_heads, self.head_dim)
        if self.adaptive_cutoffs:
            self._clusters.check()
        elif self.adaptive_divisor != 1:
            raise UserError(
                f"config.model.adaptive_divisor={self.adaptive_divisor}: needs "
                "config.model.adaptive_cutoffs"
            )

    def setup(self):
        init = nn.initializers.normal(self.init_std)
        dtype = compute_dtype(self.dtype)
        linear = dict(kernel_init=init, dtype=dtype)
        embed = dict(dtype=dtype, multiple=self.vocab_multiple)
        if self.adaptive_cutoffs:
            self.token_embed = AdaptiveEmbed(self._clusters, self.init_std, **embed)
            self.adaptive_output = AdaptiveOutput(self.init_std)
        else:
            self.token_embed = Embed(self.vocab_size, self.d_model, init, **embed)
            self.output_bias = Bias(self.vocab_size + self._padding, "vocab")
        self.embed_dropout = Dropout(self.dropout)
        # `shared`, because all rows have the same distances, and so one mask.
        self.distance_dropout = Dropout(self.dropout, shared=True)
        self.output_dropout = Dropout(self.dropout)
        attention = partial(
            RelativeAttention,
            num_heads=self.num_heads,
            head_dim=self.head_dim or self.d_model // self.num_heads,
            use_bias=False,
            dropout=self.attention_dropout,
            **linear,
        )
        activation = jax.nn.relu
        mlp = partial(MLP, d_ff=self.d_ff, activation=activation, dropout=self.dropout, **linear)
        norm = partial(LayerNorm, self.norm_epsilon)
        block = partial(Block, attention=attention, mlp=mlp, norm=norm, dropout=self.dropout)
        # `windows` bounds distances exclusively, hence the 1.
        reach = self.memory_length + 1 if self.same_length else None
        self.decoder = Stack(
            (block,), self.num_layers, unroll=self.unroll, remat=self.remat, windows=(reach,)
        )

    @nn.nowrap
    def initial_carry(self, rows: int) -> Carry:
        """Returns an empty memory, for rows at the start of their texts."""
        shape = (rows, self.num_layers, self.memory_length, self.d_model)
        filled = jnp.zeros((rows, self.memory_length), jnp.int32)
        return jnp.zeros(shape, compute_dtype(self.dtype)), filled

    def advance(
        self,
        tokens: Int[ArrayLike, "B L"],
        carry: Carry,
        *,
        restarts: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        filled: Int[ArrayLike, "B L"] | Bool[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Carry]:
        memory, remembered = carry
        # Texts are numbered from 1, which is the text that continues the memory. Padding is 0.
        texts = jnp.ones_like(tokens) if restarts is None else 1 + jnp.cumsum(restarts, axis=1)
        texts = texts if filled is None else jnp.where(filled, texts, 0)
        x = self.embed_dropout(self.token_embed(tokens) * self.reference_width**0.5, train=train)
        outputs = self._decoded(x, memory, jnp.concatenate([remembered, texts], axis=1), train)
        inputs = jnp.concatenate([x[None], outputs[:-1]])  # (layers, B, L, M)
        longer = jnp.concatenate([memory, jnp.moveaxis(inputs, 0, 1)], axis=2)
        is_last = texts == texts.max(axis=1, keepdims=True)
        # Only the last text of the row continues, so only its positions count as filled.
        filled = jnp.concatenate([remembered * is_last[:, :1], is_last & (texts > 0)], axis=1)
        # The new memory ends at the last token of each row, because padding must not enter it.
        indices = (texts > 0).sum(axis=1)[:, None] + jnp.arange(self.memory_length)  # (B, K)
        memory = jnp.take_along_axis(longer, indices[:, None, :, None], axis=2)
        # No gradient flows into earlier rows (section 3.2).
        carry = jax.lax.stop_gradient(memory), jnp.take_along_axis(filled, indices, axis=1)
        return self.output_dropout(outputs[-1], train=train), carry

    def _decoded(
        self,
        x: Float[Array, "B L M"],
        memory: Float[Array, "B layers K M"],
        texts: Int[Array, "B S"],
        train: bool,
    ) -> Float[Array, "layers B L M"]:
        """Returns the outputs of all layers. `texts` are numbers for the memory and the row."""
        length = x.shape[1]
        decode = dict(train=train, every_layer=True)
        # The code below applies the stack with parameters that exist, so it can't initialize them.
        # They do not depend on the memory.
        if self.is_initializing():
            relations = Relations(encoded_distances(length, 0, self.d_model))
            return self.decoder(x, mask=Mask(causal=True), relations=relations, **decode)
        encodings = encoded_distances(length, self.memory_length, self.d_model)
        relations = Relations(self.distance_dropout(encodings, train=train))
        mask = Mask(
            causal=True,
            query_segments=texts[:, -length:],
            key_segments=texts,
            query_slots=jnp.int32(self.memory_length),
        )
        # The stack is applied on its own with the memory as its collection "state". A caller of the
        # model then need not declare that collection mutable.
        decoder, variables = self.decoder.unbind()
        by_layer = jnp.moveaxis(memory, 1, 0).astype(x.dtype)
        variables = variables | {"state": {"layers": {"attention": {"memory": by_layer}}}}
        rngs = {"dropout": self.make_rng("dropout")} if train else None
        decode |= dict(mask=mask, relations=relations, rngs=rngs, mutable=["state"])
        return decoder.apply(variables, x, **decode)[0]

    def output(self) -> Output:
        """Returns the output layer, which is tied to the token embeddings."""
        if self.adaptive_cutoffs:
            return self.adaptive_output(self.token_embed.output())
        return self.token_embed.output().biased(self.output_bias())

    @property
    def word_table(self) -> str | None:
        return None if self.adaptive_cutoffs else super().word_table

    @property
    def _clusters(self) -> Clusters:
        """The clusters into which `adaptive_cutoffs` divide the vocabulary."""
        return Clusters(
            self.vocab_size, self.d_model, tuple(self.adaptive_cutoffs), self.adaptive_divisor
        )

    @property
    def _padding(self) -> int:
        """The rows that pad the vocabulary."""
        return -self.vocab_size % self.vocab_multiple

    def num_padding(self) -> int:
        if self.adaptive_cutoffs:
            return self._clusters.num_padding(self.vocab_multiple)
        return self._padding * (self.d_model + 1)

    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row with a full memory.

        The projection of the distances, which all rows of a batch share, is not counted. An
        adaptive softmax is counted for token frequencies that follow Zipf's law.
        """
        sizes = parameters.LayerSizes.of(self)
        keys = self.memory_length + length
        attention = sizes.attention(length, keys, length * keys)
        distances = parameters.dense(length, sizes.width, keys)
        positions = length if predictions is None else predictions
        layers = self.num_layers * (attention + distances + sizes.mlp(length))
        if self.adaptive_cutoffs:
            return layers + self._clusters.flops(length, positions)
        return layers + parameters.dense(positions, self.d_model, self.vocab_size)
