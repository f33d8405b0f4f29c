"""XLNet: orders of prediction, memory, published sizes, and the sums of its FLOPs."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jit_apply, jitted
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.xlnet import XLNet
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.relative_attention import shifted
from transformer_jax.planning import estimate

LENGTH = 10
TINY = dict(vocab_size=37, d_model=16, d_ff=24, num_layers=2, num_heads=2, dtype="float32")
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, LENGTH), 0, 37))
RANKS = np.arange(LENGTH) * np.ones((2, 1), np.int32)
apply = jitted(nn.Module.apply)


def used(model, tokens):
    states, _ = model.permuted(Inputs(tokens, ranks=tokens), tokens[:, :1])
    return model.logits(states), model.pooled(states)


@pytest.fixture(scope="module")
def tiny():
    model = XLNet(**TINY, dropout=0.0, memory_length=6)

    @jax.jit
    def init(tokens):
        params = nn.unbox(model.init(jax.random.key(0), tokens, method=used))["params"]
        return jax.tree.map(
            lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), params
        )

    return model, init(TOKENS)


def permuted(tiny, tokens, ranks, targets, **options):
    model, params = tiny
    options |= dict(method="permuted", mutable=["state"])
    inputs = Inputs(tokens, ranks=ranks)
    return apply(model, {"params": params}, inputs, targets, **options)[0]


@pytest.mark.parametrize(
    "options, count",
    [(dict(), 116_718_336), (dict(d_model=1024, num_layers=24, num_heads=16), 360_268_800)],
    ids=["base", "large"],
)
def test_published_parameter_counts(options, count):
    """Those of transformers' XLNetModel, without the output layers."""
    model = XLNet(**options)
    shapes = jax.eval_shape(partial(model.init, method=used), jax.random.key(0), TOKENS)
    encoder = dict(nn.unbox(shapes)["params"])
    for name in ("output_bias", "pooler"):
        del encoder[name]
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(encoder)) == count


@pytest.mark.full
def test_the_order_of_the_text_is_left_to_right(tiny):
    """A token is predicted from the tokens before it alone: from a row that ends with it."""
    targets = np.array([[1, 4, 8], [2, 4, 9]])
    states, _ = permuted(tiny, TOKENS, RANKS, targets)
    alone, _ = permuted(tiny, TOKENS[:, :5], RANKS[:, :5], np.full((2, 1), 4))
    np.testing.assert_allclose(np.asarray(states)[:, 1], np.asarray(alone)[:, 0], atol=1e-5)


def test_a_target_does_not_see_its_own_token_nor_those_after_it_in_the_order(tiny):
    """Gradients by the embeddings of the tokens are zero there, and nowhere else."""
    model, params = tiny
    ranks = np.array([np.random.default_rng(0).permutation(LENGTH)])
    tokens = np.arange(LENGTH)[None]  # each token has its own row of the table

    @jax.jit
    @jax.grad
    def gradient(table, target):
        changed = params | {"token_embed": {"embedding": table}}
        states, _ = permuted((model, changed), tokens, ranks, target[None, None])
        return (states**3).sum()

    for target in np.argsort(ranks[0])[1:]:  # the first token in the order sees nothing
        gradients = np.asarray(gradient(params["token_embed"]["embedding"], target))[:LENGTH]
        is_visible = ranks[0] < ranks[0, target]
        np.testing.assert_array_equal((gradients != 0).any(axis=-1), is_visible)


def test_context_sees_the_whole_context_and_no_target(tiny):
    """With one rank for all, the content stream is the encoder without an order."""
    model, params = tiny
    ranks = np.zeros_like(TOKENS)
    ranks[:, 5] = 1
    changed = np.where(ranks > 0, (TOKENS + 1) % 37, TOKENS)
    targets = np.full((2, 1), 5)
    states, others = (
        np.asarray(apply(model, {"params": params}, tokens, method="hidden"))
        for tokens in (TOKENS, changed)
    )
    np.testing.assert_array_equal(
        permuted(tiny, TOKENS, ranks, targets)[0], permuted(tiny, changed, ranks, targets)[0]
    )
    assert (states != others).any(-1).all()


def test_memory_has_states_of_earlier_rows_and_no_gradient(tiny):
    """A memory of a whole row, in the order of the text, is that row in front."""
    model, params = tiny
    half = LENGTH // 2
    whole, _ = permuted(tiny, TOKENS, RANKS, np.array([[7, 9]] * 2))
    first, second = TOKENS[:, :half], TOKENS[:, half:]
    ranks, targets = RANKS[:, :half], np.array([[2, 4]] * 2)

    def states_of(params, first):
        carry = model.initial_carry(2)
        options = dict(remembered=half)
        _, carry = permuted((model, params), first, ranks, targets, carry=carry, **options)
        return permuted((model, params), second, ranks, targets, carry=carry, **options)

    states, (_, filled) = states_of(params, first)
    np.testing.assert_allclose(states, whole, atol=1e-5)
    assert filled.tolist() == [[1] * 6] * 2

    def score(embedding):
        carry = model.initial_carry(2)
        memory = carry[0].at[..., -half:, :].add(embedding), carry[1].at[:, -half:].set(1)
        return (permuted(tiny, second, ranks, targets, carry=memory)[0] ** 3).sum()

    assert not np.asarray(jax.jit(jax.grad(score))(jnp.ones(16))).any()


def test_examples_of_a_row_do_not_attend_to_each_other(tiny):
    model, params = tiny
    segments = np.array([[1] * 4 + [2] * 4 + [0] * 2] * 2)
    changed = np.where(np.arange(LENGTH) < 4, (TOKENS + 1) % 37, TOKENS)
    options = dict(segment_ids=segments, method="hidden")
    original, other = (
        np.asarray(apply(model, {"params": params}, tokens, **options))
        for tokens in (TOKENS, changed)
    )
    np.testing.assert_array_equal(original[:, 4:8], other[:, 4:8])
    assert (original[:, :4] != other[:, :4]).any(axis=-1).all()


def test_attention_has_weights_in_every_layer(tiny, monkeypatch):
    jit_apply(monkeypatch)
    weights = weights_in(*tiny, "encoder", TOKENS[:1])
    assert weights.shape == (2, 2, LENGTH, LENGTH)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_a_query_reads_the_scores_of_its_own_distances():
    """Scores of the distances 6, 5, ... -2: three queries of a row behind a memory of four."""
    scores = jnp.broadcast_to(jnp.arange(6, -3, -1.0), (1, 1, 3, 9))
    expected = 4 + np.arange(3)[:, None] - np.arange(7)
    np.testing.assert_array_equal(shifted(scores, 7)[0, 0], expected)


def test_flops():
    model = XLNet(**TINY, memory_length=4)
    row = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    targets = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    params = jax.eval_shape(partial(model.init, method=used), jax.random.key(0), TOKENS)

    def logits(params, tokens, targets):
        carry = model.initial_carry(1)
        options = dict(carry=carry, remembered=4, method="permuted", mutable=["state"])
        inputs = Inputs(tokens, ranks=tokens)
        (states, _), _ = model.apply(params, inputs, targets, **options)
        return model.apply(params, states, method="logits")

    distances = model.num_layers * 2 * (8 + 12 - 1) * 16**2  # of all rows together
    assert estimate.flops(logits, params, row, targets) == model.flops(8, 3) + distances
