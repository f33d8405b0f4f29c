"""Cross-entropy of the next token, fused with the output projection."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from transformer_jax.distributed import sharding

# float32 logits a device holds at a time: what stays in a CPU's cache (8 MB); on accelerators 256
# MB, for fewer sums of the table's gradient
CHUNK_LOGITS = {"cpu": 2**21}
CHUNK_LOGITS_DEFAULT = 2**26
# but no fewer positions than this: each chunk adds to the table's whole gradient
CHUNK_TOKENS = 256


NO_TOKEN = -1e9  # bias of the rows that only fill up a vocabulary: they stand for no token


class _Result(NamedTuple):
    """What is computed of one chunk or of all; None where it is not asked for."""

    sums: tuple[jax.Array, ...]  # loss, nll and correct
    d_hidden: jax.Array | None  # gradient of the loss by hidden (B, L, M)
    d_output: tuple[jax.Array, jax.Array | None] | None  # by (table, bias)
    each: tuple[jax.Array, ...] | None  # loss, nll and correct of each position (B, L)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def cross_entropy(
    hidden: jax.Array,
    table: jax.Array,
    bias: jax.Array | None,
    labels: jax.Array,
    weights: jax.Array,
    label_smoothing: float = 0.0,
):
    """Sums over positions of the cross-entropy of softmax(hidden table^T + bias).

    hidden (B, L, M); table (V, M) and bias (V,) float32; labels (B, L) int32; weights (B, L)
    float32, 0 where nothing is to be predicted. Returns float32 scalars `(loss, nll, correct)`:
    with label smoothing (mass epsilon spread evenly over the vocabulary, Szegedy et al. 2016,
    section 7), without it, and the number of right argmaxes. Rows whose bias is NO_TOKEN are no
    part of the vocabulary.

    All three have exact gradients; `correct` is constant in everything but the weights.
    The logits exist in chunks of the length alone, and the gradient of the loss is formed beside
    them in the forward pass: the same three matrix products as the plain loss, without its
    (B, L, V) arrays. With label smoothing, the gradient of `nll` takes a second such pass.
    """
    return _scan_chunks((hidden, table, bias, labels, weights), label_smoothing).sums


def _forward(hidden, table, bias, labels, weights, label_smoothing):
    primals = (hidden, table, bias, labels, weights)
    inputs = jax.tree.map(lambda x: x.value, primals, is_leaf=lambda x: hasattr(x, "perturbed"))
    result = _scan_chunks(inputs, label_smoothing, want_grads=True, want_each=weights.perturbed)
    return result.sums, (result, inputs if label_smoothing else None)


def _backward(label_smoothing, residuals, cotangents):
    result, inputs = residuals
    cotangents = [None if isinstance(x, SymbolicZero) else x for x in cotangents]
    by_loss, by_nll, _ = cotangents
    gradients = [(result.d_hidden, result.d_output)] * 2
    if label_smoothing and by_nll is not None:
        nll = _scan_chunks(inputs, 0.0, want_grads=True)
        gradients[1] = nll.d_hidden, nll.d_output
    d_hidden, d_output = _combined((by_loss, by_nll), gradients) or (None, (None, None))
    d_weights = _combined(cotangents, result.each) if result.each else None
    return d_hidden, *d_output, None, d_weights


def _combined(cotangents, gradients):
    """The sum of trees, each times its cotangent; None where there is no cotangent."""
    scaled = [
        jax.tree.map(lambda x: (x * cotangent).astype(x.dtype), gradient)
        for cotangent, gradient in zip(cotangents, gradients)
        if cotangent is not None
    ]
    return functools.reduce(functools.partial(jax.tree.map, jnp.add), scaled) if scaled else None


# The zeros that are known while tracing tell which gradients nobody asks for.
cross_entropy.defvjp(_forward, _backward, symbolic_zeros=True)


def num_chunks(batch: int, length: int, vocab_size: int) -> int:
    """The fewest parts of the length whose logits stay within the limit on a device."""
    here = batch * length * vocab_size / sharding.parts("batch") / sharding.parts("vocab")
    limit = max(
        CHUNK_LOGITS.get(sharding.platform(), CHUNK_LOGITS_DEFAULT),
        CHUNK_TOKENS * vocab_size / sharding.parts("vocab"),
    )
    return min(math.ceil(here / limit), length)


def _scan_chunks(inputs, smoothing, want_grads=False, want_each=False) -> _Result:
    hidden, table, bias, labels, weights = inputs
    batch, length, _ = hidden.shape
    chunks = num_chunks(batch, length, table.shape[0])
    one = functools.partial(_chunk, (table, bias), smoothing, want_grads, want_each)
    if chunks == 1:
        return one((hidden, labels, weights))
    size = -(-length // chunks)

    # (B, L, ...) -> (chunks, B, size, ...); what fills up the last chunk has no weight
    def split(x):
        x = jnp.pad(x, ((0, 0), (0, chunks * size - length), *[(0, 0)] * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, chunks, size, *x.shape[2:]), 1, 0)

    def join(x):  # (chunks, B, size, ...) -> (B, L, ...)
        return jnp.moveaxis(x, 0, 1).reshape(batch, chunks * size, *x.shape[3:])[:, :length]

    def body(carry, chunk):
        result = one(chunk)
        added = jax.tree.map(jnp.add, carry, (result.sums, result.d_output))
        return added, (result.d_hidden, result.each)

    zeros = jax.tree.map(jnp.zeros_like, (table, bias)) if want_grads else None
    split_inputs = tuple(map(split, (hidden, labels, weights)))
    (sums, d_output), parts = jax.lax.scan(body, ((jnp.zeros(()),) * 3, zeros), split_inputs)
    d_hidden, each = jax.tree.map(join, parts)
    return _Result(sums, d_hidden, d_output, each)


def _chunk(output, smoothing, want_grads, want_each, chunk) -> _Result:
    """One chunk (hidden, labels, weights)."""
    (table, bias), (hidden, labels, weights) = output, chunk
    matrix = table.astype(hidden.dtype)
    logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=jnp.float32)
    logits = sharding.constrain(logits if bias is None else logits + bias, "batch", None, "vocab")
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == labels[..., None]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    nll = log_z - picked
    spread, mean = _evenly(logits, bias, smoothing)
    loss = (1 - smoothing) * nll + (smoothing * (log_z - mean) if smoothing else 0)
    correct = picked >= logits.max(axis=-1)  # an argmax is far slower
    sums = tuple(jnp.sum(x * weights) for x in (loss, nll, correct))
    each = (loss, nll, correct.astype(jnp.float32)) if want_each else None
    if not want_grads:
        return _Result(sums, None, None, each)
    target = (1 - smoothing) * is_label + spread
    d_logits = ((jnp.exp(logits - log_z[..., None]) - target) * weights[..., None]).astype(
        hidden.dtype
    )
    d_hidden = jnp.einsum("blv,vm->blm", d_logits, matrix)
    d_table = jnp.einsum("blv,blm->vm", d_logits, hidden, preferred_element_type=jnp.float32)
    d_bias = None if bias is None else d_logits.sum((0, 1), dtype=jnp.float32)
    return _Result(sums, d_hidden, (d_table, d_bias), each)


def _evenly(logits, bias, smoothing):
    """The mass of label smoothing on each row of the table, and the mean of the tokens' logits."""
    if not smoothing or bias is None:
        return smoothing / logits.shape[-1], logits.mean(axis=-1) if smoothing else None
    is_token = bias > NO_TOKEN / 2
    count = is_token.sum()
    return smoothing * is_token / count, jnp.where(is_token, logits, 0).sum(axis=-1) / count


def label_nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] where classes are few: (..., C) float32, (...) int32 -> (...)."""
    return (
        jax.nn.logsumexp(logits, axis=-1)
        - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    )


def token_log_probs(
    hidden: jax.Array, table: jax.Array, bias: jax.Array | None, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log softmax(hidden table^T + bias)[label], float32 (B, L), and whether the label is the
    likeliest, bool (B, L); row by row.
    """

    def row(inputs):
        hidden, labels = inputs
        logits = jnp.einsum(
            "lm,vm->lv", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32
        )
        logits = logits if bias is None else logits + bias
        picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return picked - jax.nn.logsumexp(logits, axis=-1), picked >= logits.max(axis=-1)

    return jax.lax.map(row, (hidden, labels))
