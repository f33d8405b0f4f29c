"""The encoders, attention and decoder of recurrent sequence-to-sequence models."""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.layers import activations, parameters
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import MLP, Block, LayerNorm
from transformer_jax.layers.blocks import Stack as Blocks
from transformer_jax.layers.embeddings import Bias, sinusoids
from transformer_jax.layers.masks import Mask, at, bounds
from transformer_jax.layers.parameters import Dropout, Linear, declared
from transformer_jax.layers.recurrent import Cell, Product, Stack, Weights, recur, recurrent_weights

# --------------------------------------------------------------------------------------------------
# Attention of a recurrent decoder: a score for each source position, and a window of positions.
#
# The scores are functions of `product` rather than Linen modules, because `recur` replays the steps
# and computes the gradients of the matrices itself.

Score = Literal["content", "additive", "location", "general", "dot", "scaled_dot"]
Window = Literal["all", "monotonic", "predicted"]


@dataclasses.dataclass(frozen=True)
class Attend:
    """Attention in a step of a decoder, for Q queries of each source.

    The score of a query s and an annotation h is:
      content: softplus(w s) cos(W s, h): a key strength scales the cosine (Graves et al. 2014,
        section 3.3.1)
      additive: v tanh(W s + U h) (Bahdanau et al. 2014, appendix A.1.2)
      location: the component of W s at the source position
      general: s (U h)
      dot: s h (location, general and dot: Luong et al. 2015, section 3.1)
      scaled_dot: s h / sqrt(width) (Vaswani et al. 2017, section 3.2.1)

    The windows follow Luong et al. 2015, section 3.2. "monotonic" attends to `radius` positions on
    both sides of the target position. "predicted" attends to `radius` positions on both sides of a
    position that is predicted from the query, and scales the weights by a Gaussian with standard
    deviation radius / 2.
    """

    score: Score
    window: Window
    radius: int

    def __call__(
        self,
        product: Product,
        source: dict[str, Array],
        query: Float[Array, "B Q M"],
        visible: Bool[Array, "B 1 S"],
        target_positions: Float[Array, "B Q"],
    ) -> tuple[Float[Array, "B Q D"], Float[Array, "B Q S"]]:
        """Returns the weighted sums of the annotations, and the weights float32.

        `source` holds the arrays of `RecurrentAttention.source` and `RecurrentAttention.vectors`.
        """
        scores = self._scores(product, source, query).astype(jnp.float32)
        positions = source["positions"][:, None]  # (B, 1, S)
        factor = 1.0
        if self.window != "all":
            lengths = visible.sum(axis=-1)  # (B, Q)
            if self.window == "monotonic":
                # The center is limited, because the window would be empty beyond the end of the
                # source.
                center = jnp.minimum(target_positions, lengths - 1.0)
            else:
                hidden = jnp.tanh(product("place", query)).astype(jnp.float32)
                center = lengths * jax.nn.sigmoid(hidden @ source["place"])
            distance = positions - center[..., None]
            visible = visible & (jnp.abs(distance) <= self.radius)
            if self.window == "predicted":
                factor = jnp.exp(-2 * (distance / self.radius) ** 2)
        # Hidden scores are finite, because the softmax over a row of -inf, such as padding, would
        # be NaN.
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        # As in the paper, the weights are not normalized again after the Gaussian.
        weights = jax.nn.softmax(scores, axis=-1) * factor
        values = source["values"]
        return jnp.einsum("bqs,bsd->bqd", weights.astype(values.dtype), values), weights

    def _scores(self, product, source, query) -> Float[Array, "B Q S"]:
        match self.score:
            case "content":
                keys = product("query", query)
                # The epsilon keeps the cosine of a zero vector finite.
                keys = keys / (jnp.linalg.norm(keys, axis=-1, keepdims=True) + 1e-6)
                strength = jax.nn.softplus(product("strength", query))  # (B, Q, 1)
                return strength * jnp.einsum("bqd,bsd->bqs", keys, source["keys"])
            case "additive":
                queries = product("query", query)
                sums = jnp.tanh(queries[:, :, None] + source["keys"][:, None])  # (B, Q, S, A)
                return sums @ source["energy"]
            case "location":
                by_position = product("query", query)  # (B, Q, positions)
                positions = source["positions"].astype(jnp.int32)[:, None]
                shape = (*by_position.shape[:2], positions.shape[-1])
                return jnp.take_along_axis(by_position, jnp.broadcast_to(positions, shape), -1)
        scores = jnp.einsum("bqd,bsd->bqs", query, source["keys"])
        return scores * query.shape[-1] ** -0.5 if self.score == "scaled_dot" else scores

    def flops(self, queries: int, keys: int, sizes: tuple[int, int, int]) -> float:
        """Returns the FLOPs for these numbers of queries and keys, two for each multiply-add.

        `sizes` are the widths of a query and an annotation, and the largest number of positions.
        """
        query, width, positions = sizes
        total = 2.0 * queries * keys * width  # the weighted sum
        match self.score:
            case "content":
                total += parameters.dense(queries, query, width + 1) + 2 * queries * keys * width
            case "additive":
                total += parameters.dense(keys, width, query) + parameters.dense(
                    queries, query, query
                )
                total += 2 * queries * keys * query
            case "location":
                total += parameters.dense(queries, query, positions)
            case "general":
                total += parameters.dense(keys, width, query) + 2 * queries * keys * query
            case _:
                total += 2 * queries * keys * query
        if self.window == "predicted":
            total += parameters.dense(queries, query, query + 1)
        return total


class RecurrentAttention(nn.Module):
    """The parameters of an `Attend`, and the keys, which are computed once for all steps."""

    attend: Attend
    query_width: int
    width: int  # of an annotation
    max_positions: int
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        score = self.attend.score
        key_width = {"additive": self.query_width, "general": self.query_width}.get(score)
        if key_width:
            self.key = self._linear(self.width, key_width, use_bias=False)
        outputs = {
            "content": self.width,
            "additive": self.query_width,
            "location": self.max_positions,
        }.get(score)
        if outputs:
            self.query = self._matrix("query", outputs)
            self.query_bias = Bias(outputs, None)
        if score == "content":
            self.strength = self._matrix("strength", 1)
        if score == "additive":
            self.energy = self._vector("energy")
        if self.attend.window == "predicted":
            self.place = self._matrix("place", self.query_width)
            self.place_energy = self._vector("place_energy")

    def source(
        self, annotations: Float[Array, "B S D"], positions: Int[ArrayLike, "B S"]
    ) -> dict[str, Array]:
        """Returns the arrays (B, S, ...) that all steps read. `positions` count from 0."""
        arrays = {"values": annotations, "positions": jnp.asarray(positions, jnp.float32)}
        match self.attend.score:
            case "content":
                norm = jnp.linalg.norm(annotations, axis=-1, keepdims=True)
                arrays["keys"] = annotations / (norm + 1e-6)
            case "additive" | "general":
                arrays["keys"] = self.key(annotations)
            case "dot" | "scaled_dot":
                arrays["keys"] = annotations
        return arrays

    def vectors(self) -> dict[str, Array]:
        """Returns the parameter vectors that all steps read."""
        vectors = {}
        if self.attend.score == "additive":
            vectors["energy"] = self.energy.astype(self.dtype)
        if self.attend.window == "predicted":
            # This vector stays float32 like the predicted position, because bfloat16 cannot hold
            # every position above 256.
            vectors["place"] = self.place_energy
        return vectors

    def weights(self) -> Weights:
        """Returns the matrices and biases of the products of a step."""
        weights = {}
        if self.attend.score in ("content", "additive", "location"):
            weights["query"] = (self.query, self.query_bias())
        if self.attend.score == "content":
            weights["strength"] = (self.strength, None)
        if self.attend.window == "predicted":
            weights["place"] = (self.place, None)
        return jax.tree.map(lambda x: x.astype(self.dtype), weights)

    def expose(self, weights: Float[Array, "B T S"]) -> Float[Array, "1 B 1 T S"]:
        """Makes the attention weights of all steps readable, as those of one head of one layer."""
        return activations.named(self, "weights", weights[None, :, None])

    def _linear(self, inputs: int, outputs: int, use_bias: bool) -> Linear:
        axes = ("embed", "mlp")
        return Linear((inputs,), (outputs,), axes, use_bias=use_bias, dtype=self.dtype)

    def _matrix(self, name: str, outputs: int) -> Float[Array, "M O"]:
        init = declared(nn.initializers.xavier_uniform(), ("embed", None), decays=True, inputs=1)
        return self.param(name, init, (self.query_width, outputs), jnp.float32)

    def _vector(self, name: str) -> Float[Array, " A"]:
        init = declared(nn.initializers.normal(self.query_width**-0.5), (None,))
        return self.param(name, init, (self.query_width,), jnp.float32)


# --------------------------------------------------------------------------------------------------
# The encoders of a recurrent decoder: recurrent in one or both directions, or a Transformer.
#
# All of them take segment ids, because the sources of a packed row must not influence each other.


class RecurrentEncoder(nn.Module):
    """x (B, S, M) -> annotations (B, S, D), last states and summaries of the sources.

    Segment ids (B, S) identify the sources of a packed row. The states are arrays (B, S, D), listed
    by layer, and the summary is (B, S, F); both have the value of a source at each of its
    positions. The summary is the last output or, with `bidirectional`, the output of the backward
    direction at the first word. With `reverse`, the words are read from the last to the first, but
    the end token remains the last.
    """

    cell: Cell
    num_layers: int
    bidirectional: bool = False
    reverse: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S M"], segments: Int[Array, "B S"], *, train: bool = False
    ) -> tuple[Float[Array, "B S D"], tuple[Any, ...], Float[Array, "B S F"]]:
        first, last = bounds(segments)
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), segments.shape)
        # The order is reversed, so that the first words of source and target are close to each
        # other (Sutskever et al. 2014, section 3.3).
        is_moved = self.reverse & (positions < last)
        order = jnp.where(is_moved, first + last - 1 - positions, positions)
        x = at(x, order) if self.reverse else x
        stack = Stack(
            self.cell,
            self.num_layers,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            all_states=True,
            name="layers",
        )
        begins, ends = positions == first, positions == last
        x, layers = stack(x, segments > 0, begins=begins, ends=ends, train=train)
        if self.bidirectional:
            # The summary is at the first word, because the backward direction has read the whole
            # source there (Bahdanau et al. 2014, appendix A.2.2).
            summary = at(layers[-1][1][0], first)
            layers = [
                [jnp.concatenate([at(x, last), at(y, first)], axis=-1) for x, y in zip(*layer)]
                for layer in layers
            ]
        else:
            summary = at(x, last)
            layers = [[at(x, last) for x in layer] for layer in layers]
        x = Dropout(self.dropout)(x, train=train)
        states = tuple(state for layer in layers for state in layer)
        # `order` is its own inverse, so it returns the annotations to the positions of their words.
        return at(x, order) if self.reverse else x, states, summary

    @nn.nowrap
    def flops(self, length: int, d_model: int) -> int:
        """Returns the FLOPs over a source: two for each multiply-add."""
        directions = 2 if self.bidirectional else 1
        inputs = [d_model] + [directions * self.cell.width] * (self.num_layers - 1)
        return sum(directions * parameters.recurrent(length, width, self.cell) for width in inputs)


class TransformerEncoder(nn.Module):
    """x (B, S, M) -> annotations (B, S, M), no states, and the mean annotation of each source.

    The blocks are pre-LN, and positions are sinusoidal.
    """

    num_layers: int
    num_heads: int
    d_ff: int
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S M"], segments: Int[Array, "B S"], *, train: bool = False
    ) -> tuple[Float[Array, "B S M"], tuple[()], Float[Array, "B S M"]]:
        d_model = x.shape[-1]
        heads = dict(num_heads=self.num_heads, head_dim=d_model // self.num_heads)
        block = partial(
            Block,
            attention=partial(Attention, **heads, dtype=x.dtype),
            mlp=partial(MLP, d_ff=self.d_ff, activation=jax.nn.relu, dtype=x.dtype),
            norm=partial(LayerNorm, 1e-6),
            norm_position="pre",
            dropout=self.dropout,
        )
        positions = jnp.arange(x.shape[1]) - bounds(segments)[0]
        # The embeddings are scaled as in Vaswani et al. 2017, section 3.4, so that the positions do
        # not outweigh the words.
        x = x * math.sqrt(d_model) + sinusoids(positions, d_model).astype(x.dtype)
        mask = Mask(query_segments=segments, key_segments=segments)
        x = Blocks((block,), self.num_layers, name="layers")(x, mask=mask, train=train)
        x = LayerNorm(1e-6, name="norm")(x)
        # A product with this matrix (B, S, S) averages each source and repeats the mean at all of
        # its positions, for any number of sources in a row.
        same = (segments[:, None] == segments[:, :, None]).astype(x.dtype)  # (B, S, S)
        return x, (), same @ x / same.sum(axis=-1, keepdims=True)

    @nn.nowrap
    def flops(self, length: int, d_model: int) -> float:
        """Returns the FLOPs over a source: two for each multiply-add."""
        layer = parameters.LayerSizes(d_model, d_model, self.d_ff).layer(length, length**2)
        return self.num_layers * layer + parameters.dense(length, length, d_model)


# --------------------------------------------------------------------------------------------------
# A recurrent decoder: stacked cells with attention before them, after them, or without attention.
#
# `Step` is a frozen dataclass rather than a module, because `recur` needs a hashable function.

# none: no attention. before: the query is the state before the step, and the context is an input of
# the first cell (Bahdanau et al. 2014). after: the query is the new output of the last cell, and
# the output of the decoder is tanh(W [context; output]) (Luong et al. 2015, section 3).
AttentionOrder = Literal["none", "before", "after"]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of the decoder for R = B Q rows, which are Q hypotheses of each of B sources.

    The state is (states of the cells, fed vector), where the first cell reads the fed vector if the
    decoder `feeds`. With attention after the cells, the vector is the output of the previous step
    (input feeding, Luong et al. 2015, section 3.3); without attention, it is constant (Cho et al.
    2014, section 2.2). The output of a step is (hidden states (R, F), attention weights (B, Q, S)
    or None). With attention before the cells, the hidden states are the query concatenated with the
    context.
    """

    cells: tuple[Cell, ...]
    attend: Attend | None
    attention_order: AttentionOrder
    feeds: bool

    def __call__(self, product: Product, source: dict[str, Array], position: tuple, state: tuple):
        (x, first, kept), masks = position
        # A text of a packed row must not continue from the state of the text before it.
        if first is not None:
            begins = masks["begins"][:, None]
            state = jax.tree.map(lambda new, old: jnp.where(begins, new, old), first, state)
        states, fed = state
        query, weights = states[-1][0], None
        if self.attention_order == "before":
            context, weights = self._attended(product, source, query, masks)
            output = jnp.concatenate([query, context], axis=-1)
            # Two projections are added instead of projecting input and context concatenated,
            # because that of the inputs has been computed for all positions at once.
            x = x + product("feed", context).reshape(x.shape)
        elif self.feeds:
            x = x + product("feed", fed).reshape(x.shape)
        states = self._through_cells(product, x, kept, states)
        if self.attention_order == "after":
            query = states[-1][0]
            context, weights = self._attended(product, source, query, masks)
            joined = jnp.concatenate([context, query], axis=-1)
            output = jnp.tanh(product("attentional", joined))
        elif self.attention_order == "none":
            output = states[-1][0]
        if self.attention_order == "after" and self.feeds:
            fed = output
        return (states, fed), (output, weights)

    def _attended(self, product, source, query, masks):
        queries = query.reshape(len(source["values"]), -1, query.shape[-1])
        context, weights = self.attend(product, source, queries, masks["visible"], masks["at"])
        return context.reshape(len(query), -1), weights

    def _through_cells(self, product, x, kept, states):
        after = []
        for layer, (cell, state) in enumerate(zip(self.cells, states)):
            if layer:
                below = after[-1][0]
                below = below if kept is None else below * kept[layer - 1]
                x = product(f"input_{layer}", below).reshape(-1, cell.gates, cell.width)
            after.append(cell(_of_layer(product, layer), x, state))
        return tuple(after)

    def flops(
        self, source_length: int, target_length: int, width: int, max_positions: int
    ) -> float:
        """Returns the FLOPs for a source and a target with annotations of this width."""
        cell = self.cells[0]
        total = sum(parameters.recurrent(target_length, cell.width, cell) for cell in self.cells)
        if self.attention_order == "before" or self.feeds:
            fed = width if self.attention_order == "before" else cell.width
            total += parameters.dense(target_length, fed, cell.gates * cell.width)
        if self.attention_order == "after":
            total += parameters.dense(target_length, width + cell.width, cell.width)
        if self.attend:
            sizes = (cell.width, width, max_positions)
            total += self.attend.flops(target_length, source_length, sizes)
        return total


def _of_layer(product: Product, layer: int) -> Product:
    def in_layer(name, x):
        return product(f"{name}_{layer}", x)

    return in_layer


class RecurrentLayers(nn.Module):
    """The parameters of a `Step`, and its application to all positions.

    `d_model` is the width of the inputs and of the outputs of the cells, and `width` is the width
    of an annotation.
    """

    step: Step
    d_model: int
    width: int
    max_positions: int
    dropout: float = 0.0
    dtype: jnp.dtype = jnp.float32

    def setup(self):
        cell = self.step.cells[0]
        self.input = Linear(
            (self.d_model,),
            (cell.gates, cell.width),
            axes=("embed", None, "mlp"),
            dtype=self.dtype,
        )
        weights = {}
        for layer, cell in enumerate(self.step.cells):
            if layer:
                shape = (self.d_model, cell.gates * cell.width)
                weights[f"input_{layer}"] = (
                    self._matrix(f"input_{layer}", shape),
                    self._bias(f"input_bias_{layer}", shape[1]),
                )
            own = recurrent_weights(self, cell, self.dtype, ending=f"_{layer}")
            weights |= {f"{name}_{layer}": value for name, value in own.items()}
        cell = self.step.cells[0]
        if self.step.attention_order == "before" or self.step.feeds:
            fed = self.width if self.step.attention_order == "before" else self.d_model
            weights["feed"] = (self._matrix("feed", (fed, cell.gates * cell.width)), None)
        if self.step.attention_order == "after":
            shape = (self.width + self.d_model, self.d_model)
            weights["attentional"] = (self._matrix("attentional", shape), None)
        self.matrices = weights
        if self.step.attend:
            self.cross_attention = RecurrentAttention(
                self.step.attend, self.d_model, self.width, self.max_positions, self.dtype
            )

    def weights(self) -> Weights:
        """Returns the matrices and biases of the products of a step."""
        attention = self.cross_attention.weights() if self.step.attend else {}
        return jax.tree.map(lambda x: x.astype(self.dtype), {**self.matrices, **attention})

    def source(
        self, annotations: Float[Array, "B S D"], positions: Int[ArrayLike, "B S"]
    ) -> dict[str, Array]:
        """Returns the arrays (B, S, ...) of the source that all steps read."""
        if not self.step.attend:
            # No step reads the annotations, so the state of decoding need not hold them.
            return {"values": annotations[..., :0]}
        return self.cross_attention.source(annotations, positions)

    def _with_vectors(self, source: dict[str, Array]) -> dict[str, Array]:
        return source | self.cross_attention.vectors() if self.step.attend else source

    def __call__(
        self,
        x: Float[Array, "B T M"],
        source: dict[str, Array],
        first: Any,
        masks: Mapping[str, Array],
        *,
        train: bool = False,
    ) -> Float[Array, "B T F"]:
        """Returns the hidden states of the decoder for inputs x.

        `first` holds the initial state of each text, arrays (B, T, ...), which are read where a
        text begins. `masks` are "begins" (B, T), "visible" (B, T, S), and "at" (B, T), the position
        of each token in its text.
        """
        # The masks are drawn in advance for all steps, because the backward pass of `recur` replays
        # the steps.
        dropout_mask = None
        if train and self.dropout:
            shape = (len(self.step.cells) - 1, x.shape[1], len(x), self.d_model)
            keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.dropout, shape)
            scaled = keep / (1 - self.dropout)
            dropout_mask = jnp.moveaxis(scaled, 0, 1).astype(x.dtype)
        along = partial(jax.tree.map, lambda x: jnp.moveaxis(x, 1, 0))
        masks = dict(masks, visible=masks["visible"][:, :, None], at=masks["at"][..., None])
        positions = ((along(self.input(x)), along(first), dropout_mask), along(masks))
        # These zeros are never read, because a text begins at the first position of each row.
        zeros = jax.tree.map(lambda x: jnp.zeros_like(x[:, 0]), first)
        (states, weights), _ = recur(
            self.step, self.weights(), self._with_vectors(source), positions, zeros
        )
        if self.step.attend:
            self.cross_attention.expose(jnp.moveaxis(weights[:, :, 0], 0, 1))
        return jnp.moveaxis(states, 0, 1)

    def advance(
        self, x: Float[Array, "R M"], source: dict[str, Array], masks: Mapping[str, Array], state
    ) -> tuple[Float[Array, "R F"], Any]:
        """Returns the hidden states of the decoder for the next inputs, and the new state.

        The R = B Q rows are Q hypotheses of each source. `masks` are "visible" (B, 1, S) and the
        positions "at" (B, Q).
        """
        weights = self.weights()

        # Decoding needs no gradient, so that this product saves nothing, unlike the one of `recur`.
        def product(name, x):
            matrix, bias = weights[name]
            return x @ matrix if bias is None else x @ matrix + bias

        position = ((self.input(x[:, None])[:, 0], None, None), masks)
        state, (output, _) = self.step(product, self._with_vectors(source), position, state)
        return output, state

    def _matrix(self, name: str, shape: tuple[int, int]) -> Float[Array, "I O"]:
        init = declared(nn.initializers.xavier_uniform(), ("embed", "mlp"), decays=True, inputs=1)
        return self.param(name, init, shape, jnp.float32)

    def _bias(self, name: str, size: int) -> Float[Array, " O"]:
        init = declared(nn.initializers.zeros, ("mlp",))
        return self.param(name, init, (size,), jnp.float32)
