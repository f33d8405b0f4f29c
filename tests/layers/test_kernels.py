"""Attention kernels: outputs and gradients against the plain one, and the choice of a kernel."""

import contextlib
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import Mesh

from transformer_jax.distributed import sharding
from transformer_jax.layers import attention, recurrent
from transformer_jax.layers import masks as plain_attention
from transformer_jax.layers.masks import Mask


@functools.cache
def arrays(queries, keys, dtype=jnp.float32, kv_heads=2, head_dim=8):
    heads = (2, kv_heads, kv_heads)
    lengths = (queries, keys, keys)
    shapes = [(2, length, number, head_dim) for length, number in zip(lengths, heads)]
    return tuple(
        jax.random.normal(jax.random.key(i), shape, dtype) for i, shape in enumerate(shapes)
    )


def segments(length, count=3):
    """Returns sorted segment ids from 1, with padding at the end of the first row."""
    ids = np.sort(np.random.default_rng(length).integers(1, count + 1, (2, length)), axis=1)
    ids[0, -7:] = 0
    return jnp.asarray(ids, jnp.int32)


def assert_equals_plain(kernel, arrays, mask, tolerance, plain=attention.dot_product, **options):
    """Asserts equal outputs and gradients, except for queries that are padding."""
    q, _, _ = arrays
    ids = mask.query_segments
    filled = np.ones(q.shape[:2]) if ids is None else np.asarray(ids) > 0

    def value_and_gradients(kernel):
        def total(arrays):
            y = kernel(*arrays, mask, **options) * filled[..., None, None]
            return (y.astype(jnp.float32) ** 2).sum()

        return jax.tree.leaves(jax.jit(jax.value_and_grad(total))(arrays))

    expected = value_and_gradients(plain)
    for x, y in zip(value_and_gradients(kernel), expected):
        x = np.asarray(x, np.float32)
        y = np.asarray(y, np.float32)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max())


@functools.cache
def masks(length):
    """Returns the masks of rows of `length` positions, by name."""
    ids = segments(length)
    rows = np.tile(np.arange(length), (2, 1))
    ranks = jnp.asarray(np.random.default_rng(3).permuted(rows, axis=1), jnp.int32)
    window = dict(window=jnp.int32(20), windows=(20, 2**30))
    is_global = jnp.asarray(np.arange(length)[None] % 50 == np.array([[0], [7]]))
    one_text = jnp.asarray(np.arange(length) < np.array([[length], [length // 3]]), jnp.int32)
    last = Mask(query_segments=one_text, key_segments=one_text, padding_last=True)
    return {
        "all": Mask(),
        "causal": Mask(causal=True),
        "padded": Mask(key_segments=ids),
        "padded_last": last,
        "padded_last_causal": last.replace(causal=True),
        "packed": Mask(causal=True, query_segments=ids, key_segments=ids),
        "local": Mask(causal=True, **window),
        "two_sided": Mask(query_segments=ids, key_segments=ids, **window),
        "dilated": Mask(
            causal=True,
            key_segments=ids,
            window=jnp.int32(20),
            windows=(20, 20),
            dilation=jnp.int32(3),
            dilations=(1, 3),
        ),
        "global": Mask(causal=True, global_keys=is_global, global_queries=is_global, **window),
        "global_two_sided": Mask(global_keys=is_global, global_queries=is_global, **window),
        "prefix": Mask(causal=True, prefix=jnp.array([length // 3, 0])),
        "ranks": Mask(query_ranks=ranks, key_ranks=ranks),
        "ranks_causal": Mask(causal=True, query_ranks=ranks, key_ranks=ranks, key_segments=ids),
    }


def make_mask(name, length=256):
    return masks(length)[name]


MASKS = tuple(
    "all causal padded padded_last padded_last_causal packed local two_sided dilated global "
    "global_two_sided prefix ranks ranks_causal".split()
)


def taken_by(kernel):
    """Returns the masks whose conditions the kernel takes."""
    return [name for name in MASKS if make_mask(name).conditions() <= attention.TAKES[kernel]]


@pytest.mark.sample("two_sided")
@pytest.mark.parametrize("name", taken_by(attention.splash))
def test_splash_equals_the_plain_kernel(name):
    """The kernel of TPUs, interpreted."""
    kernel = functools.partial(attention.splash, interpret=True)
    assert_equals_plain(kernel, arrays(256, 256), make_mask(name), 2e-3)


@pytest.mark.sample("all")
@pytest.mark.parametrize("name", ["all", "causal", "padded", "packed", "local"])
def test_splash_pads_rows_to_whole_tiles(name):
    """ViT-B/16 has 197 patches."""
    kernel = functools.partial(attention.splash, interpret=True)
    assert_equals_plain(kernel, arrays(197, 197), make_mask(name, 197), 2e-3)
    if name == "all":
        assert_equals_plain(kernel, arrays(197, 128), Mask(), 2e-3)


def test_splash_takes_grouped_heads_and_a_scale():
    kernel = functools.partial(attention.splash, interpret=True)
    grouped = arrays(128, 128, kv_heads=1)
    assert_equals_plain(kernel, grouped, make_mask("packed", 128), 2e-3, scale=0.5)


@pytest.mark.sample("one_window")
@pytest.mark.parametrize("name", ["local", "two_sided", "one_window"])
def test_windowed_equals_the_plain_kernel(name):
    """The length is no multiple of a block. Both windows of a stack take their branch."""
    if name == "one_window":
        masks = [
            Mask(causal=True, window=jnp.int32(150), windows=(150,), key_segments=segments(301))
        ]
    else:
        mask = make_mask(name, 301)
        masks = [mask, mask.replace(window=jnp.int32(2**30))]
    for mask in masks:
        dropout = recurrent.drawn(jax.random.key(5), 0.2, 2, 2)
        for options in (dict(), dict(scale=0.5, dropout=dropout)):
            kernel = functools.partial(attention.windowed, **options)
            plain = functools.partial(attention.dot_product, **options)
            assert_equals_plain(kernel, arrays(301, 301, kv_heads=1), mask, 1e-5, plain=plain)


@pytest.mark.sample("False-20-3")
@pytest.mark.parametrize("window, dilation", [(20, 3), (5, 7), (150, 4), (None, 2), (20, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_dilated_window_equals_the_plain_kernel(causal, window, dilation):
    """A window may reach beyond the row, and the length is no multiple of the dilation."""
    ids = segments(301)
    reach = 2**30 if window is None else window
    mask = Mask(causal=causal, query_segments=ids, key_segments=ids, window=jnp.int32(reach))
    cases = sorted([(reach, dilation), (9, 2)])
    windows, dilations = zip(*cases)
    mask = mask.replace(windows=windows, dilation=jnp.int32(dilation), dilations=dilations)
    options = dict(dropout=recurrent.drawn(jax.random.key(5), 0.2, 2, 2), scale=0.5)
    kernel = functools.partial(attention.windowed, **options)
    plain = functools.partial(attention.dot_product, **options)
    assert_equals_plain(kernel, arrays(301, 301, kv_heads=1), mask, 1e-5, plain=plain)


@pytest.mark.parametrize("dilation", [None, 3])
def test_windowed_shows_global_positions_to_all_queries(dilation):
    ids = segments(301)
    positions = np.array([[0, 40, 170, -1], [300, -1, -1, 20]])
    is_global = jnp.asarray((positions[..., None] == np.arange(301)).any(axis=1))
    positions = jnp.asarray(positions)
    window = dict(window=jnp.int32(20), windows=(20,))
    if dilation is not None:
        window |= dict(dilation=jnp.int32(dilation), dilations=(dilation,))
    mask = Mask(query_segments=ids, key_segments=ids, **window)
    options = dict(dropout=recurrent.drawn(jax.random.key(5), 0.2, 2, 2))

    def plain(*arrays, **options):
        q, k, v, mask = arrays
        return attention.dot_product(q, k, v, mask.replace(global_keys=is_global), **options)

    kernel = functools.partial(attention.windowed, global_positions=positions, **options)
    plain = functools.partial(plain, **options)
    assert_equals_plain(kernel, arrays(301, 301), mask, 1e-5, plain=plain)


@pytest.mark.sample("packed-2-100", "global-1-100", "ranks_causal-2-2048")
@pytest.mark.parametrize("longest_saved", [2048, 100])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("name", ["causal", "packed", "global", "ranks_causal"])
def test_causal_blocks_take_groups_biases_and_masks(name, kv_heads, longest_saved, monkeypatch):
    """So do those of long rows, which are computed by parts."""
    monkeypatch.setattr(plain_attention, "_LONGEST_SAVED", longest_saved)
    monkeypatch.setattr(plain_attention, "_QUERIES_OF_PART", 24)
    assert make_mask(name).conditions() <= attention.TAKES[attention.causal_blocks]
    bias = jax.random.normal(jax.random.key(9), (1, 2, 150, 150))
    assert_equals_plain(
        attention.causal_blocks,
        arrays(150, 150, kv_heads=kv_heads),
        make_mask(name, 150),
        1e-5,
        bias=bias,
        scale=0.7,
    )


@pytest.mark.full
def test_causal_blocks_of_a_long_row_take_memory_in_proportion_to_its_length():
    def temporaries(length):
        def layer(x, _):
            return attention.causal_blocks(x, x, x, Mask(causal=True)), None

        x = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
        gradient = jax.grad(lambda x: jax.lax.scan(layer, x, length=2)[0].sum())
        return jax.jit(gradient).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(16_384) < 2.1 * temporaries(8192)


def test_grouped_heads_equal_repeated_ones():
    q, k, v = arrays(6, 6)
    bias = jax.random.normal(jax.random.key(9), (1, 4, 6, 6))
    q = np.concatenate([q, np.asarray(q)[..., ::-1]], axis=2)  # four heads
    product = jax.jit(attention.dot_product)
    repeated = product(q, *(np.repeat(x, 2, axis=2) for x in (k, v)), Mask(), bias=bias)
    grouped = product(q, k, v, Mask(), bias=bias)
    np.testing.assert_allclose(grouped, repeated, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_splash_from_one_length_to_another():
    mask = Mask(query_segments=segments(128, 2), key_segments=segments(256, 2))
    kernel = functools.partial(attention.splash, interpret=True)
    assert_equals_plain(kernel, arrays(128, 256), mask, 2e-3)


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")
def test_splash_on_a_mesh():
    q, k, v = arrays(128, 128)
    mask = Mask(causal=True, query_segments=segments(128), key_segments=segments(128))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(1, 2, 1, 1, 2, 1), sharding.AXES)

    @jax.jit
    def split(q, k, v, mask):
        with sharding.use(mesh, sharding.RULES):
            return attention.splash(q, k, v, mask, interpret=True)

    filled = np.asarray(mask.query_segments > 0)
    expected = np.asarray(jax.jit(attention.dot_product)(q, k, v, mask))
    np.testing.assert_allclose(
        np.asarray(split(q, k, v, mask))[filled], expected[filled], rtol=2e-3, atol=2e-3
    )


@pytest.fixture
def lowered_for_gpu(monkeypatch):
    """Returns a function (program, *arguments) -> text of the program for a GPU, without one."""

    def lowered_for_gpu(program, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
            traced = jax.jit(program).trace(*arguments)
            return traced.lower(lowering_platforms=("cuda",)).as_text()

    return lowered_for_gpu


@contextlib.contextmanager
def without_cudnn():
    """In the context, JAX itself computes what cuDNN is asked for.

    In training, JAX refuses odd lengths for cuDNN.
    """
    computed = jax.nn.dot_product_attention

    def without(*arrays, implementation, **options):
        assert all(x.shape[1] % 2 == 0 for x in arrays)
        return computed(*arrays, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.nn, "dot_product_attention", without)
        yield


@pytest.mark.parametrize(
    "name, length", [*((name, 256) for name in taken_by(attention.cudnn)), ("all", 197)]
)
def test_cudnn_takes_every_mask(name, length, lowered_for_gpu):
    """The programs for a batch and for a batch in groups."""
    mask = make_mask(name, length)
    shapes = arrays(length, length, jnp.bfloat16)
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in shapes]

    def gradients(q, k, v, mask):
        def total(q, k, v):
            return (attention.cudnn(q, k, v, mask).astype(jnp.float32) ** 2).sum()

        return jax.grad(total, argnums=(0, 1, 2))(q, k, v)

    def of_group(group, *arrays):
        with sharding.use(mesh, sharding.RULES), sharding.within_group(group, 2):
            return gradients(*arrays)

    def of_groups(*arrays):
        axes = jax.tree.map(lambda x: 0 if x.ndim else None, arrays)
        split = jax.tree.map(lambda x: x.reshape(2, 1, *x.shape[1:]) if x.ndim else x, arrays)
        return jax.vmap(of_group, (0, *axes), spmd_axis_name="data")(jnp.arange(2), *split)

    mesh = sharding.make_mesh(dict.fromkeys((*sharding.AXES, "slices"), 1), jax.devices()[:1])
    needs_no_array = name in ("all", "causal", "local") or mask.padding_last
    kind = "Softmax" if needs_no_array else "ScaleBiasSoftmax"
    for program in (gradients, of_groups):
        lowered = lowered_for_gpu(program, *arguments, mask)
        assert f"__cudnn$fmha{kind}" in lowered and f"__cudnn$fmha{kind}Backward" in lowered
        # It skips what the causal mask hides, also where there are other conditions.
        skips = mask.causal and mask.prefix is None
        assert ("CAUSAL\\22" in lowered) == skips
        has_lengths = mask.padding_last or length % 2 == 1
        assert ("\\22mask_type\\22: \\22PADDING" in lowered) == has_lengths


@pytest.mark.parametrize("name", taken_by(attention.cudnn))
def test_cudnn_is_asked_for_the_mask(name):
    with without_cudnn():
        assert_equals_plain(attention.cudnn, arrays(256, 256), make_mask(name), 1e-4)


@pytest.mark.parametrize(
    "name, length", [("packed", 256), ("local", 256), ("padded_last", 256), ("all", 197)]
)
def test_cudnn_takes_a_bias(name, length, lowered_for_gpu):
    """T5's is one for all rows, and so is its gradient. It is in the program, and is correct."""
    mask = make_mask(name, length)
    bias = jax.random.normal(jax.random.key(3), (1, 2, length, length))

    def gradients(kernel, q, k, v, bias):
        def total(q, bias):
            filled = 1 if mask.query_segments is None else mask.query_segments > 0
            y = kernel(q, k, v, mask, bias=bias, scale=1.0).astype(jnp.float32)
            return (jnp.einsum("bqhd->bq", y**2) * filled).sum()

        return jax.grad(total, argnums=(0, 1))(q, bias)

    program = functools.partial(gradients, attention.cudnn)
    lowered = lowered_for_gpu(program, *arrays(length, length, jnp.bfloat16), bias)
    assert "__cudnn$fmhaScaleBiasSoftmaxBackward" in lowered
    even = length + length % 2
    # With a mask in memory, the kernel gets the sum of both for each row.
    assert f"tensor<1x2x{even}x{even}xbf16>" in lowered or name == "packed"

    with without_cudnn():
        expected, found = (
            jax.jit(functools.partial(gradients, kernel))(*arrays(length, length), bias)
            for kernel in (attention.dot_product, attention.cudnn)
        )
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(y).max())


def test_the_gradient_of_a_bias_is_summed_over_groups(lowered_for_gpu):
    """Each group has rows of its own, whose gradients are not those of the whole batch."""
    bias = jax.random.normal(jax.random.key(3), (1, 2, 256, 256))

    def total(bias, *arrays):
        return (attention.cudnn(*arrays, Mask(), bias=bias).astype(jnp.float32) ** 2).sum()

    def of_group(bias, group, *arrays):
        with sharding.use(mesh, sharding.RULES), sharding.within_group(group, 2):
            return jax.grad(total)(bias, *arrays)

    def of_groups(bias, *arrays):
        split = (x.reshape(2, 1, *x.shape[1:]) for x in arrays)
        axes = (None, 0, 0, 0, 0)
        mapped = jax.vmap(of_group, axes, spmd_axis_name="data")
        return mapped(bias, jnp.arange(2), *split).sum(axis=0)

    mesh = sharding.make_mesh(dict.fromkeys((*sharding.AXES, "slices"), 1), jax.devices()[:1])
    lowered = lowered_for_gpu(of_groups, bias, *arrays(256, 256, jnp.bfloat16))
    # The kernel gets a bias for each row.
    (call,) = [line for line in lowered.splitlines() if "fmhaScaleBiasSoftmaxBackward" in line]
    assert call.count("tensor<2x2x256x256xbf16>") >= 2

    with without_cudnn():
        found = jax.jit(of_groups)(bias, *arrays(256, 256))
        expected = jax.jit(jax.grad(total))(bias, *arrays(256, 256))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["all", "causal", "padded_last", "padded_last_causal"])
def test_cudnn_is_given_even_lengths(name):
    """ViT-B/16 has 197 patches, and JAX refuses odd lengths in training."""
    with without_cudnn():
        assert_equals_plain(attention.cudnn, arrays(197, 197), make_mask(name, 197), 1e-4)
        if name == "all":
            assert_equals_plain(attention.cudnn, arrays(128, 197), Mask(), 1e-4)


def test_cudnn_is_given_a_position_of_each_row(monkeypatch):
    """The last batch of a pass may have rows of padding, whose softmax would be NaN."""
    lengths = []
    monkeypatch.setattr(
        jax.nn,
        "dot_product_attention",
        lambda q, k, v, *, key_value_seq_lengths, **_: lengths.extend(key_value_seq_lengths) or q,
    )
    ids = jnp.zeros((2, 256), jnp.int32).at[0, :9].set(1)
    mask = Mask(query_segments=ids, key_segments=ids, padding_last=True)
    attention.cudnn(*arrays(256, 256), mask)
    assert lengths == [9, 1]


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU, and TEST_PLATFORM=cuda")
@pytest.mark.parametrize("name", taken_by(attention.cudnn))
def test_cudnn_equals_the_plain_kernel(name):
    assert_equals_plain(attention.cudnn, arrays(256, 256, jnp.bfloat16), make_mask(name), 3e-2)


@pytest.fixture
def pick(monkeypatch):
    """Returns a function that picks the kernel on a platform."""

    def pick(
        platform,
        mask=None,
        *,
        dropout=False,
        length=256,
        dtype=jnp.bfloat16,
        capability="9.0",
        kv_heads=2,
        head_dim=8,
        bias=None,
    ):
        device = types.SimpleNamespace(platform=platform, compute_capability=capability)
        monkeypatch.setattr(sharding, "device", lambda: device)
        shapes = [(2, length, heads, head_dim) for heads in (2, kv_heads)]
        q, k = (jnp.asarray(np.zeros(shape, dtype)) for shape in shapes)
        mask = Mask(causal=True) if mask is None else mask
        return attention.pick(q, k, mask, dropout, bias=bias)

    return pick


def test_each_platform_has_a_kernel(pick):
    assert pick("tpu") is attention.splash
    assert pick("gpu") is attention.cudnn
    assert pick("cpu") is attention.causal_blocks
    assert pick("cpu", Mask()) is attention.dot_product


def test_fused_kernels_have_requirements(pick):
    # cuDNN takes bfloat16 on an NVIDIA GPU from Ampere on.
    assert pick("gpu", dtype=jnp.float32) is attention.causal_blocks
    assert pick("gpu", capability="7.5") is attention.causal_blocks
    assert pick("gpu", capability="gfx942") is attention.causal_blocks
    # cuDNN takes odd lengths, such as the 197 patches of ViT-B/16, only without a mask in memory.
    assert pick("gpu", Mask(), length=197) is attention.cudnn
    assert pick("gpu", make_mask("padded_last", 197), length=197) is attention.cudnn
    assert pick("gpu", make_mask("packed", 197), length=197) is attention.causal_blocks
    # Splash pads 200 positions to two tiles, but has no tile for fewer than 128.
    assert pick("tpu", length=200) is attention.splash
    assert pick("tpu", length=140) is attention.causal_blocks
    assert pick("tpu", length=80) is attention.causal_blocks


def test_dropout_takes_a_kernel_that_applies_it(pick):
    assert pick("tpu", dropout=True) is attention.blockwise
    assert pick("cpu", dropout=True) is attention.causal_blocks
    # Triton's products take heads of at least 16.
    assert pick("gpu", dropout=True) is attention.causal_blocks
    assert pick("gpu", dropout=True, head_dim=64) is attention.blockwise
    assert pick("gpu", dropout=True, head_dim=64, capability="7.5") is attention.causal_blocks
    assert pick("tpu", dropout=True, length=200) is attention.causal_blocks
    # A chip's memory holds a vector of 64 as one of 128.
    assert pick("tpu", dropout=True, length=8192, head_dim=64) is attention.blockwise
    assert pick("tpu", dropout=True, length=16_384, head_dim=64) is attention.causal_blocks
    assert pick("tpu", make_mask("local"), dropout=True) is attention.windowed


def test_a_split_length_takes_ring_attention(pick, monkeypatch):
    parts = dict(length=4, batch=2, heads=2)
    monkeypatch.setattr(sharding, "parts", parts.get)
    for platform in ("tpu", "gpu", "cpu"):
        for name in ("all", "causal", "padded", "packed", "local", "two_sided"):
            assert pick(platform, make_mask(name)) is attention.ring
        assert pick(platform, make_mask("prefix")) is attention.dot_product
        assert pick(platform, bias=jnp.zeros((1, 2, 256, 256))) is attention.dot_product
        assert pick(platform, Mask(), dropout=True) is attention.dot_product
        assert pick(platform, dropout=True) is attention.causal_blocks
    # The mesh does not divide the length, the heads of the keys or the rows.
    assert pick("tpu", length=258) is attention.dot_product
    assert pick("tpu", kv_heads=1) is attention.dot_product
    parts["batch"] = 4
    assert pick("tpu") is attention.dot_product


@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
def test_short_rows_and_decoding_take_the_plain_kernel(platform, pick):
    assert pick(platform, length=64) is attention.dot_product
    decoding = Mask(causal=True, query_slots=jnp.zeros((2, 256), jnp.int32))
    assert pick(platform, decoding) is attention.dot_product


@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
@pytest.mark.parametrize("name", MASKS)
def test_a_kernel_is_picked_only_for_what_it_takes(platform, name, pick):
    mask = make_mask(name)
    kernel = pick(platform, mask)
    takes = attention.TAKES.get(kernel)
    assert kernel is attention.dot_product or mask.conditions() <= takes
    bias = jnp.zeros((1, 2, 256, 256))
    kernel = pick(platform, mask, bias=bias)
    assert (
        kernel is attention.dot_product or mask.conditions() | {"bias"} <= attention.TAKES[kernel]
    )
    if platform == "gpu" and mask.conditions() <= {"causal"}:
        assert kernel is attention.cudnn


def test_grouped_heads_take_the_fused_kernels(pick):
    assert pick("tpu", kv_heads=1) is attention.splash
    assert pick("gpu", kv_heads=1) is attention.cudnn
    assert pick("cpu", kv_heads=1) is attention.causal_blocks
