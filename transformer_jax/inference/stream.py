"""Beam search over a stream of inputs: one that is done makes room for the next (Yu et al. 2022,
section 3.1, "iteration-level scheduling").
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

from transformer_jax.inference.beam_search import Beams, BeamSearch, Search
from transformer_jax.layers.attention import resized, rolled, written

_SHARE = 32  # the search stops for new inputs when one in so many places is free
# what is kept of sources is padded to multiples of it, so that few shapes are compiled
_BUCKET = 16
_ROW = 128  # positions of a packed row of sources that are read
# slots of the cache beyond the tokens of the source: each token reads all there are, so they double
# only when one output needs them
_SPARE = 8


@dataclasses.dataclass(frozen=True)
class Stream:
    """Searches with an EncoderDecoder and its parameters `for_decoding`, `places` inputs in each."""

    model: Any  # the module
    search: BeamSearch
    places: int
    bos_id: int

    def __call__(
        self, params, inputs: Sequence[Sequence[int]], limits: Sequence[int]
    ) -> Iterator[tuple[int, Beams]]:
        """(number of an input, its hypotheses (n_best, T)) as they are done. `limits`: the most
        tokens of each output, the end included.

        Best with the longest inputs first: those of like length share what is padded, and the
        shortest leave least to wait for at the end.
        """
        held = _Held(self, params, inputs, np.array(limits, np.int32))
        while held.fill():
            held.advance()
            yield from held.done()

    @property
    def share(self) -> int:
        return -(-self.places // _SHARE)

    def packed(self, length: int) -> tuple[int, int]:
        """Rows, and positions of a row, in which sources of up to `length` are read: room for one
        for each place, if they are an eighth shorter.
        """
        room = self.places * length * 7 // 8
        width = max(length, min(_ROW, room))
        return max(1, room // width), width

    def _run(
        self, params, cache: dict, tokens, positions, slot, ancestors=None, memory=None
    ) -> tuple[jax.Array, dict]:
        """Tokens (N, K) at `positions` (N, 1), in one slot -> logits (N, K, V) of the next, and the
        cache with them in it.
        """
        known = {name: cache[name] for name in ("cache", "memory") if name in cache}
        hidden, new = self.model.apply(
            {"params": params, **known},
            tokens,
            memory,
            positions,
            None,
            cache["segments"],
            slots=slot * self.search.beam,
            decode=self.search.beam,
            ancestors=ancestors,
            method="decode",
            mutable=["cache", "memory"],
        )
        return self.model.apply({"params": params}, hidden, method="logits"), cache | new

    @partial(jax.jit, static_argnums=0)
    def begin(self, params, source: jax.Array, where: jax.Array, limits: jax.Array) -> Search:
        """Source (3, R, W), the ids, positions and segment ids of packed rows, is read, and the
        first target tokens are chosen.

        `where` (N, S): the places of each input's tokens in the rows, laid end to end; R W where it
        has none.
        """
        ids, positions, segments = source
        memory = self.model.apply({"params": params}, ids, positions, segments, method="encode")
        memory, segments = (
            memory.reshape(ids.size, -1).at[where].get(mode="fill", fill_value=0),
            (where < ids.size).astype(jnp.int32),
        )
        beginning = jnp.full((len(where), 1), self.bos_id)
        logits, cache = self._run(
            params,
            {"segments": segments},
            beginning,
            jnp.zeros_like(beginning),
            jnp.int32(0),
            memory=memory,
        )
        return self.search.begin(limits, logits[:, 0], cache)

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def empty(self, params, length: int, slots: int) -> Search:
        """A search without inputs, with room for sources of `length` and so many slots."""
        numbers = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
        shapes = jax.eval_shape(
            self.begin,
            params,
            numbers(3, *self.packed(length)),
            numbers(self.places, length),
            numbers(self.places),
        ).cache
        cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return self.search.empty(self.places, slots, self._sized(cache, length, slots))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def admit(self, state: Search, places: jax.Array, begun: Search, rows: jax.Array) -> Search:
        """Of the inputs that have begun those in `rows` come to `places`."""

        def put(cache, slot):
            # no source that comes is longer, whatever it was read with
            length = cache["segments"].shape[1]

            # one after the other, in place: a scatter takes several times as long on a CPU
            def one(n, cache):
                new = jax.tree.map(
                    lambda x: jax.lax.dynamic_slice_in_dim(x, rows[n], 1), begun.cache
                )
                new["memory"] = resized(new["memory"], min(length, new["segments"].shape[1]))
                blank = lambda name: jax.tree.map(lambda x: jnp.zeros_like(x[:1]), cache[name])
                # what is not seen counts 0, but 0 times NaN is NaN
                clear = lambda name: written(cache[name], blank(name), places[n], 0)
                return {
                    "cache": written(
                        clear("cache"), new["cache"], places[n], slot * self.search.beam
                    ),
                    "memory": written(clear("memory"), new["memory"], places[n], 0),
                    "segments": jax.lax.dynamic_update_slice_in_dim(
                        cache["segments"], _cut(new["segments"], length), places[n], 0
                    ),
                }

            return jax.lax.fori_loop(0, len(rows), one, cache)

        return self.search.admit(state, places, begun, rows, put)

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def advance(self, params, state: Search, free: jax.Array) -> tuple[Search, tuple]:
        """`state` when so many places are free, or an output needs more slots; which places are
        running (places,), the lengths there, and the hypotheses of all.
        """
        state = self.search.advance(state, partial(self._run, params), free)
        return state, (self.search.running(state), state.lengths, self.search.best(state))

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def resize(self, state: Search, length: int, slots: int) -> Search:
        """With room for sources of `length`, and so many slots."""
        move = lambda cache, shift: (
            cache | {"cache": rolled(cache["cache"], shift * self.search.beam)}
        )
        return self.search.resized(
            state, slots, lambda cache, shift: self._sized(move(cache, shift), length, slots)
        )

    def _sized(self, cache: dict, length: int, slots: int) -> dict:
        return {
            "cache": resized(cache["cache"], slots * self.search.beam),
            "memory": resized(cache["memory"], length),
            "segments": _cut(cache["segments"], length),
        }


def _cut(segments: jax.Array, length: int) -> jax.Array:
    """(N, S) of `length`: the end cut off, or padding added."""
    segments = segments[:, :length]
    return jnp.pad(segments, ((0, 0), (0, length - segments.shape[1])))


class _Held:
    """The inputs: those in the places of a search, those of a batch that has been read and wait for
    one, and those that stand in the queue.
    """

    def __init__(self, stream: Stream, params, inputs: Sequence[Sequence[int]], limits: np.ndarray):
        self.stream, self.params, self.inputs, self.limits = stream, params, inputs, limits
        self.queue = deque(range(len(inputs)))
        self.waiting = deque()  # (row of the batch, number of the input)
        self.places = np.full(stream.places, -1)  # number of the input in each
        self.longest = 0  # tokens of an output that is being written
        self.state = None

    def fill(self) -> bool:
        """Gives free places to what waits; whether any place is taken."""
        while (self.waiting or self.queue) and (free := np.flatnonzero(self.places < 0)).size:
            if not self.waiting:
                self._read()
            chosen = [
                (*self.waiting.popleft(), place)
                for place in free[: min(self.stream.share, len(self.waiting))]
            ]
            rows, numbers, places = np.array(
                chosen + chosen[-1:] * (self.stream.share - len(chosen)), np.int32
            ).T
            self.places[places] = numbers
            self._fit()
            self.state = self.stream.admit(self.state, places, self.begun, rows)
        return (self.places >= 0).any()

    def advance(self) -> None:
        """Writes on until there is room for more inputs, or an output needs more slots."""
        self._fit()
        free = self.stream.share if self.waiting or self.queue else self.stream.places
        self.state, report = self.stream.advance(self.params, self.state, np.int32(free))
        self.running, lengths, self.best = jax.device_get(report)
        self.longest = lengths[self.running].max(initial=0)

    def done(self) -> Iterator[tuple[int, Beams]]:
        """What is done leaves its place."""
        for place in np.flatnonzero((self.places >= 0) & ~self.running):
            yield int(self.places[place]), Beams(self.best.ids[place], self.best.scores[place])
        self.places[~self.running] = -1

    def _read(self) -> None:
        """The next of the queue, as many as find room in the packed rows."""
        numbers = list(itertools.islice(self.queue, self.stream.places))
        length, limits, end = self._length(numbers), np.zeros(self.stream.places, np.int32), 0
        rows, width = self.stream.packed(length)
        source, where = (
            np.zeros((3, rows * width), np.int32),
            np.full((self.stream.places, length), rows * width, np.int32),
        )
        for row, number in enumerate(numbers):
            positions = np.arange(len(self.inputs[number]))
            if end % width + len(positions) > width:
                end = -(-end // width) * width
            if end + len(positions) > rows * width:
                break
            where[row, positions], limits[row] = end + positions, self.limits[number]
            source[:, end + positions] = (
                self.inputs[number],
                positions,
                np.full_like(positions, row + 1),
            )
            end += len(positions)
            self.waiting.append((row, self.queue.popleft()))
        self.begun = self.stream.begin(self.params, source.reshape(3, rows, width), where, limits)

    def _fit(self) -> None:
        """Room for the sources in all places, and for one token more than the longest output has;
        no more than four times as much.
        """
        length = self._length(self.places[self.places >= 0])
        if self.state is None:
            self.state = self.stream.empty(self.params, length, length + _SPARE)
        now = self.state.cache["segments"].shape[1], self.state.slots
        slots = now[1] if length == now[0] and self.longest > now[1] // 4 else length + _SPARE
        while slots <= self.longest:
            slots *= 2
        if (length, slots) != now:
            self.state = self.stream.resize(self.state, length, slots)

    def _length(self, numbers: Sequence[int]) -> int:
        longest = max(len(self.inputs[number]) for number in numbers)
        return min(-(-longest // _BUCKET) * _BUCKET, self.stream.model.max_length)
