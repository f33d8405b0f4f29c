"""The kernels of attention alone, forward and backward, as the length grows and the tokens of a
call stay the same.

python benchmarks/attention.py [--json=FILE] [--case=causal] [--case=packed ...] [--tiny]

Ours is the kernel that layers/kernels.py picks; before it is timed it has to agree with the
formula. The peers are jax.nn.dot_product_attention as XLA compiles it and, where torch is
installed, its scaled_dot_product_attention (benchmarks/peers.py says how to get it): on a GPU by
each of its kernels that takes the mask, flex_attention among them. 12 heads of 64; bfloat16 on a
GPU, float32 on a CPU. `packed`: 8 documents a row; `padded`: rows at least half full. What a peer
can't compute, for want of memory or of a kernel, is said on stderr, and has no row.
"""

import functools
import importlib.util
import os
from collections.abc import Callable

# a GPU's memory is for the peers, too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from harness import main, sides

from transformer_jax.layers import kernels
from transformer_jax.layers.masks import Mask

HEADS, HEAD_DIM = 12, 64
_DOCUMENTS = 8  # of a packed row
_MOST_CHECKED = 4096  # the length up to which the formula's scores, of one row, are written out


def attention(tiny: bool, kind: str):
    gpu = jax.default_backend() == "gpu"
    lengths, tokens, times = (
        ((512, 1024, 2048, 4096, 8192, 16384), 2**15, 10)
        if gpu
        else ((128, 256, 512, 1024, 2048), 2**11, 1)
    )
    lengths, tokens, times = ((128, 256), 256, 1) if tiny else (lengths, tokens, times)
    for length in lengths:
        rows = tokens // length
        makers = {
            "ours": ("jax", functools.partial(ours, kind, rows, length, times)),
            "jax.nn, XLA": ("jax", functools.partial(jax_nn, kind, rows, length, times)),
        }
        spent = sides(
            makers
            | {
                way: ("torch", functools.partial(torchs, kind, rows, length, times, way))
                for way in _ways(kind)
            },
            2 if tiny else 7,
        )
        for way in [*spent][1:]:
            yield {
                "case": f"{kind}, {rows} rows of {length}",
                "ours": 1e3 * spent["ours"] / times,
                "unit": "ms",
                "peer": 1e3 * spent[way] / times,
                "peer_name": way,
                "ratio": spent[way] / spent["ours"],
            }


def ours(kind: str, rows: int, length: int, times: int) -> Callable[[], None]:
    arrays, mask = _inputs(kind, rows, length)
    given = _on_device(arrays)
    run = functools.partial(passes(kernels.pick(*given[:2], mask, dropout=False)), *given, mask)
    if length <= _MOST_CHECKED:
        agree(run(), arrays, mask, 2e-2 if given[0].dtype == jnp.bfloat16 else 1e-5)
    return functools.partial(_repeated, run, times)


def jax_nn(kind: str, rows: int, length: int, times: int) -> Callable[[], None]:
    arrays, mask = _inputs(kind, rows, length)
    return functools.partial(
        _repeated, functools.partial(passes(public), *_on_device(arrays), mask), times
    )


def torchs(kind: str, rows: int, length: int, times: int, way: str) -> Callable[[], None]:
    import peers

    arrays, mask = _inputs(kind, rows, length)
    seen = None
    # without causality it is padding alone that hides: what padding sees counts nothing, one row of
    # a mask does for all queries
    if mask.key_segments is not None:
        seen = np.asarray(
            mask.dense(length, length)
            if mask.causal
            else mask.replace(query_segments=None).dense(1, length)
        )
    segments = None if seen is None else np.asarray(mask.key_segments)
    return functools.partial(
        peers.attention(
            arrays, seen, segments, mask.causal, peers.ATTENTION[seen is not None][way]
        ),
        times,
    )


def _ways(kind: str) -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    import peers

    return list(peers.ATTENTION[KINDS[kind][1] is not None])


def _inputs(kind: str, rows: int, length: int) -> tuple[np.ndarray, Mask]:
    """q, k, v and the gradient by the output, (4, B, L, H, D) float32, and what is seen."""
    random = np.random.default_rng(0)
    causal, segments = KINDS[kind]
    arrays, mask = (
        random.standard_normal((4, rows, length, HEADS, HEAD_DIM), np.float32),
        Mask(causal=causal),
    )
    if segments is not None:
        ids = segments(random, rows, length)
        mask = mask.replace(query_segments=jnp.asarray(ids), key_segments=jnp.asarray(ids))
        arrays[3][ids == 0] = 0  # nobody reads what padding sees
    return arrays, mask


def _on_device(arrays: np.ndarray) -> tuple:
    return tuple(
        jnp.asarray(array, jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32)
        for array in arrays
    )


def passes(kernel: Callable) -> Callable:
    """Compiled: (q, k, v, gradient by the output, mask) -> the output, and the gradients by q, k
    and v.
    """

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
    """Of the first row, with the formula in float32, where anything is read; `tolerance` is a share
    of the largest value.
    """
    first = jax.tree.map(lambda ids: ids[:1], mask)
    with jax.default_matmul_precision("float32"):
        expected = passes(kernels.dot_product)(*arrays[:, :1], first)
    read = np.any(arrays[3, 0], axis=(1, 2))
    for name, one, other in zip(("output", "dq", "dk", "dv"), found, expected):
        one, other = (np.asarray(x[0], np.float32)[read] for x in (one, other))
        np.testing.assert_allclose(
            one, other, rtol=0, atol=tolerance * np.abs(other).max(), err_msg=name
        )


def packed(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Rows full of documents that end anywhere: (rows, length), the documents numbered from 1."""
    ends = np.sort(random.integers(1, length, (rows, _DOCUMENTS - 1)), axis=1)
    return (1 + (ends[:, :, None] <= np.arange(length)).sum(axis=1)).astype(np.int32)


def padded(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Rows at least half full; 0 is padding."""
    return (np.arange(length) < random.integers(length // 2, length + 1, rows)[:, None]).astype(
        np.int32
    )


def _repeated(call: Callable, times: int) -> None:
    """So often in a row that what it takes to begin hides behind the device's work."""
    for _ in range(times):
        found = call()
    jax.block_until_ready(found)


# causal, segments
KINDS = {
    "causal": (True, None),
    "dense": (False, None),
    "packed": (True, packed),
    "padded": (False, padded),
}

if __name__ == "__main__":
    main(
        __doc__, {kind: functools.partial(attention, kind=kind) for kind in KINDS}, ("jax", "flax")
    )
