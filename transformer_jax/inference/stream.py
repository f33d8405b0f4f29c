"""Beam search over a stream of inputs: an input that is done makes room for the next (Yu et al.
2022, section 3.1, "iteration-level scheduling").
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.inference.batching import rounded_up
from transformer_jax.inference.beam_search import Beams, BeamSearch, Search
from transformer_jax.layers.attention import resize_slots, roll_slots, write_slots

# The search stops to admit inputs when one in so many places is free.
_PLACES_PER_FREE = 32
# Source lengths are padded to multiples of it, so that few shapes are compiled.
_SOURCE_MULTIPLE = 16
_ROW_LENGTH = 128  # tokens of a packed row of sources
# The cache's slots beyond the length of the source. Each token reads all slots, so they are doubled
# only when an output needs more.
_EXTRA_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Stream:
    """Searches with an EncoderDecoder, `places` inputs at a time.

    The parameters are those of `for_decoding`.
    """

    model: Any  # the Linen module
    search: BeamSearch
    places: int
    bos_id: int

    def __call__(
        self, params, inputs: Sequence[Sequence[int]], limits: Sequence[int]
    ) -> Iterator[tuple[int, Beams]]:
        """Yields (number of an input, its hypotheses (n_best, T)) as they are done.

        `limits` are the most tokens of each output, including the end. The longest inputs should
        come first: inputs of like lengths share less padding, and the shortest leave the least to
        wait for at the end.
        """
        queue = _Queue(self, params, inputs, np.array(limits, np.int32))
        while queue.fill():
            queue.advance()
            yield from queue.done()

    @property
    def num_admitted(self) -> int:
        """The number of inputs that are admitted together."""
        return -(-self.places // _PLACES_PER_FREE)

    def packed_shape(self, length: int) -> tuple[int, int]:
        """Returns the rows, and the tokens of a row, that sources of up to `length` are packed in.

        There is room for one source for each place, if they are an eighth shorter.
        """
        room = self.places * length * 7 // 8
        width = max(length, min(_ROW_LENGTH, room))
        return max(1, room // width), width

    def _run(
        self, params, cache: dict, tokens, positions, slot, *, ancestors=None, memory=None
    ) -> tuple[jax.Array, dict]:
        """Reads tokens (N, K) at `positions` (N, 1) into one slot of the cache.

        Returns the logits (N, K, V) of the next tokens, and the new cache.
        """
        variables = {name: cache[name] for name in ("cache", "memory") if name in cache}
        hidden, new = self.model.apply(
            {"params": params, **variables},
            tokens,
            memory,
            positions=positions,
            source_segment_ids=cache["segments"],
            slots=slot * self.search.beam,
            decode=self.search.beam,
            ancestors=ancestors,
            method="decode",
            mutable=["cache", "memory"],
        )
        return self.model.apply({"params": params}, hidden, method="logits"), cache | new

    @partial(jax.jit, static_argnums=0)
    def begin(self, params, source: jax.Array, where: jax.Array, limits: jax.Array) -> Search:
        """Reads packed sources, and chooses the first target tokens of N inputs.

        `source` (3, R, W) holds ids, positions and segment ids of packed rows. `where` (N, S) holds
        the places of each input's tokens in the rows, laid end to end; R W is padding.
        """
        ids, positions, segments = source
        memory = self.model.apply(
            {"params": params}, ids, positions=positions, segment_ids=segments, method="encode"
        )
        memory = memory.reshape(ids.size, -1).at[where].get(mode="fill", fill_value=0)
        segments = (where < ids.size).astype(jnp.int32)
        tokens = jnp.full((len(where), 1), self.bos_id)
        positions = jnp.zeros_like(tokens)
        cache = {"segments": segments}
        logits, cache = self._run(params, cache, tokens, positions, jnp.int32(0), memory=memory)
        return self.search.begin(limits, logits[:, 0], cache)

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def empty(self, params, length: int, slots: int) -> Search:
        """Returns a search without inputs, for sources of `length` and with so many slots."""

        def spec(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.int32)

        source = spec(3, *self.packed_shape(length))
        where, limits = spec(self.places, length), spec(self.places)
        shapes = jax.eval_shape(self.begin, params, source, where, limits).cache
        cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return self.search.empty(self.places, slots, self._sized(cache, length, slots))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def admit(
        self, state: Search, places: jax.Array, new_inputs: Search, rows: jax.Array
    ) -> Search:
        """Returns `state` with the inputs in `rows` of `new_inputs` at `places`."""

        def put(cache, slot):
            # Inputs are written one after the other, in place. A scatter takes several times as
            # long on a CPU.
            def put_one(n, cache):
                new = _slice(new_inputs.cache, rows[n])
                return self._written(cache, new, places[n], slot)

            return jax.lax.fori_loop(0, len(rows), put_one, cache)

        return self.search.admit(state, new_inputs, put, places=places, rows=rows)

    def _written(self, cache: dict, new: dict, place: jax.Array, slot: jax.Array) -> dict:
        """Returns `cache` with the cache of one input at its place."""
        # No source that is admitted is longer, whatever it was read with.
        length = cache["segments"].shape[1]
        memory = resize_slots(new["memory"], min(length, new["segments"].shape[1]))

        def cleared(name):
            # Hidden values have weight 0, but 0 times NaN is NaN.
            blank = jax.tree.map(lambda x: jnp.zeros_like(x[:1]), cache[name])
            return write_slots(cache[name], blank, place, 0)

        return {
            "cache": write_slots(cleared("cache"), new["cache"], place, slot * self.search.beam),
            "memory": write_slots(cleared("memory"), memory, place, 0),
            "segments": jax.lax.dynamic_update_slice_in_dim(
                cache["segments"], _cut(new["segments"], length), place, 0
            ),
        }

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def advance(self, params, state: Search, free: jax.Array) -> tuple[Search, tuple]:
        """Continues until so many places are free, or an output needs more slots.

        Returns the state, and (the places that are running (places,), the lengths there, the best
        hypotheses of all places).
        """

        def step(cache, tokens, positions, slot, ancestors):
            return self._run(params, cache, tokens, positions, slot, ancestors=ancestors)

        state = self.search.advance(state, step, free)
        return state, (self.search.running(state), state.lengths, self.search.best(state))

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def resize(self, state: Search, length: int, slots: int) -> Search:
        """Returns `state` with room for sources of `length`, and with so many slots."""

        def resize_cache(cache, shift):
            cache = cache | {"cache": roll_slots(cache["cache"], shift * self.search.beam)}
            return self._sized(cache, length, slots)

        return self.search.resized(state, slots, resize_cache)

    def _sized(self, cache: dict, length: int, slots: int) -> dict:
        return {
            "cache": resize_slots(cache["cache"], slots * self.search.beam),
            "memory": resize_slots(cache["memory"], length),
            "segments": _cut(cache["segments"], length),
        }


def _slice(cache: dict, row: jax.Array) -> dict:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, row, 1), cache)


def _cut(segments: jax.Array, length: int) -> jax.Array:
    """Returns the segment ids (N, S) as (N, length), cut or padded at the end."""
    segments = segments[:, :length]
    return jnp.pad(segments, ((0, 0), (0, length - segments.shape[1])))


class _Queue:
    """The inputs: in the places of a search, in a batch that has been read, or in a queue."""

    def __init__(self, stream: Stream, params, inputs: Sequence[Sequence[int]], limits: np.ndarray):
        self.stream, self.params = stream, params
        self.inputs, self.limits = inputs, limits
        self.queue = deque(range(len(inputs)))
        self.waiting = deque()  # (row of the batch, number of the input), read but not admitted
        self.places = np.full(stream.places, -1)  # number of the input in each
        self.longest = 0  # tokens of the longest unfinished output
        self.state = None

    def fill(self) -> bool:
        """Admits inputs to free places. Returns whether any place is taken."""
        num_admitted = self.stream.num_admitted
        while (self.waiting or self.queue) and (free := np.flatnonzero(self.places < 0)).size:
            if not self.waiting:
                self._read()
            chosen = [
                (*self.waiting.popleft(), place)
                for place in free[: min(num_admitted, len(self.waiting))]
            ]
            # The last one is repeated, so that one shape is compiled.
            chosen += chosen[-1:] * (num_admitted - len(chosen))
            rows, numbers, places = np.array(chosen, np.int32).T
            self.places[places] = numbers
            self._fit()
            self.state = self.stream.admit(self.state, places, self.new_inputs, rows)
        return (self.places >= 0).any()

    def advance(self) -> None:
        """Continues the search until it can admit more inputs, or an output needs more slots."""
        self._fit()
        has_more = self.waiting or self.queue
        free = self.stream.num_admitted if has_more else self.stream.places
        self.state, report = self.stream.advance(self.params, self.state, np.int32(free))
        self.running, lengths, self.best = jax.device_get(report)
        self.longest = lengths[self.running].max(initial=0)

    def done(self) -> Iterator[tuple[int, Beams]]:
        """Yields the inputs that are done, and frees their places."""
        for place in np.flatnonzero((self.places >= 0) & ~self.running):
            yield int(self.places[place]), Beams(self.best.ids[place], self.best.scores[place])
        self.places[~self.running] = -1

    def _read(self) -> None:
        """Reads the next inputs of the queue, as many as the packed rows have room for."""
        numbers = list(itertools.islice(self.queue, self.stream.places))
        length = self._length(numbers)
        rows, width = self.stream.packed_shape(length)
        source = np.zeros((3, rows * width), np.int32)
        where = np.full((self.stream.places, length), rows * width, np.int32)
        limits = np.zeros(self.stream.places, np.int32)
        end = 0
        for row, number in enumerate(numbers):
            ids = self.inputs[number]
            positions = np.arange(len(ids))
            if end % width + len(ids) > width:
                end = rounded_up(end, width)
            if end + len(ids) > rows * width:
                break
            where[row, positions] = end + positions
            limits[row] = self.limits[number]
            source[:, end + positions] = ids, positions, np.full_like(positions, row + 1)
            end += len(ids)
            self.waiting.append((row, self.queue.popleft()))
        self.new_inputs = self.stream.begin(
            self.params, source.reshape(3, rows, width), where, limits
        )

    def _fit(self) -> None:
        """Makes room for the sources in all places, and for the next token of the longest output.

        The ring has at most four times as many slots as needed.
        """
        length = self._length(self.places[self.places >= 0])
        if self.state is None:
            self.state = self.stream.empty(self.params, length, length + _EXTRA_SLOTS)
        old_length = self.state.cache["segments"].shape[1]
        old_slots = self.state.slots
        slots = length + _EXTRA_SLOTS
        if length == old_length and self.longest > old_slots // 4:
            slots = old_slots
        while slots <= self.longest:
            slots *= 2
        if (length, slots) != (old_length, old_slots):
            self.state = self.stream.resize(self.state, length, slots)

    def _length(self, numbers: Sequence[int]) -> int:
        """Returns the length to which the sources of these inputs are padded."""
        longest = max(len(self.inputs[number]) for number in numbers)
        return min(rounded_up(longest, _SOURCE_MULTIPLE), self.stream.model.max_length)
