"""Multi-head attention (Vaswani et al. 2017, section 3.2), with the key/value cache of decoding."""
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import sharding
from transformer_jax.layers.linear import Dropout, Linear
from transformer_jax.layers.masks import Mask


_BLOCK, _MOST_BLOCKS = 64, 8  # queries of a block at least; each block is compiled by itself


def dot_product(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=lambda w: w) -> jax.Array:
    """softmax(q k^T / sqrt(D)) v: (B, Q, H, D), (B, K, H, D), (B, K, H, D) -> (B, Q, H, D); softmax in float32.

    A query that sees no key gets the mean of all values: finite, and nobody reads it.
    """
    weights = dropout(attention_weights(q, k, mask)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def causal_blocks(q: jax.Array, k: jax.Array, v: jax.Array, mask: Mask, dropout=lambda w: w) -> jax.Array:
    """As `dot_product` for causal self-attention: a block of queries meets the keys up to its own end alone.

    Half the work is never begun. Forward and backward at lengths 128, 256 and 1024 on two CPU cores: 9 -> 4, 40 -> 15, 594 -> 330 ms
    (8 rows, 6 heads of 64).
    """
    length = q.shape[1]
    size = max(_BLOCK, -(-length // _MOST_BLOCKS))
    bounds = [*range(0, length, size), length]
    parts = [dot_product(q[:, a:b], k[:, :b], v[:, :b], mask.block(a, b), dropout) for a, b in zip(bounds, bounds[1:])]
    return jnp.concatenate(parts, axis=1)


def attention_weights(q: jax.Array, k: jax.Array, mask: Mask) -> jax.Array:
    """softmax(q k^T / sqrt(D)) over the keys the mask shows, float32 (B, H, Q, K)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k, preferred_element_type=jnp.float32)
    seen = mask.dense(q.shape[1], k.shape[1])
    if seen is not None:
        scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


class Attention(nn.Module):
    """Attention from x to `memory`, or to x itself: (B, Q, M), (B, K, M) -> (B, Q, M).

    Decoding: `decode` is the number of slots of the cache (0: none). Self-attention writes the keys and values of x to the
    slots `mask.query_slots` of the "cache" and attends to all slots the mask shows. Cross-attention keeps those of `memory` in
    the "memory" collection the first time; later calls pass no memory. There may be several rows of x to each row of memory,
    standing together (the beams of a beam search): they are queries to the same keys. Behind the first call, a layer of a
    stack finds the collections of all its layers, and its own place in them is `layer`: so they are changed in place.
    """

    num_heads: int
    head_dim: int
    dropout: float = 0.0  # on the attention weights
    use_bias: bool = True
    cross: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    output_init: nn.initializers.Initializer | None = None  # of the output projection; None: kernel_init
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, *, mask: Mask, train: bool = False, decode: int = 0,
                 layer: jax.Array | None = None) -> jax.Array:
        heads = (self.num_heads, self.head_dim)
        model = (x.shape[-1],)

        def project(name, y):
            y = Linear(model, heads, ("embed", "heads", "head_dim"), self.use_bias, self.kernel_init, self.dtype, name=name)(y)
            return sharding.constrain(y, "batch", "length", "heads", "head_dim")

        q = project("query", x)
        if decode and self.cross and memory is None:
            k, v = (self.get_variable("memory", name)[_of(layer)] for name in ("keys", "values"))
        else:
            source = memory if self.cross else x
            k, v = project("key", source), project("value", source)
        if decode and self.cross:
            if memory is not None:
                self.put_variable("memory", "keys", k)
                self.put_variable("memory", "values", v)
            q = q.reshape(k.shape[0], -1, *heads)
        elif decode:
            k = self._remember("keys", k, (0, 2, 3, 1), mask.query_slots, decode, layer)  # (B, H, D, K): as the product with queries wants it
            v = self._remember("values", v, (0, 2, 1, 3), mask.query_slots, decode, layer)  # (B, H, K, D): as that with weights does
        dropout = Dropout(self.dropout, name="weight_dropout")
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "weights", attention_weights(q, k, mask))
        whole = decode or self.cross or not mask.causal or x.shape[1] <= _BLOCK or sharding.parts("length") > 1
        kernel = dot_product if whole else causal_blocks
        y = kernel(q, k, v, mask, lambda w: dropout(w, train=train)).reshape(*x.shape[:-1], *heads)
        return Linear(heads, model, ("heads", "head_dim", "embed"), self.use_bias, self.output_init or self.kernel_init, self.dtype, name="out")(y)

    def _remember(self, name: str, new: jax.Array, order: tuple[int, ...], slots: jax.Array, num_slots: int, layer: jax.Array | None) -> jax.Array:
        """Writes (B, L, H, D) to each row's `slots` (B, L) of the cache, whose axes stand in `order`; returns the whole cache (B, K, H, D)."""
        rows = jnp.arange(len(new))[:, None]
        place = (rows, *(slots if axis == 1 else slice(None) for axis in order[1:]))
        if self.has_variable("cache", name):
            whole = self.get_variable("cache", name).at[*_of(layer), *place].set(new)
            self.put_variable("cache", name, whole)
            return whole[_of(layer)].transpose(np.argsort(order))
        batch, _, heads, size = new.shape
        shape = np.array((batch, num_slots, heads, size))[list(order)]
        cache = self.variable("cache", name, lambda: jnp.zeros(shape, new.dtype).at[place].set(new))
        return cache.value.transpose(np.argsort(order))


def _of(layer: jax.Array | None) -> tuple:
    """The index of a layer in what its stack keeps; outside a stack there is nothing to choose."""
    return () if layer is None else (layer,)
