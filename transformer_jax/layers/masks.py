"""A description of the keys that each query attends to. Each kernel turns it into its own form."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int


@struct.dataclass
class Mask:
    """A query attends to a key if all conditions that are set hold. Without any, it attends to all.

    A segment id names the example that a position of a packed row belongs to. Id 0 is padding. No
    query attends to padding.
    """

    # A query attends to keys in its own slot and before it.
    causal: bool = struct.field(pytree_node=False, default=False)
    # () int32. A query attends to keys at a distance below `window`: on both sides, with `causal`
    # on its left.
    window: Int[Array, ""] | int | None = None
    # All values that `window` can have, in ascending order.
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # () int32. The window has gaps: a query attends to keys at a distance that is a multiple of
    # `dilation`, and below `window` times `dilation` (Beltagy et al. 2020, section 3.1).
    dilation: Int[Array, ""] | int | None = None
    # The dilation that goes with each of `windows`, which may then repeat a value.
    dilations: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # Keys that the window hides from no query, and queries from which it hides no key (Beltagy et
    # al. 2020, section 3.1).
    global_keys: Bool[Array, "B K"] | None = None
    global_queries: Bool[Array, "B Q"] | None = None
    # The number of the first slots of a row that `causal` hides from no query.
    prefix: Int[Array, " B"] | None = None
    # Queries attend to keys of their own rank and of lower ranks: a causal mask over a permuted
    # order (Yang et al. 2019, section 2.2).
    query_ranks: Int[Array, "B Q"] | None = None
    key_ranks: Int[Array, "B K"] | None = None
    # Keys that the query in their own slot alone attends to.
    private_keys: Bool[Array, "B K"] | None = None
    # Queries and keys must belong to the same segment.
    query_segments: Int[Array, "B Q"] | None = None
    # Without query_segments, queries attend to all keys with a non-zero id.
    key_segments: Int[Array, "B K"] | None = None
    # Slots of the queries among the keys: those of each row, or () int32 for the slot of the first
    # query in all rows. The default is 0..Q-1.
    query_slots: Int[Array, "#B Q"] | Int[Array, ""] | None = None
    # In beam search the keys are those that Q beams wrote in each of P slots. A query attends in
    # each slot to the key of one beam, or to none (-1). The slots are a ring.
    ancestors: Int[Array, "B Q P"] | None = None

    def conditions(self) -> frozenset[str]:
        """Returns the names of the fields that are set, for a kernel to say which it takes."""
        fields = {field.name for field in dataclasses.fields(self)}
        fields -= {"causal", "windows", "dilations"}
        is_set = {name for name in fields if getattr(self, name) is not None}
        return frozenset(is_set | ({"causal"} if self.causal else set()))

    def by_window(self, function: Callable[..., Array]) -> Array:
        """Returns function(window) of the window as a number, for kernels that compile it in.

        With a dilation, it is function(window, dilation). A layer of a stack has one of `windows`
        and its dilation: all are compiled, and one runs.
        """
        if self.dilation is None:
            values, cases = [self.window], [(window,) for window in self.windows]
        else:
            values, cases = [self.window, self.dilation], [*zip(self.windows, self.dilations)]
        if len(cases) == 1:
            return function(*cases[0])
        if self.window is None or isinstance(self.window, int):
            return function(*values)
        is_case = (jnp.array(cases) == jnp.array(values)).all(axis=1)
        branches = [functools.partial(function, *case) for case in cases]
        return jax.lax.switch(jnp.argmax(is_case), branches)

    def undilated(self) -> "Mask":
        """Returns the mask whose windows have no gaps."""
        windows = tuple(sorted(set(self.windows)))
        return self.replace(windows=windows, dilation=None, dilations=())

    def segments(
        self, num_queries: int
    ) -> tuple[Int[Array, "B Q"] | None, Int[Array, "B K"] | None]:
        """Returns segments of which each query attends to its own, or (None, None) for no segments.

        Queries that are padding attend to padding, so that their outputs are finite.
        """
        keys = self.key_segments
        if keys is None or self.query_segments is not None:
            return self.query_segments, keys
        return jnp.ones((len(keys), num_queries), jnp.int32), (keys > 0).astype(jnp.int32)

    def block(self, start: int, stop: int) -> "Mask":
        """Returns the mask of the queries in [start, stop) and the keys in [0, stop).

        The mask must be causal without a prefix, with as many keys as queries: then no other key is
        visible to these queries.
        """

        def part(x, start):
            return None if x is None else x[:, start:stop]

        return self.replace(
            query_segments=part(self.query_segments, start),
            key_segments=part(self.key_segments, 0),
            query_ranks=part(self.query_ranks, start),
            key_ranks=part(self.key_ranks, 0),
            private_keys=part(self.private_keys, 0),
            global_queries=part(self.global_queries, start),
            global_keys=part(self.global_keys, 0),
            query_slots=jnp.arange(start, stop)[None],
        )

    def distance(self, num_queries: int, num_keys: int) -> Int[Array, "#B #Q K"]:
        """Returns the number of slots from each key forward to each query."""
        slots = self.slots(num_queries)
        if self.ancestors is not None:
            num_slots = num_keys // num_queries
            turns = slots[..., None] // num_queries - jnp.arange(num_keys) // num_queries
            return turns % num_slots
        return slots[:, :, None] - jnp.arange(num_keys)

    def slots(self, num_queries: int) -> Int[Array, "#B Q"]:
        """Returns the slots of the queries."""
        first = 0 if self.query_slots is None else self.query_slots
        return first if jnp.ndim(first) else first + jnp.arange(num_queries)[None]

    def dense(self, num_queries: int, num_keys: int) -> Bool[Array, "#B 1 Q K"] | None:
        """Returns True where the query attends to the key, or None where all attend to all."""
        visible = [*self._by_distance(num_queries, num_keys)]
        if self.ancestors is not None:
            is_ancestor = self.ancestors[..., None] == jnp.arange(num_queries)
            visible.append(is_ancestor.reshape(-1, num_queries, num_keys))
        if self.key_ranks is not None:
            visible.append(self.key_ranks[:, None, :] <= self.query_ranks[:, :, None])
        if self.private_keys is not None:
            is_own = self.distance(num_queries, num_keys) == 0
            visible.append(is_own | ~self.private_keys[:, None, :])
        if self.key_segments is not None:
            keys = self.key_segments[:, None, :]
            visible.append(keys > 0)
            if self.query_segments is not None:
                visible.append(keys == self.query_segments[:, :, None])
        if not visible:
            return None
        return functools.reduce(jnp.logical_and, visible)[:, None]

    def _by_distance(self, num_queries: int, num_keys: int):
        """Yields the conditions on slots: whether the query attends to the key (B or 1, Q, K)."""
        distance = self.distance(num_queries, num_keys)
        if self.causal:
            causal = distance >= 0
            if self.prefix is not None:
                causal = causal | (jnp.arange(num_keys) < self.prefix[:, None])[:, None]
            yield causal
        if self.window is not None:
            is_multiple = None
            if self.dilation is not None:
                is_multiple = distance % self.dilation == 0
                distance = distance // self.dilation
            near = distance < self.window
            if not self.causal or self.prefix is not None:
                near = near & (distance > -self.window)
            near = near if is_multiple is None else near & is_multiple
            if self.global_keys is not None:
                near = near | self.global_keys[:, None, :]
            if self.global_queries is not None:
                near = near | self.global_queries[:, :, None]
            yield near
