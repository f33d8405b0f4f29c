"""Multi-head attention (Vaswani et al. 2017, section 3.2), with the key/value cache of decoding."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.distributed import sharding
from transformer_jax.layers import kernels
from transformer_jax.layers.linear import Dropout, Linear
from transformer_jax.layers.masks import Mask

# How the cache keeps (B, L, H, D): keys as their product with queries wants them, values as that
# with weights does.
_CACHED = {"keys": (0, 2, 3, 1), "values": (0, 2, 1, 3)}


class Attention(nn.Module):
    """Attention from x to `memory`, or to x itself: (B, Q, M), (B, K, M) -> (B, Q, M).

    Decoding: `decode` is the number of slots of a cache that begins here (0: no decoding).
    Self-attention writes the keys and values of x to the slots `mask.query_slots` of the "cache"
    and attends to all slots the mask shows. Cross-attention keeps those of `memory` in the "memory"
    collection the first time; later calls pass no memory.
    """

    num_heads: int
    head_dim: int
    dropout: float = 0.0  # on the attention weights
    cross: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    # of the output projection; None: kernel_init
    output_init: nn.initializers.Initializer | None = None
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
        *,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> jax.Array:
        heads = (self.num_heads, self.head_dim)
        model = (x.shape[-1],)

        def project(name, y):
            y = Linear(
                model,
                heads,
                ("embed", "heads", "head_dim"),
                True,
                self.kernel_init,
                self.dtype,
                name=name,
            )(y)
            return sharding.constrain(y, "batch", "length", "heads", "head_dim")

        q = project("query", x)
        if decode and self.cross and memory is None:
            k, v = (
                self.get_variable("memory", name).transpose(np.argsort(order))
                for name, order in _CACHED.items()
            )
        else:
            source = memory if self.cross else x
            k, v = project("key", source), project("value", source)
        if decode and self.cross:
            if memory is not None:
                for name, new in (("keys", k), ("values", v)):
                    # now: XLA would do it again for each token
                    self.put_variable(
                        "memory", name, jax.lax.optimization_barrier(new.transpose(_CACHED[name]))
                    )
        elif decode:
            k, v = (
                self._remember("keys", k, mask.query_slots, decode),
                self._remember("values", v, mask.query_slots, decode),
            )
        dropout = Dropout(self.dropout, name="weight_dropout")
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "weights", kernels.attention_weights(q, k, mask))
        kernel = kernels.pick(q, k, mask, dropout=train and self.dropout > 0)
        y = kernel(q, k, v, mask, lambda w: dropout(w, train=train)).reshape(*x.shape[:-1], *heads)
        return Linear(
            heads,
            model,
            ("heads", "head_dim", "embed"),
            True,
            self.output_init or self.kernel_init,
            self.dtype,
            name="out",
        )(y)

    def _remember(self, name: str, new: jax.Array, slots: jax.Array, num_slots: int) -> jax.Array:
        """Writes (B, L, H, D) to each row's `slots` (B, L) of the cache, or from slot () on;
        returns the whole cache (B, K, H, D).
        """
        (batch, _, heads, size), order = new.shape, _CACHED[name]
        shape = tuple(np.array((batch, num_slots, heads, size))[list(order)])
        cache = self.variable("cache", name, lambda: jnp.zeros(shape, new.dtype))
        if slots.ndim == 0:  # in place, and much faster than a scatter
            cache.value = jax.lax.dynamic_update_slice_in_dim(
                cache.value, new.transpose(order), slots, order.index(1)
            )
        else:
            # XLA makes a slice's update of one index, computes it twice and copies the cache for
            # it; two stay a scatter, in place
            if slots.size == 1:
                slots, new = jnp.repeat(slots, 2, axis=1), jnp.repeat(new, 2, axis=1)
            place = (
                jnp.arange(batch)[:, None],
                *(slots if axis == 1 else slice(None) for axis in order[1:]),
            )
            cache.value = cache.value.at[place].set(new)
        return cache.value.transpose(np.argsort(order))


def resized(cached: dict, num_slots: int) -> dict:
    """A collection "cache" or "memory" with so many slots, the last cut off or added."""

    def fit(x, axis):
        kept = jax.lax.slice_in_dim(x, 0, min(num_slots, x.shape[axis]), axis=axis)
        return jnp.pad(
            kept, [(0, num_slots - size if a == axis else 0) for a, size in enumerate(kept.shape)]
        )

    return _along_slots(fit, cached)


def rolled(cached: dict, shift: jax.Array) -> dict:
    """A collection "cache" with what its slots hold moved on by so many, around the end."""
    return _along_slots(lambda x, axis: jnp.roll(x, shift, axis), cached)


def written(cached: dict, new: dict, row: jax.Array, slot: jax.Array) -> dict:
    """A collection "cache" or "memory" with a smaller one in it, from that row and slot on."""

    def write(x, axis, y):
        return jax.lax.dynamic_update_slice(
            x, y, [row if a == 0 else slot if a == axis else 0 for a in range(x.ndim)]
        )

    return _along_slots(write, cached, new)


def _along_slots(function: Callable, *collections: dict) -> dict:
    """function(array, axis of its slots, arrays...) of all that collections keep."""
    axis_of = lambda path: next(
        _CACHED[key.key].index(1) for key in path if getattr(key, "key", None) in _CACHED
    )
    return jax.tree_util.tree_map_with_path(
        lambda path, x, *others: function(x, axis_of(path), *others), *collections
    )


def weights_in(
    model: nn.Module,
    params,
    stack: str,
    *tokens: jax.Array,
    method: str = "hidden",
    cross: bool = False,
) -> np.ndarray:
    """The attention weights (layers, H, Q, K) float32 in one stack of a model applied to one row of
    `tokens`, (1, L) each.
    """
    _, found = model.apply({"params": params}, *tokens, method=method, mutable=["intermediates"])
    return np.asarray(
        found["intermediates"][stack]["layers"]["cross_attention" if cross else "attention"][
            "weights"
        ][0][:, 0]
    )
