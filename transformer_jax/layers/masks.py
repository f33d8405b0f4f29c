"""A description of the keys that each query attends to. Each kernel turns it into its own form."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Mask:
    """A query attends to a key if all conditions that are set hold. Without any, it attends to all.

    A segment id names the example that a position of a packed row belongs to. Id 0 is padding. No
    query attends to padding.
    """

    # A query attends to keys in its own slot and before it.
    causal: bool = struct.field(pytree_node=False, default=False)
    # () int32. With `causal`, a query attends to the last `window` of those keys only.
    window: jax.Array | None = None
    # All values that `window` can have, in ascending order.
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # (B, Q) int32. Queries and keys must belong to the same segment.
    query_segments: jax.Array | None = None
    # (B, K) int32. Without query_segments, queries attend to all keys with a non-zero id.
    key_segments: jax.Array | None = None
    # Slots of the queries among the keys: (B, Q) int32, or () int32 for the slot of the first
    # query in all rows. The default is 0..Q-1.
    query_slots: jax.Array | None = None
    # (B, Q, P) int32, in beam search. The keys are those that Q beams wrote in each of P slots. A
    # query attends in each slot to the key of one beam, or to none (-1).
    ancestors: jax.Array | None = None

    def block(self, start: int, stop: int) -> "Mask":
        """Returns the mask of the queries in [start, stop) and the keys in [0, stop).

        The mask must be causal, with as many keys as queries: then no other key is visible to
        these queries.
        """
        queries = None if self.query_segments is None else self.query_segments[:, start:stop]
        keys = None if self.key_segments is None else self.key_segments[:, :stop]
        slots = jnp.arange(start, stop)[None]
        return self.replace(query_segments=queries, key_segments=keys, query_slots=slots)

    def dense(self, num_queries: int, num_keys: int) -> jax.Array | None:
        """Returns a bool array (B or 1, 1, Q, K), True where the query attends to the key.

        Returns None where every query attends to every key.
        """
        visible = None
        if self.causal:
            first = 0 if self.query_slots is None else self.query_slots
            slots = first if jnp.ndim(first) else first + jnp.arange(num_queries)[None]
            distance = slots[:, None, :, None] - jnp.arange(num_keys)
            visible = distance >= 0
            if self.window is not None:
                visible = visible & (distance < self.window)
        if self.ancestors is not None:
            is_ancestor = self.ancestors[..., None] == jnp.arange(num_queries)
            visible = is_ancestor.reshape(-1, 1, num_queries, num_keys)
        if self.key_segments is not None:
            keys = self.key_segments[:, None, None, :]
            same_segment = keys > 0
            if self.query_segments is not None:
                queries = self.query_segments[:, None, :, None]
                same_segment = same_segment & (keys == queries)
            visible = same_segment if visible is None else visible & same_segment
        return visible
