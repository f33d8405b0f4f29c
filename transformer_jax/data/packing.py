"""Packing of several short pairs into a row, planned once."""

import numpy as np

# Rows that may still take a pair. Beyond them, the fullest row is closed.
_NUM_OPEN = 500
_NO_ROOM = np.int32(2**31 - 1)


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    key: tuple[int, ...],
) -> list[list[int]]:
    """Returns the pair numbers of each row, so that both sides of a row fit their lengths.

    The pairs are taken in an order drawn from `key`, and each goes to the open row in which it
    leaves the least room (best fit). Rows therefore mix lengths as the data does. Each pair must
    fit a row alone.
    """
    order = np.random.Generator(np.random.Philox(key)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[]] * _NUM_OPEN
    # Free positions of the open rows: sources, targets, and both together.
    source_room, target_room, room = np.zeros((3, _NUM_OPEN), np.int32)
    for pair, source, target in zip(
        order.tolist(), source_lengths[order].tolist(), target_lengths[order].tolist()
    ):
        fits = (source_room >= source) & (target_room >= target)
        slot = int(np.where(fits, room, _NO_ROOM).argmin())
        if not fits[slot]:
            # The pair fits no open row: a new one replaces the fullest.
            slot = int(room.argmin())
            source_room[slot] = source_length
            target_room[slot] = target_length
            room[slot] = source_length + target_length
            open_rows[slot] = []
            rows.append(open_rows[slot])
        open_rows[slot].append(pair)
        source_room[slot] -= source
        target_room[slot] -= target
        room[slot] -= source + target
    return rows
