"""Sparse Transformer: its patterns by the paper's definition, their costs, and decoding."""

import math
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.config import UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.sparse_transformer import SparseTransformer
from transformer_jax.layers import recurrent, sparse_attention
from transformer_jax.layers.activations import capture
from transformer_jax.layers.masks import Mask, dot_product
from transformer_jax.layers.sparse_attention import Pattern

PUBLISHED = pathlib.Path(__file__).parents[2] / "configs/sparse_transformer/enwik8.py"
STRIDE, SUMMARIES = 8, 3
LENGTH = 149  # the stride does not divide it, and windows take less than half of it
TEXTS = [[1] * 61 + [2] * 5 + [3] * 83, [1] * 70 + [2] * 60 + [0] * 19]
LAYERS_LENGTH = 18  # of rows that a model reads
NAMES = ("strided", "fixed")
ATTENDS = ("near", "far", "both", "split")
TINY = dict(
    vocab_size=37,
    d_model=16,
    num_layers=2,
    num_heads=2,
    max_length=40,
    stride=4,
    num_summaries=1,
    init_scale=1.0,
    output_std=1.0,
    dropout=0.0,
    dtype="float32",
)


def paper(name, length, attends):
    """Returns the keys of each query (H, L, L) for four heads, as section 4.3 has them.

    The strided A1 has the last l positions, as in the published code. The formula has one more.
    """
    first, second = np.zeros((2, length, length), bool)
    for i in range(length):
        for j in range(i + 1):
            if name == "strided":
                first[i, j] = j > i - STRIDE
                second[i, j] = (i - j) % STRIDE == 0
            else:
                first[i, j] = j // STRIDE == i // STRIDE
                second[i, j] = j % STRIDE in range(STRIDE - SUMMARIES, STRIDE)
    sets = {"near": [first], "far": [second], "both": [first | second], "split": [first, second]}
    return np.repeat(sets[attends], 4 // len(sets[attends]), axis=0)


def of_texts(name, attends):
    """Returns the keys of each query (B, H, L, L) in the rows of TEXTS; padding has none."""
    visible = np.zeros((2, 4, LENGTH, LENGTH), bool)
    for row, ids in enumerate(TEXTS):
        for text in set(ids) - {0}:
            start, length = ids.index(text), ids.count(text)
            span = slice(start, start + length)
            visible[row, :, span, span] = paper(name, length, attends)
    return visible


def no_dropout(rows, heads):
    return None


def attention(pattern, attends, segments=None, drawn=no_dropout):
    mask = Mask(causal=True, query_segments=segments, key_segments=segments)

    def attend(q, k, v):
        return sparse_attention.sparse(q, k, v, mask, pattern, attends=attends, drawn=drawn)

    return attend


def by_definition(q, k, v, visible):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e30), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(visible, weights, 0), v)


@pytest.mark.sample("both-strided", "split-fixed")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attends", ATTENDS)
def test_outputs_and_gradients_are_those_of_the_definition(name, attends):
    pattern = Pattern(name, STRIDE, SUMMARIES)
    segments = jnp.array(TEXTS)
    *arrays, factors = 2 * jax.random.normal(jax.random.key(0), (4, 2, LENGTH, 4, 8))
    whole = paper(name, LENGTH, attends)
    packed = of_texts(name, attends)

    def outputs(sparse, q, k, v):
        if sparse:
            rows = attention(pattern, attends), attention(pattern, attends, segments)
            one, many = (attend(q, k, v) for attend in rows)
        else:
            one, many = (by_definition(q, k, v, visible) for visible in (whole[None], packed))
        return one, many * (segments > 0)[..., None, None]

    def gradients(sparse):
        def total(arrays):
            results = outputs(sparse, *arrays)
            return sum((x * factors).sum() for x in results), results

        return jax.grad(total, has_aux=True)(arrays)

    actual, expected = jax.jit(lambda: (gradients(True), gradients(False)))()
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=5e-5)
    assert pattern.num_pairs(LENGTH, attends) == whole.sum() / 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attends", ATTENDS)
def test_dropout_takes_its_share_of_the_weights(name, attends):
    """Queries and keys of zero have equal weights, so that outputs count the keys that remain."""

    def drawn(rows, heads):
        return recurrent.drawn(jax.random.key(rows), 0.25, rows, heads)

    q = jnp.zeros((2, LENGTH, 4, 1))
    attend = attention(Pattern(name, STRIDE, SUMMARIES), attends, drawn=drawn)
    y = np.asarray(jax.jit(attend)(q, q, q + 1))[..., 0].swapaxes(1, 2)  # (B, H, L)
    num_keys = paper(name, LENGTH, attends).sum(axis=-1)
    counts = 0.75 * y * num_keys
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)
    assert counts.sum() / 2 == pytest.approx(0.75 * num_keys.sum(), rel=0.03)
    assert (counts[0] != counts[1]).any() and (counts[:, 0] != counts[:, 1]).any()


def temporary_bytes(attend, length):
    array = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
    gradients = jax.jit(jax.grad(lambda *arrays: (attend(*arrays) ** 2).sum(), (0, 1, 2)))
    compiled = gradients.lower(array, array, array).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.full
def test_memory_grows_with_the_length_times_its_root():
    """Rows are four times as long, and the stride twice. Full attention takes 16 times as much."""

    def growth(short, long):
        return temporary_bytes(long, 2048) / temporary_bytes(short, 512)

    def full(q, k, v):
        return dot_product(q, k, v, Mask(causal=True))

    assert growth(full, full) > 15
    for name, attends in (("strided", "far"), ("fixed", "near"), ("fixed", "far")):
        strides = (Pattern(name, stride, stride // 4) for stride in (16, 32))
        assert growth(*(attention(pattern, attends) for pattern in strides)) < 10
    # Scores of one block are in memory.
    for name in NAMES:
        strides = (Pattern(name, stride, stride // 4) for stride in (16, 32))
        assert growth(*(attention(pattern, "both") for pattern in strides)) < 5


def build(**options):
    model = SparseTransformer(**TINY | options)
    init = jax.jit(model.init)
    params = nn.unbox(init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))["params"]
    return model, params


@pytest.fixture(
    scope="module",
    params=[(name, way) for name in NAMES for way in ("merged", "alternated", "split")],
    ids="-".join,
)
def family(request):
    """Returns a model, its parameters, and a function from tokens to logits."""
    pattern, combination = request.param
    model, params = build(pattern=pattern, combination=combination)
    apply = jax.jit(lambda inputs: model.apply({"params": params}, inputs))
    return model, params, lambda tokens, **known: np.asarray(apply(Inputs(tokens, **known)))


def random_tokens(*shape):
    return np.asarray(jax.random.randint(jax.random.key(2), shape, 0, TINY["vocab_size"]))


@pytest.mark.sample("strided-merged")
def test_two_layers_connect_a_position_with_all_earlier_ones_and_no_later_one(family):
    tokens = random_tokens(LAYERS_LENGTH)
    is_own = np.eye(LAYERS_LENGTH, dtype=bool)
    changed = np.where(is_own, (tokens + 1) % TINY["vocab_size"], tokens)  # row j: token j
    *changed, original = family[2](np.concatenate([changed, tokens[None]]))
    is_changed = (changed != original).any(axis=-1)
    np.testing.assert_array_equal(is_changed, np.tri(LAYERS_LENGTH, dtype=bool).T)


@pytest.mark.sample("strided-merged")
def test_texts_of_a_row_are_as_if_they_were_alone(family):
    lengths = (5, 19, 7)
    tokens = random_tokens(37)
    segments = np.repeat([1, 2, 3, 0], (*lengths, 6))
    positions = np.concatenate([np.arange(length) for length in (*lengths, 6)])
    other_padding = np.where(segments == 0, 3, tokens)
    known = dict(positions=np.array([positions] * 2), segment_ids=np.array([segments] * 2))
    packed, other = family[2](np.array([tokens, other_padding]), **known)
    np.testing.assert_array_equal(packed[segments > 0], other[segments > 0])
    texts = [tokens[segments == text] for text in (1, 2, 3)]
    alone = family[2](np.array([np.pad(text, (0, 19 - len(text))) for text in texts]))
    for text, logits in enumerate(alone):
        actual = packed[segments == text + 1]
        np.testing.assert_allclose(actual, logits[: lengths[text]], rtol=1e-4, atol=1e-4)


@pytest.mark.sample("strided-merged")
def test_cached_decoding_equals_the_whole_row(family):
    model, params, apply = family
    tokens = random_tokens(19, LAYERS_LENGTH)  # of the shape of an earlier test
    expected = apply(tokens)[:2]
    lengths, rows = np.array([6, 11]), np.arange(2)
    prompts = np.where(np.arange(11) < lengths[:, None], tokens[:2, :11], 9)
    params = jax.jit(model.for_decoding)(params)
    begin = jax.jit(model.begin, static_argnames="slots")
    logits, state = begin(params, prompts, lengths, slots=24)
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], rtol=1e-4, atol=1e-4)
    step = jax.jit(model.step)
    for _ in range(7):
        logits, state = step(params, state, tokens[rows, lengths][:, None])
        logits = np.asarray(logits)
        np.testing.assert_allclose(logits[:, 0], expected[rows, lengths], rtol=1e-4, atol=1e-4)
        lengths = lengths + 1


def test_weights_that_are_read_are_those_of_the_pattern():
    model, params = build(combination="alternated", stride=STRIDE, num_summaries=SUMMARIES)
    name = "decoder/layers/block_*/attention/weights"
    read = jax.jit(lambda tokens: capture(model, params, [name], tokens))
    weights = read(jnp.arange(30)[None])
    for block, attends in enumerate(("near", "far")):
        of_block = np.asarray(weights[name.replace("*", str(block))])[0, 0]
        np.testing.assert_array_equal(of_block > 0, paper("fixed", 30, attends)[:2])


def test_the_published_model_has_95_million_parameters():
    model = build_model(configs.load(PUBLISHED))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(shapes)))
    assert count - model.num_padding() == 94_950_400
    width, length = 512, 12_288
    pairs = length * 129 / 2 + 32 * 128 * 96 * 95 / 2
    layer = 2 * length * 12 * width**2 + 4 * width * pairs
    assert model.flops(length) == 30 * layer + 2 * length * width * 257


def test_projections_into_the_residual_stream_start_smaller():
    _, params = build(d_model=64, num_layers=8, init_scale=0.125)
    layers = jax.device_get(params["decoder"]["layers"])
    assert layers["mlp"]["wi"]["kernel"].std() == pytest.approx(0.125 / 8, rel=0.05)
    assert layers["mlp"]["wo"]["kernel"].std() == pytest.approx(0.125 / 16 / 4, rel=0.05)
    assert layers["attention"]["out"]["kernel"].std() == pytest.approx(0.125 / 8 / 4, rel=0.05)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(stride=0), "stride=0: must be from 1 to config.model.max_length=40"),
        (dict(stride=41), "stride=41: must be from 1"),
        (dict(num_summaries=5), "num_summaries=5: must be from 1 to config.model.stride=4"),
        (dict(combination="split", num_heads=1), "num_heads=1: must be even"),
        (dict(combination="alternated", num_layers=3), "num_layers=3: must be even"),
        (dict(num_heads=3), "num_heads=3 does not divide"),
        (dict(pattern="random"), "pattern"),
        (dict(combination="none"), "combination"),
    ],
)
def test_wrong_values_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        build_model(
            configs.experiment(
                model=dict(name="sparse_transformer", **TINY | options),
                task=dict(name="causal_lm", length=16),
            )
        )


def test_a_position_beyond_the_largest_is_refused():
    model, params = build()
    with pytest.raises(UserError, match="a row has 41 tokens.*max_length=40"):
        model.apply({"params": params}, jnp.zeros((1, 41), jnp.int32))
    with pytest.raises(UserError, match="the id 40 is not from 0 to 39 .config.model.max_length"):
        inputs = Inputs(jnp.zeros((1, 2), jnp.int32), positions=jnp.array([[0, 40]]))
        model.apply({"params": params}, inputs)
