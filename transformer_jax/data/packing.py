"""Packing several short pairs into a row: planned once, over the whole training set."""

import numpy as np

from transformer_jax.pictures.progress import track

_OPEN = 500  # rows that may still take a pair; beyond it the fullest is closed


def plan(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    source_length: int,
    target_length: int,
    seed: int,
) -> list[list[int]]:
    """Rows of pair numbers such that each row's lengths fit both sides.

    Best fit in random order: each pair goes where it leaves the least room, so rows mix lengths as
    the data does. Every length must fit by itself.
    """
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(source_lengths))
    rows: list[list[int]] = []
    room = np.zeros((_OPEN, 2), np.int64)  # left of the open rows, source and target
    row_of = np.full(_OPEN, -1)
    for pair in track(order, "packing", len(order)):
        need = np.array((source_lengths[pair], target_lengths[pair]))
        left = room - need
        waste = np.where((left >= 0).all(axis=1), left.sum(axis=1), np.iinfo(np.int64).max)
        slot = int(waste.argmin())
        if left[slot].min() < 0:  # nowhere: open a row in the place of the fullest
            slot = int(room.sum(axis=1).argmin())
            room[slot] = source_length, target_length
            row_of[slot] = len(rows)
            rows.append([])
        rows[row_of[slot]].append(int(pair))
        room[slot] -= need
    return rows
