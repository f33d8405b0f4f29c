"""Beam search with continuous batching: the row of an input that is done is given to the next
input, while the others continue (Yu et al. 2022, section 3.1, "iteration-level scheduling").
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.contracts.model import Inputs
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import rounded_up
from transformer_jax.inference.beam_search import BeamSearch, Outputs, Search
from transformer_jax.layers.decoding import split

# The search pauses to admit inputs as soon as one row in this many is free. A pause costs a return
# to the host, and until the pause free rows are computed for nothing.
_ROWS_PER_FREE = 32
# Source lengths are padded to multiples of this, so that few shapes are compiled.
_SOURCE_MULTIPLE = 16
_ROW_LENGTH = 128  # tokens of a packed row, which several short sources share to save padding
# Slots of the KV cache beyond the length of the source, at the start. Each decoding step reads all
# slots, so their number is doubled only when an output needs more.
_EXTRA_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Stream:
    """Searches with a SequenceToSequence model, `num_rows` inputs at a time.

    The search batch has `num_rows` rows, which are split over the devices. Parameters are in the
    form of the model's `for_decoding`.
    """

    model: Any  # the Linen module
    search: BeamSearch
    num_rows: int
    start_id: int  # the token that the decoder reads first
    placement: Placement  # of a decoder

    def __call__(
        self, params, inputs: Sequence[Sequence[int]], limits: Sequence[int]
    ) -> Iterator[tuple[int, Outputs]]:
        """Yields (index of an input, its outputs (n_best, T)) as soon as each input is done.

        `limits` are the maximum lengths of the outputs, end token included. The longest inputs
        should come first. Neighbors then have similar lengths, which saves padding, and the last
        inputs, for which the other rows wait, are the shortest.
        """
        queue = _Queue(self, params, inputs, np.array(limits, np.int32))
        while queue.fill():
            queue.advance()
            yield from queue.done()

    @property
    def num_admitted(self) -> int:
        """The number of inputs that are admitted in one call."""
        return -(-self.num_rows // _ROWS_PER_FREE)

    def packed_shape(self, length: int) -> tuple[int, int]:
        """Returns the shape (rows, tokens of a row) of packed sources of up to `length` tokens.

        One source for each row of the search fits if sources have 7/8 of `length` on average.
        """
        room = self.num_rows * length * 7 // 8
        width = max(length, min(_ROW_LENGTH, room))
        return self.placement.rows(max(1, room // width)), width

    def slots(self, length: int, limit: int) -> int:
        """Returns the number of cache slots for sources of `length` and outputs of `limit`."""
        return _with_room(_first_slots(length, limit), limit - 1)

    @partial(jax.jit, static_argnums=0)
    def begin(
        self,
        params,
        source: Int[Array, "3 R W"],
        where: Int[Array, "N S"],
        limits: Int[Array, " N"],
    ) -> Search:
        """Encodes packed sources, and chooses the first target tokens of N inputs.

        `source` holds the ids, positions and segment ids of R packed rows of W tokens. `where`
        holds the indices of each input's tokens in the flattened rows; R W means padding.
        """
        with self.placement.use():
            ids, positions, segments = split_rows(tuple(source))
            inputs = Inputs(ids, positions=positions, segment_ids=segments)
            encoder_output = self.model.apply({"params": params}, inputs, method="encode")
            # Gathered before the rows are split again, because the encoder's rows are packed and
            # the decoder's are not, so that a source may move to another device.
            encoder_output = gathered(encoder_output.reshape(ids.size, -1))
            where = split_rows(where)
            # Padding is filled with 0, because attention multiplies the values that it masks by 0:
            # with NaN, the default fill value, 0 * NaN would make the whole row NaN.
            encoder_output = split_rows(encoder_output.at[where].get(mode="fill", fill_value=0))
            segments = (where < ids.size).astype(jnp.int32)
            first = jnp.full((len(where), 1), self.start_id)
            beams = self.search.beam
            logits, state = self.model.begin(params, first, encoder_output, segments, beams=beams)
            return split(self.search.begin(limits, _split_by_vocabulary(logits), state, first))

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def empty(self, params, length: int, slots: int) -> Search:
        """Returns a search without inputs, with room for sources of `length` and for `slots`."""

        def spec(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.int32)

        def full(*inputs):
            return self.search.resized(self.begin(*inputs), slots, length)

        # The state's arrays depend on the model, so their shapes are taken from a first call that
        # is traced, but not computed.
        source = spec(3, *self.packed_shape(length))
        where, limits = spec(self.num_rows, length), spec(self.num_rows)
        shapes = jax.eval_shape(full, params, source, where, limits)
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        with self.placement.use():
            return split(self.search.empty(self.num_rows, slots, blank.state, blank.before))

    # `search` is donated, so that its KV cache exists only once.
    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def admit(
        self, search: Search, indices: Int[Array, " N"], new_inputs: Search, rows: Int[Array, " N"]
    ) -> Search:
        """Returns `search` with the inputs in `rows` of `new_inputs` put into its rows `indices`.

        The buffers of `search` are donated.
        """
        with self.placement.use():
            return split(self.search.admit(search, new_inputs, indices=indices, rows=rows))

    @partial(jax.jit, static_argnums=0, donate_argnums=2)
    def advance(self, params, search: Search, free: Int[Array, ""]) -> tuple[Search, tuple]:
        """Continues until `free` rows are free, or until an output needs more slots.

        Returns the search and a report: (which rows are running (num_rows,), the lengths of their
        hypotheses, the best hypotheses of all rows). The buffers of `search` are donated.
        """

        def step(state, tokens):
            # Without the barrier, XLA gathers all sharded parameters at once, before the loop, and
            # each device needs the memory of the whole model.
            logits, state = self.model.step(*sharding.gather_after(params, state), tokens)
            return _split_by_vocabulary(logits), state

        with self.placement.use():
            search = self.search.advance(search, step, free)
            # The best hypotheses of all rows come with it, because a second program for the rows
            # that are done would cost another wait for the devices.
            report = self.search.running(search), search.lengths, self.search.best(search)
            return split(search), gathered(report)

    @partial(jax.jit, static_argnums=(0, 2, 3))
    def resize(self, search: Search, length: int, slots: int) -> Search:
        """Returns `search` with room for sources of `length` and for `slots` tokens."""
        with self.placement.use():
            return split(self.search.resized(search, slots, length))


def _split_by_vocabulary(logits: Float[Array, "N *K V"]) -> Float[Array, "N *K V"]:
    """Returns the logits, split over the devices by rows and by vocabulary.

    Each device then needs only its own part of the output embeddings.
    """
    # XLA cannot split a vocabulary that the mesh does not divide, so it is left whole.
    if logits.shape[-1] % sharding.parts("vocab"):
        return logits
    return sharding.constrain(logits, "batch", *[None] * (logits.ndim - 2), "vocab")


class _Queue:
    """The inputs of a search: those in its rows, those encoded and waiting, and the remaining.

    Attributes:
      queue: the indices of the remaining inputs.
      waiting: (row of the encoded batch, index of the input) for inputs that are not admitted yet.
      in_row: the index of the input in each row of the search, -1 in a free row.
      longest: the number of tokens of the longest unfinished output.
      length: the length to which the sources in the rows are padded.
    """

    def __init__(self, stream: Stream, params, inputs: Sequence[Sequence[int]], limits: np.ndarray):
        self.stream, self.params = stream, params
        self.inputs, self.limits = inputs, limits
        self.queue = deque(range(len(inputs)))
        self.waiting = deque()  # (row of the encoded batch, index of the input), not admitted yet
        self.in_row = np.full(stream.num_rows, -1)
        self.longest = 0  # tokens of the longest unfinished output
        self.search = None
        self.length = 0  # to which the sources in the rows are padded

    def fill(self) -> bool:
        """Admits inputs to free rows. Returns whether any row has an input."""
        num_admitted = self.stream.num_admitted
        while (self.waiting or self.queue) and (free := np.flatnonzero(self.in_row < 0)).size:
            if not self.waiting:
                self._read()
            chosen = [
                (*self.waiting.popleft(), row)
                for row in free[: min(num_admitted, len(self.waiting))]
            ]
            # The last one is repeated, which has no effect, so that only one shape is compiled.
            chosen += chosen[-1:] * (num_admitted - len(chosen))
            new_rows, numbers, rows = np.array(chosen, np.int32).T
            self.in_row[rows] = numbers
            self._fit()
            arguments = (self.search, rows, self.new_inputs, new_rows)
            self.search = hosts.run(Stream.admit, self.stream, *arguments)
        return bool((self.in_row >= 0).any())

    def advance(self) -> None:
        """Continues the search until it can admit more inputs, or an output needs more slots."""
        self._fit()
        # Without further inputs, a free row is of no use, so the search runs to its end.
        has_more = self.waiting or self.queue
        free = self.stream.num_admitted if has_more else self.stream.num_rows
        arguments = (self.params, self.search, np.int32(free))
        self.search, report = hosts.run(Stream.advance, self.stream, *arguments)
        self.running, lengths, self.best = jax.device_get(report)
        self.longest = int(lengths[self.running].max(initial=0))

    def done(self) -> Iterator[tuple[int, Outputs]]:
        """Yields the inputs that are done, and frees their rows."""
        for row in np.flatnonzero((self.in_row >= 0) & ~self.running):
            yield int(self.in_row[row]), self.best.row(int(row))
        # Free rows never run, so that this also leaves them free.
        self.in_row[~self.running] = -1

    def _read(self) -> None:
        """Encodes the next inputs of the queue, as many as fit in the packed rows."""
        # Those that do not fit after all stay in the queue, because how many do depends on their
        # lengths.
        numbers = list(itertools.islice(self.queue, self.stream.num_rows))
        length = self._length(numbers)
        rows, width = self.stream.packed_shape(length)
        source = np.zeros((3, rows * width), np.int32)
        where = np.full((self.stream.num_rows, length), rows * width, np.int32)
        limits = np.zeros(self.stream.num_rows, np.int32)
        end = 0
        for row, number in enumerate(numbers):
            ids = self.inputs[number]
            positions = np.arange(len(ids))
            # A source must not cross the end of a packed row, because attention does not.
            if end % width + len(ids) > width:
                end = rounded_up(end, width)
            if end + len(ids) > rows * width:
                break
            where[row, positions] = end + positions
            limits[row] = self.limits[number]
            # Its own positions and segment id make each source encoded as if it were alone in its
            # row. Segment 0 is padding.
            source[:, end + positions] = ids, positions, np.full_like(positions, row + 1)
            end += len(ids)
            self.waiting.append((row, self.queue.popleft()))
        arguments = (self.params, source.reshape(3, rows, width), where, limits)
        self.new_inputs = hosts.run(Stream.begin, self.stream, *arguments)

    def _fit(self) -> None:
        """Makes room for the sources in all rows, and for the next token of the longest output.

        While the length of the sources is the same, a search shrinks only if it has at least four
        times as many slots as its longest output has tokens.
        """
        length = self._length(self.in_row[self.in_row >= 0].tolist())
        slots = _first_slots(length, int(self.limits.max()))
        if self.search is None:
            self.search = hosts.run(Stream.empty, self.stream, self.params, length, slots)
            self.length = length
        # Shrinking early would let a search shrink and grow in turns, and each change copies the
        # cache.
        if length == self.length and self.longest > self.search.slots // 4:
            slots = self.search.slots
        slots = _with_room(slots, self.longest)
        if (length, slots) != (self.length, self.search.slots):
            self.search = hosts.run(Stream.resize, self.stream, self.search, length, slots)
            self.length = length

    def _length(self, numbers: Iterable[int]) -> int:
        """Returns the length to which the sources of these inputs are padded."""
        longest = max(len(self.inputs[number]) for number in numbers)
        return min(rounded_up(longest, _SOURCE_MULTIPLE), self.stream.model.window)


def _first_slots(length: int, limit: int) -> int:
    """Returns the number of slots at the start of a search, for sources of `length`.

    `limit` is the maximum number of tokens of any output.
    """
    return min(length + _EXTRA_SLOTS, rounded_up(limit, _SOURCE_MULTIPLE))


def _with_room(slots: int, tokens: int) -> int:
    """Returns `slots`, doubled until an output of `tokens` tokens has room for the next one."""
    while slots <= tokens:
        # Doubling keeps the number of shapes small, for each of which programs are compiled.
        slots *= 2
    return slots
