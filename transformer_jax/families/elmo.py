"""ELMo: a forward and a backward language model over characters of words (Peters et al. 2018)."""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.config import Fraction, PositiveInt, UserError
from transformer_jax.contracts.model import Encoder, Inputs, takes_inputs
from transformer_jax.layers import parameters
from transformer_jax.layers.convolutions import CharacterWords
from transformer_jax.layers.embeddings import Bias, Embed, Projection
from transformer_jax.layers.parameters import Dropout, compute_dtype
from transformer_jax.layers.recurrent import LSTM, State, Unidirectional, zero_state

# (forward, backward) state of each layer. Training carries both from row to row, because the text
# of the backward direction comes in reverse order, as a stream of its own.
Carry = tuple[tuple[State, State], ...]

_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
_SHORTEST = 8  # characters of a word: two special characters around at least six bytes


class ELMo(Encoder):
    """Characters of words (B, L, C) int32 -> bidirectional hidden states (B, L, M).

    The left half of a hidden state comes from the forward direction, which has read the words up to
    and including its position, and the right half from the backward direction, which has read the
    words from its position on. Each half therefore predicts the next or the previous word, never
    its own. Both directions share the character embeddings and the softmax.
    """

    can = frozenset({"both_ways"})
    vocabulary = ("output_embed/embedding", "output_bias/bias")
    word_table = None  # the model reads characters, so no table has a vector for each word
    heads = ("output_embed", "output_bias")
    decoding_stacks = ()
    max_length = None

    vocab_size: PositiveInt = 793_471  # number of words that the softmax predicts
    # width of the hidden states, which concatenate the projections of both directions
    d_model: PositiveInt = 1024
    num_layers: PositiveInt = 2  # recurrent layers of each direction
    lstm_width: int = 4096  # cells of each layer of a direction
    clip: float = 3.0  # bound of the cells and of their projections
    max_characters: int = 50  # bytes of a word and two special characters; the rest is cut off
    character_width: int = 16  # width of the embedding of a character
    # filters of the convolutions, as (width in characters, number)
    filters: tuple = _FILTERS
    num_highways: PositiveInt = 2  # highway layers after the convolutions
    dropout: Fraction = 0.1  # on the input of each layer, and on the last output
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def check(self):
        if self.d_model % 2:
            raise UserError(
                f"config.model.d_model={self.d_model}: must be even, for two directions"
            )
        widest = max((width for width, _ in self.filters), default=0)
        if not self.filters or not max(widest, _SHORTEST) <= self.max_characters:
            raise UserError(
                f"config.model.max_characters={self.max_characters}: must be at least "
                f"{max(widest, _SHORTEST)}, and config.model.filters must not be empty"
            )

    @property
    def unit_shape(self) -> tuple[int, ...]:
        return (self.max_characters,)

    @nn.nowrap
    def reader(self, tokenizer):
        return tokenizer.spelled(self.max_characters)

    @property
    def _dtype(self):
        return compute_dtype(self.dtype)

    @property
    def _cell(self) -> LSTM:
        return LSTM(self.lstm_width, self.d_model // 2, self.clip)

    @property
    def _words(self) -> partial:
        return partial(
            CharacterWords,
            self.d_model // 2,
            self.character_width,
            tuple(self.filters),
            self.num_highways,
            self._dtype,
        )

    def setup(self):
        width = self.d_model // 2
        self.words = self._words()
        # Neither is `reverse`, because `_read` gets the words of each direction in its order.
        self.forward = [Unidirectional(self._cell) for _ in range(self.num_layers)]
        self.backward = [Unidirectional(self._cell) for _ in range(self.num_layers)]
        self.drop = Dropout(self.dropout)
        init = nn.initializers.normal(width**-0.5)
        self.output_embed = Embed(self.vocab_size, width, init, dtype=self._dtype)
        self.output_bias = Bias(self.vocab_size, "vocab")

    def __call__(self, tokens: Int[ArrayLike, "B L 2 C"]) -> Float[Array, "B L 2 V"]:
        """Returns the logits of the next words in the order of reading, see `advance`."""
        return self.logits(self.advance(tokens, self.initial_carry(len(tokens)))[0])

    @nn.nowrap
    def initial_carry(self, rows: int) -> Carry:
        """Returns zeros."""
        state = partial(zero_state, self._cell, rows, self._dtype)
        return tuple((state(), state()) for _ in range(self.num_layers))

    def advance(
        self,
        tokens: Int[ArrayLike, "B L 2 C"],
        carry: Carry,
        *,
        restarts: Int[ArrayLike, "B L 2"] | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B L 2 P"], Carry]:
        """Reads the words of two texts, one for each direction, in its order of reading.

        Returns the hidden states (B, L, 2, P) and the recurrent states after the last words. The
        words of the second text come in reverse order. A text starts where `restarts` is 1.
        """
        batch, length, _, characters = tokens.shape
        words = self.words(tokens.reshape(batch, 2 * length, characters))
        words = words.reshape(batch, length, 2, -1)
        restarts = jnp.zeros(words.shape[:3], bool) if restarts is None else restarts > 0
        filled = jnp.ones(words.shape[:3], bool)
        states, carry = self._read(words, filled, restarts, carry, train)
        return self.drop(states[-1], train=train), carry

    def _read(
        self,
        words: Float[Array, "B L 2 P"],
        filled: Bool[ArrayLike, "B L 2"],
        restarts: Bool[ArrayLike, "B L 2"],
        carry: Carry,
        train: bool,
    ) -> tuple[list[Float[Array, "B L 2 P"]], Carry]:
        """Returns the hidden states of all layers and the recurrent states after the last words."""
        x, states, after = words, [], []
        for number, layers in enumerate(zip(self.forward, self.backward)):
            x = self.drop(x, train=train)
            outputs, last = zip(
                *(
                    layer(x[:, :, way], filled[:, :, way], carry[number][way], restarts[:, :, way])
                    for way, layer in enumerate(layers)
                )
            )
            y = jnp.stack(outputs, axis=2)
            # Residual connections start at the second layer (Peters et al. 2018, section 3.4).
            x = x + y if number else y
            states.append(x)
            after.append(last)
        return states, tuple(after)

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        return self.drop(self._layers(inputs, train)[-1], train=train)

    @takes_inputs
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the word embeddings, repeated for both directions, and all hidden states."""
        return jnp.stack(self._layers(inputs, train=False))

    def _layers(self, inputs: Inputs, train: bool) -> list[Float[Array, "B L M"]]:
        words, segments = self.words(inputs.tokens), inputs.segment_ids
        segments = jnp.ones(words.shape[:2], int) if segments is None else segments
        # In the backward order, the padding comes first, and leaves the zero state unchanged.
        segments = _both_ways(jnp.asarray(segments))
        # The first position needs no restart, because the carry is zero there.
        restarts = jnp.diff(segments, axis=1, prepend=segments[:, :1]) != 0
        carry = self.initial_carry(len(words))
        states, _ = self._read(_both_ways(words), segments > 0, restarts, carry, train)
        # The backward half returns to the order of the words, so that both halves of a state belong
        # to the same word.
        states = [jnp.stack([x[:, :, 0], x[:, ::-1, 1]], axis=2) for x in states]
        states = [jnp.stack([words, words], axis=2), *states]
        return [x.reshape(*words.shape[:2], self.d_model) for x in states]

    def output(self) -> Projection:
        """Returns the output projection of one direction: table (V, P) and bias (V,)."""
        return Projection(self.output_embed.table(), self.output_bias())

    @nn.nowrap
    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a row of words, with `predictions` words in each direction."""
        width = self.d_model // 2
        layers = 2 * self.num_layers * parameters.recurrent(length, width, self._cell)
        return (
            self.words_flops(length)
            + layers
            + 2 * parameters.dense(predictions, width, self.vocab_size)
        )

    @nn.nowrap
    def words_flops(self, length: int) -> float:
        """Returns the FLOPs of embedding `length` words by their characters."""
        return self._words().flops(length, self.max_characters)


def _both_ways(x: Array) -> Array:
    """Returns rows (B, L, ...) in both orders of reading (B, L, 2, ...)."""
    return jnp.stack([x, x[:, ::-1]], axis=2)
