"""Every kernel of attention against the plain one, values and gradients; and which is picked."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import Mesh

from transformer_jax.distributed import sharding
from transformer_jax.layers import kernels
from transformer_jax.layers.masks import Mask


def arrays(queries, keys, dtype=jnp.float32):
    shapes = ((2, queries, 2, 8), (2, keys, 2, 8), (2, keys, 2, 8))
    return tuple(
        jax.random.normal(jax.random.key(i), shape, dtype) for i, shape in enumerate(shapes)
    )


def segments(length, count=3):
    """Sorted, from 1, with padding of another length at each row's end."""
    ids = jnp.sort(jax.random.randint(jax.random.key(length), (2, length), 1, count + 1), axis=1)
    return ids.at[0, -7:].set(0)


def same(kernel, q, k, v, mask, tolerance):
    """Asserts equal results and gradients, but for queries that are padding."""
    read = jnp.ones(q.shape[:2]) if mask.query_segments is None else mask.query_segments > 0
    total = lambda kernel: jax.value_and_grad(
        lambda x: ((kernel(*x, mask) * read[..., None, None]).astype(jnp.float32) ** 2).sum()
    )((q, k, v))
    for found, expected in zip(
        *(jax.tree.leaves(total(kernel)) for kernel in (kernel, kernels.dot_product))
    ):
        found, expected = np.asarray(found, np.float32), np.asarray(expected, np.float32)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


MASKS = {
    "all": lambda: Mask(),
    "causal": lambda: Mask(causal=True),
    "padded": lambda: Mask(key_segments=segments(256)),
    "packed": lambda: Mask(causal=True, query_segments=segments(256), key_segments=segments(256)),
    "local": lambda: Mask(causal=True, window=jnp.int32(20), windows=(20, 2**30)),
}


@pytest.mark.parametrize(
    "name",
    [*(name for name in MASKS if name != "padded"), pytest.param("padded", marks=pytest.mark.slow)],
)
def test_splash_equals_the_plain_kernel(name):
    """The TPU's kernel, interpreted."""
    same(functools.partial(kernels.splash, interpret=True), *arrays(256, 256), MASKS[name](), 2e-3)


def test_splash_from_one_length_to_another():
    mask = Mask(query_segments=segments(128, 2), key_segments=segments(256, 2))
    same(functools.partial(kernels.splash, interpret=True), *arrays(128, 256), mask, 2e-3)


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")
def test_splash_by_every_device_for_itself():
    q, k, v = arrays(128, 128)
    mask = Mask(causal=True, query_segments=segments(128), key_segments=segments(128))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 1, 2, 1), sharding.AXES)

    @jax.jit
    def split(q, k, v, mask):
        with sharding.use(mesh, sharding.RULES):
            return kernels.splash(q, k, v, mask, interpret=True)

    read = np.asarray(mask.query_segments > 0)
    np.testing.assert_allclose(
        np.asarray(split(q, k, v, mask))[read],
        np.asarray(kernels.dot_product(q, k, v, mask))[read],
        rtol=2e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize("name", list(MASKS))
def test_cudnn_takes_every_mask(name, monkeypatch):
    """What is lowered for a GPU, on a machine without one: of a batch, and of a batch in groups of
    rows.
    """
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    mask = MASKS[name]()
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays(256, 256, jnp.bfloat16)]

    def gradients(q, k, v, mask):
        def total(q, k, v):
            return (kernels.cudnn(q, k, v, mask).astype(jnp.float32) ** 2).sum()

        return jax.grad(total, argnums=(0, 1, 2))(q, k, v)

    def of_group(group, *arrays):
        with sharding.use(mesh, sharding.RULES), sharding.within_group(group, 2):
            return gradients(*arrays)

    def of_groups(*arrays):
        axes = jax.tree.map(lambda x: 0 if x.ndim else None, arrays)
        split = jax.tree.map(lambda x: x.reshape(2, 1, *x.shape[1:]) if x.ndim else x, arrays)
        return jax.vmap(of_group, (0, *axes), spmd_axis_name="data")(jnp.arange(2), *split)

    mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, sequence=1), jax.devices()[:1])
    kind = "Softmax" if name in ("all", "causal") else "ScaleBiasSoftmax"
    for program in (gradients, of_groups):
        lowered = (
            jax.jit(program).trace(*arguments, mask).lower(lowering_platforms=("cuda",)).as_text()
        )
        assert all(f"__cudnn$fmha{kind}{way}" in lowered for way in ("", "Backward"))


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU, and TEST_PLATFORM=cuda")
@pytest.mark.parametrize("name", list(MASKS))
def test_cudnn_equals_the_plain_kernel(name):
    same(kernels.cudnn, *arrays(256, 256, jnp.bfloat16), MASKS[name](), 3e-2)


def test_which_kernel_is_picked(monkeypatch):
    def picked(
        platform,
        mask=Mask(causal=True),
        dropout=False,
        length=256,
        dtype=jnp.bfloat16,
        capability="9.0",
    ):
        monkeypatch.setattr(
            sharding,
            "device",
            lambda: types.SimpleNamespace(platform=platform, compute_capability=capability),
        )
        q, k, _ = arrays(length, length, dtype)
        return kernels.pick(q, k, mask, dropout)

    assert (
        picked("tpu") is kernels.splash
        and picked("gpu") is kernels.cudnn
        and picked("cpu") is kernels.causal_blocks
    )
    assert (
        picked("cpu", Mask()) is kernels.dot_product
        and picked("gpu", dtype=jnp.float32) is kernels.causal_blocks
    )
    # cuDNN's kernel wants Ampere
    assert all(
        picked("gpu", capability=other) is kernels.causal_blocks for other in ("7.5", "gfx942")
    )
    assert picked("tpu", length=200) is kernels.causal_blocks  # no tile divides it
    assert all(
        picked(platform, dropout=True) is kernels.causal_blocks for platform in ("tpu", "gpu")
    )
    monkeypatch.setattr(sharding, "parts", lambda axis: 2 if axis == "length" else 1)
    assert (
        picked("tpu") is picked("gpu") is picked("cpu", Mask(), dropout=True) is kernels.dot_product
        and picked("tpu", dropout=True) is kernels.causal_blocks
    )
    monkeypatch.undo()
    assert all(
        picked(platform, length=64) is kernels.dot_product for platform in ("tpu", "gpu", "cpu")
    )
    assert all(
        picked(platform, Mask(causal=True, query_slots=jnp.zeros((2, 256), jnp.int32)))
        is kernels.dot_product
        for platform in ("tpu", "gpu", "cpu")
    )
