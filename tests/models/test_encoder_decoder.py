"""The encoder-decoder: published sizes, leaks, caches, and an independent NumPy forward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.models.encoder_decoder import EncoderDecoder

SIZE = dict(
    vocab_size=40,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=64,
    dropout=0.0,
)
SOURCE = jax.random.randint(jax.random.key(1), (3, 7), 1, 40)
TARGET = jax.random.randint(jax.random.key(2), (3, 6), 1, 40)


def init(**changes):
    model = EncoderDecoder(**{**SIZE, **changes})
    return model, nn.unbox(model.init(jax.random.key(0), SOURCE, TARGET))


def formula(v, m, f, layers):
    """Shared embeddings; biases everywhere; norms with scale and bias."""
    attention, mlp, norm = 4 * m * m + 4 * m, 2 * m * f + m + f, 2 * m
    return v * m + layers * (attention + mlp + 2 * norm) + layers * (2 * attention + mlp + 3 * norm)


@pytest.mark.parametrize("file, millions", [("base.py", 63.1), ("big.py", 214.2)])
def test_parameter_counts(file, millions):
    config = configs.load(f"configs/wmt/{file}")
    model = configs.build_model(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    count = sum(x.size for x in jax.tree.leaves(nn.unbox(shapes)))
    assert count == formula(37_000, model.d_model, model.d_ff, 6)
    assert round(count / 1e6, 1) == pytest.approx(millions, abs=0.06)


def numpy_forward(p, source, target, m, heads):
    """Vaswani et al. 2017, section 3, position by position."""

    def norm(x, q):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * q[
            "scale"
        ] + q["bias"]

    def attend(x, memory, q, causal):
        project = lambda y, name: np.einsum("lm,mhd->lhd", y, q[name]["kernel"]) + q[name]["bias"]
        scores = np.einsum("qhd,khd->hqk", project(x, "query"), project(memory, "key")) / np.sqrt(
            m // heads
        )
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[1:])) > 0, scores, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (
            np.einsum("hqk,khd,hdm->qm", weights, project(memory, "value"), q["out"]["kernel"])
            + q["out"]["bias"]
        )

    def mlp(x, q):
        return (
            np.maximum(x @ q["wi"]["kernel"] + q["wi"]["bias"], 0) @ q["wo"]["kernel"]
            + q["wo"]["bias"]
        )

    def embed(tokens):
        angles = np.arange(len(tokens))[:, None] / 10_000 ** (np.arange(0, m, 2) / m)
        positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(tokens), m)
        return p["target_embed"]["embedding"][tokens] * np.sqrt(m) + positions

    layer = lambda stack, i: jax.tree.map(
        lambda x: np.asarray(x[i], np.float64), p[stack]["layers"]
    )
    x = embed(source)
    for i in range(2):
        q = layer("encoder", i)
        x = norm(x + attend(x, x, q["attention"], False), q["attention_norm"])
        x = norm(x + mlp(x, q["mlp"]), q["mlp_norm"])
    memory, x = x, embed(target)
    for i in range(2):
        q = layer("decoder", i)
        x = norm(x + attend(x, x, q["attention"], True), q["attention_norm"])
        x = norm(x + attend(x, memory, q["cross_attention"], False), q["cross_attention_norm"])
        x = norm(x + mlp(x, q["mlp"]), q["mlp_norm"])
    return x @ p["target_embed"]["embedding"].T


def test_equals_the_paper_in_numpy():
    model, variables = init()
    logits = model.apply(variables, SOURCE, TARGET)
    assert logits.dtype == jnp.float32
    for row in range(3):
        expected = numpy_forward(
            jax.device_get(variables["params"]), SOURCE[row], TARGET[row], 16, 2
        )
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre"},
        {"positions": "learned"},
        {"source_vocab_size": 50, "tie_output": False},
    ],
)
def test_cached_decoding_equals_the_whole_prefix(changes):
    model, variables = init(**changes)
    lengths = jnp.array([7, 4, 5])
    segments = (jnp.arange(7) < lengths[:, None]).astype(jnp.int32)
    # target without segments: plain causal
    whole = model.apply(variables, SOURCE, TARGET, None, segments)
    memory, cache = model.apply(variables, SOURCE, None, segments, method="encode"), {}
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 6)):  # a prefill of three, then one by one
        positions = jnp.broadcast_to(jnp.arange(start, stop), (3, stop - start))
        hidden, cache = model.apply(
            {**variables, **cache},
            TARGET[:, start:stop],
            memory if start == 0 else None,
            positions,
            None,
            segments,
            decode=9,
            method="decode",
            mutable=["cache", "memory"],
        )
        np.testing.assert_allclose(
            model.apply(variables, hidden, method="logits"),
            whole[:, start:stop],
            rtol=1e-4,
            atol=1e-5,
        )


def test_beams_that_stand_side_by_side_see_their_own_ancestors():
    """Two beams, of which both go on from beam 1 at position 2: each is as its own prefix decoded
    alone. Parameters as decoding has them.
    """
    model, variables = init()
    prepared = {"params": for_decoding(variables["params"], jnp.float32)}
    # (B, 2, 3)
    memory, beams = (
        model.apply(variables, SOURCE, method="encode"),
        jnp.stack([TARGET[:, 1:4], TARGET[:, 3:6]], axis=1),
    )
    run = lambda tokens, position, cache, ancestors: model.apply(
        {**prepared, **cache},
        tokens,
        None if cache else memory,
        jnp.full((3, 1), position),
        decode=8,
        slots=jnp.int32(2 * position),
        ancestors=ancestors,
        method="decode",
        mutable=["cache", "memory"],
    )
    _, cache = run(TARGET[:, :1], 0, {}, None)
    ancestors = jnp.full((3, 2, 4), -1).at[..., 0].set(0)
    _, cache = run(beams[..., 0], 1, cache, ancestors.at[..., 1].set(jnp.arange(2)))
    hidden, _ = run(
        beams[..., 1], 2, cache, ancestors.at[..., 1].set(1).at[..., 2].set(jnp.arange(2))
    )
    for beam in range(2):
        prefix = jnp.stack([TARGET[:, 0], beams[:, 1, 0], beams[:, beam, 1]], axis=1)
        alone = model.apply(variables, SOURCE, prefix, method="hidden")[:, -1]
        np.testing.assert_allclose(hidden[:, beam], alone, rtol=1e-4, atol=1e-5)


def test_no_leak_from_the_future_or_from_other_segments():
    model, variables = init()
    segments = lambda *sizes: jnp.broadcast_to(
        jnp.repeat(jnp.arange(1, len(sizes) + 1), jnp.array(sizes)), (3, sum(sizes))
    )
    packed = dict(source_segment_ids=segments(3, 4), target_segment_ids=segments(2, 4))
    base = model.apply(variables, SOURCE, TARGET, **packed)
    future = model.apply(variables, SOURCE, TARGET.at[:, 4].set(39), **packed)
    np.testing.assert_array_equal(base[:, :4], future[:, :4])
    assert not np.allclose(base[:, 4:], future[:, 4:])
    other_source = model.apply(variables, SOURCE.at[:, :3].set(39), TARGET, **packed)
    other_target = model.apply(variables, SOURCE, TARGET.at[:, :2].set(39), **packed)
    np.testing.assert_array_equal(base[:, 2:], other_source[:, 2:])
    np.testing.assert_array_equal(base[:, 2:], other_target[:, 2:])
    assert not np.allclose(base[:, :2], other_source[:, :2])


def test_packed_rows_equal_their_examples_alone():
    model, variables = init()
    join = lambda a, b: jnp.concatenate([a, b], axis=1)
    count = lambda *sizes: jnp.broadcast_to(
        jnp.concatenate([jnp.arange(s) for s in sizes]), (3, sum(sizes))
    )
    label = lambda *sizes: jnp.broadcast_to(
        jnp.repeat(jnp.arange(1, len(sizes) + 1), jnp.array(sizes)), (3, sum(sizes))
    )
    packed = model.apply(
        variables,
        join(SOURCE, SOURCE[:, ::-1]),
        join(TARGET, TARGET[:, ::-1]),
        count(7, 7),
        label(7, 7),
        count(6, 6),
        label(6, 6),
    )
    np.testing.assert_allclose(
        packed[:, :6], model.apply(variables, SOURCE, TARGET), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        packed[:, 6:],
        model.apply(variables, SOURCE[:, ::-1], TARGET[:, ::-1]),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("changes", [{"unroll": 2}, {"remat": "full"}, {"remat": "dots"}])
def test_unroll_and_remat_change_neither_parameters_nor_results(changes):
    model, variables = init()
    other = EncoderDecoder(**{**SIZE, **changes})
    total = lambda m: lambda v: (m.apply(v, SOURCE, TARGET) ** 2).sum()
    assert jax.tree.structure(other.init(jax.random.key(0), SOURCE, TARGET)) == jax.tree.structure(
        model.init(jax.random.key(0), SOURCE, TARGET)
    )
    for ours, theirs in zip(
        *(jax.tree.leaves(jax.grad(total(m))(variables)) for m in (model, other))
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_bfloat16_computes_in_it_and_keeps_float32_parameters():
    model, variables = init()
    half = EncoderDecoder(**SIZE, dtype="bfloat16")
    assert all(
        x.dtype == jnp.float32
        for x in jax.tree.leaves(half.init(jax.random.key(0), SOURCE, TARGET))
    )
    hidden = half.apply(variables, SOURCE, TARGET, method="hidden")
    assert hidden.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        half.apply(variables, SOURCE, TARGET), model.apply(variables, SOURCE, TARGET), atol=0.15
    )


def test_flops_formula_against_the_compiler():
    """Unrolled, so that the compiler counts every layer; it sees the whole square of the causal
    attention.
    """
    model = EncoderDecoder(**{**SIZE, "d_model": 64, "d_ff": 256, "vocab_size": 128}, unroll=2)
    tokens = jnp.zeros((1, 64), int)
    variables = model.init(jax.random.key(0), tokens, tokens)
    counted = (
        jax.jit(lambda v, s, t: model.apply(v, s, t))
        .lower(variables, tokens, tokens)
        .compile()
        .cost_analysis()["flops"]
    )
    assert model.flops(64, 64) == pytest.approx(counted, rel=0.15)
