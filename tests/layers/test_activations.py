"""Activations read and replaced by name, and no trace of it where it is not used."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import UserError
from transformer_jax.layers import activations
from transformer_jax.layers.activations import capture, intervene
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.gpt import GPT

TINY = dict(vocab_size=37, d_model=16, num_heads=2, dtype="float32", dropout=0.0)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 37)
MLP = "decoder/layers/mlp"
WEIGHTS = "decoder/layers/attention/weights"


@pytest.fixture(scope="module")
def gpt():
    model = GPT(num_layers=3, max_length=24, attention_dropout=0.0, init_std=0.3, **TINY)
    return model, jax.jit(lambda: nn.unbox(model.init(jax.random.key(0), TOKENS))["params"])()


def program(model, params):
    def loss(params, tokens):
        return model.apply({"params": params}, tokens, method="hidden").sum()

    return jax.jit(jax.grad(loss)).lower(params, TOKENS).as_text()


def test_a_program_without_requests_has_no_trace_of_them(gpt, monkeypatch):
    before = program(*gpt)
    model, params = gpt
    jax.eval_shape(lambda params: capture(model, params, [MLP], TOKENS), params)
    jax.eval_shape(
        lambda params: intervene(model, params, {MLP: lambda x, layer: x}, TOKENS), params
    )
    assert program(*gpt) == before
    # The same program without the mechanism.
    monkeypatch.setattr(activations, "named", lambda module, key, x: x)
    monkeypatch.setattr(activations, "requested", lambda module, key: False)
    monkeypatch.setattr(activations, "replaced", lambda: False)
    assert program(*gpt) == before


def test_activations_are_read_by_layer(gpt):
    model, params = gpt
    states = "decoder/layers"
    out = capture(model, params, [states, MLP, WEIGHTS, "norm", "token_embed"], TOKENS)
    assert {name: x.shape for name, x in out.items()} == {
        states: (3, 2, 12, 16),
        MLP: (3, 2, 12, 16),
        WEIGHTS: (3, 2, 2, 12, 12),
        "norm": (2, 12, 16),
        "token_embed": (2, 12, 16),
    }
    np.testing.assert_allclose(out[WEIGHTS].sum(-1), 1, rtol=1e-5)
    hidden = model.apply({"params": params}, TOKENS, method="hidden")
    np.testing.assert_allclose(out["norm"], hidden, rtol=1e-5, atol=1e-5)
    bound = model.bind({"params": params})
    np.testing.assert_allclose(bound.norm(out[states][-1]), hidden, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [dict(unroll=3), dict(remat="full")])
def test_unrolled_and_recomputed_layers_have_the_same_activations(gpt, options):
    model, params = gpt
    expected = capture(model, params, [MLP], TOKENS)[MLP]
    out = jax.jit(lambda p: capture(model.clone(**options), p, [MLP], TOKENS))(params)
    np.testing.assert_allclose(out[MLP], expected, rtol=1e-4, atol=1e-5)


def test_one_layer_is_replaced(gpt):
    """Without the MLP of layer 1 its input passes; earlier layers are as before."""

    def without(x, layer):
        return jnp.where(layer == 1, 0.0, x)

    model, params = gpt
    names = ["decoder/layers", "decoder/layers/attention", MLP]
    plain = capture(model, params, names, TOKENS)
    ablated = capture(model, params, names, TOKENS, replace={MLP: without})
    states = ablated["decoder/layers"]
    np.testing.assert_allclose(states[0], plain["decoder/layers"][0], rtol=1e-5, atol=1e-5)
    expected = states[0] + ablated["decoder/layers/attention"][1]
    np.testing.assert_allclose(states[1], expected, rtol=1e-5, atol=1e-5)
    result = intervene(model, params, {MLP: without}, TOKENS)
    np.testing.assert_allclose(
        result, model.bind({"params": params}).norm(states[2]), rtol=1e-5, atol=1e-5
    )


def test_replaced_attention_weights_and_heads_reach_the_output(gpt):
    """Each position attends to itself alone: the output is that of rows of one token."""
    model, params = gpt

    def diagonal(weights, layer):
        return jnp.broadcast_to(jnp.eye(12), weights.shape)

    alone = model.apply(
        {"params": params}, TOKENS.reshape(-1, 1), jnp.tile(jnp.arange(12), 2)[:, None]
    )
    hidden = intervene(model, params, {WEIGHTS: diagonal}, TOKENS)
    logits = model.apply({"params": params}, hidden, method="logits")
    np.testing.assert_allclose(logits.reshape(24, 1, -1), alone, rtol=1e-4, atol=1e-4)
    heads = {"decoder/layers/attention/heads": lambda x, layer: x.at[:, :, 1].set(0.0)}
    assert np.abs(intervene(model, params, heads, TOKENS) - hidden).max() > 1e-2


def test_names_may_have_wildcards_and_a_module_several_calls():
    model = EncoderDecoder(d_ff=32, num_encoder_layers=2, num_decoder_layers=2, **TINY)
    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS, TOKENS))["params"]
    names = ["*/weights", "target_embed"]
    out = jax.eval_shape(lambda params: capture(model, params, names, TOKENS, TOKENS), params)
    assert sorted(out) == [
        "decoder/layers/attention/weights",
        "decoder/layers/cross_attention/weights",
        "encoder/layers/attention/weights",
        "target_embed",
    ]
    assert [x.shape for x in out["target_embed"]] == [(2, 12, 16)] * 2
    listed = activations.names(model, params, TOKENS, TOKENS)
    assert listed["decoder/layers/mlp/hidden"].shape == (2, 2, 12, 32)


def test_an_unknown_name_is_refused(gpt):
    with pytest.raises(UserError, match="no activation 'decoder/layers/mpl'; did you mean"):
        capture(*gpt, ["decoder/layers/mpl"], TOKENS)
    with pytest.raises(UserError, match="no activation 'encoder'"):
        intervene(*gpt, {"encoder": lambda x, layer: x}, TOKENS)
