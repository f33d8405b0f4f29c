"""Recurrent sequence-to-sequence models, optionally with a Transformer encoder.

Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2014; Luong et al. 2015. Transformer encoder
with a recurrent decoder: Chen et al. 2018.
"""

from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import Fraction, PositiveInt, UserError
from transformer_jax.contracts.model import (
    Inputs,
    RecurrentDecoding,
    SequenceToSequence,
    takes_inputs,
)
from transformer_jax.layers import parameters, recurrent
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.decoding import SourceRows
from transformer_jax.layers.embeddings import Embed, Projection
from transformer_jax.layers.masks import at, bounds
from transformer_jax.layers.parameters import Dropout, Linear, compute_dtype
from transformer_jax.layers.recurrent_decoder import (
    Attend,
    AttentionOrder,
    RecurrentEncoder,
    RecurrentLayers,
    Score,
    Step,
    TransformerEncoder,
    Window,
)


class RecurrentSeq2Seq(RecurrentDecoding, SequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    The encoder output at a source position is its annotation concatenated with the initial state of
    the decoder. Rows may be packed, with segment ids as in `CachedSequenceToSequence`.
    """

    vocabulary = ("target_embed/embedding", "output_embed/embedding")
    has_mup = False  # its scores are sums over the width
    word_table = "target_embed/embedding"
    decoding_stacks = ()

    # number of tokens in the target vocabulary, and in the source vocabulary unless
    # source_vocab_size is set
    vocab_size: PositiveInt = 8000
    # number of tokens in the source vocabulary; None: source and target share vocabulary and
    # embeddings
    source_vocab_size: PositiveInt | None = None
    d_model: PositiveInt = 256  # width of the embeddings and of the decoder
    # recurrent cell; a GRU resets its state after or before the recurrent product of the candidate
    cell: recurrent.Name = "lstm"
    # forward or bidirectional recurrent layers, or the blocks of a Transformer
    encoder_kind: Literal["forward", "bidirectional", "transformer"] = "bidirectional"
    # width of a direction of the encoder; None: d_model, in both directions together
    encoder_width: int | None = None
    num_encoder_layers: PositiveInt = 1  # number of encoder layers
    num_decoder_layers: PositiveInt = 1  # number of decoder layers
    reverse_source: bool = False  # reads the words of a source from the last to the first
    # initial state of the decoder; copy: the last state of each layer of the encoder; project:
    # tanh(W h), where h is the last output of a forward encoder, the output at the first word of
    # the backward direction, or the mean output of a Transformer
    bridge: Literal["copy", "project"] = "copy"
    # none; before the cells, with the previous state as query; or after them, with their output
    attention: AttentionOrder = "after"
    # score of a source position; content has a learned key strength
    score: Score = "general"
    # source positions that attention sees: all, those near the target position (monotonic), or
    # those near a predicted position (predicted)
    attention_window: Window = "all"
    radius: int = 10  # largest distance of a source position in attention_window
    # an additional input of the first cell: with attention after the cells, the previous output of
    # the decoder; without attention, a summary of the source
    input_feeding: bool = True
    num_heads: PositiveInt = 4  # attention heads of a layer of a Transformer encoder
    d_ff: PositiveInt = 1024  # width of the MLP's hidden layer in a Transformer encoder
    dropout: Fraction = 0.0  # on the embeddings, between the layers, and on the decoder's output
    tie_output: bool = False  # uses the target embeddings as output projection
    max_length: PositiveInt = 1024  # largest number of positions in a source or target
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def check(self):
        if self.encoder_kind == "transformer":
            check_heads(self.d_model, self.num_heads, None)
            _refuse(
                self.reverse_source,
                "reverse_source=True: must be False with config.model.encoder_kind='transformer', "
                "which has no order of reading",
            )
        _refuse(
            self.bridge == "copy" and not self._copies,
            "bridge='copy': must be 'project', unless a recurrent encoder has as many layers as "
            "the decoder, and the same width in both directions together",
        )
        # The decoder then reads only a projection of the summary, which is the backward
        # direction's.
        is_one_vector = self.bridge == "project" and self.attention == "none"
        _refuse(
            is_one_vector and self._directions == 2,
            "encoder_kind='bidirectional': must be 'forward' with config.model.bridge='project' "
            "and config.model.attention='none', which do not use the forward direction",
        )
        is_dot = self.attention != "none" and self.score in ("dot", "scaled_dot")
        _refuse(
            is_dot and self.source_width != self.d_model,
            f"score={self.score!r}: must be 'general', unless the encoder's outputs have the width "
            f"config.model.d_model={self.d_model}; they have {self.source_width}",
        )

    @property
    def attentions(self) -> tuple[str, ...]:
        cross = ("cross",) if self.attention != "none" else ()
        return cross + (("encoder",) if self.encoder_kind == "transformer" else ())

    @property
    def _dtype(self):
        return compute_dtype(self.dtype)

    @property
    def _directions(self) -> int:
        return 2 if self.encoder_kind == "bidirectional" else 1

    @property
    def _encoder_width(self) -> int:
        """The width of a direction and of the summary."""
        is_own = self.encoder_width and self.encoder_kind != "transformer"
        return self.encoder_width if is_own else self.d_model // self._directions

    @property
    def source_width(self) -> int:
        return self._directions * self._encoder_width

    @property
    def _copies(self) -> bool:
        """Whether the states of the encoder have the shapes of the decoder's initial states."""
        return (
            self.encoder_kind != "transformer"
            and self.num_encoder_layers == self.num_decoder_layers
            and self.source_width == self.d_model
        )

    @property
    def _summarizes(self) -> bool:
        return self.attention == "none" and self.input_feeding

    @property
    def _step(self) -> Step:
        cell = recurrent.make(self.cell, self.d_model)
        attend = None
        if self.attention != "none":
            attend = Attend(self.score, self.attention_window, self.radius)
        feeds = self.input_feeding and self.attention != "before"
        return Step((cell,) * self.num_decoder_layers, attend, self.attention, feeds)

    @property
    def _first_widths(self) -> tuple[int, ...]:
        """The widths of the arrays of the decoder's initial state."""
        fed = (self.d_model,) if self._summarizes else ()
        return tuple(w for cell in self._step.cells for w in cell.state_widths) + fed

    @property
    def _projected_width(self) -> int:
        widths = self._first_widths
        # A copied state needs no projection, but a summary that is fed to each step does.
        return sum(widths if self.bridge == "project" else widths[-1:] * self._summarizes)

    def setup(self):
        init = nn.initializers.normal(self.d_model**-0.5)
        embed = partial(Embed, features=self.d_model, init=init, dtype=self._dtype)
        self.target_embed = embed(self.vocab_size)
        if self.source_vocab_size:
            self.source_embed = embed(self.source_vocab_size, key="source_vocab_size")
        if not self.tie_output:
            self.output_embed = embed(self.vocab_size)
        self.drop = Dropout(self.dropout)
        self.encoder = self._encoder()
        if self._projected_width:
            self.bridge_projection = self._linear((self._encoder_width,), self._projected_width)
        sizes = (self.d_model, self.source_width, self.max_length)
        self.decoder = RecurrentLayers(self._step, *sizes, self.dropout, self._dtype)
        if self.attention == "before":
            inputs = (2 * self.d_model + self.source_width,)
            self.readout = self._linear(inputs, 2 * self.d_model)

    @nn.nowrap
    def _encoder(self) -> nn.Module:
        if self.encoder_kind == "transformer":
            sizes = (self.num_encoder_layers, self.num_heads, self.d_ff)
            return TransformerEncoder(*sizes, self.dropout)
        return RecurrentEncoder(
            recurrent.make(self.cell, self._encoder_width),
            self.num_encoder_layers,
            self._directions == 2,
            self.reverse_source,
            self.dropout,
        )

    def _linear(self, inputs: tuple[int, ...], outputs: int) -> Linear:
        return Linear(inputs, (outputs,), ("embed", "mlp"), dtype=self._dtype)

    @takes_inputs
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S W"]:
        tokens, segments = jnp.asarray(source.tokens), source.segment_ids
        segments = jnp.ones_like(tokens) if segments is None else segments
        x = self.drop(self.embedded(tokens), train=train)
        annotations, states, summary = self.encoder(x, segments, train=train)
        first_states = states if self.bridge == "copy" else ()
        if self._projected_width:
            first_states = (*first_states, jnp.tanh(self.bridge_projection(summary)))
        # The contract hands one array from the encoder to the decoder, so the states travel in it.
        return jnp.concatenate([annotations, *first_states], axis=-1)

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return (self.source_embed if self.source_vocab_size else self.target_embed)(source)

    @takes_inputs
    def decode(
        self,
        target: Inputs,
        encoder_output: Float[Array, "B S W"],
        *,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        tokens, segments = jnp.asarray(target.tokens), target.segment_ids
        segments = jnp.ones_like(tokens) if segments is None else segments
        if source_segment_ids is None:
            source_segment_ids = jnp.ones(encoder_output.shape[:2], jnp.int32)
        start, _ = bounds(segments)
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        visible = source_segment_ids[:, None] == segments[:, :, None]  # (B, T, S)
        # Padding has the segment 0 on both sides, and would otherwise see itself.
        visible = visible & (source_segment_ids > 0)[:, None]
        source, first_states = self.source_and_state(encoder_output, source_segment_ids)
        # A text has its initial state at each of its source positions, so the first visible one
        # will do. For padding, which sees none, argmax gives 0, and the outputs do not count.
        source_positions = jnp.argmax(visible, axis=-1)
        first = jax.tree.map(lambda x: at(x, source_positions), first_states)
        masks = {"begins": positions == start, "visible": visible}
        masks["at"] = (positions - start).astype(jnp.float32)
        x = self.drop(self.target_embed(tokens), train=train)
        states = self.decoder(x, source, first, masks, train=train)
        return self.drop(self._read_out(states, x), train=train)

    def source_and_state(
        self, encoder_output: Float[Array, "B S W"], segments: Int[ArrayLike, "B S"]
    ) -> tuple[dict[str, Array], Any]:
        first, _ = bounds(jnp.asarray(segments))
        widths = (self.source_width, *self._first_widths)
        # NumPy, because the indices of a split must be known when the program is traced.
        annotations, *parts = jnp.split(encoder_output, np.cumsum(widths[:-1]), axis=-1)
        source = self.decoder.source(annotations, jnp.arange(encoder_output.shape[1]) - first)
        states = []
        for cell in self._step.cells:
            states.append(tuple(parts.pop(0) for _ in cell.state_widths))
        # Without a summary, there is no earlier output before the first step.
        fed = parts[0] if parts else jnp.zeros_like(states[-1][0])
        return source, (tuple(states), fed)

    def _read_out(self, states: Float[Array, "*B F"], x: Float[Array, "*B M"]):
        """Returns the hidden states before the output projection."""
        if self.attention != "before":
            return states
        # A maxout layer over pairs (Bahdanau et al. 2014, appendix A.2.2).
        pairs = self.readout(jnp.concatenate([states, x], axis=-1))
        return pairs.reshape(*pairs.shape[:-1], self.d_model, 2).max(axis=-1)

    def output(self) -> Projection:
        embed = self.target_embed if self.tie_output else self.output_embed
        return Projection(embed.table())

    def advanced(
        self, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Any]:
        x = self.target_embed(tokens).reshape(tokens.size, -1)
        masks = {
            "visible": state.source["segments"][:, None] > 0,
            "at": state.lengths.astype(jnp.float32),
        }
        states, cache = self.decoder.advance(x, state.source, masks, state.cache)
        logits = self.logits(self._read_out(states, x))
        return logits.reshape(*tokens.shape, -1), cache

    @nn.nowrap
    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        total = self._encoder().flops(source_length, self.d_model)
        total += parameters.dense(source_length, self._encoder_width, self._projected_width)
        sizes = (self.source_width, self.max_length)
        total += self._step.flops(source_length, target_length, *sizes)
        if self.attention == "before":
            inputs = 2 * self.d_model + self.source_width
            total += parameters.dense(target_length, inputs, 2 * self.d_model)
        positions = target_length if predictions is None else predictions
        return total + parameters.dense(positions, self.d_model, self.vocab_size)


def _refuse(condition: bool, message: str) -> None:
    if condition:
        raise UserError(f"config.model.{message}")
