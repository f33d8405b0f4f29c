"""context2vec: an encoder of the context of a word, without the word (Melamud et al. 2016)."""

from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.config import Fraction, PositiveInt
from transformer_jax.contracts.model import Encoder, Inputs, takes_inputs
from transformer_jax.layers import parameters, recurrent
from transformer_jax.layers.embeddings import Embed, Projection
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype
from transformer_jax.layers.recurrent import Unidirectional


class Context2Vec(Encoder):
    """Tokens (B, L) int32 -> the context vector of each position (B, L, M).

    Two LSTMs with separate embeddings read the words before and after a position (section 2.2), and
    an MLP of both outputs computes the context. Contexts and target words have vectors in the same
    space, so that the words nearest to a context are those that fit its position. Segment ids start
    at 1 and separate the texts of a row; 0 is padding.
    """

    can = frozenset({"fill"})
    vocabulary = ("token_embed/embedding", "right_embed/embedding", "output_embed/embedding")
    has_mup = False  # its loss is a product of vectors
    # Not the table that an LSTM reads: only these vectors are in the space of the contexts.
    word_table = "output_embed/embedding"
    max_length = None
    num_layers: ClassVar[int] = 1

    vocab_size: PositiveInt = 180_000  # number of tokens in the vocabulary
    d_model: PositiveInt = 600  # width of contexts, of targets and of the output of each LSTM
    d_embed: PositiveInt = 300  # width of the embeddings that the LSTMs read
    dropout: Fraction = 0.0  # on the embeddings and on the outputs of the LSTMs
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.normal(self.d_embed**-0.5)
        embed = partial(Embed, self.vocab_size, self.d_embed, init, dtype=dtype)
        self.token_embed, self.right_embed = embed(), embed()
        self.output_embed = Embed(
            self.vocab_size, self.d_model, nn.initializers.normal(self.d_model**-0.5), dtype=dtype
        )
        self.left = Unidirectional(self._cell)
        self.right = Unidirectional(self._cell, reverse=True)
        both = (2 * self.d_model,)
        self.merge = Linear(both, both, axes=("embed", "mlp"), dtype=dtype)
        self.project = Linear(both, (self.d_model,), axes=("mlp", "embed"), dtype=dtype)
        self.drop = Dropout(self.dropout)

    @property
    def _cell(self) -> recurrent.Cell:
        return recurrent.make("lstm", self.d_model)

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        tokens, segments = inputs.tokens, inputs.segment_ids
        segments = jnp.ones_like(tokens) if segments is None else jnp.asarray(segments)
        filled = segments > 0
        # The LSTMs restart where the segment changes, because the texts of a row are unrelated.
        changes = jnp.diff(segments, axis=1) != 0
        begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
        ends = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
        left = self.drop(self.token_embed(tokens), train=train)
        right = self.drop(self.right_embed(tokens), train=train)
        before, _ = self.left(left, filled, None, begins)
        after, _ = self.right(right, filled, None, ends)
        # The LSTM outputs at a position have read its own word, which the context must not contain,
        # so the outputs of its neighbors are used.
        # A roll moves a vector around the end of the row, but only to a position that begins or
        # ends a text and is set to 0.
        before = jnp.where(begins[..., None], 0, jnp.roll(before, 1, axis=1))
        after = jnp.where(ends[..., None], 0, jnp.roll(after, -1, axis=1))
        context = self.drop(jnp.concatenate([before, after], axis=-1), train=train)
        return self.project(jax.nn.relu(self.merge(context)))

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the target vectors of the words, and their contexts (2, B, L, M)."""
        return jnp.stack([self.output_embed(inputs.tokens), self.hidden(inputs)])

    def output(self) -> Projection:
        """Returns the target vectors (V, M) as output projection."""
        return Projection(self.output_embed.table())

    def flops(self, length: int, predictions: int) -> float:
        lstms = 2 * parameters.recurrent(length, self.d_embed, self._cell)
        width = 2 * self.d_model
        merge = parameters.dense(length, width, width) + parameters.dense(
            length, width, self.d_model
        )
        return lstms + merge + parameters.dense(predictions, self.d_model, self.vocab_size)
