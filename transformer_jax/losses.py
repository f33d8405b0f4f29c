"""Cross-entropy of the next token, fused with the output projection."""
import functools
import math

import jax
import jax.numpy as jnp

from transformer_jax import sharding

# float32 logits a device holds at a time: what stays in a CPU's cache (8 MB); on accelerators 256 MB, for fewer sums of the table's gradient
CHUNK_LOGITS = {"cpu": 2**21}
CHUNK_LOGITS_DEFAULT = 2**26
CHUNK_TOKENS = 256  # but no fewer positions than this: each chunk adds to the table's whole gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def cross_entropy(hidden: jax.Array, table: jax.Array, bias: jax.Array | None, labels: jax.Array, weights: jax.Array, label_smoothing: float = 0.0):
    """Sums over positions of the cross-entropy of softmax(hidden table^T + bias).

    hidden (B, L, M); table (V, M) and bias (V,) float32; labels (B, L) int32; weights (B, L) float32, 0 where nothing is to be
    predicted. Returns float32 scalars `(loss, nll, correct)`: with label smoothing (mass epsilon spread evenly over
    the vocabulary, Szegedy et al. 2016, section 7), without it, and the number of right argmaxes. Only `loss` has a gradient.

    The logits exist in chunks of the length alone, and the gradient is formed beside them in the forward pass:
    the same three matrix products as the plain loss, without its (B, L, V) arrays.
    """
    return _scan_chunks(hidden, table, bias, labels, weights, label_smoothing, want_grads=False)[0]


def _forward(hidden, table, bias, labels, weights, label_smoothing):
    return _scan_chunks(hidden, table, bias, labels, weights, label_smoothing, want_grads=True)


def _backward(label_smoothing, gradients, cotangents):
    d_hidden, (d_table, d_bias) = gradients
    scale = cotangents[0]
    return (d_hidden * scale).astype(d_hidden.dtype), d_table * scale, None if d_bias is None else d_bias * scale, None, None


cross_entropy.defvjp(_forward, _backward)


def num_chunks(batch: int, length: int, vocab_size: int) -> int:
    """The fewest parts of the length whose logits stay within the limit on a device."""
    here = batch * length * vocab_size / sharding.parts("batch") / sharding.parts("vocab")
    limit = max(CHUNK_LOGITS.get(sharding.platform(), CHUNK_LOGITS_DEFAULT), CHUNK_TOKENS * vocab_size / sharding.parts("vocab"))
    return min(math.ceil(here / limit), length)


def _scan_chunks(hidden, table, bias, labels, weights, label_smoothing, want_grads):
    batch, length, _ = hidden.shape
    chunks = num_chunks(batch, length, table.shape[0])
    one = functools.partial(_chunk, table, bias, label_smoothing, want_grads)
    if chunks == 1:
        sums, d_hidden, d_output = one(hidden, labels, weights)
        return sums, (d_hidden, d_output)
    size = -(-length // chunks)

    def split(x):  # (B, L, ...) -> (chunks, B, size, ...); what fills up the last chunk has no weight
        x = jnp.pad(x, ((0, 0), (0, chunks * size - length), *[(0, 0)] * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, chunks, size, *x.shape[2:]), 1, 0)

    def body(carry, chunk):
        sums, d_hidden, d_output = one(*chunk)
        return jax.tree.map(jnp.add, carry, (sums, d_output)), d_hidden

    zeros = ((jnp.zeros(()),) * 3, jax.tree.map(jnp.zeros_like, (table, bias)) if want_grads else None)
    (sums, d_output), d_hidden = jax.lax.scan(body, zeros, (split(hidden), split(labels), split(weights)))
    if want_grads:
        d_hidden = jnp.moveaxis(d_hidden, 0, 1).reshape(batch, chunks * size, -1)[:, :length]
    return sums, (d_hidden, d_output)


def _chunk(table, bias, smoothing, want_grads, hidden, labels, weights):
    """Sums over one chunk, and the gradients of its loss by hidden and by (table, bias) (None unless wanted)."""
    matrix = table.astype(hidden.dtype)
    logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=jnp.float32)
    logits = sharding.constrain(logits if bias is None else logits + bias, "batch", None, "vocab")
    is_label = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == labels[..., None]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
    nll = log_z - picked
    loss = (1 - smoothing) * nll + (smoothing * (log_z - logits.mean(axis=-1)) if smoothing else 0)
    correct = picked >= logits.max(axis=-1)  # an argmax is far slower
    sums = tuple(jnp.sum(x * weights) for x in (loss, nll, correct))
    if not want_grads:
        return sums, None, None
    target = (1 - smoothing) * is_label + smoothing / logits.shape[-1]
    d_logits = ((jnp.exp(logits - log_z[..., None]) - target) * weights[..., None]).astype(hidden.dtype)
    d_hidden = jnp.einsum("blv,vm->blm", d_logits, matrix)
    d_table = jnp.einsum("blv,blm->vm", d_logits, hidden, preferred_element_type=jnp.float32)
    return sums, d_hidden, (d_table, None if bias is None else d_logits.sum((0, 1), dtype=jnp.float32))


def label_nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] where classes are few: (..., C) float32, (...) int32 -> (...)."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def token_log_probs(hidden: jax.Array, table: jax.Array, bias: jax.Array | None, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log softmax(hidden table^T + bias)[label], float32 (B, L), and whether the label is the likeliest, bool (B, L); row by row."""
    def row(inputs):
        hidden, labels = inputs
        logits = jnp.einsum("lm,vm->lv", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return picked - jax.nn.logsumexp(logits, axis=-1), picked >= logits.max(axis=-1)

    return jax.lax.map(row, (hidden, labels))
