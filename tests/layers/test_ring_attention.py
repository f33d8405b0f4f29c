"""Ring attention: against the plain kernel, balance, memory, and the traffic between devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.test_kernels import arrays, assert_equals_plain, make_mask, segments, taken_by
from transformer_jax.distributed import sharding
from transformer_jax.layers import attention, ring_attention
from transformer_jax.layers.masks import Mask
from transformer_jax.planning import hlo

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """A device has several tiles of these short rows."""
    monkeypatch.setattr(ring_attention, "_TILE", 16)


def make_mesh(sequence, **sizes):
    sizes = dict.fromkeys((*sharding.AXES, "slices"), 1) | sizes | dict(sequence=sequence)
    return sharding.make_mesh(sizes, jax.devices()[: np.prod(list(sizes.values()))])


def on_mesh(mesh):
    """Returns ring attention on a mesh, compiled."""

    @functools.partial(jax.jit, static_argnames="scale")
    def kernel(*arguments, **options):
        with sharding.use(mesh, sharding.RULES):
            return ring_attention.ring(*arguments, **options)

    return kernel


@pytest.mark.sample("local-4", "two_sided-4")
@pytest.mark.parametrize("sequence", [4, 2, 8])
@pytest.mark.parametrize("name", taken_by(ring_attention.ring))
def test_ring_equals_the_plain_kernel(name, sequence):
    """No tile divides the positions of a device."""
    length = 8 * 21
    kernel = on_mesh(make_mesh(sequence))
    assert_equals_plain(kernel, arrays(length, length), make_mask(name, length), 1e-5)


def test_rows_heads_and_positions_are_split_at_once():
    """With grouped heads, a scale, and more keys than queries."""
    kernel = on_mesh(make_mesh(2, fsdp=2, tensor=2))
    q, _, _ = arrays(80, 80)
    _, k, v = arrays(120, 120)
    arguments = (jnp.asarray(np.concatenate([q, -np.asarray(q)], axis=2)), k, v)
    mask = Mask(query_segments=segments(80), key_segments=segments(120))
    assert_equals_plain(kernel, arguments, mask, 1e-5, scale=0.5)


def test_a_query_without_visible_keys_has_no_output_and_no_gradient():
    ids = np.zeros((2, 96), np.int32)
    ids[0, :40] = 1
    mask = Mask(causal=True, query_segments=ids, key_segments=ids)
    kernel = on_mesh(make_mesh(2))
    y, back = jax.vjp(lambda *arrays: kernel(*arrays, mask), *arrays(96, 96))
    assert not np.asarray(y)[ids == 0].any()
    for gradient in back(jnp.ones_like(y)):
        assert not np.asarray(gradient)[ids == 0].any()
        assert np.isfinite(gradient).all()


def test_hidden_tiles_are_not_computed():
    """A value that is no number would show in the output of all queries that met its tile."""
    q, k, v = arrays(128, 128)
    kernel = on_mesh(make_mesh(2))
    y = kernel(q, k, v.at[:, 64:].set(jnp.nan), Mask(causal=True))
    assert np.isfinite(y[:, :64]).all() and np.isnan(y[:, 64:]).all()
    y = kernel(q, k, v.at[:, :64].set(jnp.nan), Mask(causal=True, window=jnp.int32(10)))
    assert np.isnan(y[:, :64]).all() and np.isfinite(y[:, 80:]).all()


@pytest.mark.parametrize("sequence", [2, 4, 8])
def test_causal_work_is_balanced(sequence):
    """In each turn after the first, all devices compute half of the pairs of their tiles."""

    def starts(x):
        ring = ring_attention._Ring(("sequence",))
        return ring.balanced(ring.positions(len(x), None).starts)

    mesh = make_mesh(sequence)
    split = jax.sharding.PartitionSpec("sequence")
    of_devices = jax.shard_map(starts, mesh=mesh, in_specs=split, out_specs=split)
    starts = np.asarray(jax.jit(of_devices)(np.zeros(sequence * 64))).reshape(sequence, 4)
    assert sorted(starts.flat) == [*range(0, sequence * 64, 16)]
    for turn in range(1, sequence):
        computed = starts[:, :, None] >= np.roll(starts, turn, axis=0)[:, None]
        assert (computed.sum(axis=(1, 2)) == 8).all()


def compiled(kernel, sequence, length):
    """Returns the compiled forward and backward pass of two causal layers on a mesh."""
    shape = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
    mesh = make_mesh(sequence)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "sequence"))

    @functools.partial(jax.jit, in_shardings=split, out_shardings=split)
    def passes(q, k, v, dy):
        def layer(x, _):
            return kernel(x, k * x, v, Mask(causal=True)), None

        with sharding.use(mesh, sharding.RULES):
            y, back = jax.vjp(lambda q: jax.lax.scan(layer, q, length=2)[0], q)
            return y, back(dy)

    return passes.lower(*[shape] * 4).compile()


@pytest.mark.full
def test_memory_grows_with_the_positions_of_a_device():
    def temporaries(*arguments):
        return compiled(*arguments).memory_analysis().temp_size_in_bytes

    split = temporaries(ring_attention.ring, 4, 1024)
    assert split < temporaries(attention.dot_product, 4, 1024) / 3
    assert temporaries(ring_attention.ring, 8, 2048) == pytest.approx(split, rel=0.1)
    assert temporaries(ring_attention.ring, 4, 2048) < 2.2 * split


def test_keys_and_values_travel_and_are_never_gathered():
    program = compiled(ring_attention.ring, 4, 256)
    moved = hlo.summary(hlo.collectives(program.as_text(), 4))
    assert [*moved] == ["collective-permute"]
