"""Packing of several short pairs into a row, planned once for the whole training set."""

import numpy as np

from transformer_jax.pictures.progress import track

# Rows that may still take a pair. Beyond them, the fullest row is closed.
_NUM_OPEN = 500


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    seed: int,
) -> list[list[int]]:
    """Returns the pair numbers of each row, so that both sides of a row fit their lengths.

    The pairs are taken in random order, and each goes to the open row in which it leaves the least
    room (best fit). Rows therefore mix lengths as the data does. Each pair must fit a row alone.
    """
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    room = np.zeros((_NUM_OPEN, 2), np.int64)  # free positions of the open rows, source and target
    row_of = np.full(_NUM_OPEN, -1)
    for pair in track(order, "packing", len(order)):
        size = np.array((source_lengths[pair], target_lengths[pair]))
        room_left = room - size
        fits = (room_left >= 0).all(axis=1)
        waste = np.where(fits, room_left.sum(axis=1), np.iinfo(np.int64).max)
        slot = int(waste.argmin())
        if not fits[slot]:
            # The pair fits no open row: a new one replaces the fullest.
            slot = int(room.sum(axis=1).argmin())
            room[slot] = source_length, target_length
            row_of[slot] = len(rows)
            rows.append([])
        rows[row_of[slot]].append(int(pair))
        room[slot] -= size
    return rows
