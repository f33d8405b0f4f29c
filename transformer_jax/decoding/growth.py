"""A key/value cache that grows with what is written: each token reads all there is room for, used or not."""
from collections.abc import Callable

import jax

_FIRST = 32  # positions there is room for at first; then twice as many each time


def while_loop(running: Callable, advance: Callable, state: tuple, *, most: int, grow: Callable) -> tuple:
    """jax.lax.while_loop over states (number, ..., cache) in which each round adds one to `number`; it ends where that reaches `most`, too.

    `grow(cache, positions)` gives the cache room for so many; a loop is compiled for each size.
    """
    for stop in [*_doubling(most), most]:
        *rest, cache = state
        state = jax.lax.while_loop(lambda state: (state[0] < stop) & running(state), advance, (*rest, grow(cache, stop)))
    return state


def _doubling(most: int):
    size = _FIRST
    while size < most:
        yield size
        size *= 2
