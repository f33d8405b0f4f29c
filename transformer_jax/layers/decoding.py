"""Decoding states: what a model caches of the tokens that it has read.

A state holds B inputs with K hypotheses each; sampling has one hypothesis for each input. All
classes implement the protocol `State`, and sampling and beam search use no other methods.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers.attention import is_cached, resize_slots, roll_slots, write_slots


@runtime_checkable
class State(Protocol):
    def reorder(self, parents: Int[Array, "B K"]) -> "State":
        """Returns the state in which hypothesis k of input b continues `parents[b, k]`.

        `parents` (B, K) may have a different number of hypotheses than the state.
        """

    def admit(self, new: "State", *, indices: Int[Array, " N"], rows: Int[Array, " N"]) -> "State":
        """Returns the state with the inputs in `rows` (N,) of `new` at `indices` (N,).

        A pair of row and index may be repeated, which has no further effect.
        """

    def resized(self, slots: int, length: int) -> "State":
        """Returns the state with room for outputs of `slots` tokens and sources of `length`."""


@struct.dataclass
class Rows:
    """A row for each hypothesis: its own KV cache, or a recurrent state.

    A recurrent state has a fixed size, and a KV cache has room for all tokens from the start.
    """

    cache: Any  # a tree of arrays (B K, ...)
    lengths: Int[Array, "B K"]  # tokens that each hypothesis has read
    slots: int = struct.field(pytree_node=False, default=0)  # of a cache

    def reorder(self, parents: Int[Array, "B K"]) -> "Rows":
        batch, beams = self.lengths.shape
        if beams == parents.shape[1] == 1:
            return self  # each hypothesis continues itself

        def chosen(x):
            # The index is one within the hypotheses of each input, so that inputs may be on
            # different devices.
            x = x.reshape(batch, beams, *x.shape[1:])
            return jax.vmap(lambda rows, numbers: rows[numbers])(x, parents).reshape(
                -1, *x.shape[2:]
            )

        return self.replace(
            cache=jax.tree.map(chosen, self.cache),
            lengths=jnp.take_along_axis(self.lengths, parents, axis=1),
        )

    def admit(self, new: "Rows", *, indices: Int[Array, " N"], rows: Int[Array, " N"]) -> "Rows":
        batch, beams = self.lengths.shape

        def move(old, new):
            old = old.reshape(batch, beams, *old.shape[1:])
            moved = old.at[indices].set(new.reshape(-1, *old.shape[1:])[rows])
            return moved.reshape(-1, *old.shape[2:])

        return self.replace(
            cache=jax.tree.map(move, self.cache, new.cache),
            lengths=self.lengths.at[indices].set(new.lengths[rows]),
        )

    def resized(self, slots: int, length: int) -> "Rows":
        return self


@struct.dataclass
class SourceRows(Rows):
    """A recurrent state for each hypothesis, and source arrays that the hypotheses share.

    `source` contains the key "segments" (B, S), 1 for the tokens of a source and 0 for padding.
    """

    source: dict[str, Array] = struct.field(kw_only=True)  # arrays (B, S, ...)

    def admit(
        self, new: "SourceRows", *, indices: Int[Array, " N"], rows: Int[Array, " N"]
    ) -> "SourceRows":
        # Cutting loses nothing, because an admitted source is never longer; only the padding of the
        # batch in which it was encoded may be.
        new = new.resized(0, self.source["segments"].shape[1])

        source = jax.tree.map(lambda old, x: old.at[indices].set(x[rows]), self.source, new.source)
        return super().admit(new, indices=indices, rows=rows).replace(source=source)

    def resized(self, slots: int, length: int) -> "SourceRows":
        return self.replace(source=jax.tree.map(lambda x: _cut(x, length), self.source))


@struct.dataclass
class GrowingRows(Rows):
    """A KV cache for each hypothesis, with room for its source and its output so far.

    `cache` contains the key "cache" and others.
    """

    def admit(
        self, new: "GrowingRows", *, indices: Int[Array, " N"], rows: Int[Array, " N"]
    ) -> "GrowingRows":
        return super().admit(new._with_slots(self.slots), indices=indices, rows=rows)

    def resized(self, slots: int, length: int) -> "GrowingRows":
        return self._with_slots(length + slots)

    def _with_slots(self, slots: int) -> "GrowingRows":
        cache = resize_slots(self.cache["cache"], slots)
        return self.replace(cache=self.cache | {"cache": cache}, slots=slots)


@struct.dataclass
class Ring:
    """A KV cache that the K hypotheses of an input share: a ring of P slots.

    Inputs come and go while others continue. In each turn, all inputs write to the same slot,
    whatever their positions are, because a slice update is much faster than a scatter. The K
    hypotheses write side by side, and nothing is moved later: `ancestors[b, k, p]` is the
    hypothesis in slot p that hypothesis k continues, or -1 if there is none. Reordering this table
    costs almost nothing, whereas reordering the cache would cost as much as the model.
    """

    ancestors: Int[Array, "B K P"]
    turn: Int[Array, ""]  # the slot of the next turn, modulo P
    positions: Int[Array, " B"]  # of the next tokens
    cache: Any  # the collection "cache", with `beams` cells for each slot
    cross_cache: Any  # the collection "cross_cache"
    segments: Int[Array, "B S"]  # 1 for the tokens of a source, 0 for padding
    beams: int = struct.field(pytree_node=False)

    @classmethod
    def started(cls, collections: dict, segments: Int[Array, "N S"], beams: int) -> "Ring":
        """Returns the state after N inputs have read one token each, in a ring of one slot."""
        batch = len(segments)
        return cls(
            ancestors=jnp.zeros((batch, 1, 1), jnp.int32),
            turn=jnp.int32(1),
            positions=jnp.ones(batch, jnp.int32),
            segments=segments,
            beams=beams,
            **collections,
        )

    @property
    def slot(self) -> Int[Array, ""]:
        """The slot of the next tokens."""
        return self.turn % self.ancestors.shape[2]

    def opened(self) -> "Ring":
        """Returns the state in which each hypothesis continues itself in the next slot."""
        # The oldest turn is overwritten, because its slot in the ring is used again.
        ancestors = self.ancestors.at[:, :, self.slot].set(jnp.arange(self.beams))
        return self.replace(ancestors=ancestors)

    def written(self, collections: dict) -> "Ring":
        """Returns the state after the tokens of the slot have been read."""
        return self.replace(turn=self.turn + 1, positions=self.positions + 1, **collections)

    def reorder(self, parents: Int[Array, "B K"]) -> "Ring":
        return self.replace(
            ancestors=jnp.take_along_axis(self.ancestors, parents[..., None], axis=1)
        )

    def admit(self, new: "Ring", *, indices: Int[Array, " N"], rows: Int[Array, " N"]) -> "Ring":
        # The only slot of the new inputs is moved to the slot that was written last, so that all
        # inputs share the next one.
        slots = self.ancestors.shape[2]
        slot = (self.turn - 1) % slots
        ancestors = jnp.roll(_lengthened(new.ancestors, slots), slot, axis=2)

        taken = jax.tree.map(lambda x: x[rows], (new.cache, new.cross_cache, new.segments))

        # Inputs are written one after the other, in place, because a scatter takes several times as
        # long on a CPU.
        def put(n, stored):
            one = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, n, 1), taken)
            return self._with_input(stored, one, indices[n], slot)

        stored = (self.cache, self.cross_cache, self.segments)
        cache, cross_cache, segments = jax.lax.fori_loop(0, len(rows), put, stored)
        return self.replace(
            ancestors=self.ancestors.at[indices].set(ancestors[rows]),
            positions=self.positions.at[indices].set(new.positions[rows]),
            cache=cache,
            cross_cache=cross_cache,
            segments=segments,
        )

    def _with_input(
        self, stored: tuple, new: tuple, index: Int[Array, ""], slot: Int[Array, ""]
    ) -> tuple:
        """Returns (cache, cross_cache, segments) with the arrays of a `new` input at `index`."""
        cache, cross_cache, segments = stored
        new_cache, new_cross_cache, new_segments = new
        # Cutting loses nothing, because an admitted source is never longer; only the padding of the
        # batch in which it was encoded may be.
        length = segments.shape[1]
        new_cross_cache = resize_slots(new_cross_cache, min(length, new_segments.shape[1]))

        def cleared(collection):
            # Hidden values have weight 0, but they are cleared, because 0 times a NaN of the
            # previous input is NaN.
            blank = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), collection)
            return write_slots(collection, blank, index, 0)

        return (
            write_slots(cleared(cache), new_cache, index, slot * self.beams),
            write_slots(cleared(cross_cache), new_cross_cache, index, 0),
            jax.lax.dynamic_update_slice_in_dim(segments, _cut(new_segments, length), index, 0),
        )

    def resized(self, slots: int, length: int) -> "Ring":
        num_kept = min(slots, self.ancestors.shape[2])
        # The newest slot moves to the end of the kept ones, so that a smaller ring loses the oldest
        # slots, and a larger one continues after the newest.
        shift = num_kept - self.turn
        ancestors = jnp.roll(self.ancestors, shift, axis=2)[..., :num_kept]
        return self.replace(
            ancestors=_lengthened(ancestors, slots),
            turn=jnp.int32(num_kept),
            cache=resize_slots(roll_slots(self.cache, shift * self.beams), slots * self.beams),
            cross_cache=resize_slots(self.cross_cache, length),
            segments=_cut(self.segments, length),
        )


def _lengthened(ancestors: Int[Array, "B K P"], slots: int) -> Int[Array, "B K slots"]:
    """Returns `ancestors` padded to `slots` slots, without an ancestor (-1) in the new ones."""
    missing = slots - ancestors.shape[2]
    return jnp.pad(ancestors, ((0, 0), (0, 0), (0, missing)), constant_values=-1)


def _cut(x: Array, length: int) -> Array:
    """Returns x (N, S, ...) cut or zero-padded at the end to `length` source positions."""
    x = x[:, :length]
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1]), *[(0, 0)] * (x.ndim - 2)))


def split(tree):
    """Returns the arrays (rows, ...) of a tree split over the devices by rows.

    Keys and values are also split by heads. Scalars are replicated.
    """
    return jax.tree.map(lambda x, axes: sharding.constrain(x, *axes), tree, logical_axes(tree))


def on_rows(f: Callable, *trees):
    """Returns f(*trees), for which each device computes its own rows of the arrays (rows, ...)."""
    # Without a split, `f` needs no shard_map, and an abstract evaluation of it would be in vain.
    if sharding.parts("batch") == 1:
        return f(*trees)
    result = jax.eval_shape(f, *trees)
    return sharding.on_each_device(f, trees, logical_axes(trees), logical_axes(result))


def logical_axes(tree):
    """Returns the logical axes by which `split` shards the arrays of a tree."""

    def axes(path, x):
        # Keys and values are split by heads, so that they stay on the device that computes these
        # heads.
        names = ("batch", "heads") if is_cached(path) else ("batch",)
        return (*names, *[None] * x.ndim)[: x.ndim]

    return jax.tree_util.tree_map_with_path(axes, tree)
