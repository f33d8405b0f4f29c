"""Peak rates, memory and interconnects of chips, with the sources of the figures."""

import dataclasses
import functools
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # no import at run time, because a topology is chosen before jax is imported
    import jax


@dataclasses.dataclass(frozen=True)
class Multiprocessors:
    """The streaming multiprocessors of a GPU, which its compiler needs to know."""

    count: int
    clock: float  # GHz, at the peak rate
    l2_cache: int  # bytes
    capability: str  # compute capability, such as "9.0"


@dataclasses.dataclass(frozen=True)
class Chip:
    """One JAX device. For a TPU v4 it is a chip, because JAX joins its two cores."""

    name: str
    flops: float  # peak bfloat16 FLOP/s, dense
    memory: float  # bytes that a program may use
    memory_bandwidth: float  # bytes/s
    # bytes/s that can leave the chip, in one direction, over all its links to chips of its kind
    link_bandwidth: float
    # bytes/s of its share of the links to other hosts, for a TPU to other slices, in one direction;
    # None: unknown
    network_bandwidth: float | None = None
    multiprocessors: Multiprocessors | None = None  # of GPUs for which programs can be compiled


_GB, _GIB, _TERA = 1e9, 2**30, 1e12
_MIB, _GBIT = 2**20, 1e9 / 8

# TPUs: section "System architecture" of cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e. Links:
# half of "bidirectional ICI bandwidth per chip"; the page on v4 does not give it, and 6 links of
# 50 GB/s are from Jouppi et al. 2023, table 4. Memory: the bytes that the compiler (libtpu 0.0.42)
# allows a program to use, instead of the nominal 32, 16, 95 and 32 GB. Network: 6.4 Tb/s for the
# 256 chips of a v5e pod, 50 Gb/s per chip of v5p.
V4 = Chip("TPU v4", 275 * _TERA, 30.75 * _GIB, 1200 * _GB, 300 * _GB)
V5E = Chip("TPU v5e", 197 * _TERA, 15.75 * _GIB, 819 * _GB, 200 * _GB, 25 * _GBIT)
V5P = Chip("TPU v5p", 459 * _TERA, 95.74 * _GIB, 2765 * _GB, 600 * _GB, 50 * _GBIT)
V6E = Chip("TPU v6e", 918 * _TERA, 31.25 * _GIB, 1638 * _GB, 400 * _GB)

# GPUs: NVIDIA's data sheet of each GPU, and for B200 the data sheet of "DGX B200". Rates are
# without sparsity, and with sums in float32. Links: half of NVLink's bidirectional 600 (A100), 900
# (H100, H200) and 1,800 GB/s (B200) within a host; the others have PCIe 4.0 x16. Network: 200 Gb/s
# per GPU in DGX A100, 400 Gb/s in DGX H100, H200 and B200, and 100 Gb/s for 8 GPUs in Google
# Cloud's g2-standard-96 (L4) and AWS's g5.48xlarge (A10G).
# Multiprocessors: the white papers of the architectures, "A100", "H100", "Ampere GA102" and "Ada".
# AWS's page on G5 gives 320 tensor cores for A10G, with 4 in each multiprocessor. The clocks are
# the ones at which the peak rates are reached.
_GA100 = Multiprocessors(108, 1.41, 40 * _MIB, "8.0")
_GA102 = Multiprocessors(80, 1.71, 6 * _MIB, "8.6")
_AD102 = Multiprocessors(128, 2.52, 72 * _MIB, "8.9")
_AD104 = Multiprocessors(58, 2.04, 48 * _MIB, "8.9")
_GH100 = Multiprocessors(132, 1.83, 50 * _MIB, "9.0")
_GB100 = Multiprocessors(148, 1.85, 126 * _MIB, "10.0")
A100_40 = Chip("A100 40GB", 312 * _TERA, 40 * _GB, 1555 * _GB, 300 * _GB, 200 * _GBIT, _GA100)
A100_80 = Chip("A100 80GB", 312 * _TERA, 80 * _GB, 2039 * _GB, 300 * _GB, 200 * _GBIT, _GA100)
H100 = Chip("H100 SXM", 989.4 * _TERA, 80 * _GB, 3350 * _GB, 450 * _GB, 400 * _GBIT, _GH100)
H100_PCIE = Chip("H100 PCIe", 756 * _TERA, 80 * _GB, 2000 * _GB, 300 * _GB)
H200 = Chip("H200 SXM", 989.4 * _TERA, 141 * _GB, 4800 * _GB, 450 * _GB, 400 * _GBIT, _GH100)
B200 = Chip("B200", 2250 * _TERA, 180 * _GB, 8000 * _GB, 900 * _GB, 400 * _GBIT, _GB100)
L4 = Chip("L4", 121 * _TERA, 24 * _GB, 300 * _GB, 32 * _GB, 100 / 8 * _GBIT, _AD104)
A10G = Chip("A10G", 70 * _TERA, 24 * _GB, 600 * _GB, 32 * _GB, 100 / 8 * _GBIT, _GA102)
RTX_4090 = Chip("RTX 4090", 165.2 * _TERA, 24 * _GB, 1008 * _GB, 32 * _GB, None, _AD102)

# Chips by jax.Device.device_kind. Some have several names, because these depend on the release of
# the driver and on the form of a card; `kind` returns the first one.
_BY_KIND = {
    "TPU v4": V4,
    "TPU v5 lite": V5E,
    "TPU v5e": V5E,
    "TPU v5": V5P,
    "TPU v5p": V5P,
    "TPU v6 lite": V6E,
    "TPU v6e": V6E,
    "NVIDIA A100-SXM4-40GB": A100_40,
    "NVIDIA A100-PCIE-40GB": A100_40,
    "NVIDIA A100-SXM4-80GB": A100_80,
    "NVIDIA A100 80GB PCIe": A100_80,
    "NVIDIA H100 80GB HBM3": H100,
    "NVIDIA H100 PCIe": H100_PCIE,
    "NVIDIA H200": H200,
    "NVIDIA B200": B200,
    "NVIDIA L4": L4,
    "NVIDIA A10G": A10G,
    "NVIDIA GeForce RTX 4090": RTX_4090,
}

NAMES = {
    "v4": V4,
    "v5e": V5E,
    "v5p": V5P,
    "v6e": V6E,
    "a100-40": A100_40,
    "a100-80": A100_80,
    "h100": H100,
    "h200": H200,
    "b200": B200,
    "l4": L4,
    "a10g": A10G,
    "4090": RTX_4090,
}


def of(device_kind: str) -> Chip | None:
    """Returns the chip with this `jax.Device.device_kind`; None for an unknown chip or a CPU."""
    return _BY_KIND.get(device_kind)


def kind(chip: Chip) -> str:
    """Returns the `jax.Device.device_kind` of a chip, or the first one if it has several."""
    return next(kind for kind, other in _BY_KIND.items() if other is chip)


def peak(mesh: "jax.sharding.Mesh") -> tuple[float, str]:
    """Returns the peak bfloat16 FLOP/s of all devices in the mesh, and the source of the figure.

    If the chip is unknown, its rate is measured with a matrix product. All CPU devices of a host
    count as one, because they share its cores.
    """
    device = mesh.devices.flat[0]
    if chip := of(device.device_kind):
        return mesh.size * chip.flops, f"the peak of {mesh.size} x {chip.name}"
    hosts = {device.process_index for device in mesh.devices.flat}
    count = len(hosts) if device.platform == "cpu" else mesh.size
    source = (
        f"{count} x the measured rate of a matrix product: the peak of {device.device_kind!r} "
        "is not known"
    )
    return count * measured(device.platform), source


@functools.lru_cache
def measured(platform: str) -> float:
    """Returns the measured FLOP/s of matrix products on the first device of this process.

    The dtype is the one in which models compute on this platform. On a CPU, one product of
    1024 x 1024 is timed. On an accelerator it is a sequence of 30 products of 4096 x 4096, because
    a call takes longer than a single product. The result is the best of five measurements.
    """
    import jax
    import jax.numpy as jnp

    if platform == "cpu":
        size, num_products, dtype = 1024, 1, jnp.float32
    else:
        size, num_products, dtype = 4096, 30, jnp.bfloat16
    # The scale keeps the magnitude of the elements about constant from product to product, so that
    # 30 products in a row do not overflow.
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype) / math.sqrt(size)

    @jax.jit
    def multiply(x):
        return jax.lax.fori_loop(0, num_products, lambda _, y: y @ x, x)

    # The first call compiles, so it is not timed.
    multiply(matrix).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        multiply(matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    # The best time, because other programs can only add to it.
    return 2 * size**3 * num_products / min(seconds)
