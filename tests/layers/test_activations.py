"""Activations read and replaced by name, and no trace of it where it is not used."""

import pathlib
import re
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jit_apply, jitted
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.bert import BERT
from transformer_jax.families.decoder import Decoder
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.gpt import GPT
from transformer_jax.layers import activations
from transformer_jax.layers.activations import capture, intervene

TINY = dict(vocab_size=37, d_model=16, num_heads=2, dtype="float32", dropout=0.0)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 37)
OTHER = jax.jit(lambda: TOKENS.at[0, 3].add(1) % 37)()
DOCS = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
STREAM = "decoder/layers/after_mlp"
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
    names = [states, MLP, WEIGHTS, "norm", "token_embed"]
    out = jax.device_get(jitted(capture)(model, params, names, TOKENS))
    assert {name: x.shape for name, x in out.items()} == {
        states: (3, 2, 12, 16),
        MLP: (3, 2, 12, 16),
        WEIGHTS: (3, 2, 2, 12, 12),
        "norm": (2, 12, 16),
        "token_embed": (2, 12, 16),
    }
    np.testing.assert_allclose(out[WEIGHTS].sum(-1), 1, rtol=1e-5)
    hidden = jitted(model.apply)({"params": params}, TOKENS, method="hidden")
    np.testing.assert_allclose(out["norm"], hidden, rtol=1e-5, atol=1e-5)
    normalized = jitted(normalize)(model, params, out[states][-1])
    np.testing.assert_allclose(normalized, hidden, rtol=1e-5, atol=1e-5)


def normalize(model, params, states):
    return model.bind({"params": params}).norm(states)


@pytest.mark.parametrize("options", [dict(unroll=3), dict(remat="full")])
def test_unrolled_and_recomputed_layers_have_the_same_activations(gpt, options):
    model, params = gpt
    expected = jitted(capture)(model, params, [MLP], TOKENS)[MLP]
    out = jitted(capture)(model.clone(**options), params, [MLP], TOKENS)
    np.testing.assert_allclose(out[MLP], expected, rtol=1e-4, atol=1e-5)


def test_one_layer_is_replaced(gpt):
    """Without the MLP of layer 1 its input passes; earlier layers are as before."""

    def without(x, layer):
        return jnp.where(layer == 1, 0.0, x)

    model, params = gpt
    names = ["decoder/layers", "decoder/layers/attention", MLP]
    plain = jax.device_get(jitted(capture)(model, params, names, TOKENS))
    ablated = jax.device_get(jitted(capture)(model, params, names, TOKENS, replace={MLP: without}))
    states = ablated["decoder/layers"]
    np.testing.assert_allclose(states[0], plain["decoder/layers"][0], rtol=1e-5, atol=1e-5)
    expected = states[0] + ablated["decoder/layers/attention"][1]
    np.testing.assert_allclose(states[1], expected, rtol=1e-5, atol=1e-5)
    result = jitted(intervene)(model, params, {MLP: without}, TOKENS, method="hidden")
    normalized = jitted(normalize)(model, params, states[2])
    np.testing.assert_allclose(result, normalized, rtol=1e-5, atol=1e-5)


def test_replaced_attention_weights_and_heads_reach_the_output(gpt):
    """Each position attends to itself alone: the output is that of rows of one token."""
    model, params = gpt

    def diagonal(weights, layer):
        return jnp.broadcast_to(jnp.eye(12), weights.shape)

    positions = np.tile(np.arange(12), 2)[:, None]
    inputs = Inputs(np.reshape(TOKENS, (-1, 1)), positions=positions)
    alone = jitted(model.apply)({"params": params}, inputs)
    logits = np.asarray(jitted(intervene)(model, params, {WEIGHTS: diagonal}, TOKENS))
    np.testing.assert_allclose(logits.reshape(24, 1, -1), alone, rtol=1e-4, atol=1e-4)
    heads = {"decoder/layers/attention/heads": lambda x, layer: x.at[:, :, 1].set(0.0)}
    assert np.abs(jitted(intervene)(model, params, heads, TOKENS) - logits).max() > 1e-2


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


def test_an_unknown_name_is_refused(gpt, monkeypatch):
    jit_apply(monkeypatch)
    with pytest.raises(UserError, match="no activation 'decoder/layers/mpl'; did you mean"):
        capture(*gpt, ["decoder/layers/mpl"], TOKENS)
    with pytest.raises(UserError, match="no activation 'encoder'.* there are decoder, decoder/la"):
        intervene(*gpt, {"encoder": lambda x, layer: x}, TOKENS)


# All take rows of 70 tokens, for which attention does not take the plain kernel by itself.
FAMILIES = {
    "encoder": BERT(num_layers=2, max_length=80, **TINY),
    "decoder": Decoder(num_layers=2, d_ff=32, num_kv_heads=1, max_length=80, **TINY),
    "both": EncoderDecoder(d_ff=32, num_encoder_layers=2, num_decoder_layers=2, **TINY),
}


@pytest.mark.sample("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_all_activations_of_a_family_agree(family):
    model, tokens = FAMILIES[family], jnp.tile(TOKENS, (1, 6))[:, :70]
    inputs = (tokens,) * (2 if family == "both" else 1)

    @jax.jit
    def compute():
        params = nn.unbox(model.init(jax.random.key(0), *inputs)["params"])
        return model.apply({"params": params}, *inputs), capture(model, params, ["*"], *inputs)

    results, x = compute()
    logits = next(result for result in jax.tree.leaves(results) if result.shape == (2, 70, 37))
    np.testing.assert_allclose(x["logits"], logits, atol=1e-5)
    for stack in ["encoder", "decoder"] if family == "both" else [family]:
        layers = f"{stack}/layers"
        np.testing.assert_array_equal(x[f"{layers}/input"][1:], x[layers][:-1])
        np.testing.assert_array_equal(x[f"{layers}/after_mlp"], x[layers])
        values = x[f"{layers}/attention/values"]
        values = jnp.repeat(values, 2 // values.shape[3], axis=3)
        heads = jnp.einsum("nbhqk,nbkhd->nbqhd", x[f"{layers}/attention/weights"], values)
        np.testing.assert_allclose(x[f"{layers}/attention/heads"], heads, atol=1e-5)


@pytest.mark.sample("options0")
@pytest.mark.parametrize("options", [{}, dict(remat="full", unroll=2)])
def test_a_patch_of_the_residual_stream_makes_the_other_run(gpt, options):
    model, params = gpt
    model = model.clone(**options)

    @jax.jit
    def compute(params):
        other = capture(model, params, [STREAM, "logits"], OTHER)

        def patch(x, layer):
            return jnp.where(layer == 1, x.at[0, 3:].set(other[STREAM][1, 0, 3:]), x)

        patched = intervene(model, params, {STREAM: patch}, TOKENS)
        by_array = intervene(model, params, {STREAM: other[STREAM]}, TOKENS)
        return model.apply({"params": params}, TOKENS), other["logits"], patched, by_array

    original, other, patched, by_array = jax.device_get(compute(params))
    assert np.abs(original - other).max() > 1e-2
    np.testing.assert_allclose(patched, other, atol=1e-4)
    np.testing.assert_allclose(by_array, other, atol=1e-4)


def test_gradients_flow_through_interventions(gpt):
    @jax.jit
    def loss(shift):
        replace = {STREAM: lambda x, layer: x + shift[layer]}
        return jnp.square(intervene(*gpt, replace, TOKENS)).mean()

    gradient = np.asarray(jax.jit(jax.grad(loss))(np.zeros((3, 16))))
    for layer in range(3):
        step = np.zeros((3, 16))
        step[layer, 5] = 1e-2
        slope = (loss(step) - loss(-step)) / 2e-2
        np.testing.assert_allclose(gradient[layer, 5], slope, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 2, 12, 16), (4, 16), (3, 1, 12, 15)])
def test_a_replacement_of_another_shape_is_refused(gpt, shape, monkeypatch):
    jit_apply(monkeypatch)
    with pytest.raises(UserError, match=rf"{STREAM} has the shape .*: must broadcast to \(2, 12,"):
        intervene(*gpt, {STREAM: jnp.zeros(shape)}, TOKENS)


def test_the_example_of_the_documentation_runs(gpt, monkeypatch):
    section = DOCS.read_text().partition("## Activations")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    model, params = gpt
    tokenizer = types.SimpleNamespace(encode=lambda texts: [[5, 6, i] for i, _ in enumerate(texts)])
    task = types.SimpleNamespace(model=model, tokenizer=tokenizer)
    monkeypatch.setattr("transformer_jax.open_run", lambda run: (task, params), raising=False)
    jit_apply(monkeypatch)
    scope = {}
    exec(example, scope)
    corrupt = model.apply({"params": params}, scope["corrupt"])
    assert scope["patched"].shape == scope["ablated"].shape == (1, 3, 37)
    assert np.abs(scope["patched"] - corrupt).max() > 1e-2
