"""RealFormer: scores that add up over the layers, by hand and in training."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.jitted import jitted
from transformer_jax.families.bert import BERT
from transformer_jax.families.realformer import RealFormer
from transformer_jax.layers.masks import Mask

TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))
SEGMENTS = np.array([[1] * 7 + [2] * 5, [1] * 9 + [0] * 3])
SIZES = dict(vocab_size=37, d_model=16, num_heads=2, dropout=0.0, attention_dropout=0.0)
CLOSE = dict(rtol=0, atol=1e-5)
apply = jitted(nn.Module.apply)


@functools.cache
def build(num_layers):
    model = RealFormer(**SIZES, num_layers=num_layers, init_std=0.3)
    return model, nn.unbox(jax.jit(model.init)(jax.random.key(0), TOKENS))["params"]


def states(model, params, method="hidden", tokens=TOKENS):
    options = dict(segment_ids=SEGMENTS, method=method)
    return np.asarray(apply(model, {"params": params}, tokens, **options))


def test_one_layer_is_that_of_bert():
    model, params = build(1)
    bert = BERT(**SIZES, num_layers=1)
    filled = SEGMENTS > 0
    np.testing.assert_allclose(states(model, params)[filled], states(bert, params)[filled], **CLOSE)


def test_two_layers_by_hand():
    """The scores of the second layer contain those of the first, without its mask."""
    model, params = build(2)
    params = jax.device_get(params)
    embedded, first, second = states(model, params, "layers")
    scores, x = 0, embedded
    segments = jnp.asarray(SEGMENTS)
    visible = np.asarray(Mask(query_segments=segments, key_segments=segments).dense(12, 12))

    def norm(x, weights):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
        return x * weights["scale"] + weights["bias"]

    for expected, number in ((first, 0), (second, 1)):
        layer = jax.tree.map(lambda x, number=number: x[number], params["encoder"]["layers"])
        attention, mlp = layer["attention"], layer["mlp"]
        q, k, v = (
            np.einsum("blm,mhd->bhld", x, attention[name]["kernel"])
            + attention[name]["bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = scores + q @ k.swapaxes(2, 3) / 8**0.5
        y = scipy.special.softmax(np.where(visible, scores, -1e30), axis=-1) @ v
        y = np.einsum("bhld,hdm->blm", y, attention["out"]["kernel"]) + attention["out"]["bias"]
        x = norm(x + y, layer["attention_norm"])
        hidden = x @ mlp["wi"]["kernel"] + mlp["wi"]["bias"]
        hidden = hidden * scipy.special.ndtr(hidden)  # GELU
        x = norm(x + hidden @ mlp["wo"]["kernel"] + mlp["wo"]["bias"], layer["mlp_norm"])
        np.testing.assert_allclose(x[SEGMENTS > 0], expected[SEGMENTS > 0], **CLOSE)


def test_examples_of_a_row_see_only_themselves():
    model, params = build(2)
    other = np.where(np.arange(12) < 9, TOKENS, (TOKENS + 1) % 37)
    changed = states(model, params, tokens=other)
    assert (changed == states(model, params))[0, :7].all()
    assert (changed == states(model, params))[1, :9].all()


@pytest.mark.sample("full")
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_pass_through_the_scores(remat):
    model, params = build(3)
    model = model.clone(remat=remat)

    def total(params):
        options = dict(segment_ids=SEGMENTS, method="hidden")
        return (model.apply({"params": params}, TOKENS, **options) ** 3).sum()

    gradients = jax.device_get(jax.jit(jax.grad(total))(params))
    gradients = gradients["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert (np.abs(gradients).max(axis=(1, 2, 3)) > 0).all()
