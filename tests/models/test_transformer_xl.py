"""Transformer-XL: its equations in NumPy, its memory over rows and documents, and its decoding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import Jitted, jitted
from transformer_jax.config import UserError, build_model, experiment
from transformer_jax.families.transformer_xl import TransformerXL

TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, 24), 0, 37))
CLOSE = dict(rtol=0, atol=1e-5)
apply = jitted(nn.Module.apply)
SIZES = dict(vocab_size=37, d_model=16, d_ff=24, num_layers=3, num_heads=2, dropout=0.0)


@pytest.fixture(scope="module")
def xl():
    """A model in which each token sees the 8 tokens before it, and its parameters."""
    model = TransformerXL(**SIZES, memory_length=8, same_length=True, init_std=0.2)

    @jax.jit
    def init():
        params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
        return jax.tree.map(
            lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), params
        )

    return model, init()


def advance(model, params, tokens, carry=None, **options):
    carry = model.initial_carry(len(tokens)) if carry is None else carry
    return jax.device_get(
        apply(model, {"params": params}, tokens, carry, **options, method="advance")
    )


def norm(x, weights):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / deviation * weights["scale"] + weights["bias"]


def reference(params, tokens, reach):
    """Returns the states (L, M) of a row in float64, by the equations of section 3.3."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    width = 16
    x = params["token_embed"]["embedding"][np.asarray(tokens)] * width**0.5
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    for number in range(3):
        layer = jax.tree.map(lambda x, number=number: x[number], params["decoder"]["layers"])
        attention = layer["attention"]
        projected = {
            name: np.einsum("lm,mhd->lhd", x, attention[name]["kernel"])
            for name in ("query", "key", "value")
        }
        y = np.zeros((len(x), 2, 8))
        for i in range(len(x)):
            first = max(i - reach, 0)
            scores = []
            for j in range(first, i + 1):
                angles = (i - j) * rates
                encoding = np.concatenate([np.sin(angles), np.cos(angles)])
                distance = np.einsum("m,mhd->hd", encoding, attention["distance"]["kernel"])
                by_content = (projected["query"][i] + attention["content_bias"]) * projected["key"][
                    j
                ]
                by_distance = (projected["query"][i] + attention["distance_bias"]) * distance
                scores.append((by_content + by_distance).sum(axis=-1) / 8**0.5)
            weights = np.exp(scores - np.max(scores, axis=0))
            weights = weights / weights.sum(axis=0)
            y[i] = np.einsum("jh,jhd->hd", weights, projected["value"][first : i + 1])
        x = norm(
            x + np.einsum("lhd,hdm->lm", y, attention["out"]["kernel"]), layer["attention_norm"]
        )
        mlp = layer["mlp"]
        hidden = np.maximum(x @ mlp["wi"]["kernel"] + mlp["wi"]["bias"], 0)
        x = norm(x + hidden @ mlp["wo"]["kernel"] + mlp["wo"]["bias"], layer["mlp_norm"])
    return x


def test_equals_the_equations_in_numpy(xl):
    model, params = xl
    states, _ = advance(model, params, TOKENS)
    for row in range(2):
        np.testing.assert_allclose(states[row], reference(params, TOKENS[row], 8), **CLOSE)


@pytest.mark.parametrize("length", [1, 6, 12])
def test_segments_with_a_memory_equal_one_long_row(xl, length):
    model, params = xl
    expected, _ = advance(model, params, TOKENS)
    carry, states = None, []
    for start in range(0, 24, length):
        part, carry = advance(model, params, TOKENS[:, start : start + length], carry)
        states.append(part)
    np.testing.assert_allclose(np.concatenate(states, axis=1), expected, **CLOSE)


def test_a_document_sees_no_other_document(xl):
    model, params = xl
    _, carry = advance(model, params, TOKENS[:, :12])
    restarts = np.zeros((2, 12), np.int32)
    restarts[:, 4] = 1
    states, after = advance(model, params, TOKENS[:, 12:], carry, restarts=restarts)
    alone, _ = advance(model, params, TOKENS[:, 16:])
    np.testing.assert_allclose(states[:, 4:], alone, **CLOSE)
    continued, _ = advance(model, params, TOKENS[:, 12:16], carry)
    np.testing.assert_allclose(states[:, :4], continued, **CLOSE)
    # The memory of a short document has no token of another.
    restarts = np.zeros((2, 12), np.int32)
    restarts[:, 9] = 1
    _, after = advance(model, params, TOKENS[:, :12], restarts=restarts)
    assert after[1].sum(axis=1).tolist() == [3, 3]
    states, _ = advance(model, params, TOKENS[:, 12:], after)
    alone, _ = advance(model, params, TOKENS[:, 9:])
    np.testing.assert_allclose(states, alone[:, 3:], **CLOSE)


def test_documents_of_a_row_and_padding_do_not_change_each_other(xl):
    model, params = xl
    segments = np.array([[1] * 9 + [2] * 11 + [0] * 4] * 2)
    packed = apply(model, {"params": params}, TOKENS, segment_ids=segments, method="hidden")
    packed = np.asarray(packed)
    alone, _ = advance(model, params, TOKENS[:, 9:20])
    np.testing.assert_allclose(packed[:, 9:20], alone, **CLOSE)


def test_decoding_equals_the_whole_prefix(xl):
    """Prompts have different lengths. Padding does not enter their memories."""
    model, params = xl
    model = Jitted(model)
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    lengths, rows = np.array([5, 10]), np.arange(2)
    prompts = np.where(np.arange(10) < lengths[:, None], TOKENS[:, :10], 9)
    params = model.for_decoding(params)
    logits, state = model.begin(params, prompts, lengths, slots=16)
    np.testing.assert_allclose(logits, expected[rows, lengths - 1], rtol=0, atol=1e-4)
    for _ in range(6):
        logits, state = model.step(params, state, TOKENS[rows, lengths][:, None])
        logits = np.asarray(logits)
        np.testing.assert_allclose(logits[:, 0], expected[rows, lengths], rtol=0, atol=1e-4)
        lengths = lengths + 1


@pytest.mark.full
def test_an_adaptive_softmax_decodes_as_it_reads(xl):
    """The logits are log-probabilities. The tables are those of the embeddings."""
    model, _ = xl
    model = Jitted(model.clone(vocab_multiple=4, adaptive_cutoffs=(7, 12, 30), adaptive_divisor=2))
    params = nn.unbox(model.init(jax.random.key(0), TOKENS))["params"]
    expected = np.asarray(model.apply({"params": params}, TOKENS))
    assert expected.shape == (2, 24, 37)
    np.testing.assert_allclose(np.exp(expected).sum(axis=-1), 1, rtol=1e-5)
    lengths = np.array([20, 20])
    prepared = model.for_decoding(params)
    logits, state = model.begin(prepared, TOKENS[:, :20], lengths, slots=24)
    np.testing.assert_allclose(logits, expected[:, 19], **CLOSE)
    logits, state = model.step(prepared, state, TOKENS[:, 20:21])
    np.testing.assert_allclose(np.asarray(logits)[:, 0], expected[:, 20], **CLOSE)
    sizes = jax.tree.map(jnp.size, params["token_embed"])
    assert sizes["table_3"] == {"embedding": 8 * 2} and sizes["projection_3"] == 2 * 16
    assert model.num_padding() == (1 * 17 + 3 * 9 + 2 * 5 + 1 * 3)
    assert model.word_table is None and model.model.clone(adaptive_cutoffs=()).word_table


def test_a_divisor_needs_cutoffs():
    config = experiment(
        model=dict(name="transformer_xl", adaptive_divisor=2), task=dict(name="causal_lm")
    )
    with pytest.raises(UserError, match="adaptive_divisor=2: needs config.model.adaptive_cutoffs"):
        build_model(config)


def test_a_memory_has_tokens():
    config = experiment(
        model=dict(name="transformer_xl", memory_length=0), task=dict(name="causal_lm", length=16)
    )
    with pytest.raises(UserError, match="memory_length=0: must be at least 1"):
        build_model(config)
