"""Which keys a query sees, as a description. Each attention kernel turns it into what it needs."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Mask:
    """A query sees a key if every condition that is present holds. Nothing present: it sees all.

    Segment ids name the example a position of a packed row belongs to; 0 is padding and is never
    seen.
    """

    # keys at or before the query's slot
    causal: bool = struct.field(pytree_node=False, default=False)
    window: jax.Array | None = None  # () int32: of those, only the last `window` (causal only)
    # what `window` may be, in order
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    query_segments: jax.Array | None = None  # (B, Q) int32
    # (B, K) int32; without query_segments: any non-zero key is seen
    key_segments: jax.Array | None = None
    # (B, Q) int32, slots of the queries among the keys; () int32: of the first one, in all rows;
    # default 0..Q-1
    query_slots: jax.Array | None = None
    # (B, Q, P) int32, of a beam search: the keys are what Q beams wrote in each of P slots, a query
    # sees one of each (-1: none)
    ancestors: jax.Array | None = None

    def block(self, start: int, stop: int) -> "Mask":
        """Of the queries from start to stop and the keys up to stop: all that these queries see, if
        the mask is causal and keys are as many as queries.
        """
        queries = None if self.query_segments is None else self.query_segments[:, start:stop]
        keys = None if self.key_segments is None else self.key_segments[:, :stop]
        return self.replace(
            query_segments=queries, key_segments=keys, query_slots=jnp.arange(start, stop)[None]
        )

    def dense(self, num_queries: int, num_keys: int) -> jax.Array | None:
        """Boolean (B or 1, 1, Q, K), True where seen; None where all is seen."""
        seen = None
        if self.causal:
            first = 0 if self.query_slots is None else self.query_slots
            slots = first if jnp.ndim(first) else first + jnp.arange(num_queries)[None]
            back = slots[:, None, :, None] - jnp.arange(num_keys)
            seen = back >= 0 if self.window is None else (back >= 0) & (back < self.window)
        if self.ancestors is not None:
            seen = (self.ancestors[..., None] == jnp.arange(num_queries)).reshape(
                -1, 1, num_queries, num_keys
            )
        if self.key_segments is not None:
            keys = self.key_segments[:, None, None, :]
            same = keys > 0
            if self.query_segments is not None:
                same = same & (keys == self.query_segments[:, None, :, None])
            seen = same if seen is None else seen & same
        return seen
