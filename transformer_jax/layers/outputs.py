"""Outputs of models: how states become logits, and the cross-entropy of tokens.

A model's `output()` returns a `Projection`, or any other `Output`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from transformer_jax import losses
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding


@runtime_checkable
class Output(Protocol):
    """The output layer of a model: a tree of arrays, with these methods."""

    def first(self, size: int) -> "Output":
        """Returns the output for the first `size` tokens, without rows that pad a vocabulary."""

    def tempered(self, temperature: float) -> "Output":
        """Returns the output whose logits are those of this one over `temperature`."""

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Returns the logits (..., V) float32. They may be log-probabilities."""

    def cross_entropy(
        self,
        hidden: Float[Array, "B L M"],
        labels: Int[ArrayLike, "B L"],
        weights: Float[ArrayLike, "B L"],
        *,
        label_smoothing: float = 0.0,
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Returns (loss, nll, correct) as `losses.cross_entropy`, with exact gradients."""

    def label_log_probs(
        self, hidden: Float[Array, "B L M"], labels: Int[ArrayLike, "B L"]
    ) -> Float[Array, "B L"]:
        """Returns the log-probabilities of the labels (B, L) float32, with exact gradients.

        The logits exist in chunks of the length. The backward pass computes them again.
        """


class Projection(NamedTuple):
    """The logits hidden table^T + bias. Rows whose bias is NO_TOKEN pad the vocabulary."""

    table: Float[ArrayLike, "V M"]  # float32
    bias: Float[ArrayLike, " V"] | None = None  # float32

    def biased(self, bias: Float[ArrayLike, " V"]) -> "Projection":
        """Returns the projection with this bias added."""
        return Projection(self.table, bias if self.bias is None else bias + self.bias)

    def first(self, size: int) -> "Projection":
        return Projection(self.table[:size], None if self.bias is None else self.bias[:size])

    def tempered(self, temperature: float) -> "Projection":
        if temperature == 1:
            return self
        bias = self.bias
        if bias is not None:
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
    result = losses.in_chunks(inputs._replace(weights=-cotangent), gradients=True)
    return (losses.Inputs(result.d_hidden, *result.d_output, None, None),)


_label_log_probs.defvjp(_forward, _backward)


@struct.dataclass
class Cluster:
    """Tokens of neighbouring ids: a table (N, E) of their vectors, and a projection of states.

    The table may have further rows. Those whose bias is NO_TOKEN stand for no token.
    """

    rows: Projection
    projection: Float[ArrayLike, "E M"] | None  # None: E is M
    size: int = struct.field(pytree_node=False)  # the number of tokens

    def narrowed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B E"]:
        """Projects states to the width of the table."""
        if self.projection is None:
            return hidden
        return jnp.dot(hidden, self.projection.astype(hidden.dtype).T)

    def log_probs(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B N"]:
        return jax.nn.log_softmax(self.rows.logits(self.narrowed(hidden)))


@struct.dataclass
class AdaptiveSoftmax:
    """A softmax in two steps, for a vocabulary in the order of frequency (Grave et al. 2017).

    The head has a row for each of the most frequent tokens, and in its last rows one for each tail.
    The probability of a token in a tail is that of the tail times that of the token within it
    (section 4). The loss computes the logits of a tail only where a label belongs to it.
    """

    head: Cluster
    tails: tuple[Cluster, ...]

    def first(self, size: int) -> "AdaptiveSoftmax":
        count = sum(cluster.size for cluster in (self.head, *self.tails))
        if size != count:
            raise ValueError(f"an adaptive softmax of {count} tokens has no part of {size}")
        return self

    def tempered(self, temperature: float) -> "AdaptiveSoftmax":
        if temperature != 1:
            raise UserError(
                f"temperature={temperature}: an adaptive softmax has the temperature 1 alone; set "
                "config.model.adaptive_cutoffs to () for others"
            )
        return self

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Returns the log-probabilities of all tokens (..., V) float32."""
        head = self.head.log_probs(hidden)
        parts = [head[..., : self.head.size]]
        for number, tail in enumerate(self.tails):
            of_tail = head[..., self._row(number), None]
            parts.append(of_tail + tail.log_probs(hidden)[..., : tail.size])
        return jnp.concatenate(parts, axis=-1)

    def cross_entropy(
        self,
        hidden: Float[Array, "B L M"],
        labels: Int[ArrayLike, "B L"],
        weights: Float[ArrayLike, "B L"],
        *,
        label_smoothing: float = 0.0,
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Returns (loss, nll, correct). A label is correct if it is the likeliest of both steps."""
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
        of_head = (self.head.narrowed(hidden), *self.head.rows, head_labels, weights)
        loss, correct = losses.selected_cross_entropy(*of_head)
        first = self.head.size
        for tail, selected in zip(self.tails, inside):
            of_tail = (tail.narrowed(hidden), *tail.rows, labels - first, weights)
            tail_loss, is_likeliest = losses.selected_cross_entropy(*of_tail, selected=selected)
            loss += tail_loss
            correct = jnp.where(selected, correct * is_likeliest, correct)
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
            of_tail = jnp.where(inside, labels - first, 0)
            log_probs = tail.rows.label_log_probs(tail.narrowed(hidden), of_tail)
            within_tails += jnp.where(inside, log_probs, 0.0)
            first += tail.size
        of_head = self.head.rows.label_log_probs(self.head.narrowed(hidden), head_labels)
        return of_head + within_tails

    def _row(self, number: int) -> int:
        """Returns the row of a tail in the head's table."""
        return self.head.rows.table.shape[0] - len(self.tails) + number


def token_log_probs(
    hidden: Float[Array, "B L M"], output: Output, labels: Int[ArrayLike, "B L"]
) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
    """Returns the log-probabilities of the labels (B, L) float32.

    Also returns whether the label has the largest logit (B, L) bool. Each device computes one row
    at a time.
    """

    def rows(logits, labels):
        label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        log_probs = label_logits - jax.nn.logsumexp(logits, axis=-1)
        return log_probs, label_logits >= logits.max(axis=-1)

    return of_logits(rows, hidden, output, labels)


def of_logits(
    function: Callable[..., Any],
    hidden: Float[Array, "B L M"],
    output: Output,
    *arrays: Shaped[ArrayLike, "B L"],
) -> Any:
    """Returns a tree of arrays (B, L): `function` of the logits and of `arrays`, for each row.

    The logits are those of `output` for the states `hidden`. Each device computes one row at a
    time, so that the logits of a large vocabulary take little memory. `function` gets logits (rows,
    L, V) float32, and returns arrays (rows, L).
    """
    parts = sharding.parts("batch")

    # (B, ...) -> (B / parts, parts, ...). Each device has one row of `parts`.
    def split(x):
        x = x.reshape(parts, -1, *x.shape[1:]).swapaxes(0, 1)
        return sharding.constrain(x, None, "batch", *[None] * (x.ndim - 2))

    # (B / parts, parts, L) -> (B, L)
    def join(x):
        return x.swapaxes(0, 1).reshape(hidden.shape[:2])

    def rows(inputs):
        hidden, *arrays = inputs  # (parts, L, M), (parts, L)
        logits = sharding.constrain(output.logits(hidden), "batch", None, "vocab")
        return function(logits, *arrays)

    inputs = tuple(split(jnp.asarray(x)) for x in (hidden, *arrays))
    return jax.tree.map(join, jax.lax.map(rows, inputs))
