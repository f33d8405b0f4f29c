"""ALBERT: shared layers, and what masks hide."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.jitted import Jitted, jit_apply, jitted
from transformer_jax.families.albert import ALBERT
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.masks import Mask

TINY = dict(
    vocab_size=37,
    d_embed=8,
    d_model=16,
    num_layers=3,
    num_heads=2,
    max_length=24,
    dropout=0.0,
    attention_dropout=0.0,
    dtype="float32",
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 12), 0, 37))


@pytest.fixture(scope="module")
def tiny():
    model = ALBERT(**TINY)

    @jax.jit
    def init():
        params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
        return jax.tree.map(
            lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), params
        )

    return model, init()


def test_depth_changes_neither_parameters_nor_program():
    """So the time to compile does not depend on it."""

    def shapes_and_size(num_layers):
        model = ALBERT(**TINY | dict(num_layers=num_layers))
        shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))

        @jax.jit
        def gradients(params):
            def loss(params):
                return model.apply(params, TOKENS, method="hidden").sum()

            return jax.grad(loss)(params)

        return shapes, len(gradients.lower(shapes).as_text().splitlines())

    assert shapes_and_size(2) == shapes_and_size(24)


def test_all_layers_have_the_same_parameters(tiny):
    model, params = tiny
    states = np.asarray(jitted(model.apply)({"params": params}, TOKENS, method="layers"))
    assert states.shape == (4, 2, 12, 16)
    stack = model.bind({"params": params}).encoder
    block = Jitted(stack.blocks[0]())
    layer = {"params": params["encoder"]["layer"]}
    for before, after in zip(states, states[1:]):
        y = block.apply(layer, before, mask=Mask())
        np.testing.assert_allclose(y, after, rtol=1e-4, atol=1e-4)


def test_examples_of_a_row_do_not_attend_to_each_other(tiny):
    model, params = tiny
    segments = np.array([[1] * 5 + [2] * 5 + [0] * 2] * 2)
    changed = np.where(np.arange(12) < 5, (TOKENS + 1) % 37, TOKENS)
    apply = jitted(model.apply)
    original, other = (
        np.asarray(apply({"params": params}, tokens, segment_ids=segments, method="hidden"))
        for tokens in (TOKENS, changed)
    )
    np.testing.assert_array_equal(original[:, 5:10], other[:, 5:10])
    assert (original[:, :5] != other[:, :5]).any(axis=-1).all()


def test_attention_has_weights_in_every_layer(tiny, monkeypatch):
    jit_apply(monkeypatch)
    weights = weights_in(*tiny, "encoder", TOKENS[:1])
    assert weights.shape == (3, 2, 12, 12)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
