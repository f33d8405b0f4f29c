"""Output layers and heads on hidden states, and embeddings of tokens and positions."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from transformer_jax import losses
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers.blocks import LayerNorm
from transformer_jax.layers.parameters import Dropout, Linear, declared
from transformer_jax.layers.recurrent import LSTM, Unidirectional
from transformer_jax.losses import NO_TOKEN

# --------------------------------------------------------------------------------------------------
# Output layers: logits from hidden states, and the cross-entropy of tokens.
#
# The method `output()` of a model returns a `Projection` or another `Output`. Losses take the
# hidden states and this output rather than logits, because the logits (B, L, V) of a large
# vocabulary would be the largest array of a step.


@runtime_checkable
class Output(Protocol):
    """The output layer of a model: a tree of arrays, with these methods."""

    def first(self, size: int) -> "Output":
        """Returns the output for the first `size` tokens, without rows that pad the vocabulary."""

    def limited(self, size: int) -> "Output":
        """Returns the output in which the tokens from `size` on have probability 0."""

    def tempered(self, temperature: float) -> "Output":
        """Returns the output whose logits are divided by `temperature`."""

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Returns the logits (..., V) float32, which may be normalized log-probabilities."""

    def cross_entropy(
        self,
        hidden: Float[Array, "B L M"],
        labels: Int[ArrayLike, "B L"],
        weights: Float[ArrayLike, "B L"],
        *,
        label_smoothing: float = 0.0,
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Returns (loss, nll, correct) like `losses.cross_entropy`, with exact gradients."""

    def label_log_probs(
        self, hidden: Float[Array, "B L M"], labels: Int[ArrayLike, "B L"]
    ) -> Float[Array, "B L"]:
        """Returns the log-probabilities of the labels (B, L) float32, with exact gradients.

        The logits are computed in chunks of the length, and again in the backward pass.
        """


class Projection(NamedTuple):
    """The logits hidden @ table^T + bias. Rows whose bias is NO_TOKEN pad the vocabulary."""

    table: Float[ArrayLike, "V M"]  # float32
    bias: Float[ArrayLike, " V"] | None = None  # float32

    def biased(self, bias: Float[ArrayLike, " V"]) -> "Projection":
        """Returns the projection with this bias added."""
        return Projection(self.table, bias if self.bias is None else bias + self.bias)

    def first(self, size: int) -> "Projection":
        return Projection(self.table[:size], None if self.bias is None else self.bias[:size])

    def limited(self, size: int) -> "Projection":
        return self.masked(np.arange(self.table.shape[0]) < size)

    def masked(self, is_token: Bool[np.ndarray, " V"]) -> "Projection":
        """Returns the projection whose other rows pad the vocabulary."""
        bias = 0.0 if self.bias is None else self.bias
        return Projection(self.table, jnp.where(is_token, bias, NO_TOKEN))

    def tempered(self, temperature: float) -> "Projection":
        if temperature == 1:
            return self
        bias = self.bias
        if bias is not None:
            # NO_TOKEN stays as it is, because `losses` recognizes the padding rows by it.
            bias = jnp.where(bias > losses.NO_TOKEN / 2, bias / temperature, bias)
        return Projection(self.table / temperature, bias)

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        matrix = self.table.astype(hidden.dtype)
        logits = jnp.dot(hidden, matrix.T, preferred_element_type=jnp.float32)
        return logits if self.bias is None else logits + self.bias

    def cross_entropy(
        self,
        hidden: Float[Array, "B L M"],
        labels: Int[ArrayLike, "B L"],
        weights: Float[ArrayLike, "B L"],
        *,
        label_smoothing: float = 0.0,
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        return losses.cross_entropy(hidden, *self, labels, weights, label_smoothing=label_smoothing)

    def label_log_probs(
        self, hidden: Float[Array, "B L M"], labels: Int[ArrayLike, "B L"]
    ) -> Float[Array, "B L"]:
        weights = jnp.ones(jnp.shape(labels), jnp.float32)
        return _label_log_probs(losses.Inputs(hidden, *self, labels, weights))


@jax.custom_vjp
def _label_log_probs(inputs: losses.Inputs) -> Float[Array, "B L"]:
    _, nll, _ = losses.in_chunks(inputs).by_position
    return -nll


def _forward(inputs: losses.Inputs):
    return _label_log_probs(inputs), inputs


def _backward(inputs: losses.Inputs, cotangent: Float[Array, "B L"]):
    # The gradient of the log-probabilities is the gradient of a cross-entropy whose weights are
    # minus the cotangents, so that the chunked loss computes it.
    result = losses.in_chunks(inputs._replace(weights=-cotangent), gradients=True)
    return (losses.Inputs(result.d_hidden, *result.d_output, None, None),)


_label_log_probs.defvjp(_forward, _backward)


@struct.dataclass
class Cluster:
    """Tokens of consecutive ids: their output vectors (N, E), and a projection of hidden states.

    The table may have further rows, which pad it if their bias is NO_TOKEN.
    """

    rows: Projection
    projection: Float[ArrayLike, "E M"] | None  # None: E is M
    size: int = struct.field(pytree_node=False)  # the number of tokens

    def narrowed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B E"]:
        """Projects hidden states to the width of the table."""
        if self.projection is None:
            return hidden
        return jnp.dot(hidden, self.projection.astype(hidden.dtype).T)

    def log_probs(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B N"]:
        return jax.nn.log_softmax(self.rows.logits(self.narrowed(hidden)))


@struct.dataclass
class AdaptiveSoftmax:
    """A two-level softmax for a vocabulary sorted by frequency (Grave et al. 2017).

    The head has a row for each of the most frequent tokens, followed by a row for each tail. The
    probability of a token in a tail is the probability of the tail times the probability of the
    token within the tail (section 4). The loss computes the logits of a tail only for positions
    whose label belongs to it.
    """

    head: Cluster
    tails: tuple[Cluster, ...]

    def first(self, size: int) -> "AdaptiveSoftmax":
        """Returns the softmax over the first `size` tokens.

        Each cluster that loses tokens is normalized over those that it keeps. A tail that keeps
        none has probability 0.
        """
        sizes = [self.head.size, *(tail.size for tail in self.tails)]
        if size >= sum(sizes):
            return self
        starts = [0, *itertools.accumulate(sizes)]
        kept = [min(max(size - start, 0), count) for start, count in zip(starts, sizes)]
        is_token = np.arange(self.head.rows.table.shape[0]) < kept[0]
        for number in range(len(self.tails)):
            is_token[self._row(number)] = kept[number + 1] > 0
        head = self.head.replace(rows=self.head.rows.masked(is_token), size=kept[0])
        tails = [
            tail.replace(rows=tail.rows.limited(count), size=count)
            if count
            else tail.replace(size=0)
            for tail, count in zip(self.tails, kept[1:])
        ]
        return AdaptiveSoftmax(head, tuple(tails))

    def limited(self, size: int) -> "AdaptiveSoftmax":
        return self.first(size)

    def tempered(self, temperature: float) -> "AdaptiveSoftmax":
        if temperature != 1:
            raise UserError(
                f"temperature={temperature}: an adaptive softmax supports only temperature 1; set "
                "config.model.adaptive_cutoffs to () for other temperatures"
            )
        return self

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Returns the log-probabilities of all tokens (..., V) float32."""
        head = self.head.log_probs(hidden)
        parts = [head[..., : self.head.size]]
        for number, tail in enumerate(self.tails):
            tail_log_prob = head[..., self._row(number), None]
            parts.append(tail_log_prob + tail.log_probs(hidden)[..., : tail.size])
        return jnp.concatenate(parts, axis=-1)

    def cross_entropy(
        self,
        hidden: Float[Array, "B L M"],
        labels: Int[ArrayLike, "B L"],
        weights: Float[ArrayLike, "B L"],
        *,
        label_smoothing: float = 0.0,
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Returns (loss, nll, correct).

        A label counts as correct if it is the most likely one on both levels.
        """
        if label_smoothing:
            raise UserError(
                f"config.task.label_smoothing={label_smoothing}: an adaptive softmax has none; set "
                "it to 0, or config.model.adaptive_cutoffs to ()"
            )
        first = self.head.size
        head_labels, inside = labels, []
        for number, tail in enumerate(self.tails):
            inside.append((labels >= first) & (labels < first + tail.size))
            head_labels = jnp.where(inside[-1], self._row(number), head_labels)
            first += tail.size
        head_inputs = (self.head.narrowed(hidden), *self.head.rows, head_labels, weights)
        loss, correct = losses.selected_cross_entropy(*head_inputs)
        first = self.head.size
        for tail, selected in zip(self.tails, inside):
            tail_inputs = (tail.narrowed(hidden), *tail.rows, labels - first, weights)
            tail_loss, tail_correct = losses.selected_cross_entropy(*tail_inputs, selected=selected)
            loss += tail_loss
            correct = jnp.where(selected, correct * tail_correct, correct)
            first += tail.size
        return loss, loss, jnp.sum(correct * weights)

    def label_log_probs(
        self, hidden: Float[Array, "B L M"], labels: Int[ArrayLike, "B L"]
    ) -> Float[Array, "B L"]:
        first = self.head.size
        head_labels, within_tails = labels, 0.0
        for number, tail in enumerate(self.tails):
            inside = (labels >= first) & (labels < first + tail.size)
            head_labels = jnp.where(inside, self._row(number), head_labels)
            tail_labels = jnp.where(inside, labels - first, 0)
            # Tails are computed at all positions, because shapes are static. Positions of other
            # clusters compute label 0, which `where` discards together with its gradient.
            log_probs = tail.rows.label_log_probs(tail.narrowed(hidden), tail_labels)
            within_tails += jnp.where(inside, log_probs, 0.0)
            first += tail.size
        head_log_probs = self.head.rows.label_log_probs(self.head.narrowed(hidden), head_labels)
        return head_log_probs + within_tails

    def _row(self, number: int) -> int:
        """Returns the row of the head's table that predicts a tail."""
        return self.head.rows.table.shape[0] - len(self.tails) + number


def token_log_probs(
    hidden: Float[Array, "B L M"], output: Output, labels: Int[ArrayLike, "B L"]
) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
    """Returns the log-probabilities of the labels (B, L) float32.

    Also returns whether the label has the largest logit (B, L) bool. Each device computes one
    sequence at a time.
    """

    def rows(logits, labels):
        label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        log_probs = label_logits - jax.nn.logsumexp(logits, axis=-1)
        return log_probs, label_logits >= logits.max(axis=-1)

    return map_logits(rows, hidden, output, labels)


def map_logits(
    function: Callable[..., Any],
    hidden: Float[Array, "B L M"],
    output: Output,
    *arrays: Shaped[ArrayLike, "B L"],
) -> Any:
    """Applies `function` to the logits and `arrays` of each sequence; returns arrays (B, L).

    The logits are computed by `output` from the hidden states. Each device computes one sequence at
    a time, so that the logits of a large vocabulary take little memory. `function` receives logits
    (rows, L, V) float32 and returns a tree of arrays (rows, L).
    """
    parts = sharding.parts("batch")

    # (B, ...) -> (B / parts, parts, ...). jax.lax.map runs over the first axis, and each device
    # holds one row of the second one, so that no row has to move to another device.
    def split(x):
        x = x.reshape(parts, -1, *x.shape[1:]).swapaxes(0, 1)
        return sharding.constrain(x, None, "batch", *[None] * (x.ndim - 2))

    def join(x):
        return x.swapaxes(0, 1).reshape(hidden.shape[:2])

    def rows(inputs):
        hidden, *arrays = inputs  # (parts, L, M), (parts, L)
        logits = sharding.constrain(output.logits(hidden), "batch", None, "vocab")
        return function(logits, *arrays)

    inputs = tuple(split(jnp.asarray(x)) for x in (hidden, *arrays))
    return jax.tree.map(join, jax.lax.map(rows, inputs))


# --------------------------------------------------------------------------------------------------
# The heads that fine-tuning adds to a pre-trained model.
#
# All of them compute in float32, whatever the dtype of the model: they are small, and bfloat16
# would round different scores to equal ones.


class Head(nn.Module):
    """Dropout and an affine map: (..., M) -> float32 (..., features).

    With `pools`, they are preceded by dropout, an affine map and tanh. With `zeros`, the kernel is
    initialized to zeros. Everything is computed in float32, because bfloat16 would round different
    scores to equal ones.
    """

    features: int
    dropout: float = 0.0
    use_bias: bool = True
    pools: bool = False
    zeros: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B F"]:
        model = (x.shape[-1],)
        init = nn.initializers.truncated_normal(0.02)
        x = Dropout(self.dropout)(x, train=train).astype(jnp.float32)
        if self.pools:
            pooler = Linear(model, model, axes=("embed", "mlp"), kernel_init=init, name="pooler")
            x = Dropout(self.dropout)(jnp.tanh(pooler(x)), train=train)
        output = Linear(
            model,
            (self.features,),
            axes=("embed", None),
            use_bias=self.use_bias,
            head=True,
            kernel_init=nn.initializers.zeros if self.zeros else init,
            name="out",
        )
        return output(x)


class RewardHead(nn.Module):
    """A reward, computed by a head with one feature: (..., M) -> float32 (..., 2).

    The first number is the output of the head, which is learned. The second number is the
    normalized reward (first - mean) / deviation. `mean` and `deviation` receive no gradient but are
    measured, so that the normalized rewards of reference texts have mean 0 and variance 1 (Ziegler
    et al. 2019, section 2.1).
    """

    score: Head

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B 2"]:
        mean = self.param("mean", declared(nn.initializers.zeros, ()), ())
        deviation = self.param("deviation", declared(nn.initializers.ones, ()), ())
        reward = self.score(x, train=train)
        normalized = jax.lax.stop_gradient((reward - mean) / deviation)
        return jnp.concatenate([reward, normalized], axis=-1)


class ConcatenationHead(nn.Module):
    """Two blocks of norm, dropout and affine map with a ReLU between them.

    (..., M) -> float32 (..., features) (Howard & Ruder 2018, section 3.3). The paper uses batch
    norm; layer norm is used here so that the output for an example depends on no other example.
    """

    features: int
    dropout: float = 0.0
    width: int = 50

    @nn.compact
    def __call__(self, x: Float[Array, "*B M"], *, train: bool = False) -> Float[Array, "*B F"]:
        x = x.astype(jnp.float32)
        x = Dropout(self.dropout)(LayerNorm(name="input_norm")(x), train=train)
        hidden = Linear((x.shape[-1],), (self.width,), axes=("embed", None), name="hidden")
        x = LayerNorm(name="hidden_norm")(jax.nn.relu(hidden(x)))
        return Head(self.features, self.dropout, name="output")(x, train=train)


class RecurrentHead(nn.Module):
    """A two-layer bidirectional LSTM on frozen features (Devlin et al. 2018, section 5.3).

    Hidden states of several layers, (B, L, width) each, and filled (B, L) bool -> float32 (B, L,
    features). The hidden states of the layers are concatenated, or summed with learned weights that
    add up to 1. With `scaled`, the sum is multiplied by a learned number and followed by dropout
    (Peters et al. 2018, section 3.2). With `pools`, the maximum over the positions is taken
    (Conneau et al. 2017, section 3.2.3), and the outputs are (B, features).
    """

    features: int
    concatenate: bool = False
    width: int = 768  # of both directions together
    dropout: float = 0.0
    scaled: bool = False
    pools: bool = False

    @nn.compact
    def __call__(
        self,
        states: Sequence[Float[Array, "B L _"]],
        filled: Bool[Array, "B L"],
        *,
        train: bool = False,
    ) -> Float[Array, "B L F"] | Float[Array, "B F"]:
        if self.concatenate:
            x = jnp.concatenate(states, axis=-1)
        else:
            x = self._mixed(jnp.stack(states), train)
        cell = LSTM(self.width // 2)
        for layer in range(2):
            forward = Unidirectional(cell, name=f"lstm_{layer}_forward")
            backward = Unidirectional(cell, reverse=True, name=f"lstm_{layer}_backward")
            x = jnp.concatenate([forward(x, filled)[0], backward(x, filled)[0]], axis=-1)
        if self.pools:
            # Padding becomes -inf, because zeros would win over negative features.
            x = jnp.where(filled[..., None], x, -jnp.inf).max(axis=1)
            # The maximum over a row that consists only of padding would be -inf.
            x = jnp.where(filled.any(axis=1)[:, None], x, 0)
        return Head(self.features, self.dropout, name="tags")(x, train=train)

    def _mixed(self, states: Float[Array, "layers B L M"], train: bool) -> Float[Array, "B L M"]:
        """Returns the weighted sum of the hidden states of the layers."""
        init = declared(nn.initializers.zeros, (None,))
        weights = jax.nn.softmax(self.param("weights", init, (len(states),)))
        if self.scaled:
            weights = weights * self.param("scale", declared(nn.initializers.ones, ()), ())
        x = jnp.einsum("s,sblm->blm", weights.astype(states.dtype), states)
        return Dropout(self.dropout)(x, train=train) if self.scaled else x


# --------------------------------------------------------------------------------------------------
# Embeddings of tokens and positions.
#
# A table may have more rows than there are ids, because the mesh must divide a table that it
# splits.

# The kinds of positions that are defined only up to the `max_length` of a model, so that longer
# rows must be an error.
BOUNDED = ("learned", "normalized", "binary")


class Embed(nn.Module):
    """An embedding table (V, M) float32: int32 ids (B, L) -> `dtype` (B, L, M).

    The number of rows of the table is V, rounded up to a multiple of `multiple`; the additional
    rows are zero. The embedding of id i is row i + `offset`, so that the first `offset` rows belong
    to no id. Raises UserError for an id outside [0, V). Under jax.jit, where the ids are unknown,
    the embedding of such an id is NaN.
    """

    num_embeddings: int
    features: int
    init: Callable = nn.initializers.normal(0.02)
    axes: tuple[str | None, str] = ("vocab", "embed")
    dtype: jnp.dtype = jnp.float32
    multiple: int = 1
    offset: int = 0
    key: str = "vocab_size"  # the key of config.model that sets V, for error messages

    def setup(self):
        def init(key, shape):
            # The table is padded after the draw, so that the initial embeddings do not depend on
            # `multiple`.
            return jnp.pad(self.init(key, shape), ((0, -shape[0] % self.multiple), (0, 0)))

        init = declared(init, self.axes, decays=True)
        self.embedding = self.param(
            "embedding", init, (self.offset + self.num_embeddings, self.features)
        )

    def __call__(self, ids: Int[ArrayLike, "B L"]) -> Float[Array, "B L M"]:
        if not isinstance(ids, jax.core.Tracer):
            # A traced id has no value to check. There jnp.take returns NaN, which a loss reveals,
            # whereas clipping the id would hide the error.
            check_ids(np.asarray(ids), self.num_embeddings, self.key)
        # Each device looks up its own columns of the table for all examples. Then an all-to-all
        # exchanges columns for examples, because the embeddings of a batch are much smaller than
        # the table. The cast follows the lookup, so that the gradients of the table are summed in
        # float32.
        ids = sharding.constrain(ids + self.offset, "lookup", "length")
        x = jnp.take(self.embedding, ids, axis=0).astype(self.dtype)  # (B, L, M)
        x = sharding.constrain(x, "lookup", "length", self.axes[1])
        return sharding.constrain(x, "batch", "length", None)

    def table(self) -> Float[ArrayLike, "V M"]:
        """Returns the table, for an output projection tied to it."""
        return self.embedding

    def output(self) -> Projection:
        """Returns an output projection tied to the table, whose bias excludes additional rows."""
        rows = self.embedding.shape[0]
        if rows == self.num_embeddings:
            return Projection(self.embedding)
        is_token = jnp.arange(rows) < self.num_embeddings
        return Projection(self.embedding, jnp.where(is_token, 0.0, NO_TOKEN))


def check_ids(ids: Int[np.ndarray, "*axes"], count: int, key: str = "vocab_size") -> None:
    """Raises UserError for an id outside [0, count), which names config.model.KEY=count."""
    invalid = ids[(ids < 0) | (ids >= count)]
    if invalid.size:
        raise UserError(
            f"the id {invalid[0]} is not from 0 to {count - 1} (config.model.{key}={count})"
        )


def row_positions(tokens: Int[ArrayLike, "B L"], max_length: int) -> Int[Array, "B L"]:
    """Returns the positions 0, 1, ... of each row. Raises UserError if L > max_length."""
    length = tokens.shape[1]
    if length > max_length:
        raise UserError(
            f"a row has {length} tokens: must be at most config.model.max_length={max_length}"
        )
    return jnp.broadcast_to(jnp.arange(length), tokens.shape)


class Bias(nn.Module):
    """A learned vector (V,) float32, initialized to zeros."""

    size: int
    axis: str

    @nn.compact
    def __call__(self) -> Float[ArrayLike, " V"]:
        init = declared(nn.initializers.zeros, (self.axis,))
        return self.param("bias", init, (self.size,))


def sinusoids(positions: Int[ArrayLike, "*B"], features: int) -> Float[Array, "*B M"]:
    """Sinusoidal encodings (Vaswani et al. 2017, section 3.5): int32 (...) -> float32 (..., M).

    Column 2i holds sin(p / 10000^(2i/M)), column 2i + 1 holds cos(p / 10000^(2i/M)).
    """
    rates = 10_000.0 ** (-jnp.arange(0, features, 2) / features)  # (M / 2,)
    angles = positions[..., None] * rates
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # (B, L, M / 2, 2)
    return pairs.reshape(*positions.shape, -1)[..., :features]


def position_codes(
    kind: Literal["sinusoidal", "index", "normalized", "binary"],
    positions: Int[ArrayLike, "*B"],
    features: int,
    max_length: int,
) -> Float[Array, "*B M"]:
    """Returns position encodings that are not learned: int32 (...) -> float32 (..., M).

    Each column holds the position p ("index") or p / max_length ("normalized"). Column i of the
    binary code holds bit i of p, starting with the lowest bit; the columns after the highest bit of
    max_length - 1 repeat the code.
    """
    if kind == "sinusoidal":
        return sinusoids(positions, features)
    columns = jnp.broadcast_to(positions[..., None], (*positions.shape, features))
    if kind == "binary":
        columns = columns >> jnp.arange(features) % max((max_length - 1).bit_length(), 1) & 1
    codes = columns.astype(jnp.float32)
    return codes / max_length if kind == "normalized" else codes


# --------------------------------------------------------------------------------------------------
# Positions within attention: rotations of queries and keys, and biases of the scores.
#
# All of these make the scores depend on distances, so that what is learned at one position of a row
# holds at the others.


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings (Su et al. 2021, section 3.2.2).

    At position p, the pair of columns i and i + D/2 of a head is rotated by the angle p /
    theta^(2i/D), which is Llama's layout. For sequences longer than `trained_length`, a `factor`
    above 1 divides the rates of slow rotations. Rotations with at least 4 turns in that length keep
    their rate, and between 1 and 4 turns the divisor grows gradually (Grattafiori et al. 2024; the
    code of Llama 3.1).
    """

    theta: float = 10_000.0
    factor: float = 1.0
    trained_length: int = 8192

    def rates(self, head_dim: int) -> np.ndarray:
        """Returns the angle by which each pair of columns turns per position (D/2,)."""
        rates = self.theta ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
        turns = self.trained_length * rates / (2 * math.pi)
        unscaled = np.clip((turns - 1) / 3, 0, 1)
        return rates * (unscaled + (1 - unscaled) / self.factor)

    def __call__(
        self, x: Float[Array, "B L H D"], positions: Int[Array, "#B L"]
    ) -> Float[Array, "B L H D"]:
        """Returns the rotated queries or keys. The rotation is computed in float32."""
        # In bfloat16, positions above 256 would be rounded, and with them the angles.
        angles = positions[..., None] * self.rates(x.shape[-1]).astype(np.float32)  # (B, L, D/2)
        cos = jnp.cos(angles)[:, :, None]
        sin = jnp.sin(angles)[:, :, None]
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


class RelativeBias(nn.Module):
    """A learned bias of the scores by head and distance (Raffel et al. 2020, section 2.1).

    Distances are grouped into buckets. Half of the buckets hold one distance each, the others grow
    logarithmically up to `max_distance`, and the last one holds all larger distances. Without
    `causal`, half of the buckets are reserved for keys after the query. All layers of a stack share
    one table.
    """

    num_heads: int
    causal: bool
    num_buckets: int = 32
    max_distance: int = 128
    table_init: nn.initializers.Initializer = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(self, distance: Int[Array, "#B #Q K"]) -> Float[Array, "#B H #Q K"]:
        """Returns the bias of the scores float32 for distances as returned by `Mask.distance`."""
        init = declared(self.table_init, (None, "heads"), decays=True)
        table = self.param("table", init, (self.num_buckets, self.num_heads), jnp.float32)
        furthest = self.max_distance
        # The distances may be traced, but buckets come from NumPy. They are computed for all
        # distances up to the furthest one, beyond which all share a bucket.
        by_distance = table[self.bucket(np.arange(-furthest, furthest + 1))]
        index = jnp.clip(distance, -furthest, furthest) + furthest
        return jnp.moveaxis(jnp.take(by_distance, index, axis=0), -1, 1)

    def bucket(self, distance: Int[np.ndarray, "*B"]) -> Int[np.ndarray, "*B"]:
        """Returns the bucket of each distance from a query back to a key.

        The arithmetic follows the published code in float32. It is done in NumPy, because a less
        exact logarithm of an accelerator would move distances at the boundaries of buckets.
        """
        count = self.num_buckets if self.causal else self.num_buckets // 2
        # As in the published code of T5, keys after the query use the second half of the buckets.
        offset = 0 if self.causal else count * (distance < 0)
        distance = np.maximum(distance, 0) if self.causal else np.abs(distance)
        exact = count // 2
        # Distances below `exact` do not use the logarithm; the maximum keeps its argument positive.
        ratio = (np.maximum(distance, exact) / exact).astype(np.float32)
        growth = np.log(ratio) / np.float32(math.log(self.max_distance / exact))
        coarse = exact + (growth * (count - exact)).astype(np.int32)
        return offset + np.where(distance < exact, distance, np.minimum(coarse, count - 1))


def alibi(distance: Int[Array, "#B #Q K"], num_heads: int) -> Float[Array, "#B H #Q K"]:
    """Returns the bias of ALiBi (Press et al. 2022): minus the distance times the head's slope."""
    bias = -jnp.abs(distance)[:, None].astype(jnp.float32)
    return bias * alibi_slopes(num_heads)[:, None, None]


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slopes of the heads (H,) float32.

    If H is a power of two, they are 2^(-8i/H), i = 1..H. Otherwise the heads beyond the largest
    power of two below H have every second slope of twice that power, as in the published code.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)
