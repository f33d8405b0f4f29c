"""Dropout of attention weights: its randomness, and one mask in all kernels and on all meshes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from tests.layers.test_kernels import arrays, assert_equals_plain, make_mask
from transformer_jax.distributed import sharding
from transformer_jax.layers import attention, masks, recurrent
from transformer_jax.layers.masks import Mask

RATE = 0.1
blockwise = functools.partial(attention.blockwise, interpret=True)


def drawn(batch=2, heads=2, seed=0):
    return recurrent.drawn(jax.random.key(seed), RATE, batch, heads)


def kept(dropout, queries, keys):
    batch, heads, _ = dropout.seeds.shape
    return np.asarray(jax.jit(lambda: dropout(jnp.ones((batch, heads, queries, keys))))()) > 0


def test_it_keeps_weights_at_random():
    keep = kept(drawn(8, 8), 256, 256)
    deviation = (RATE * (1 - RATE)) ** 0.5
    assert abs(keep.mean() - (1 - RATE)) < 5 * deviation / keep.size**0.5
    # By row, head, query and key, the shares deviate as those of independent draws do.
    for axis in range(4):
        others = tuple(i for i in range(4) if i != axis)
        share = keep.mean(axis=others)
        expected = deviation / (keep.size / keep.shape[axis]) ** 0.5
        assert abs(share - (1 - RATE)).max() < 5 * expected
    # Neighbours along each axis are independent.
    dropped = (~keep).astype(np.float64)
    for axis in range(4):
        pairs = dropped * np.roll(dropped, 1, axis)
        assert abs(pairs.mean() - RATE**2) < 5 * RATE / keep.size**0.5


def test_it_keeps_the_expectation():
    @jax.jit
    def compute():
        weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (2, 2, 4, 64)))
        seeds = jax.random.bits(jax.random.key(2), (2000, 2, 2, 2))
        dropped = jax.vmap(lambda s: recurrent.WeightDropout(s, RATE)(weights))(seeds)
        return weights, dropped.mean(axis=0)

    weights, mean = jax.device_get(compute())
    np.testing.assert_allclose(mean, weights, atol=0.1 * weights.max())


def test_a_rate_of_zero_keeps_all():
    assert kept(recurrent.drawn(jax.random.key(0), 0.0, 2, 2), 64, 64).all()


def test_it_depends_on_the_key_and_not_on_the_block():
    @jax.jit
    def compute():
        weights = jnp.ones((2, 2, 64, 64))
        block = drawn()(weights[:, :, 32:], jnp.arange(32, 64)[None])
        return drawn()(weights), drawn(seed=1)(weights), block

    whole, other, block = jax.device_get(compute())
    assert (whole != other).any()
    np.testing.assert_array_equal(block, whole[:, :, 32:])


@pytest.mark.sample("padded")
@pytest.mark.parametrize("name", ["all", "causal", "padded", "packed"])
def test_blocks_equal_the_plain_kernel(name):
    assert_equals_plain(blockwise, arrays(256, 256), make_mask(name), 1e-5, dropout=drawn())


def test_blocks_of_cross_attention_equal_the_plain_kernel():
    mask = Mask(key_segments=make_mask("padded").key_segments)
    assert_equals_plain(blockwise, arrays(128, 256), mask, 1e-5, dropout=drawn())


def test_heads_of_keys_may_be_shared():
    many = arrays(256, 256, kv_heads=1)
    assert_equals_plain(blockwise, many, Mask(causal=True), 1e-5, dropout=drawn())


@pytest.mark.sample("2048")
@pytest.mark.parametrize("longest_saved", [2048, 100])
def test_causal_blocks_equal_the_plain_kernel(longest_saved, monkeypatch):
    monkeypatch.setattr(masks, "_LONGEST_SAVED", longest_saved)
    monkeypatch.setattr(masks, "_QUERIES_OF_PART", 24)
    mask = make_mask("packed")
    assert_equals_plain(attention.causal_blocks, arrays(256, 256), mask, 1e-5, dropout=drawn())


def test_devices_compute_their_own_rows_and_heads():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "tensor"))
    axes = {"batch": ("data",), "length": (), "heads": ("tensor",), "head_dim": ()}
    q, k, v = arrays(128, 128)
    mask = make_mask("packed", 128)

    def attended(kernel):
        return kernel(q, k, v, mask, drawn())

    expected = jax.device_get(jax.jit(functools.partial(attended, attention.dot_product))())
    with sharding.use(mesh, axes):
        y = jax.device_get(jax.jit(functools.partial(attended, blockwise))())
    filled = np.asarray(mask.query_segments) > 0
    np.testing.assert_allclose(y[filled], expected[filled], atol=1e-5)
