"""AWD-LSTM: torch's logits and gradients, its dropouts, its state, and its decoding."""

import functools
import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures import make_torch_awd_lstm as fixture
from tests.jitted import Jitted, jitted
from transformer_jax.families.awd_lstm import AwdLSTM
from transformer_jax.layers import parameters
from transformer_jax.layers.parameters import Dropout
from transformer_jax.layers.recurrent import LSTM, Unidirectional, Vanilla
from transformer_jax.losses import label_nll

KEY = jax.random.key(0)
CLOSE = dict(rtol=1e-5, atol=1e-5)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 9), 0, fixture.VOCABULARY))
NONE = dict(
    input_dropout=0.0, word_dropout=0.0, layer_dropout=0.0, output_dropout=0.0, weight_dropout=0.0
)


@functools.cache
def build(**rates):
    """Returns a tiny model that has only the dropouts of `rates`."""
    sizes = dict(vocab_size=fixture.VOCABULARY, d_model=fixture.EMBEDDING, d_hidden=fixture.HIDDEN)
    return Jitted(AwdLSTM(**sizes, **NONE | rates))


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(jnp.asarray, from_torch(dict(np.load(fixture.PATH)), "", gradient=False))


def from_torch(arrays, prefix, gradient):
    """Returns the parameters, or their gradients, from arrays named as torch does."""

    def layer(number, cell):
        def of(name):
            return arrays[f"{prefix}layer_{number}.{name}_l0"]

        bias = of("bias_ih").reshape(4, cell)
        if not gradient:
            bias = bias + of("bias_hh").reshape(4, cell) - [[0], [1], [0], [0]]
        kernel = of("weight_ih").T.reshape(-1, 4, cell)
        return {"input": {"kernel": kernel, "bias": bias}, "recurrent": of("weight_hh").T}

    return {
        "token_embed": {"embedding": arrays[f"{prefix}embedding.weight"]},
        "output_bias": {"bias": arrays[f"{prefix}decoder.bias"]},
        **{f"layer_{n}": layer(n, width) for n, width in enumerate(fixture.WIDTHS[1:])},
    }


def check_against(arrays):
    model, tokens = build(), arrays["tokens"]

    def loss(params):
        logits = model.apply({"params": params}, tokens)
        return label_nll(logits[:, :-1], tokens[:, 1:]).mean(), logits

    params = from_torch(arrays, "", gradient=False)
    gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(logits, arrays["logits"], **CLOSE)
    expected = from_torch(arrays, "d ", gradient=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), gradients, expected)


def test_equals_torch_without_dropout():
    check_against(dict(np.load(fixture.PATH)))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_equals_the_installed_torch():
    check_against(fixture.case(seed=1))


def test_a_locked_mask_is_that_of_all_positions_of_a_row():
    x = jnp.ones((3, 5, 64))
    y = Dropout(0.25, locked=True).apply({}, x, train=True, rngs={"dropout": KEY})
    y = np.asarray(y)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert {*np.unique(y).tolist()} == {0.0, np.float32(1 / 0.75)}
    assert (y[0] != y[1]).any() and 0.15 < (y == 0).mean() < 0.35


def test_a_mask_of_matrices_is_that_of_all_positions_and_rows():
    """From one-hot states the first outputs are the matrix, whose product gives the second."""
    width = 16
    cell = Vanilla(width, "relu")
    layer = Unidirectional(cell, weight_dropout=0.5)
    x, filled = jnp.zeros((width, 2, 1)), jnp.ones((width, 2), bool)
    params = nn.unbox(jax.jit(layer.init)(KEY, x, filled))["params"]
    matrix = np.abs(params["recurrent"])
    variables = {"params": params | {"recurrent": jnp.asarray(matrix)}}

    def outputs(**options):
        apply = jitted(layer.apply)
        return np.asarray(apply(variables, x, filled, (np.eye(width),), **options)[0])

    first, second = np.moveaxis(outputs(train=True, rngs={"dropout": KEY}), 1, 0)
    is_kept = first != 0
    np.testing.assert_allclose(first, np.where(is_kept, 2 * matrix, 0), rtol=1e-6)
    np.testing.assert_allclose(second, first @ first, rtol=1e-5)
    assert 0.35 < is_kept.mean() < 0.65
    np.testing.assert_allclose(outputs()[:, 0], matrix, rtol=1e-6)


def test_a_dropped_word_is_zero_wherever_it_occurs(params):
    model = build(word_dropout=0.5)

    def words(key):
        rngs = {"dropout": key}
        return model.apply({"params": params}, TOKENS, True, method="_words", rngs=rngs)

    table = np.asarray(params["token_embed"]["embedding"])
    for key in jax.random.split(KEY, 4):
        vectors = np.asarray(words(key))
        dropped = {int(token) for token in TOKENS[(vectors == 0).all(axis=-1)]}
        expected = np.where(np.isin(TOKENS, [*dropped])[..., None], 0, 2 * table[TOKENS])
        np.testing.assert_allclose(vectors, expected, rtol=1e-6)
        assert 0 < len(dropped) < len(np.unique(TOKENS))


@pytest.mark.sample("word_dropout", "layer_dropout", "output_dropout")
@pytest.mark.parametrize("rate", NONE)
def test_each_dropout_acts_in_training_alone(rate, params):
    variables = {"params": params}
    expected = build().apply(variables, TOKENS)
    model = build(**{rate: 0.5})
    np.testing.assert_array_equal(model.apply(variables, TOKENS), expected)
    trained = model.apply(variables, TOKENS, train=True, rngs={"dropout": KEY})
    assert np.isfinite(trained).all() and np.abs(trained - expected).max() > 1e-3


def test_decoding_equals_the_whole_prefix(params):
    model, rows = build(), np.arange(2)
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    lengths = np.array([3, 5])
    prompts = np.where(np.arange(5) < lengths[:, None], TOKENS[:, :5], 9)
    prepared = model.for_decoding(params)
    logits, state = model.begin(prepared, prompts, lengths, slots=16)
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], **CLOSE)
    for _ in range(3):
        logits, state = model.step(prepared, state, TOKENS[rows, lengths][:, None])
        np.testing.assert_allclose(np.asarray(logits)[:, 0], expected[rows, lengths], **CLOSE)
        lengths = lengths + 1


def test_documents_of_a_row_and_padding_do_not_change_each_other(params):
    segments = np.array([[1] * 3 + [2] * 4 + [0] * 2] * 2)
    packed = np.asarray(build().apply({"params": params}, TOKENS, segment_ids=segments))
    alone = build().apply({"params": params}, TOKENS[:, 3:7])
    np.testing.assert_allclose(packed[:, 3:7], alone, **CLOSE)


def test_flops_count_the_products_of_each_width():
    model = AwdLSTM(vocab_size=100, d_model=8, d_hidden=12)
    layers = zip((8, 12, 12), (12, 12, 8))
    expected = sum(parameters.recurrent(7, inputs, LSTM(width)) for inputs, width in layers)
    assert model.flops(7) == expected + parameters.dense(7, 8, 100)
