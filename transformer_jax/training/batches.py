"""From update numbers to device arrays. Each host reads ahead the rows of its own devices."""

from collections.abc import Callable, Iterator

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding

from transformer_jax.data.readers import Readers

_AHEAD = 4  # batches that are read and copied to the devices before they are used


def stream(
    read: Callable[[int, np.ndarray], dict],
    rows: int,
    accumulation: int,
    sharding: NamedSharding,
    steps: range,
    *,
    readers: Readers | None = None,
) -> Iterator[dict[str, jax.Array]]:
    """Yields the batches of consecutive updates, numbered from 0, as global arrays.

    The arrays are (accumulation, rows / accumulation, ...). `read(step, places)` returns the rows
    at these places of a batch: arrays (len(places), ...). Row j of an update is row
    j mod (rows / accumulation) of microbatch j div (rows / accumulation), whatever the mesh.
    `readers` call `read` in other processes.
    """
    places = np.arange(rows).reshape(accumulation, -1)
    indices = sharding.addressable_devices_indices_map(places.shape)
    local_places = np.unique(np.concatenate([places[index].ravel() for index in indices.values()]))

    batches = readers and readers.batches(steps, local_places)

    def load(step):
        # One thread loads the steps in order.
        rows = next(batches) if readers else read(int(step), local_places)
        return {
            name: _global_array(values, places, local_places, sharding)
            for name, values in rows.items()
        }

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    dataset = grain.MapDataset.range(steps.start, steps.stop).map(load)
    return iter(dataset.to_iter_dataset(options))


def _global_array(values, places, local_places, sharding) -> jax.Array:
    """The array (*places.shape, ...), of which `values` are the rows at the local places."""

    def part(index):
        return values[np.searchsorted(local_places, places[index[:2]])]

    shape = (*places.shape, *values.shape[1:])
    return jax.make_array_from_callback(shape, sharding, part)
