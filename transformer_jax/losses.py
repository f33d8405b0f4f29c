"""Cross-entropy of the next token, fused with the output projection, and streaming metrics."""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from transformer_jax.distributed import sharding

# The largest number of bytes of logits that a device holds at a time. On a CPU, 8 MB stay in the
# cache. On accelerators (256 MB), larger chunks mean fewer additions to the gradient of the whole
# table. This matters most on a GPU (1 GB), where XLA writes the gradient of each chunk to memory
# before it is added.
CHUNK_BYTES = {"cpu": 2**23, "gpu": 2**30}
CHUNK_BYTES_DEFAULT = 2**28
# The smallest number of positions in a chunk. Each chunk is added to the gradient of the whole
# table, so that many small chunks would spend their time on that.
CHUNK_TOKENS = 256

# The bias of table rows that only pad the vocabulary and belong to no token. Their probability is 0
# in float32.
NO_TOKEN = -1e9


class Inputs(NamedTuple):
    """The arrays that `cross_entropy` takes."""

    hidden: Float[Array, "B L M"]
    table: Float[ArrayLike, "V M"]
    bias: Float[ArrayLike, " V"] | None
    labels: Int[Array, "B L"]
    weights: Float[Array, "B L"]
    selected: Bool[Array, "B L"] | None = None


class _Result(NamedTuple):
    """The result for one chunk, or for all. The gradients belong to the loss."""

    sums: tuple[Float[Array, ""], ...]  # loss, nll and correct
    # None without gradients.
    d_hidden: Float[Array, "B L M"] | None
    d_output: tuple[Float[Array, "V M"], Float[Array, " V"] | None] | None  # table and bias
    by_position: tuple[Float[Array, "B L"], ...]  # loss, nll and correct


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
      hidden: hidden states (B, L, M).
      table: output projection (V, M) float32.
      bias: (V,) float32, or None. Rows whose bias is NO_TOKEN do not belong to the vocabulary.
      labels: (B, L) int32.
      weights: (B, L) float32; 0 where nothing is predicted.
      label_smoothing: probability mass epsilon that is spread evenly over the vocabulary (Szegedy
        et al. 2016, section 7).

    Returns:
      `(loss, nll, correct)`, float32 scalars: the cross-entropy with label smoothing, the one
      without it, and the number of positions whose label has the largest logit. All three have
      exact gradients, up to the rounding of the logits, which are stored in the dtype of `hidden`
      if gradients are computed. `correct` is constant in everything except the weights, and counts
      a label whose logit equals the largest one, as rounded logits do more often.

    The logits are materialized only for a chunk of the length at a time. The forward pass computes
    the gradient of the loss while a chunk's logits exist, so that the backward pass need not
    compute them again. This takes the same three matrix products as the plain loss, but without
    its arrays (B, L, V). With label smoothing, the gradient of `nll` takes a second pass.
    """
    inputs = Inputs(hidden, table, bias, labels, weights)
    return _cross_entropy(inputs, label_smoothing)[0]


def selected_cross_entropy(
    hidden: Float[Array, "B L M"],
    table: Float[ArrayLike, "V M"],
    bias: Float[ArrayLike, " V"] | None,
    labels: Int[ArrayLike, "B L"],
    weights: Float[ArrayLike, "B L"],
    *,
    selected: Bool[ArrayLike, "B L"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, "B L"]]:
    """Returns (the cross-entropy, 1 where the label of a position has the largest logit).

    The cross-entropy is summed over the `selected` positions, by default all. Logits are computed
    for these positions only, in as many chunks as they fill, so that the time is proportional to
    their number. The second array is 0 at all other positions.
    """
    inputs = Inputs(hidden, table, bias, labels, weights, selected)
    sums, is_correct = _cross_entropy(inputs, 0.0)
    return sums[0], is_correct


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _cross_entropy(inputs, label_smoothing):
    result = in_chunks(inputs, label_smoothing)
    return result.sums, result.by_position[2]


def _forward(inputs, label_smoothing):
    def is_primal(x):
        return hasattr(x, "perturbed")

    weights_are_perturbed = inputs.weights.perturbed
    inputs = jax.tree.map(lambda x: x.value, inputs, is_leaf=is_primal)
    result = in_chunks(inputs, label_smoothing, gradients=True)
    # The gradient of the weights needs the terms of each position, which are otherwise not kept.
    terms = result.by_position if weights_are_perturbed else None
    # The inputs are kept only with label smoothing, because the gradient of `nll` then needs a
    # second pass.
    residuals = (result._replace(by_position=terms), inputs if label_smoothing else None)
    return (result.sums, result.by_position[2]), residuals


def _backward(label_smoothing, residuals, cotangents):
    result, inputs = residuals
    # The second output, whether each position is correct, is piecewise constant, so its cotangent
    # is dropped.
    cotangents = [None if isinstance(x, SymbolicZero) else x for x in cotangents[0]]
    d_loss, d_nll, _ = cotangents
    loss_gradients = (result.d_hidden, result.d_output)
    nll_gradients = loss_gradients
    if label_smoothing and d_nll is not None:
        nll = in_chunks(inputs, gradients=True)
        nll_gradients = (nll.d_hidden, nll.d_output)
    total = _weighted_sum((d_loss, d_nll), (loss_gradients, nll_gradients))
    d_hidden, (d_table, d_bias) = total or (None, (None, None))
    d_weights = None
    if result.by_position is not None:
        d_weights = _weighted_sum(cotangents, result.by_position)
    return (Inputs(d_hidden, d_table, d_bias, None, d_weights, None),)


def _weighted_sum(cotangents, gradients):
    """Returns the sum of the trees `gradients`, each multiplied by its cotangent.

    A cotangent of None is zero. Returns None if all are None.
    """
    scaled = [
        jax.tree.map(lambda x, cotangent=cotangent: (x * cotangent).astype(x.dtype), gradient)
        for cotangent, gradient in zip(cotangents, gradients)
        if cotangent is not None
    ]
    if not scaled:
        return None
    return functools.reduce(functools.partial(jax.tree.map, jnp.add), scaled)


# With symbolic zeros, `_forward` and `_backward` know during tracing which gradients are needed.
# Most losses need neither the gradient of the weights nor of `nll`.
_cross_entropy.defvjp(_forward, _backward, symbolic_zeros=True)


def num_chunks(batch: int, length: int, vocab_size: int, dtype=jnp.float32) -> int:
    """Returns about the smallest number of chunks whose logits stay within a device's limit."""
    vocab_parts = sharding.parts("vocab")
    logits = batch * length * vocab_size / sharding.parts("batch") / vocab_parts
    limit = CHUNK_BYTES.get(sharding.platform(), CHUNK_BYTES_DEFAULT) / jnp.dtype(dtype).itemsize
    limit = max(limit, CHUNK_TOKENS * vocab_size / vocab_parts)
    least = min(math.ceil(logits / limit), length)
    # A few chunks more are better than positions that only pad the last one, and than products
    # whose sizes do not fit the tiles of a GPU: 8 chunks of 128 positions, not 7 of 147.
    most = min(math.ceil(1.5 * least), length)
    return next((count for count in range(least, most + 1) if length % count == 0), least)


def in_chunks(inputs: Inputs, smoothing: float = 0.0, *, gradients: bool = False) -> _Result:
    """Returns the loss, computed for one chunk of the length after the other."""
    if inputs.selected is not None:
        return _selected_chunks(inputs, smoothing, gradients)
    batch, length, _ = inputs.hidden.shape
    output = _cast(inputs)
    dtype = _logits_dtype(inputs, gradients)
    chunks = num_chunks(batch, length, inputs.table.shape[0], dtype)

    def compute(chunk):
        hidden, labels, weights = chunk
        return _chunk(Inputs(hidden, *output, labels, weights), smoothing, gradients=gradients)

    by_length = (inputs.hidden, inputs.labels, inputs.weights)
    if chunks == 1:
        return compute(by_length)
    size = -(-length // chunks)

    # (B, L, ...) -> (chunks, B, size, ...). The length is divided, not the batch, so that each
    # device keeps its own rows. The padding of the last chunk has weight 0.
    def split(x):
        padding = [(0, 0)] * x.ndim
        padding[1] = (0, chunks * size - length)
        x = jnp.pad(x, padding).reshape(batch, chunks, size, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    def join(x):
        x = jnp.moveaxis(x, 0, 1).reshape(batch, chunks * size, *x.shape[3:])
        return x[:, :length]

    def body(totals, chunk):
        result = compute(chunk)
        totals = jax.tree.map(jnp.add, totals, (result.sums, result.d_output))
        return totals, (result.d_hidden, result.by_position)

    zero_sums = (jnp.zeros(()),) * 3
    zero_output = _zero_output(inputs) if gradients else None
    totals, parts = jax.lax.scan(body, (zero_sums, zero_output), tuple(map(split, by_length)))
    sums, d_output = totals
    d_hidden, terms = jax.tree.map(join, parts)
    return _Result(sums, d_hidden, d_output, terms)


def _selected_chunks(inputs: Inputs, smoothing, gradients) -> _Result:
    """Returns the loss, computed in chunks of selected positions.

    All devices compute as many chunks as the device with the most selected positions fills.
    """
    shape = inputs.labels.shape
    # There are as many parts as divide the batch, because a small one may have fewer rows than the
    # mesh has parts.
    parts = math.gcd(sharding.parts("batch"), shape[0])
    output = _cast(inputs)

    # (B, L, ...) -> (parts, N, ...). Each device sorts and computes its own part, so that no hidden
    # state has to move to another device.
    def split(x):
        x = x.reshape(parts, -1, *x.shape[2:])
        return sharding.constrain(x, "batch", *[None] * (x.ndim - 1))

    selected = split(inputs.selected)
    arrays = tuple(map(split, (inputs.hidden, inputs.labels, inputs.weights)))
    count = selected.sum(axis=1, keepdims=True)
    length = selected.shape[1]
    size = min(CHUNK_TOKENS, length)
    # The selected positions come first. The padding of the last chunk has the index `length`, which
    # is out of range: reads are clipped and have weight 0, and writes are dropped.
    order = jnp.argsort(~selected, axis=1)
    order = jnp.pad(order, ((0, 0), (0, -length % size)), constant_values=length)
    take = jax.vmap(functools.partial(jnp.take, axis=0, mode="clip"))

    def body(number, state):
        totals, by_position = state
        positions = jax.lax.dynamic_slice_in_dim(order, number * size, size, axis=1)
        is_selected = number * size + jnp.arange(size) < count
        hidden, labels, weights = (take(x, positions) for x in arrays)
        chunk = Inputs(hidden, *output, labels, weights * is_selected)
        result = _chunk(chunk, smoothing, gradients=gradients)
        totals = jax.tree.map(jnp.add, totals, (result.sums, result.d_output))
        positions = jnp.where(is_selected, positions, length)
        new = (result.d_hidden, result.by_position)
        put = jax.vmap(lambda x, at, rows: x.at[at].set(rows, mode="drop"))
        return totals, jax.tree.map(lambda x, rows: put(x, positions, rows), by_position, new)

    terms = (jnp.zeros(selected.shape),) * 3
    totals = ((jnp.zeros(()),) * 3, _zero_output(inputs) if gradients else None)
    state = (totals, (jnp.zeros_like(arrays[0]) if gradients else None, terms))
    num_filled = -(-count.max() // size)
    (sums, d_output), by_position = jax.lax.fori_loop(0, num_filled, body, state)
    d_hidden, terms = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[2:]), by_position)
    return _Result(sums, d_hidden, d_output, terms)


def _logits_dtype(inputs: Inputs, gradients: bool) -> jnp.dtype:
    """Returns the dtype in which logits are stored. All that is computed from them is float32.

    In bfloat16 they take half of the bytes, which matters where they are read again for gradients:
    they are most of what the loss moves. A loss alone, as in evaluation, is not rounded.
    """
    return inputs.hidden.dtype if gradients else jnp.dtype(jnp.float32)


def _cast(inputs: Inputs) -> tuple[Array, Array | None]:
    """Returns the table in the dtype of the hidden states, once for all chunks, and the bias."""
    return jnp.asarray(inputs.table).astype(inputs.hidden.dtype), inputs.bias


def _zero_output(inputs: Inputs) -> tuple[Array, Array | None]:
    return jax.tree.map(jnp.zeros_like, (inputs.table, inputs.bias))


def _chunk(inputs: Inputs, smoothing, *, gradients) -> _Result:
    hidden, matrix, bias, labels, weights, _ = inputs
    # The table's gradient is float32, because it is a sum over many positions.
    dtype = _logits_dtype(inputs, gradients)
    logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=dtype)
    logits = sharding.constrain(logits, "batch", None, "vocab").astype(jnp.float32)
    logits = logits if bias is None else logits + bias
    # Labels are compared rather than used to gather logits, because the vocabulary may be split
    # over devices, and each can compare its own part.
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == labels[..., None]
    mass = _smoothing_mass(bias, logits.shape[-1], smoothing)
    # The targets of label smoothing add up to one, so the loss is log z minus a mean of logits.
    smoothed = [jnp.where(mass > 0, mass * logits, 0)] if smoothing else []
    log_z, highest, label_logits, *means = _summed(
        logits, jnp.where(is_label, logits, 0), *smoothed
    )
    nll = log_z - label_logits
    loss = log_z - (1 - smoothing) * label_logits - means[0] if smoothing else nll
    correct = label_logits >= highest  # an argmax over the vocabulary is far slower
    terms = (loss, nll, correct.astype(jnp.float32))
    sums = tuple(jnp.sum(x * weights) for x in terms)
    if not gradients:
        return _Result(sums, None, None, terms)
    target = (1 - smoothing) * is_label + mass  # (B, L, V)
    d_logits = (jnp.exp(logits - log_z[..., None]) - target) * weights[..., None]
    d_logits = d_logits.astype(hidden.dtype)
    d_hidden = jnp.einsum("blv,vm->blm", d_logits, matrix)
    d_table = jnp.einsum("blv,blm->vm", d_logits, hidden, preferred_element_type=jnp.float32)
    d_bias = None if bias is None else d_logits.sum((0, 1), dtype=jnp.float32)
    return _Result(sums, d_hidden, (d_table, d_bias), terms)


def _summed(
    logits: Float[Array, "B L V"], *others: Float[Array, "B L V"]
) -> tuple[Float[Array, "B L"], ...]:
    """Returns log sum exp(logits), the largest logits, and the sums of the other arrays."""
    if sharding.platform() != "gpu" or sharding.parts("vocab") > 1:
        sums = (jax.nn.logsumexp(logits, axis=-1), logits.max(axis=-1))
        return *sums, *(x.sum(axis=-1) for x in others)

    # The time of a GPU goes into reading the logits, so they are read once instead of twice, first
    # for the largest one: the sum is rescaled whenever a larger logit is found (Milakov &
    # Gimelshein 2018, algorithm 3). XLA does not know how to add up such tuples over devices.
    def add(first, second):
        highest = jnp.maximum(first[0], second[0])
        total = sum(total * jnp.exp(largest - highest) for largest, total, *_ in (first, second))
        return highest, total, *map(jnp.add, first[2:], second[2:])

    # The largest of nothing is finite, because the difference of two infinities is not a number.
    start = (jnp.finfo(jnp.float32).min, 0.0, *[0.0] * len(others))
    highest, total, *sums = jax.lax.reduce(
        (logits, jnp.ones_like(logits), *others), start, add, (2,)
    )
    return highest + jnp.log(total), highest, *sums


def _smoothing_mass(bias, vocab_size: int, smoothing: float):
    """Returns the mass that label smoothing gives to each token: a scalar, or (V,).

    Table rows that only pad the vocabulary get none, because their logits near NO_TOKEN would
    dominate the loss.
    """
    if not smoothing or bias is None:
        return smoothing / vocab_size
    is_token = bias > NO_TOKEN / 2
    return smoothing * is_token / is_token.sum()


def label_nll(
    logits: Float[Array, "*axes C"], labels: Int[ArrayLike, "*axes"]
) -> Float[Array, "*axes"]:
    """Returns -log softmax(logits)[label] (...), for logits (..., C) float32 of few classes.

    `labels` (...) are int32. For a vocabulary, `cross_entropy` needs far less memory.
    """
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - label_logits


# --------------------------------------------------------------------------------------------------
# Streaming metrics: sums that are added over positions, microbatches, updates and devices.
#
# Metrics are a dict {name: (total, count)} of scalars, and the mean is total / count. Counts that
# must be exact are int32, because float32 is exact only up to 2**24.

Metrics = dict[str, tuple[jax.typing.ArrayLike, jax.typing.ArrayLike]]


def add_metrics(a: Metrics, b: Metrics) -> Metrics:
    """Returns the sums of both. The sum of two arrays on the host stays on the host."""
    return jax.tree.map(operator.add, a, b)


def zero_metrics(metrics: dict[str, tuple]) -> Metrics:
    """Returns zeros with the names, shapes and dtypes of `metrics`, which may be abstract."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)


def mean_metrics(metrics: Metrics) -> dict[str, float]:
    """Returns the means of metrics on the host, as floats. The mean of no terms is nan."""
    return {
        name: float(total) / float(count) if count else math.nan
        for name, (total, count) in metrics.items()
    }
