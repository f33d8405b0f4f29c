"""GPT: published sizes, attention masks, and equal results in all ways of computing them."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.jitted import Jitted, jitted
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.gpt import GPT
from transformer_jax.layers.activations import capture

TINY = dict(
    vocab_size=37,
    d_model=16,
    num_layers=4,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
    dtype="float32",
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))


def init(**options):
    model = Jitted(GPT(**{**TINY, **options}))
    return model, nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]


@functools.cache
def build(**options):
    """Returns a tiny model and parameters far from their small initial values."""
    model, params = init(**options)

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    return model, jax.jit(lambda params: jax.tree.map(perturb, params))(params)


def changed_at(position):
    """Returns the tokens with another one at this position of each row."""
    tokens = TOKENS.copy()
    tokens[:, position] = (tokens[:, position] + 1) % 37
    return tokens


@pytest.mark.parametrize(
    "options, count",
    [
        (dict(vocab_size=40_478, max_length=512, norm_position="post"), 116_534_784),
        (dict(), 124_439_808),
        (dict(d_model=1024, num_layers=24, num_heads=16), 354_823_168),
        (dict(d_model=1280, num_layers=36, num_heads=20), 774_030_080),
        (dict(d_model=1600, num_layers=48, num_heads=25, vocab_multiple=128), 1_557_611_200),
    ],
    ids=["GPT-1", "124M", "355M", "774M", "1558M"],
)
def test_published_parameter_counts(options, count):
    model = GPT(**options)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
    assert size - model.num_padding() == count


@pytest.mark.sample("options2")
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(norm_position="post", scaled_init=False),
        dict(local_window=3),
        dict(head_dim=5),
        dict(unroll=2),
    ],
)
def test_a_token_changes_no_earlier_position(options):
    model, params = build(**options)
    original, changed = (
        np.asarray(model.apply({"params": params}, tokens)) for tokens in (TOKENS, changed_at(7))
    )
    np.testing.assert_array_equal(original[:, :7], changed[:, :7])
    # The layers without a window carry the change to all later positions.
    assert (original[:, 7:] != changed[:, 7:]).any(axis=-1).all()


@pytest.mark.full
def test_every_second_layer_attends_to_a_local_window():
    model, params = build(num_layers=2, local_window=3)
    name = "decoder/layers/attention/weights"
    dense, local = np.asarray(jitted(capture)(model.model, params, [name], TOKENS)[name])
    distance = np.arange(12)[:, None] - np.arange(12)
    causal = distance >= 0
    in_window = causal & (distance < 3)
    assert (dense[..., causal] > 0).all() and (dense[..., ~causal] == 0).all()
    assert (local[..., in_window] > 0).all() and (local[..., ~in_window] == 0).all()
    original, changed = (
        np.asarray(model.apply({"params": params}, tokens)) for tokens in (TOKENS, changed_at(0))
    )
    assert (original != changed).any()


def test_documents_of_a_row_do_not_attend_to_each_other():
    model, params = build()
    segments = np.array([[1] * 5 + [2] * 7] * 2)
    positions = np.array([[*range(5), *range(7)]] * 2)
    inputs = Inputs(TOKENS, positions=positions, segment_ids=segments)
    packed = np.asarray(model.apply({"params": params}, inputs))
    alone = model.apply({"params": params}, TOKENS[:, 5:])
    np.testing.assert_allclose(packed[:, 5:], alone, rtol=1e-5, atol=1e-5)


def test_a_padded_vocabulary_changes_neither_parameters_nor_results():
    plain, params = init()
    padded, padded_params = init(vocab_multiple=32)
    table = np.asarray(padded_params["token_embed"]["embedding"])
    assert table.shape == (64, 16) and padded.num_padding() == 27 * 16
    np.testing.assert_array_equal(table[:37], params["token_embed"]["embedding"])
    np.testing.assert_array_equal(table[37:], 0)
    np.testing.assert_array_equal(
        plain.apply({"params": params}, TOKENS), padded.apply({"params": padded_params}, TOKENS)
    )


def test_projections_into_the_residual_stream_start_smaller():
    _, params = init(d_model=64, num_layers=8)
    layers = jax.device_get(params["decoder"]["layers"])
    assert layers["mlp"]["wi"]["kernel"].std() == pytest.approx(0.02, rel=0.05)
    for kernel in (layers["mlp"]["wo"]["kernel"], layers["attention"]["out"]["kernel"]):
        assert kernel.std() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.sample("options0")
@pytest.mark.parametrize("options", [{}, dict(norm_position="post"), dict(local_window=4)])
def test_cached_decoding_equals_the_whole_prefix(options):
    """Prompts have different lengths. Slots behind a short prompt are overwritten before use."""
    model, params = build(**options)
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    lengths = np.array([5, 8])
    prompts = np.where(np.arange(8) < lengths[:, None], TOKENS[:, :8], 9)
    rows = np.arange(2)
    params = model.for_decoding(params)

    logits, state = model.begin(params, prompts, lengths, slots=16)
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], rtol=1e-4, atol=1e-4)
    for _ in range(4):
        logits, state = model.step(params, state, TOKENS[rows, lengths][:, None])
        logits = np.asarray(logits)
        np.testing.assert_allclose(logits[:, 0], expected[rows, lengths], rtol=1e-4, atol=1e-4)
        lengths = lengths + 1


def test_flops_count_the_matrix_products():
    """GPT-2 at length 1024, counted by hand."""
    model, length, width = GPT(), 1024, 768
    layer = 2 * length * (4 * width**2 + 8 * width**2) + 2 * 2 * width * length**2 / 2
    assert model.flops(length) == 12 * layer + 2 * length * width * 50_257
    assert GPT(local_window=256).flops(length) < model.flops(length)
    assert GPT(local_window=4096).flops(length) == model.flops(length)
