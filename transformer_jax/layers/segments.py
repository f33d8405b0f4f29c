"""The places of texts in packed rows, and rows with padding."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int, Shaped


def bounds(
    segment_ids: Int[ArrayLike, "B L"],
) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Returns the first and the last place of the text that each position belongs to.

    Positions with equal ids side by side belong to one text.
    """
    ids = jnp.asarray(segment_ids)
    places = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    changes = ids[:, 1:] != ids[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    ends = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, places, ids.shape[1]), axis=1, reverse=True)
    return first, last


def places_of(segment_ids: Int[ArrayLike, "B L"] | None, length: int) -> Int[Array, "#B L"]:
    """Returns the places of positions in their texts. Without ids, a row is one text."""
    positions = jnp.arange(length)[None]
    return positions if segment_ids is None else positions - bounds(segment_ids)[0]


def at(x: Array, places: Int[Array, "B N"]) -> Array:
    """Returns the vectors (B, N, ...) of x (B, L, ...) at places of its rows."""
    return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)


def padded(
    x: Shaped[Array, "B L *axes"] | None, after: int, before: int = 0
) -> Shaped[Array, "B K *axes"] | None:
    """Returns x with zeros behind its positions, and before them; None for None."""
    if x is None or not (before or after):
        return x
    return jnp.pad(x, ((0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)))
