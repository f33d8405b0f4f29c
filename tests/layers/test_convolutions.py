"""Convolutions as products: equal to XLA's, and the same gradients on a mesh."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from transformer_jax.layers.convolutions import Convolution, InstanceNorm, PositionalConvolution
from transformer_jax.layers.quantizer import Quantizer

CLOSE = dict(rtol=1e-4, atol=1e-5)


@jitted
def built(module, x):
    params = nn.unbox(module.init(jax.random.key(0), x))["params"]
    return jax.tree.map(lambda p: p + 0.1 * jax.random.normal(jax.random.key(1), p.shape), params)


def convolved(x, kernel, **options):
    numbers = ("NHC", "HIO", "NHC")
    return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **options)


@pytest.mark.parametrize("width, stride", [(10, 5), (3, 2), (2, 2), (2, 3), (7, 3)])
def test_a_convolution(width, stride):
    x = jax.random.normal(jax.random.key(2), (2, 41, 3))
    module = Convolution(4, width, stride)
    params = built(module, x)
    y = jitted(module.apply)({"params": params}, x)

    @jax.jit
    def by_xla(params):
        options = dict(window_strides=(stride,), padding="VALID")
        return convolved(x, params["kernel"], **options) + params["bias"]

    expected = by_xla(params)
    np.testing.assert_allclose(y, expected, **CLOSE)


@pytest.mark.parametrize("width", [5, 16, 20, 37])
def test_the_positions_are_a_grouped_convolution_with_a_weight_norm(width):
    x = jax.random.normal(jax.random.key(2), (2, 30, 12))
    module = PositionalConvolution(width, groups=3)
    params = built(module, x)

    @jax.jit
    def by_xla(params):
        norms = jnp.linalg.norm(params["direction"].reshape(width, -1), axis=1)
        kernel = params["direction"] * (params["scale"] / norms)[:, None, None]
        options = dict(window_strides=(1,), feature_group_count=3)
        padding = [(width // 2, width - 1 - width // 2)]
        return convolved(x, kernel, padding=padding, **options) + params["bias"]

    y = jitted(module.apply)({"params": params}, x)
    np.testing.assert_allclose(y, by_xla(params), **CLOSE)


def test_the_instance_norm_is_that_of_each_channel_over_time():
    x = 3 + 2 * jax.random.normal(jax.random.key(2), (2, 50, 3))
    module = InstanceNorm()
    y, _ = jax.device_get(jax.jit(module.init_with_output)(jax.random.key(0), x))
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(axis=1), 1, rtol=1e-4)


def test_the_quantizer_chooses_entries_of_its_table():
    x = jax.random.normal(jax.random.key(2), (2, 5, 4))
    module = Quantizer(codebooks=2, entries=3, width=6)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), x))["params"]
    rngs = {"gumbel": jax.random.key(3)}

    @jitted
    def vectors(params, train=True):
        return module.apply(
            {"params": params}, x, jnp.float32(0.7), train=train, rngs=rngs if train else {}
        )

    table = np.reshape(params["table"], (2, 3, 3))
    for train in (True, False):
        result = jax.device_get(vectors(params, train))
        chosen = np.stack([table[g][result.entries[..., g]] for g in range(2)], axis=2)
        np.testing.assert_array_equal(result.vectors, chosen.reshape(2, 5, 6))
        np.testing.assert_allclose(result.probabilities.sum(axis=-1), 1, rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda p: vectors(p).vectors.sum()))(params)
    assert np.abs(gradient["logits"]["kernel"]).max() > 0
