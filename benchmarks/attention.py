"""The kernels of attention alone, forward and backward, as the length grows and the tokens of a call stay the same.

python benchmarks/attention.py [--json=FILE] [--case=causal] [--case=packed ...] [--tiny]

Ours is the kernel that layers/kernels.py picks; before it is timed it has to agree with the formula. The peers are jax.nn.dot_product_attention as XLA compiles it and, where torch is
installed, its scaled_dot_product_attention (benchmarks/peers.py says how to get it): on a GPU by each of its kernels that takes the mask. 12 heads of 64; bfloat16 on a GPU,
float32 on a CPU. What a peer can't compute, for want of memory or of a kernel, it says on stderr, and has no row.
"""
import functools
import importlib.util
import os
import sys
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU's memory is for the peers, too

import jax
import jax.numpy as jnp
import numpy as np
from harness import in_turn, main

from transformer_jax.layers import kernels
from transformer_jax.layers.masks import Mask

HEADS, HEAD_DIM = 12, 64
DOCUMENTS = 8  # of a packed row
_MOST_CHECKED = 4096  # the length up to which the formula's scores, of one row, are written out
_RANDOM = np.random.default_rng(0)


def attention(tiny: bool, case: str, causal: bool, segments: Callable[[int, int], np.ndarray] | None):
    """`segments` of (rows, length): documents numbered from 1, 0 is padding; None: whole rows."""
    gpu = jax.default_backend() == "gpu"
    lengths, tokens, times = ((512, 1024, 2048, 4096, 8192, 16384), 2**15, 10) if gpu else ((128, 256, 512, 1024, 2048), 2**11, 1)
    lengths, tokens, times = ((128, 256), 256, 1) if tiny else (lengths, tokens, times)
    dtype = jnp.bfloat16 if gpu else jnp.float32
    for length in lengths:
        shape = (tokens // length, length, HEADS, HEAD_DIM)
        ids = None if segments is None else segments(*shape[:2])
        mask = Mask(causal=causal) if ids is None else Mask(causal=causal, query_segments=jnp.asarray(ids), key_segments=jnp.asarray(ids))
        arrays = _RANDOM.standard_normal((4, *shape), np.float32)  # q, k, v and the gradient by the output
        if ids is not None:
            arrays[3][ids == 0] = 0  # nobody reads what padding sees
        given = tuple(jnp.asarray(array, dtype) for array in arrays)
        kernel = kernels.pick(*given[:2], mask, dropout=False)
        ours, jax_nn = (functools.partial(passes(function), *given, mask) for function in (kernel, public))
        if length <= _MOST_CHECKED:
            agree(ours(), arrays, mask, 2e-2 if gpu else 1e-5)
        calls = {"ours": functools.partial(_repeated, ours), "jax.nn, XLA": functools.partial(_repeated, jax_nn), **_torch(arrays, mask)}
        name = f"{case}, {shape[0]} rows of {length}"
        calls = {way: functools.partial(call, times) for way, call in calls.items() if way == "ours" or _computes(f"{name}, {way}", call)}
        spent = in_turn(calls, 2 if tiny else 9)
        for way in [*calls][1:]:
            yield {"case": f"{name}, {kernel.__name__}", "ours": 1e3 * spent["ours"] / times, "unit": "ms", "peer": 1e3 * spent[way] / times, "peer_name": way,
                   "ratio": spent[way] / spent["ours"]}


def passes(kernel: Callable) -> Callable:
    """Compiled: (q, k, v, gradient by the output, mask) -> the output, and the gradients by q, k and v."""
    @jax.jit
    def run(q, k, v, d_out, mask):
        out, back = jax.vjp(lambda q, k, v: kernel(q, k, v, mask), q, k, v)
        return out, *back(d_out)

    return run


def public(q, k, v, mask):
    """What jax itself offers; a mask that is no more than causal it knows by name."""
    seen = None if mask.key_segments is None else mask.dense(q.shape[1], k.shape[1])
    return jax.nn.dot_product_attention(q, k, v, mask=seen, is_causal=mask.causal and seen is None)


def agree(found: tuple, arrays: np.ndarray, mask: Mask, tolerance: float) -> None:
    """Of the first row, with the formula in float32, where anything is read; `tolerance` is a share of the largest value."""
    first = jax.tree.map(lambda ids: ids[:1], mask)
    with jax.default_matmul_precision("float32"):
        expected = passes(kernels.dot_product)(*arrays[:, :1], first)
    read = np.any(arrays[3, 0], axis=(1, 2))
    for name, one, other in zip(("output", "dq", "dk", "dv"), found, expected):
        one, other = (np.asarray(x[0], np.float32)[read] for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max(), err_msg=name)


def packed(rows: int, length: int) -> np.ndarray:
    """Rows full of documents that end anywhere."""
    ends = np.sort(_RANDOM.integers(1, length, (rows, DOCUMENTS - 1)), axis=1)
    return (1 + (ends[:, :, None] <= np.arange(length)).sum(axis=1)).astype(np.int32)


def padded(rows: int, length: int) -> np.ndarray:
    """Rows at least half full."""
    return (np.arange(length) < _RANDOM.integers(length // 2, length + 1, rows)[:, None]).astype(np.int32)


def _torch(arrays: np.ndarray, mask: Mask) -> dict[str, Callable[[int], None]]:
    if importlib.util.find_spec("torch") is None:
        return {}
    import peers

    seen = None
    if mask.key_segments is not None:
        length = arrays.shape[2]  # without causality it is padding alone that hides: what padding sees counts nothing, one row of a mask does for all queries
        seen = np.asarray(mask.dense(length, length) if mask.causal else mask.replace(query_segments=None).dense(1, length))
    return {name: peers.attention(arrays, seen, mask.causal, backends) for name, backends in peers.ATTENTION[seen is not None].items()}


def _computes(what: str, call: Callable[[int], None]) -> bool:
    try:
        call(1)
    except RuntimeError as error:  # both JAX's and torch's, out of memory among them
        print(f"{what}: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return False
    return True


def _repeated(call: Callable, times: int) -> None:
    """So often in a row that what it takes to begin hides behind the device's work."""
    for _ in range(times):
        found = call()
    jax.block_until_ready(found)


CASES = {
    "causal": functools.partial(attention, case="causal", causal=True, segments=None),
    "dense": functools.partial(attention, case="dense", causal=False, segments=None),
    "packed": functools.partial(attention, case=f"{DOCUMENTS} documents a row", causal=True, segments=packed),
    "padded": functools.partial(attention, case="padded", causal=False, segments=padded),
}

if __name__ == "__main__":
    main(__doc__, CASES, ("jax", "flax"))
