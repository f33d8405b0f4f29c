"""Rotary positions, T5's relative bias and ALiBi against their formulas."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import RMSNorm
from transformer_jax.layers.embeddings import RelativeBias, Rotary, alibi, alibi_slopes
from transformer_jax.layers.masks import Mask

KEY = jax.random.key(0)


def test_a_rotation_is_a_product_of_complex_numbers():
    x = jax.random.normal(KEY, (2, 5, 3, 8))
    positions = jnp.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]])
    rotated = np.asarray(jax.jit(lambda x: Rotary(theta=100.0)(x, positions))(x))
    x = np.asarray(x)
    pairs = x[..., :4] + 1j * x[..., 4:]
    rates = 100.0 ** (-np.arange(4) / 4)
    expected = pairs * np.exp(1j * np.asarray(positions)[:, :, None, None] * rates)
    np.testing.assert_allclose(rotated[..., :4], expected.real, atol=1e-5)
    np.testing.assert_allclose(rotated[..., 4:], expected.imag, atol=1e-5)


def test_a_factor_slows_slow_rotations_and_keeps_fast_ones():
    rates = Rotary().rates(128)
    slowed = Rotary(factor=8.0).rates(128)
    turns = 8192 * rates / (2 * np.pi)
    np.testing.assert_array_equal(slowed[turns > 4], rates[turns > 4])
    np.testing.assert_allclose(slowed[turns < 1], rates[turns < 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any() and (slowed < rates)[between].all() and (slowed > rates / 8)[between].all()


def test_rotary_attention_depends_on_distances_alone():
    attention = Attention(num_heads=2, head_dim=4, rotary=Rotary(), use_bias=False)
    x = jax.random.normal(KEY, (1, 6, 8))
    params = nn.unbox(jitted(attention.init)(KEY, x, mask=Mask()))
    apply = jitted(attention.apply)
    by_slots = np.asarray(apply(params, x, mask=Mask()))
    moved = apply(params, x, mask=Mask(), positions=np.arange(6)[None] + 100)
    np.testing.assert_allclose(by_slots, moved, atol=1e-5)
    other = apply(params, x, mask=Mask(), positions=np.arange(6)[None] * 2)
    assert np.abs(by_slots - other).max() > 1e-3


def test_buckets_of_the_relative_bias():
    """Half of the buckets are exact; the last one holds all that is further away."""
    bias = RelativeBias(num_heads=2, causal=True, num_buckets=8, max_distance=20)
    bucket = bias.bucket(np.arange(-3, 30))
    np.testing.assert_array_equal(bucket[:8], [0, 0, 0, 0, 1, 2, 3, 4])
    assert (np.diff(bucket) >= 0).all() and bucket[3 + 19] == 7 and bucket[-1] == 7
    # 4 + 4 log(d / 4) / log(20 / 4)
    np.testing.assert_array_equal(bucket[3 + np.array([5, 6, 9, 14])], [4, 5, 6, 7])
    two_sided = RelativeBias(num_heads=2, causal=False, num_buckets=8, max_distance=20)
    both = two_sided.bucket(np.array([0, 1, 2, 30, -1, -2, -30]))
    np.testing.assert_array_equal(both, [0, 1, 2, 3, 5, 6, 7])


def test_buckets_equal_the_published_code():
    """The first distance of each bucket in `_relative_position_bucket` of transformers' T5."""
    two_sided = [*range(9), 12, 16, 23, 32, 46, 64, 91]
    causal = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    distance = np.arange(3000)
    for starts, is_causal in ((causal, True), (two_sided, False)):
        bias = RelativeBias(num_heads=2, causal=is_causal)
        expected = np.searchsorted(starts, distance, side="right") - 1
        np.testing.assert_array_equal(bias.bucket(distance), expected)
        later = bias.bucket(-distance[1:])
        np.testing.assert_array_equal(later, 0 if is_causal else expected[1:] + 16)


def test_the_relative_bias_looks_up_its_table():
    bias = RelativeBias(num_heads=3, causal=True, num_buckets=4, max_distance=8)
    distance = Mask(causal=True).distance(5, 5)
    params = nn.unbox(bias.init(KEY, distance))
    table = np.asarray(params["params"]["table"])
    y = np.asarray(bias.apply(params, distance))
    assert y.shape == (1, 3, 5, 5)
    np.testing.assert_array_equal(y[0, :, 1, 0], table[1])
    np.testing.assert_array_equal(y[0, :, 2, 2], table[0])


@pytest.mark.parametrize(
    "heads, slopes",
    [(4, [2**-2, 2**-4, 2**-6, 2**-8]), (3, [2**-4, 2**-8, 2**-2]), (1, [2**-8])],
)
def test_alibi(heads, slopes):
    np.testing.assert_allclose(alibi_slopes(heads), slopes)
    bias = np.asarray(alibi(Mask(causal=True).distance(3, 3), heads))
    np.testing.assert_allclose(bias[0, 0, 2], [-2 * slopes[0], -slopes[0], 0])


def test_a_bias_in_decoding_equals_that_of_the_whole_row():
    attention = Attention(num_heads=2, head_dim=4, num_kv_heads=1)
    x = np.asarray(jax.random.normal(KEY, (1, 5, 8)))
    variables = nn.unbox(jitted(attention.init)(KEY, x, mask=Mask()))

    @jitted
    def apply(variables, x, mask, keys, **options):
        bias = None if keys is None else alibi(mask.distance(x.shape[1], keys), 2)
        return attention.apply(variables, x, mask=mask, bias=bias, **options)

    mask = Mask(causal=True)
    whole, without = (np.asarray(apply(variables, x, mask, keys)) for keys in (5, None))
    assert np.abs(whole - without)[:, 1:].max() > 1e-3
    cache = {}
    for slot in range(5):
        mask = Mask(causal=True, query_slots=np.array([[slot]]))
        y, cache = apply(
            {**variables, **cache},
            x[:, slot : slot + 1],
            mask,
            8,
            decode=8,
            mutable=["cache"],
        )
        np.testing.assert_allclose(np.asarray(y)[:, 0], whole[:, slot], rtol=1e-5, atol=1e-6)


def test_distances_in_beam_search_are_turns_of_the_ring():
    """Two beams, four slots; the turn writes to slot 1, after slots 2, 3 and 0."""
    mask = Mask(query_slots=jnp.int32(1 * 2), ancestors=jnp.zeros((1, 2, 4), jnp.int32))
    distance = np.asarray(mask.distance(2, 8))
    np.testing.assert_array_equal(distance, [[[1, 1, 0, 0, 3, 3, 2, 2]] * 2])


def test_rms_norm():
    x = np.asarray(jax.random.normal(KEY, (2, 3, 8))) * 5 + 3
    variables = {"params": {"scale": jnp.arange(8.0)}}
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.arange(8)
    np.testing.assert_allclose(
        RMSNorm().apply(variables, jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5
    )
