"""Cross-entropy of the next token, fused with the output projection."""
import functools

import jax
import jax.numpy as jnp

from transformer_jax import sharding

# float32 logits a device holds at a time: what stays in a CPU's cache (8 MB); on accelerators 256 MB, for fewer sums of the table's gradient
CHUNK_LOGITS = {"cpu": 2**21}
CHUNK_LOGITS_DEFAULT = 2**26


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(hidden: jax.Array, table: jax.Array, labels: jax.Array, weights: jax.Array, label_smoothing: float = 0.0):
    """Sums over positions of the cross-entropy of softmax(hidden table^T).

    hidden (B, L, M); table (V, M) float32; labels (B, L) int32; weights (B, L) float32, 0 where nothing is to be
    predicted. Returns float32 scalars `(loss, nll, correct)`: with label smoothing (mass epsilon spread evenly over
    the vocabulary, Szegedy et al. 2016, section 7), without it, and the number of right argmaxes. Only `loss` has a gradient.

    The logits exist in chunks of the length alone, and the gradient is formed beside them in the forward pass:
    the same three matrix products as the plain loss, without its (B, L, V) arrays.
    """
    return _scan_chunks(hidden, table, labels, weights, label_smoothing, want_grads=False)[0]


def _forward(hidden, table, labels, weights, label_smoothing):
    return _scan_chunks(hidden, table, labels, weights, label_smoothing, want_grads=True)


def _backward(label_smoothing, gradients, cotangents):
    d_hidden, d_table = gradients
    scale = cotangents[0]
    return (d_hidden * scale).astype(d_hidden.dtype), d_table * scale, None, None


cross_entropy.defvjp(_forward, _backward)


def num_chunks(batch: int, length: int, vocab_size: int) -> int:
    """The fewest equal parts of the length whose logits stay within the limit on a device."""
    here = batch * length * vocab_size / sharding.parts("batch") / sharding.parts("vocab")
    limit = CHUNK_LOGITS.get(jax.default_backend(), CHUNK_LOGITS_DEFAULT)
    return next(n for n in range(1, length + 1) if length % n == 0 and (here / n <= limit or n == length))


def _scan_chunks(hidden, table, labels, weights, label_smoothing, want_grads):
    batch, length, _ = hidden.shape
    chunks = num_chunks(batch, length, table.shape[0])
    one = functools.partial(_chunk, table, label_smoothing, want_grads)
    if chunks == 1:
        sums, d_hidden, d_table = one(hidden, labels, weights)
        return sums, (d_hidden, d_table)

    def split(x):  # (B, L, ...) -> (chunks, B, L / chunks, ...)
        return jnp.moveaxis(x.reshape(batch, chunks, length // chunks, *x.shape[2:]), 1, 0)

    def body(carry, chunk):
        sums, d_hidden, d_table = one(*chunk)
        return jax.tree.map(jnp.add, carry, (sums, d_table)), d_hidden

    zeros = ((jnp.zeros(()),) * 3, jnp.zeros_like(table) if want_grads else None)
    (sums, d_table), d_hidden = jax.lax.scan(body, zeros, (split(hidden), split(labels), split(weights)))
    if want_grads:
        d_hidden = jnp.moveaxis(d_hidden, 0, 1).reshape(hidden.shape)
    return sums, (d_hidden, d_table)


def _chunk(table, smoothing, want_grads, hidden, labels, weights):
    """Sums over one chunk, and the gradients of its loss by hidden and table (None unless wanted)."""
    matrix = table.astype(hidden.dtype)
    logits = jnp.einsum("blm,vm->blv", hidden, matrix, preferred_element_type=jnp.float32)
    logits = sharding.constrain(logits, "batch", None, "vocab")
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
    return sums, d_hidden, d_table
