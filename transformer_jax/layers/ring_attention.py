"""Ring attention: attention over sequences whose positions are split over devices.

Each device holds the queries of its own positions. Keys and values travel around the ring of
devices, and each device attends to those that it currently holds (Li et al. 2021; Liu et al. 2023,
section 3). On a device, queries and keys are divided into tiles, and the scores of one pair of
tiles are in memory at a time. The memory therefore grows with the number of positions per device,
not with the length of the sequence.

The forward pass is the online softmax (Milakov & Gimelshein 2018, section 3) in float32. The
backward pass recomputes the scores (Dao et al. 2022, section 3.1), and the gradients of keys and
values travel along with them.

A pair of tiles is skipped if the mask hides it by its positions. With a causal mask, the last
device would then compute in every turn and the first device only once. To balance the work, each
sequence is divided into two chunks for each of the s devices, and device i handles the chunks i and
2s-1-i, so that all devices compute equally many pairs of tiles in each turn.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers.masks import Mask

# The largest number of positions in a tile. Forward and backward on two CPU cores with 4,096
# positions on four devices, for tiles of 128, 256 and 512: 0.83, 0.81, 0.96 s causal; 1.32, 1.25,
# 1.48 s dense.
_TILE = 256
_HEADS = ("batch", "length", "heads", "head_dim")
_SEGMENTS = ("batch", "length")


def ring(
    q: Float[Array, "B Q H D"],
    k: Float[Array, "B K G D"],
    v: Float[Array, "B K G D"],
    mask: Mask,
    dropout: None = None,
    *,
    bias: None = None,
    scale: float | None = None,
) -> Float[Array, "B Q H D"]:
    """Ring attention. The computation on each device is plain XLA.

    The mesh must divide the batch, the heads and both lengths. A query without visible keys has the
    output 0 and adds nothing to the gradients.
    """
    # The queries stay on their device, so they are scaled once instead of the scores in each turn.
    scaled = q / math.sqrt(q.shape[-1]) if scale is None else q * scale
    # In a scan over layers the window is traced, so each device must get it as an argument.
    window = None if mask.window is None else jnp.asarray(mask.window)
    arguments = (scaled, k, v, mask.query_segments, mask.key_segments, window)
    axes = (_HEADS, _HEADS, _HEADS, _SEGMENTS, _SEGMENTS, ())
    devices = _Ring(sharding.mesh_axes(_HEADS)[1])
    attend = functools.partial(_on_device, devices, mask.causal)
    return sharding.on_each_device(attend, arguments, axes, _HEADS)


def _on_device(ring: "_Ring", causal: bool, *arguments: jax.Array | None) -> jax.Array:
    """Returns the output for the queries of a device, given its own parts of the arguments."""
    q, k, v, query_segments, key_segments, window = arguments
    batch, length, heads, head_dim = q.shape
    if key_segments is None and math.prod(_tiling(k.shape[1])) > k.shape[1]:
        # Segment 0 hides the keys that pad the last tile.
        key_segments = jnp.ones(k.shape[:2], jnp.int32)
    q = _tiles(q.reshape(batch, length, k.shape[2], -1, head_dim))
    arrays = (q.transpose(0, 1, 3, 4, 2, 5), _tiles(k).swapaxes(2, 3), _tiles(v).swapaxes(2, 3))
    positions = (ring.positions(length, query_segments), ring.positions(k.shape[1], key_segments))
    # Only a causal mask gives the devices unequal work. Otherwise moving the tiles would be in
    # vain.
    is_unbalanced = causal and ring.size > 1
    if is_unbalanced:
        arrays, positions = jax.tree.map(ring.balanced, (arrays, positions))
    y = _attention(ring, *arrays, (*positions, Mask(causal=causal, window=window)))
    y = ring.in_order(y) if is_unbalanced else y
    y = y.transpose(1, 0, 4, 2, 3, 5)  # (B, N, T, G, R, D)
    return y.reshape(batch, -1, heads, head_dim)[:, :length]


def _tiling(length: int) -> tuple[int, int]:
    """Returns the number of tiles and the number of positions in each.

    The number of tiles is even, because `_Ring.balanced` divides them into two chunks.
    """
    count = 2 * -(-length // (2 * _TILE))
    return count, -(-length // count)


def _tiles(x: jax.Array) -> jax.Array:
    """Splits x (B, L, ...) into tiles (N, B, T, ...), padded with zeros at the end."""
    count, size = _tiling(x.shape[1])
    padding = [(0, 0)] * x.ndim
    padding[1] = (0, count * size - x.shape[1])
    return jnp.pad(x, padding).reshape(len(x), count, size, *x.shape[2:]).swapaxes(0, 1)


@struct.dataclass
class _Positions:
    """The positions of N tiles in their sequences."""

    starts: Int[Array, " N"]  # the first position of each tile
    segments: Int[Array, "N B T"] | None


@dataclasses.dataclass(frozen=True)
class _Ring:
    """The devices that share a sequence, in the order of these mesh axes."""

    axes: tuple[str, ...]

    @property
    def size(self) -> int:
        return jax.lax.axis_size(self.axes)

    def positions(self, length: int, segments: jax.Array | None) -> _Positions:
        """Returns the positions of the tiles of this device, which holds `length` positions."""
        count, size = _tiling(length)
        starts = jax.lax.axis_index(self.axes) * length + size * jnp.arange(count)
        return _Positions(starts, None if segments is None else _tiles(segments))

    def balanced(self, x: jax.Array) -> jax.Array:
        """Moves tiles (N, ...) from chunks 2i and 2i+1 on device i to chunks i and 2s-1-i."""
        evens, odds = jnp.split(x, 2)
        # There are two calls, because a device sends one array in a ppermute, but has two chunks.
        evens = jax.lax.ppermute(evens, self.axes, self._moves(0))
        odds = jax.lax.ppermute(odds, self.axes, self._moves(1))
        return self._exchanged(evens, odds)

    def in_order(self, x: jax.Array) -> jax.Array:
        """The inverse of `balanced`."""
        evens, odds = jnp.split(self._exchanged(*jnp.split(x, 2)), 2)
        back = [[pair[::-1] for pair in self._moves(parity)] for parity in (0, 1)]
        evens = jax.lax.ppermute(evens, self.axes, back[0])
        odds = jax.lax.ppermute(odds, self.axes, back[1])
        return jnp.concatenate([evens, odds])

    def _moves(self, parity: int) -> list[tuple[int, int]]:
        """Returns (i, destination of chunk 2i + parity) for each device i."""
        chunks = range(parity, 2 * self.size, 2)
        return [(i, min(chunk, 2 * self.size - 1 - chunk)) for i, chunk in enumerate(chunks)]

    def _exchanged(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Concatenates x and y on an even device, y and x on an odd one.

        This is because chunk i, the first one of device i, has the parity of the device.
        """
        is_odd = jax.lax.axis_index(self.axes) % 2 == 1
        return jnp.concatenate([jnp.where(is_odd, y, x), jnp.where(is_odd, x, y)])

    def sent(self, tree):
        """Sends the arrays to the next device and returns the previous one's."""
        if self.size == 1:
            return tree
        pairs = [(i, (i + 1) % self.size) for i in range(self.size)]
        return jax.lax.ppermute(tree, self.axes, pairs)

    def around(self, update: Callable, queries, keys, mask: Mask, states: tuple) -> tuple:
        """Returns `states` of queries and keys after the keys have visited all devices.

        `queries` and `keys` are (arrays, positions). `update` is described in `_pairs`.
        """

        def attend(keys, q_state, k_state):
            # The contribution of this turn starts from zeros and is added on arrival, so that the
            # state from the previous turn travels while the device computes.
            arriving = self.sent(k_state)
            zeros = jax.tree.map(jnp.zeros_like, k_state)
            q_state, added = _pairs(update, queries, keys, mask, (q_state, zeros))
            return q_state, jax.tree.map(jnp.add, arriving, added)

        def turn(carry, _):
            keys, *states = carry
            return (self.sent(keys), *attend(keys, *states)), None

        # The last turn is outside of the scan, because its keys need not be sent on. The state of
        # the keys is then one step away from the device that owns them.
        carry, _ = jax.lax.scan(turn, (keys, *states), length=self.size - 1)
        q_state, k_state = attend(*carry)
        return q_state, self.sent(k_state)


def _pairs(update: Callable, queries, keys, mask: Mask, states: tuple) -> tuple:
    """Returns `states` of queries and keys after all pairs of tiles on a device.

    `update(states, query arrays, key arrays, visible)` returns the new states of a pair of tiles.
    """

    def on_queries(k_state, part):
        (q_arrays, q_positions), q_state = part

        def on_keys(q_state, part):
            (k_arrays, k_positions), k_state = part
            sizes = (q_arrays[0].shape[-2], k_arrays[0].shape[-2])
            # Slots are relative to the tile of keys, because the mask assumes that the keys start
            # at slot 0.
            by_position = mask.replace(query_slots=q_positions.starts - k_positions.starts)
            is_near = by_position.dense(*sizes)
            visible = by_position.replace(
                query_segments=q_positions.segments, key_segments=k_positions.segments
            ).dense(*sizes)
            states = (q_state, k_state)
            if is_near is None:
                return update(states, q_arrays, k_arrays, visible)
            # A branch at run time, because a device learns its positions only there.
            return jax.lax.cond(
                is_near.any(),
                lambda: update(states, q_arrays, k_arrays, visible),
                lambda: states,
            )

        q_state, k_state = jax.lax.scan(on_keys, q_state, (keys, k_state))
        return k_state, q_state

    q_state, k_state = states
    k_state, q_state = jax.lax.scan(on_queries, k_state, (queries, q_state))
    return q_state, k_state


# q is (N, B, G, R, T, D), where R query heads share each of G key heads. k and v are (N, B, G, T,
# D). The custom gradient is needed because differentiating the scans would save all scores.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(ring: _Ring, q, k, v, positions: tuple) -> jax.Array:
    return _forward(ring, q, k, v, positions)[0]


def _forward(ring: _Ring, q, k, v, positions: tuple):
    # The masks do not depend on the layer. Without the barrier, a differentiated scan over the
    # layers computes the masks of all pairs of tiles in advance and saves them.
    q, k, v, positions = jax.lax.optimization_barrier((q, k, v, positions))
    query_positions, key_positions, mask = positions
    y = jnp.zeros(q.shape, jnp.float32)
    # The initial maximum is finite, because for a tile without visible keys -inf - (-inf) is NaN.
    highest = jnp.full(q.shape[:-1], jnp.finfo(jnp.float32).min)
    state = (y, highest, jnp.zeros_like(highest))
    (y, highest, total), _ = ring.around(
        _attend, ((q,), query_positions), ((k, v), key_positions), mask, (state, ())
    )
    # A query without visible keys would divide 0 by 0. With a total of 1, its output is 0.
    total = jnp.where(total == 0, 1, total)
    y = (y / total[..., None]).astype(v.dtype)
    return y, (q, k, v, positions, y, highest + jnp.log(total))


def _attend(states: tuple, queries: tuple, keys: tuple, visible) -> tuple:
    """Adds a tile of keys to the sums of the queries, which are scaled by exp(-highest)."""
    (y, highest, total), k_state = states
    (q,) = queries
    k, v = keys
    scores = _scores(q, k, visible)
    new_highest = jnp.maximum(highest, scores.max(axis=-1))
    weights = jnp.exp(scores - new_highest[..., None])
    # Earlier sums must be rescaled, because they were scaled by the former maximum.
    factor = jnp.exp(highest - new_highest)
    y = y * factor[..., None] + _product("bgrqk,bgkd->bgrqd", weights.astype(v.dtype), v)
    return (y, new_highest, total * factor + weights.sum(axis=-1)), k_state


def _backward(ring: _Ring, saved: tuple, dy) -> tuple:
    q, k, v, (query_positions, key_positions, mask), y, log_total = saved
    # The gradient of the softmax needs the sum of weights times their gradients over all keys. It
    # equals the product of output and output gradient (Dao et al. 2022, appendix B.4), which this
    # device has already, whereas the sum would need a turn of its own.
    mean = jnp.sum(y.astype(jnp.float32) * dy, axis=-1)
    # The gradients are float32, because they are sums over all pairs of tiles, and bfloat16 would
    # round each partial sum.
    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    queries = ((q, dy, mean, log_total), query_positions)
    keys = ((k, v), key_positions)
    dq, (dk, dv) = ring.around(_attend_backward, queries, keys, mask, (dq, (dk, dv)))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


def _attend_backward(states: tuple, queries: tuple, keys: tuple, visible) -> tuple:
    dq, (dk, dv) = states
    q, dy, mean, log_total = queries
    k, v = keys
    # A hidden key gets the weight exp(-inf) = 0, even if the query sees no key, because `log_total`
    # is always finite.
    weights = jnp.exp(_scores(q, k, visible) - log_total[..., None])
    d_weights = _product("bgrqd,bgkd->bgrqk", dy, v)
    d_scores = (weights * (d_weights - mean[..., None])).astype(q.dtype)
    dq += _product("bgrqk,bgkd->bgrqd", d_scores, k)
    dk += _product("bgrqk,bgrqd->bgkd", d_scores, q)
    dv += _product("bgrqk,bgrqd->bgkd", weights.astype(dy.dtype), dy)
    return dq, (dk, dv)


_attention.defvjp(_forward, _backward)


def _scores(q, k, visible) -> jax.Array:
    """Returns the scores of a pair of tiles (B, G, R, T, T), which are -inf for hidden keys."""
    scores = _product("bgrqd,bgkd->bgrqk", q, k)
    return scores if visible is None else jnp.where(visible[:, :, None], scores, -jnp.inf)


def _product(axes: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)
