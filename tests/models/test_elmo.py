"""ELMo: its layers against NumPy, what each direction may see, and the published size."""

import importlib.util
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from tests.layers.test_recurrent import from_torch
from transformer_jax.config import UserError
from transformer_jax.families.elmo import ELMo
from transformer_jax.layers.convolutions import CharacterWords
from transformer_jax.planning import estimate

SIZES = dict(
    vocab_size=20,
    d_model=8,
    lstm_width=6,
    max_characters=10,
    character_width=4,
    filters=((1, 4), (3, 5)),
    clip=0.4,
    dropout=0.0,
)
MODEL = ELMo(**SIZES)
TOKENS = np.random.default_rng(0).integers(1, 262, (2, 6, 10))
HALVES = slice(0, 4), slice(4, 8)  # of a state
SEGMENTS = np.arange(6) < np.array([[6], [4]])


@pytest.fixture(scope="module")
def params():
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), jnp.zeros((1, 2, 2, 10), jnp.int32))
    random = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: random.normal(0, 0.5, x.shape).astype(np.float32), nn.unbox(shapes)["params"]
    )


@pytest.fixture(scope="module")
def layers(params):
    """The states of all layers, of rows of which the second ends early."""
    run = jax.jit(
        lambda tokens, ids: MODEL.apply(
            {"params": params}, tokens, segment_ids=ids, method="layers"
        )
    )
    return lambda *arrays: np.asarray(run(*arrays))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def words_of(params, tokens, filters):
    """Returns the vectors of words (N, P) of characters (N, C), in float64."""
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = w["embedding"][tokens] - 1
    values = []
    for width, _ in filters:
        kernel, bias = w[f"filter_{width}"], w[f"filter_{width}_bias"]
        starts = range(x.shape[1] - width + 1)
        at = [np.einsum("nwe,wef->nf", x[:, p : p + width], kernel) for p in starts]
        values.append(np.maximum(np.max(at, axis=0) + bias, 0))
    y = np.concatenate(values, axis=-1)
    for number in range(2):
        of = w[f"highway_{number}"]
        gate = sigmoid(y @ of["gate"]["kernel"] + of["gate"]["bias"] - 2)
        change = np.maximum(y @ of["change"]["kernel"] + of["change"]["bias"], 0)
        y = gate * change + (1 - gate) * y
    return y @ w["projection"]["kernel"] + w["projection"]["bias"]


def recurrent(params, x, clip):
    """Returns the outputs (L, P) of an LSTM with projection on one row, in float64."""
    w = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    output, cell = np.zeros(x.shape[1]), np.zeros(w["projection"].shape[0])
    outputs = []
    for step in x:
        z = np.einsum("m,mgf->gf", step, w["input"]["kernel"]) + w["input"]["bias"]
        z = z + (output @ w["recurrent"]).reshape(z.shape)
        i, f, g, o = z
        cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g), -clip, clip)
        output = np.clip((sigmoid(o) * np.tanh(cell)) @ w["projection"], -clip, clip)
        outputs.append(output)
    return np.array(outputs)


def test_all_layers_equal_those_of_numpy(params, layers):
    """Convolutions, highways, projected and clipped cells, and the sum of both layers' outputs."""
    states = layers(TOKENS, SEGMENTS.astype(np.int32))
    assert states.shape == (3, 2, 6, 8)
    bound = 0
    for row, length in enumerate((6, 4)):
        words = words_of(params["words"], TOKENS[row, :length], SIZES["filters"])
        np.testing.assert_allclose(states[0, row, :length], np.tile(words, 2), atol=1e-5)
        for half, (way, order) in enumerate((("forward", 1), ("backward", -1))):
            first = recurrent(params[f"{way}_0"], words[::order], 0.4)
            second = first + recurrent(params[f"{way}_1"], first, 0.4)
            for layer, expected in ((1, first), (2, second)):
                actual = states[layer, row, :length, 4 * half : 4 * half + 4]
                np.testing.assert_allclose(actual, expected[::order], atol=1e-5)
            bound += (np.abs(first) == 0.4).sum()
    assert bound  # the clipping has changed something


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_direction_is_torchs_lstm_with_a_projection(params):
    import torch

    from transformer_jax.layers.recurrent import LSTM, Unidirectional

    torch.manual_seed(0)
    module = torch.nn.LSTM(4, 6, proj_size=4, batch_first=True)
    x = torch.randn(2, 5, 4)
    arrays = {name: value.detach().numpy() for name, value in module.named_parameters()}
    weights = from_torch(arrays, "", LSTM(6, 4), 1, False, gradient=False)["layer_0"]
    weights = jax.tree.map(jnp.array, weights)
    layer = Unidirectional(LSTM(6, 4, clip=3.0))
    outputs, _ = jax.jit(layer.apply)({"params": weights}, jnp.array(x), np.ones((2, 5), bool))
    np.testing.assert_allclose(outputs, module(x)[0].detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("position", range(6))
def test_no_direction_sees_the_word_that_it_predicts(position, params, layers):
    """The forward half of the word before, and the backward half of the word after, are as they
    were; those of the word itself are not.
    """
    ones = np.ones(TOKENS.shape[:2], np.int32)
    changed = TOKENS.copy()
    changed[:, position] = TOKENS[:, position, ::-1]
    before, after = (np.asarray(layers(tokens, ones)) for tokens in (TOKENS, changed))
    forward, backward = (before[1:, ..., half] == after[1:, ..., half] for half in HALVES)
    assert forward[:, :, :position].all() and backward[:, :, position + 1 :].all()
    assert not forward[:, :, position:].all(axis=-1).any()
    assert not backward[:, :, : position + 1].all(axis=-1).any()


def test_texts_of_a_packed_row_do_not_see_each_other(params, layers):
    segments = np.array([[1, 1, 1, 2, 2, 0]] * 2, np.int32)
    together = layers(TOKENS, segments)
    for part, ids in ((slice(0, 3), [1, 1, 1, 0, 0, 0]), (slice(3, 5), [1, 1, 0, 0, 0, 0])):
        alone = np.zeros_like(TOKENS)
        alone[:, : part.stop - part.start] = TOKENS[:, part]
        expected = layers(alone, np.array([ids] * 2, np.int32))[:, :, : part.stop - part.start]
        np.testing.assert_allclose(together[:, :, part], expected, atol=1e-6)


def test_a_carry_continues_both_directions(params, layers):
    """Segments of both orders of reading have the states of one long row."""
    both = np.stack([TOKENS, TOKENS[:, ::-1]], axis=2)
    carry = MODEL.initial_carry(2)
    states = []
    for part in (slice(0, 2), slice(2, 6)):
        advance = jitted(MODEL.apply)
        of_part, carry = advance({"params": params}, both[:, part], carry, method="advance")
        states.append(of_part)
    states = np.concatenate(states, axis=1)
    whole = layers(TOKENS, np.ones(TOKENS.shape[:2], np.int32))[-1]
    np.testing.assert_allclose(states[:, :, 0], whole[..., :4], atol=1e-6)
    np.testing.assert_allclose(states[:, ::-1, 1], whole[..., 4:], atol=1e-6)


def test_the_published_size():
    """93.6 million parameters without the softmax (Peters et al. 2018)."""
    tokens = jax.ShapeDtypeStruct((1, 2, 2, 50), jnp.int32)
    shapes = jax.eval_shape(ELMo().init, jax.random.key(0), tokens)["params"]
    sizes = {
        name: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
        for name, tree in shapes.items()
    }
    softmax = sizes.pop("output_embed") + sizes.pop("output_bias")
    assert sum(sizes.values()) == 93_600_864
    assert softmax == 793_471 * 513


def test_the_flops_are_those_of_the_products():
    model = ELMo(**SIZES | dict(num_highways=1))
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 6, 2, 10), jnp.int32))

    def predict(variables, tokens):
        hidden = model.apply(variables, tokens, method="hidden")
        halves = hidden.reshape(1, 6, 2, 4)
        return model.apply(variables, halves, method="logits")

    work = estimate.flops(predict, variables, jnp.zeros((1, 6, 10), jnp.int32))
    assert model.flops(6, 6) == pytest.approx(work, rel=0.02)


def test_long_filters_need_long_words():
    with pytest.raises(UserError, match=r"max_characters=10: must be at least 12"):
        ELMo(**SIZES | dict(filters=((12, 4),))).check()
    with pytest.raises(UserError, match=r"d_model=7: must be even"):
        ELMo(**SIZES | dict(d_model=7)).check()


def test_the_words_may_be_padding_alone():
    words = CharacterWords(4, 4, ((1, 4),))
    tokens = jnp.zeros((1, 2, 10), jnp.int32)
    outputs, _ = jax.jit(words.init_with_output)(jax.random.key(0), tokens)
    assert np.isfinite(outputs).all()
