"""Measures attention, forward and backward, at several lengths with equally many tokens per call.

python benchmarks/attention.py [--json=FILE] [--case=causal] [--case=packed ...] [--tiny]

Ours is the kernel that layers/attention.py selects. It is checked against the formula before it is
timed. The peers are jax.nn.dot_product_attention, compiled by XLA, and torch's
scaled_dot_product_attention (benchmarks/peers.py says how to install it). On a GPU, each of torch's
kernels that takes the mask is measured, flex_attention included. A peer that lacks memory or a
kernel is reported on stderr and left out.

There are 12 heads of 64, in bfloat16 on a GPU and float32 on a CPU. Rows are `causal`, `dense`,
`packed` with 8 documents each, or `padded`, at least half full.
"""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable

# The peers use the GPU's memory, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from harness import beside, main, sides

from transformer_jax.layers import attention as kernels
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.recurrent import WeightDropout

HEADS = 12
HEAD_DIM = 64
TOLERANCES = {"bfloat16": 2e-2, "float32": 1e-5}  # of `errors`
_DOCUMENTS_PER_ROW = 8  # of `packed`
_LONGEST_CHECKED = 4096  # longer rows are not compared with the formula, whose scores are (L, L)


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls of attention: `times` calls in sequence count as one."""

    kind: str  # a key of KINDS
    rows: int
    length: int
    times: int


def attention(tiny: bool, kind: str):
    if tiny:
        lengths, tokens, times = (128, 256), 256, 1
    elif jax.default_backend() == "gpu":
        lengths, tokens, times = (512, 1024, 2048, 4096, 8192, 16384), 2**15, 10
    else:
        lengths, tokens, times = (128, 256, 512, 1024, 2048), 2**11, 1
    for length in lengths:
        calls = Calls(kind, tokens // length, length, times)
        makers = {
            "ours": ("jax", functools.partial(our_calls, calls)),
            "jax.nn, XLA": ("jax", functools.partial(jax_nn_calls, calls)),
        }
        makers |= {
            way: ("torch", functools.partial(torch_calls, calls, way)) for way in _torch_ways(kind)
        }
        spent = sides(makers, 2 if tiny else 7)
        yield from beside(
            f"{kind}, {calls.rows} rows of {length}",
            spent,
            "ms",
            lambda seconds, times=times: 1e3 * seconds / times,
        )


def our_calls(calls: Calls) -> Callable[[], None]:
    arrays, mask = make_inputs(calls)
    inputs = on_device(arrays)
    run = functools.partial(passes(kernels.pick(*inputs[:2], mask, dropout=False)), *inputs, mask)
    if calls.length <= _LONGEST_CHECKED:
        found = errors(run(), arrays, mask)
        assert all(error < TOLERANCES[inputs[0].dtype.name] for error in found.values()), found
    return functools.partial(_repeated, run, calls.times)


def jax_nn_calls(calls: Calls) -> Callable[[], None]:
    arrays, mask = make_inputs(calls)
    run = functools.partial(passes(jax_nn), *on_device(arrays), mask)
    return functools.partial(_repeated, run, calls.times)


def torch_calls(calls: Calls, way: str, dropout: float = 0.0) -> Callable[[], None]:
    import peers

    arrays, mask = make_inputs(calls)
    length = calls.length
    array = None
    segments = None
    if mask.key_segments is not None:
        segments = np.asarray(mask.key_segments)
        # Without causality, only padding is hidden, and what padding itself sees does not matter.
        # So all queries share one row of the mask.
        if mask.causal:
            array = np.asarray(mask.dense(length, length))
        else:
            array = np.asarray(mask.replace(query_segments=None).dense(1, length))
    peer_mask = peers.AttentionMask(mask.causal, array, segments)
    kernel = peers.ATTENTION[array is not None][way]
    return functools.partial(peers.attention(arrays, peer_mask, kernel, dropout), calls.times)


def _torch_ways(kind: str) -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    import peers

    return list(peers.ATTENTION[KINDS[kind][1] is not None])


def make_inputs(calls: Calls) -> tuple[np.ndarray, Mask]:
    """Returns q, k, v and the gradient by the output, (4, B, L, H, D) float32, and the mask."""
    random = np.random.default_rng(0)
    causal, segments = KINDS[calls.kind]
    shape = (4, calls.rows, calls.length, HEADS, HEAD_DIM)
    arrays = random.standard_normal(shape, np.float32)
    mask = Mask(causal=causal)
    if segments is not None:
        ids = segments(random, calls.rows, calls.length)
        mask = mask.replace(
            query_segments=jnp.asarray(ids),
            key_segments=jnp.asarray(ids),
            padding_last=calls.kind == "padded",
        )
        arrays[3][ids == 0] = 0  # the output at padding is not used
    return arrays, mask


def on_device(arrays: np.ndarray) -> tuple:
    dtype = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
    return tuple(jnp.asarray(array, dtype) for array in arrays)


def passes(kernel: Callable) -> Callable:
    """Returns a compiled function of q, k, v, the gradient by the output, the mask and a dropout.

    It returns the output and the gradients by q, k and v.
    """

    @jax.jit
    def run(q, k, v, d_out, mask, *, drop: WeightDropout | None = None):
        out, back = jax.vjp(lambda q, k, v: kernel(q, k, v, mask, drop), q, k, v)
        return out, *back(d_out)

    return run


def jax_nn(q, k, v, mask, drop: None = None):
    array = None if mask.key_segments is None else mask.dense(q.shape[1], k.shape[1])
    is_causal = mask.causal and array is None
    return jax.nn.dot_product_attention(q, k, v, mask=array, is_causal=is_causal)


def errors(
    results: tuple, arrays: np.ndarray, mask: Mask, drop: WeightDropout | None = None
) -> dict[str, float]:
    """Returns the largest error of each result in the first row, except at padding.

    It is relative to the largest value of the formula in float32.
    """
    mask, drop = jax.tree.map(lambda array: array[:1], (mask, drop))
    with jax.default_matmul_precision("float32"):
        expected = passes(kernels.dot_product)(*arrays[:, :1], mask, drop=drop)
    is_used = np.any(arrays[3, 0], axis=(1, 2))
    found = {}
    for name, result, reference in zip(("output", "dq", "dk", "dv"), results, expected):
        result = np.asarray(result[0], np.float32)[is_used]
        reference = np.asarray(reference[0], np.float32)[is_used]
        found[name] = float(np.abs(result - reference).max() / np.abs(reference).max())
    return found


def packed(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Returns segment ids (rows, length) of full rows: documents of any length, from 1."""
    ends = np.sort(random.integers(1, length, (rows, _DOCUMENTS_PER_ROW - 1)), axis=1)
    return (1 + (ends[:, :, None] <= np.arange(length)).sum(axis=1)).astype(np.int32)


def padded(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Returns segment ids (rows, length) of rows that are at least half full; 0 is padding."""
    ends = random.integers(length // 2, length + 1, rows)[:, None]
    return (np.arange(length) < ends).astype(np.int32)


def _repeated(call: Callable, times: int) -> None:
    """Calls so often that the time to dispatch is hidden behind the device's work."""
    for _ in range(times):
        result = call()
    jax.block_until_ready(result)


# {kind: (causal, function that draws segment ids, or None)}
KINDS = {
    "causal": (True, None),
    "dense": (False, None),
    "packed": (True, packed),
    "padded": (False, padded),
}

if __name__ == "__main__":
    cases = {kind: functools.partial(attention, kind=kind) for kind in KINDS}
    main(__doc__, cases, ("jax", "flax"), releases=True)
