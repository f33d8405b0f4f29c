"""Drawing tokens: the probabilities of each option, against the definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.inference import generation
from transformer_jax.inference.generation import Sampling

LOGITS = jnp.array(np.log([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]))


@pytest.mark.parametrize(
    "how, row, expected",
    [
        (Sampling(), 0, [0.4, 0.3, 0.2, 0.1]),
        (Sampling(top_k=2), 1, [0, 0, 3 / 7, 4 / 7]),
        (Sampling(top_p=0.65), 0, [4 / 7, 3 / 7, 0, 0]),
        # The token that reaches top_p can be drawn.
        (Sampling(top_p=0.71), 0, [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(temperature=0.5), 0, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (Sampling(temperature=0), 1, [0, 0, 0, 1]),
        # 0.4^2 : 0.3 : 0.2 : 0.1, since log-probabilities are negative
        (Sampling(repetition_penalty=2.0), 0, [0.16 / 0.76, 0.3 / 0.76, 0.2 / 0.76, 0.1 / 0.76]),
    ],
)
def test_sampling_draws_from_the_allowed_tokens(how, row, expected):
    seen = jnp.array([[True, False, False, False], [False] * 4])

    @jax.jit
    def draw():
        keys = jax.random.split(jax.random.key(0), 4000).reshape(2000, 2)
        return jax.vmap(lambda key: how.draw(LOGITS, seen, key))(keys)

    tokens = np.asarray(draw())
    shares = np.bincount(tokens[:, row], minlength=4) / 2000
    np.testing.assert_allclose(shares, expected, atol=0.04)


@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=-1),
        dict(top_p=0),
        dict(top_p=1.1),
        dict(top_k=-1),
        dict(repetition_penalty=0),
    ],
    ids=str,
)
def test_options_out_of_bounds_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(UserError, match=f"{name}={value}: must be"):
        Sampling(**options)


def test_every_token_has_its_share_of_the_random_numbers():
    draw = np.random.default_rng(0)
    weights = np.where(draw.random(1000) < 0.5, 0, draw.random(1000) ** 8).astype(np.float32)
    uniform = jnp.array((np.arange(4000) + 0.5) / 4000, jnp.float32)
    drawn = jax.jit(generation.drawn)
    tokens = drawn(np.tile(weights, (4000, 1)), uniform)
    counts = np.bincount(tokens, minlength=1000)
    np.testing.assert_allclose(counts, 4000 * weights / weights.sum(), atol=1.01)
    edges = drawn(np.tile(weights, (2, 1)), jnp.array([0, 1 - 2**-23], jnp.float32))
    assert (weights[edges] > 0).all() and not counts[weights == 0].any()


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_the_nucleus_is_that_of_the_sorted_vocabulary(top_p):
    logits = np.random.default_rng(0).normal(0, 3, (40, 700)).round(1)  # with ties
    probabilities = np.asarray(jax.jit(jax.nn.softmax)(logits))
    is_likelier = probabilities[:, None] > probabilities[..., None]
    of_likelier = (probabilities[:, None] * is_likelier).sum(-1)
    nucleus = jax.jit(lambda x: generation._nucleus(x, top_p))(probabilities)
    np.testing.assert_array_equal(nucleus, of_likelier < top_p)
