"""Cross-entropy of the next token, fused with the output projection."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Shaped

from transformer_jax.distributed import sharding

# The largest number of float32 logits that a device holds at a time. On a CPU they stay in its
# cache (8 MB). On accelerators (256 MB) larger chunks need fewer sums of the table's gradient, most
# of all on a GPU (1 GB): its compiler writes the gradient of a chunk before it is added.
CHUNK_LOGITS = {"cpu": 2**21, "gpu": 2**28}
CHUNK_LOGITS_DEFAULT = 2**26
# The smallest number of positions in a chunk: each chunk adds to the whole gradient of the table.
CHUNK_TOKENS = 256

# The bias of the rows that pad a vocabulary and stand for no token.
NO_TOKEN = -1e9


class _Inputs(NamedTuple):
    """The arrays that `cross_entropy` takes."""

    hidden: Float[Array, "B L M"]
    table: Float[ArrayLike, "V M"]
    bias: Float[ArrayLike, " V"] | None
    labels: Int[Array, "B L"]
    weights: Float[Array, "B L"]


class _Result(NamedTuple):
    """The result for one chunk, or for all. The gradients are those of the loss."""

    sums: tuple[Float[Array, ""], ...]  # loss, nll and correct
    # None without gradients.
    d_hidden: Float[Array, "B L M"] | None
    d_output: tuple[Float[Array, "V M"], Float[Array, " V"] | None] | None  # table and bias
    # Loss, nll and correct of each position; None if not requested.
    by_position: tuple[Float[Array, "B L"], ...] | None


def cross_entropy(
    hidden: Float[Array, "B L M"],
    table: Float[ArrayLike, "V M"],
    bias: Float[ArrayLike, " V"] | None,
    labels: Int[ArrayLike, "B L"],
    weights: Float[ArrayLike, "B L"],
    *,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Returns sums over positions of the cross-entropy of softmax(hidden table^T + bias).

    Args:
      hidden: states (B, L, M).
      table: output projection (V, M) float32.
      bias: (V,) float32, or None. Rows whose bias is NO_TOKEN do not belong to the vocabulary.
      labels: (B, L) int32.
      weights: (B, L) float32; 0 where nothing is predicted.
      label_smoothing: probability mass epsilon that is spread evenly over the vocabulary (Szegedy
        et al. 2016, section 7).

    Returns:
      `(loss, nll, correct)`, float32 scalars: the cross-entropy with label smoothing, the one
      without it, and the number of positions whose label has the largest logit. All three have
      exact gradients. `correct` is constant in everything except the weights.

    The logits exist only in chunks of the length. The forward pass forms the gradient of the loss
    beside them. This takes the same three matrix products as the plain loss, without its arrays
    (B, L, V). With label smoothing, the gradient of `nll` takes a second pass.
    """
    return _cross_entropy(_Inputs(hidden, table, bias, labels, weights), label_smoothing)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _cross_entropy(inputs, label_smoothing):
    return _scan_chunks(inputs, label_smoothing).sums


def _forward(inputs, label_smoothing):
    def is_primal(x):
        return hasattr(x, "perturbed")

    # The weights' gradient needs the terms of each position.
    by_position = inputs.weights.perturbed
    inputs = jax.tree.map(lambda x: x.value, inputs, is_leaf=is_primal)
    result = _scan_chunks(inputs, label_smoothing, gradients=True, by_position=by_position)
    return result.sums, (result, inputs if label_smoothing else None)


def _backward(label_smoothing, residuals, cotangents):
    result, inputs = residuals
    cotangents = [None if isinstance(x, SymbolicZero) else x for x in cotangents]
    d_loss, d_nll, _ = cotangents
    loss_gradients = (result.d_hidden, result.d_output)
    nll_gradients = loss_gradients
    if label_smoothing and d_nll is not None:
        nll = _scan_chunks(inputs, 0.0, gradients=True)
        nll_gradients = (nll.d_hidden, nll.d_output)
    total = _weighted_sum((d_loss, d_nll), (loss_gradients, nll_gradients))
    d_hidden, (d_table, d_bias) = total or (None, (None, None))
    d_weights = None
    if result.by_position is not None:
        d_weights = _weighted_sum(cotangents, result.by_position)
    return (_Inputs(d_hidden, d_table, d_bias, None, d_weights),)


def _weighted_sum(cotangents, gradients):
    """Returns the sum of the trees `gradients`, each times its cotangent.

    A cotangent of None stands for zero. Returns None if all are None.
    """
    scaled = [
        jax.tree.map(lambda x, cotangent=cotangent: (x * cotangent).astype(x.dtype), gradient)
        for cotangent, gradient in zip(cotangents, gradients)
        if cotangent is not None
    ]
    if not scaled:
        return None
    return functools.reduce(functools.partial(jax.tree.map, jnp.add), scaled)


# Symbolic zeros are known while tracing: they tell which gradients are not needed.
_cross_entropy.defvjp(_forward, _backward, symbolic_zeros=True)


def num_chunks(batch: int, length: int, vocab_size: int) -> int:
    """Returns the smallest number of chunks whose logits stay within a device's limit."""
    vocab_parts = sharding.parts("vocab")
    logits = batch * length * vocab_size / sharding.parts("batch") / vocab_parts
    limit = CHUNK_LOGITS.get(sharding.platform(), CHUNK_LOGITS_DEFAULT)
    limit = max(limit, CHUNK_TOKENS * vocab_size / vocab_parts)
    return min(math.ceil(logits / limit), length)


def _scan_chunks(inputs: _Inputs, smoothing, gradients=False, by_position=False) -> _Result:
    batch, length, _ = inputs.hidden.shape
    output = (inputs.table, inputs.bias)
    chunks = num_chunks(batch, length, inputs.table.shape[0])

    def compute(chunk):
        hidden, labels, weights = chunk
        return _chunk(
            _Inputs(hidden, *output, labels, weights),
            smoothing,
            gradients=gradients,
            by_position=by_position,
        )

    by_length = (inputs.hidden, inputs.labels, inputs.weights)
    if chunks == 1:
        return compute(by_length)
    size = -(-length // chunks)

    # (B, L, ...) -> (chunks, B, size, ...). The padding of the last chunk has weight 0.
    def split(x):
        padding = [(0, 0)] * x.ndim
        padding[1] = (0, chunks * size - length)
        x = jnp.pad(x, padding).reshape(batch, chunks, size, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    # (chunks, B, size, ...) -> (B, L, ...)
    def join(x):
        x = jnp.moveaxis(x, 0, 1).reshape(batch, chunks * size, *x.shape[3:])
        return x[:, :length]

    def body(totals, chunk):
        result = compute(chunk)
        totals = jax.tree.map(jnp.add, totals, (result.sums, result.d_output))
        return totals, (result.d_hidden, result.by_position)

    zero_sums = (jnp.zeros(()),) * 3
    zero_output = jax.tree.map(jnp.zeros_like, output) if gradients else None
    totals, parts = jax.lax.scan(body, (zero_sums, zero_output), tuple(map(split, by_length)))
    sums, d_output = totals
    d_hidden, terms = jax.tree.map(join, parts)
    return _Result(sums, d_hidden, d_output, terms)


def _chunk(inputs: _Inputs, smoothing, *, gradients, by_position) -> _Result:
    hidden, table, bias, labels, weights = inputs
    matrix = table.astype(hidden.dtype)
    logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=jnp.float32)
    logits = sharding.constrain(logits if bias is None else logits + bias, "batch", None, "vocab")
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == labels[..., None]
    log_z = jax.nn.logsumexp(logits, axis=-1)  # (B, L)
    label_logits = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    nll = log_z - label_logits
    spread, mean = _spread_mass(logits, bias, smoothing)
    loss = (1 - smoothing) * nll + (smoothing * (log_z - mean) if smoothing else 0)
    correct = label_logits >= logits.max(axis=-1)  # an argmax is far slower
    sums = tuple(jnp.sum(x * weights) for x in (loss, nll, correct))
    terms = (loss, nll, correct.astype(jnp.float32)) if by_position else None
    if not gradients:
        return _Result(sums, None, None, terms)
    target = (1 - smoothing) * is_label + spread  # (B, L, V)
    d_logits = (jnp.exp(logits - log_z[..., None]) - target) * weights[..., None]
    d_logits = d_logits.astype(hidden.dtype)
    d_hidden = jnp.einsum("blv,vm->blm", d_logits, matrix)
    d_table = jnp.einsum("blv,blm->vm", d_logits, hidden, preferred_element_type=jnp.float32)
    d_bias = None if bias is None else d_logits.sum((0, 1), dtype=jnp.float32)
    return _Result(sums, d_hidden, (d_table, d_bias), terms)


def _spread_mass(logits, bias, smoothing):
    """Returns the smoothing mass of each token, and the mean of all tokens' logits (B, L).

    The mass is a scalar, or (V,) with 0 for rows that stand for no token.
    """
    if not smoothing or bias is None:
        return smoothing / logits.shape[-1], logits.mean(axis=-1) if smoothing else None
    is_token = bias > NO_TOKEN / 2
    count = is_token.sum()
    mean = jnp.where(is_token, logits, 0).sum(axis=-1) / count
    return smoothing * is_token / count, mean


def label_nll(
    logits: Float[Array, "*axes C"], labels: Int[ArrayLike, "*axes"]
) -> Float[Array, "*axes"]:
    """Returns -log softmax(logits)[label] (...), of logits (..., C) float32 of few classes.

    `labels` (...) are int32.
    """
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - label_logits


def token_log_probs(
    hidden: Float[Array, "B L M"],
    table: Float[ArrayLike, "V M"],
    bias: Float[ArrayLike, " V"] | None,
    labels: Int[ArrayLike, "B L"],
) -> tuple[Float[Array, "B L"], Bool[Array, "B L"]]:
    """Returns log softmax(hidden table^T + bias)[label] (B, L) float32.

    Also returns whether the label has the largest logit (B, L) bool. Each device computes one row
    at a time.
    """

    def rows(logits, labels):
        label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        log_probs = label_logits - jax.nn.logsumexp(logits, axis=-1)
        return log_probs, label_logits >= logits.max(axis=-1)

    return of_logits(rows, (hidden, table, bias), labels)


def of_logits(
    function: Callable[..., Any],
    projection: tuple[
        Float[Array, "B L M"], Float[ArrayLike, "V M"], Float[ArrayLike, " V"] | None
    ],
    *arrays: Shaped[ArrayLike, "B L"],
) -> Any:
    """Returns a tree of arrays (B, L): `function` of the logits and of `arrays`, for each row.

    `projection` is (hidden, table, bias) of the logits, as in `cross_entropy`. Each device computes
    one row at a time, so that the logits of a large vocabulary take little memory. `function` gets
    logits (rows, L, V) float32, and returns arrays (rows, L).
    """
    parts = sharding.parts("batch")
    hidden, table, bias = projection
    matrix = table.astype(hidden.dtype)

    # (B, ...) -> (B / parts, parts, ...). Each device has one row of `parts`.
    def split(x):
        x = x.reshape(parts, -1, *x.shape[1:]).swapaxes(0, 1)
        return sharding.constrain(x, None, "batch", *[None] * (x.ndim - 2))

    # (B / parts, parts, L) -> (B, L)
    def join(x):
        return x.swapaxes(0, 1).reshape(hidden.shape[:2])

    def rows(inputs):
        hidden, *arrays = inputs  # (parts, L, M), (parts, L)
        logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        return function(sharding.constrain(logits, "batch", None, "vocab"), *arrays)

    inputs = tuple(split(jnp.asarray(x)) for x in (hidden, *arrays))
    return jax.tree.map(join, jax.lax.map(rows, inputs))
