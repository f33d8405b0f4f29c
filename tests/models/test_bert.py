"""BERT's encoder and heads: published sizes, attention masks, and shapes of the outputs."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.jitted import Jitted
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.bert import BERT
from transformer_jax.families.distilbert import DistilBERT

TINY = dict(
    vocab_size=37,
    d_model=16,
    num_layers=3,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))
CLOSE = dict(rtol=1e-4, atol=1e-5)


@functools.cache
def build(**options):
    """Returns a tiny model and parameters far from their small initial values."""
    model = Jitted(BERT(**{**TINY, **options}))
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    return model, jax.jit(lambda params: jax.tree.map(perturb, params))(params)


def changed_at(position):
    """Returns the tokens with another one at this position of each row."""
    tokens = TOKENS.copy()
    tokens[:, position] = (tokens[:, position] + 1) % 37
    return tokens


@pytest.mark.parametrize(
    "model, encoder, heads",
    [
        (BERT(), 109_482_240, 624_188),
        (BERT(d_model=1024, num_layers=24, num_heads=16), 335_141_888, 1_084_220),
        (BERT(d_model=128, num_layers=2, num_heads=2), 4_385_920, None),
        (BERT(d_model=512, num_layers=8, num_heads=8), 41_373_184, None),
        # Those of transformers' DistilBertModel and DistilBertForMaskedLM.
        (DistilBERT(), 66_362_880, 66_985_530 - 66_362_880),
    ],
    ids=["base", "large", "tiny", "medium", "distilbert"],
)
def test_published_parameter_counts(model, encoder, heads):
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))["params"]

    def size(tree):
        return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))

    heads_size = sum(size(shapes[name]) for name in model.heads)
    assert size(shapes) - heads_size == encoder
    assert heads in (None, heads_size)


@pytest.mark.full
def test_a_token_attends_to_all_others_and_to_no_padding():
    model, params = build()
    segments = np.array([[1] * 9 + [0] * 3] * 2)

    def states(tokens):
        states = model.apply({"params": params}, tokens, segment_ids=segments)[0]
        return np.asarray(states)[:, :9]

    original = states(TOKENS)
    np.testing.assert_array_equal(original, states(changed_at(10)))
    assert (states(changed_at(8)) != original).any(axis=-1).all()
    unpadded = model.apply({"params": params}, TOKENS[:, :9])[0]
    np.testing.assert_allclose(original, unpadded, **CLOSE)


def test_packed_examples_do_not_attend_to_each_other():
    model, params = build()
    segments = np.array([[1] * 5 + [2] * 7] * 2)
    positions = np.array([[*range(5), *range(7)]] * 2)
    packed = Inputs(TOKENS, positions=positions, segment_ids=segments)
    packed = model.apply({"params": params}, packed)[0]
    alone = model.apply({"params": params}, TOKENS[:, 5:])[0]
    np.testing.assert_allclose(np.asarray(packed)[:, 5:], alone, **CLOSE)


def test_token_types_and_heads():
    model, params = build()
    variables = {"params": params}
    types = np.array([[0] * 5 + [1] * 7] * 2)
    hidden, logits, next_logits = jax.device_get(model.apply(variables, TOKENS, token_types=types))
    assert hidden.shape == (2, 12, 16)
    assert logits.shape == (2, 12, 37)
    assert next_logits.shape == (2, 2)
    assert (hidden != model.apply(variables, TOKENS)[0]).any()

    masked = np.array([[1, 4], [0, 7]])[..., None]
    states = np.take_along_axis(hidden, masked, axis=1)
    masked_logits = model.apply(variables, states, method="logits")
    expected = np.take_along_axis(logits, masked, axis=1)
    np.testing.assert_allclose(masked_logits, expected, rtol=1e-5, atol=1e-5)


def test_states_of_every_layer():
    model, params = build()
    states = np.asarray(model.apply({"params": params}, TOKENS, method="layers"))
    hidden, _, _ = model.apply({"params": params}, TOKENS)
    assert states.shape == (4, 2, 12, 16)
    np.testing.assert_allclose(states[-1], hidden, rtol=1e-5, atol=1e-6)
    one_layer = Jitted(BERT(**TINY | dict(num_layers=1)))
    params = jax.device_get(params)
    first_layer = {**params, "encoder": jax.tree.map(lambda x: x[:1], params["encoder"])}
    expected = one_layer.apply({"params": first_layer}, TOKENS)[0]
    np.testing.assert_allclose(states[1], expected, rtol=1e-5, atol=1e-5)
