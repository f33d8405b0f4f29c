"""From step numbers to device arrays: each host reads the rows its own devices hold, ahead of time."""

from collections.abc import Callable, Iterator

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding

_AHEAD = 4  # batches read, and copied to the devices, before they are asked for


def stream(
    read: Callable[[int, np.ndarray], dict],
    rows: int,
    accumulation: int,
    where: NamedSharding,
    start: int,
    stop: int,
) -> Iterator[dict[str, jax.Array]]:
    """The batches of updates start to stop - 1 as global arrays (accumulation, rows / accumulation,
    ...).

    `read(step, places)` gives the rows at these places of the batch: arrays (len(places), ...). Row
    j of an update is row j mod (rows / accumulation) of microbatch j div (rows / accumulation),
    whatever the mesh.
    """
    places = np.arange(rows).reshape(accumulation, -1)
    indices = where.addressable_devices_indices_map(places.shape)
    here = np.unique(np.concatenate([places[index].ravel() for index in indices.values()]))

    def load(step):
        local = read(int(step), here)
        return {name: _globally(values, places, here, where) for name, values in local.items()}

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    return iter(grain.MapDataset.range(start, stop).map(load).to_iter_dataset(options))


def _globally(values, places, here, where):
    shape = (*places.shape, *values.shape[1:])
    return jax.make_array_from_callback(
        shape, where, lambda index: values[np.searchsorted(here, places[index[:2]])]
    )
