"""Measures ring attention against the plain kernel, both over the same split positions.

python benchmarks/ring.py [--json=FILE] [--case=memory] [--case=time ...] [--tiny]

- `memory`: temporary bytes of a device, as compiled for a forward and a backward pass;
- `time`: seconds of both passes on virtual CPU devices, which share the cores;
- `difference`: the largest difference from the plain kernel on one device, over the largest value.

A row has 4 heads of 64, in float32. For `difference` it has one head, because the scores of the
plain kernel are (L, L).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from harness import in_turn, main
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.distributed import sharding
from transformer_jax.layers import attention
from transformer_jax.layers.masks import Mask

HEADS = 4
HEAD_DIM = 64
KERNELS = {"ours": attention.ring, "plain kernel": attention.dot_product}


def memory(tiny: bool):
    for length in (256, 512) if tiny else (4096, 8192, 16_384, 32_768):
        for devices in (1, 2) if tiny else (1, 2, 4, 8):
            sizes = {
                name: _compiled(kernel, length, devices).memory_analysis().temp_size_in_bytes
                for name, kernel in KERNELS.items()
            }
            case = f"temporaries, causal, {length} positions on {devices} devices"
            yield _row(case, {name: size / 1e6 for name, size in sizes.items()}, "MB")


def time(tiny: bool):
    length = 256 if tiny else 4096
    for devices in (2,) if tiny else (2, 4, 8):
        for causal in (True, False):
            calls = {
                name: _call(kernel, length, devices, causal) for name, kernel in KERNELS.items()
            }
            spent = in_turn(calls, 1 if tiny else 5)
            kind = "causal" if causal else "dense"
            case = f"{kind}, {length} positions on {devices} devices"
            yield _row(case, {name: 1e3 * spent[name] for name in spent}, "ms")


def difference(tiny: bool):
    length, devices = (256, 2) if tiny else (16_384, 4)
    for causal in (True, False):
        ours = _call(attention.ring, length, devices, causal, heads=1)()
        expected = _call(attention.dot_product, length, 1, causal, heads=1)()
        largest = max(
            float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max())
            for x, y in zip(ours, expected)
        )
        kind = "causal" if causal else "dense"
        case = f"difference, {kind}, {length} positions on {devices} devices"
        yield {"case": case, "ours": largest, "unit": "of largest"}


def _row(case: str, values: dict[str, float], unit: str) -> dict:
    ours, peer = values.values()
    result = {"case": case, "ours": ours, "unit": unit}
    return result | {"peer": peer, "peer_name": "plain kernel", "ratio": peer / ours}


def _compiled(kernel: Callable, length: int, devices: int, causal: bool = True, heads: int = HEADS):
    """Returns the compiled function of q, k, v and the gradient by the output, (1, L, H, D) each.

    It returns the output and the gradients by q, k and v. All are split over the devices.
    """
    mesh = _mesh(devices)
    split = NamedSharding(mesh, PartitionSpec(None, "sequence"))
    array = jax.ShapeDtypeStruct((1, length, heads, HEAD_DIM), jnp.float32)

    @functools.partial(jax.jit, in_shardings=split, out_shardings=split)
    def passes(q, k, v, d_out):
        with sharding.use(mesh, sharding.RULES):
            out, back = jax.vjp(lambda *arrays: kernel(*arrays, Mask(causal=causal)), q, k, v)
            return out, *back(d_out)

    return passes.lower(*[array] * 4).compile()


def _call(kernel: Callable, length: int, devices: int, causal: bool, *, heads: int = HEADS):
    """Returns the compiled function as a call on random arrays that waits for its results."""
    run = _compiled(kernel, length, devices, causal, heads)
    random = np.random.default_rng(0)
    shape = (4, 1, length, heads, HEAD_DIM)
    split = NamedSharding(_mesh(devices), PartitionSpec(None, "sequence"))
    arrays = [jax.device_put(array, split) for array in random.standard_normal(shape, np.float32)]
    return lambda: jax.block_until_ready(run(*arrays))


def _mesh(devices: int) -> jax.sharding.Mesh:
    sizes = dict(data=1, fsdp=1, tensor=1, sequence=devices)
    return sharding.make_mesh(sizes, jax.devices()[:devices])


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main(__doc__, dict(memory=memory, time=time, difference=difference), ("jax", "jaxlib"))
