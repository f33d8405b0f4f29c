"""BERT's encoder and heads: published sizes, what is seen and what is not, shapes and kinds of
outputs.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.bert import BERT

TINY = dict(
    vocab_size=37,
    d_model=16,
    num_layers=3,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 37)


def built(**options):
    model = BERT(**{**TINY, **options})
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
    return model, jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params
    )


@pytest.mark.parametrize(
    "options, encoder, heads",
    [
        (dict(), 109_482_240, 624_188),
        (dict(d_model=1024, num_layers=24, num_heads=16), 335_141_888, 1_084_220),
        (dict(d_model=128, num_layers=2, num_heads=2), 4_385_920, None),
        (dict(d_model=512, num_layers=8, num_heads=8), 41_373_184, None),
    ],
    ids=["base", "large", "tiny", "medium"],
)
def test_published_parameter_counts(options, encoder, heads):
    shapes = nn.unbox(jax.eval_shape(BERT(**options).init, jax.random.key(0), TOKENS))["params"]
    size = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
    found = sum(size(shapes[name]) for name in BERT.HEADS)
    assert size(shapes) - found == encoder and heads in (None, found)


def test_every_token_sees_every_other_but_no_padding():
    model, params = built()
    segments = jnp.array([[1] * 9 + [0] * 3] * 2)
    apply = lambda tokens: model.apply({"params": params}, tokens, None, None, segments)[0]
    before = apply(TOKENS)
    np.testing.assert_array_equal(before[:, :9], apply(TOKENS.at[:, 10].add(1) % 37)[:, :9])
    assert (apply(TOKENS.at[:, 8].add(1) % 37)[:, :9] != before[:, :9]).any(axis=-1).all()
    np.testing.assert_allclose(
        before[:, :9], model.apply({"params": params}, TOKENS[:, :9])[0], rtol=1e-4, atol=1e-5
    )


def test_packed_examples_do_not_see_each_other():
    model, params = built()
    segments, positions = (
        jnp.array([[1] * 5 + [2] * 7] * 2),
        jnp.array([[*range(5), *range(7)]] * 2),
    )
    packed = model.apply({"params": params}, TOKENS, None, positions, segments)[0]
    np.testing.assert_allclose(
        packed[:, 5:], model.apply({"params": params}, TOKENS[:, 5:])[0], rtol=1e-4, atol=1e-5
    )


def test_token_types_and_heads():
    model, params = built()
    types = jnp.array([[0] * 5 + [1] * 7] * 2)
    hidden, logits, following = model.apply({"params": params}, TOKENS, types)
    assert hidden.shape == (2, 12, 16) and logits.shape == (2, 12, 37) and following.shape == (2, 2)
    assert (hidden != model.apply({"params": params}, TOKENS)[0]).any()
    places = jnp.array([[1, 4], [0, 7]])
    asked = jnp.take_along_axis(hidden, places[..., None], axis=1)
    some = model.apply(
        {"params": params},
        model.apply({"params": params}, asked, method="transformed"),
        method="logits",
    )
    np.testing.assert_allclose(
        some, jnp.take_along_axis(logits, places[..., None], axis=1), rtol=1e-5, atol=1e-5
    )


def test_every_layers_states():
    model, params = built()
    states = model.apply({"params": params}, TOKENS, method="layers")
    hidden, _, _ = model.apply({"params": params}, TOKENS)
    assert states.shape == (4, 2, 12, 16)
    np.testing.assert_allclose(states[-1], hidden, rtol=1e-5, atol=1e-6)
    first, _ = built(num_layers=1)
    shallow = jax.tree.map(lambda x: x, params)
    shallow["encoder"] = jax.tree.map(lambda x: x[:1], params["encoder"])
    np.testing.assert_allclose(
        states[1], first.apply({"params": shallow}, TOKENS)[0], rtol=1e-5, atol=1e-5
    )
