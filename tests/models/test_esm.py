"""ESM: published sizes, padding, token dropout, and positions."""

import functools
import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.examples import CONFIGS
from tests.jitted import Jitted
from transformer_jax import config as configs
from transformer_jax.families.esm import ESM

TINY = dict(d_model=16, num_layers=2, num_heads=2, max_length=24)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 4, 24))
CLOSE = dict(rtol=1e-4, atol=1e-5)


@functools.cache
def build(**options):
    """Returns a tiny model and parameters far from their initial values."""
    model = Jitted(ESM(**{**TINY, **options}))
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    return model, jax.jit(lambda params: jax.tree.map(perturb, params))(params)


def with_token(tokens, position, token):
    tokens = tokens.copy()
    tokens[:, position] = token
    return tokens


# Those of transformers' EsmForMaskedLM with the published configs.
PARAMETERS = {
    "esm1b.py": 652_359_094,
    "esm2.py:8m": 7_512_474,
    "esm2.py:35m": 33_501_394,
    "esm2.py:150m": 148_140_154,
    "esm2.py:650m": 651_043_254,
    "esm2.py:3b": 2_839_005_634,
    "esm2.py:15b": 15_129_100_194,
}


@pytest.mark.parametrize("config, count", PARAMETERS.items(), ids=PARAMETERS)
def test_published_parameter_counts(config, count):
    model = configs.build_model(configs.load(str(CONFIGS / "esm" / config)))
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))["params"]
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == count


@pytest.mark.sample("rotary")
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_padding_changes_nothing(positions):
    model, params = build(positions=positions, norm_first=positions == "learned")
    tokens = with_token(TOKENS, 4, 32)
    segments = np.array([[1] * 9 + [0] * 3] * 2)

    def states(tokens, **options):
        return np.asarray(model.apply({"params": params}, tokens, **options, method="hidden"))

    original = states(tokens, segment_ids=segments)[:, :9]
    other_padding = states(with_token(tokens, 10, 32), segment_ids=segments)[:, :9]
    np.testing.assert_array_equal(original, other_padding)
    np.testing.assert_allclose(original, states(tokens[:, :9]), **CLOSE)
    other_token = states(with_token(tokens, 8, tokens[:, 8] + 1), segment_ids=segments)[:, :9]
    assert (other_token != original).any(axis=-1).all()
    assert (states(tokens[:, ::-1]) != states(tokens)[:, ::-1]).any()


def test_token_dropout_scales_by_the_share_of_masks():
    """A row with the share of training is as without it, but for the vectors of masks."""
    model, params = build(positions="rotary", norm_first=False)
    table = np.asarray(params["token_embed"]["embedding"])

    def embeddings(tokens):
        return np.asarray(model.apply({"params": params}, tokens, method="layers"))[0]

    no_masks = np.full((1, 20), 5)
    np.testing.assert_allclose(embeddings(no_masks)[0, 0], 0.88 * table[5], rtol=1e-5)
    four = with_token(no_masks, slice(4), 32)
    np.testing.assert_allclose(embeddings(four)[0, 4], 0.88 / 0.8 * table[5], rtol=1e-5)
    assert not embeddings(four)[0, :4].any()
    assert np.isfinite(embeddings(np.full((1, 20), 32))).all()
    plain = Jitted(ESM(**TINY, positions="rotary", norm_first=False, token_dropout=False))
    x = np.asarray(plain.apply({"params": params}, four, method="layers"))[0]
    np.testing.assert_allclose(x[0], table[four[0]], rtol=1e-6)
