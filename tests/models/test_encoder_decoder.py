"""The encoder-decoder: published sizes, masks, caches, and an independent forward pass in NumPy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import Jitted, jitted
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.bart import BART
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.t5 import T5
from transformer_jax.layers.embeddings import position_codes

FAMILIES = [EncoderDecoder, BART, T5]
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
SOURCE = np.asarray(jax.random.randint(jax.random.key(1), (3, 7), 1, 40))
TARGET = np.asarray(jax.random.randint(jax.random.key(2), (3, 6), 1, 40))


def build(cls=EncoderDecoder, **changes):
    size = SIZE | changes
    if cls is T5:
        # No bound on positions; buckets few enough for distances to share one.
        size = {key: value for key, value in size.items() if key != "max_length"}
        size = dict(head_dim=6, num_buckets=4, max_distance=4) | size
    return cls(**size)


@functools.cache
def init(cls=EncoderDecoder, **changes):
    model = Jitted(build(cls, **changes))
    return model, nn.unbox(model.init(jax.random.key(0), SOURCE, TARGET))


def segment_ids(*sizes):
    """Returns the segment ids of three rows with examples of these sizes."""
    ids = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return np.broadcast_to(ids, (3, sum(sizes)))


def changed(tokens, positions, token):
    """Returns a copy of tokens with `token` at these positions of each row."""
    tokens = tokens.copy()
    tokens[:, positions] = token
    return tokens


def parameter_count(v, m, f, layers):
    """Shared embeddings; all projections have biases; norms have scale and bias."""
    attention = 4 * m * m + 4 * m
    mlp = 2 * m * f + m + f
    norm = 2 * m
    encoder_layer = attention + mlp + 2 * norm
    decoder_layer = 2 * attention + mlp + 3 * norm
    return v * m + layers * (encoder_layer + decoder_layer)


@pytest.mark.sample("big.py-214.2")
@pytest.mark.parametrize("file, millions", [("base.py", 63.1), ("big.py", 214.2)])
def test_parameter_counts(file, millions):
    config = configs.load(f"configs/wmt/{file}")
    model = configs.build_model(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    count = sum(x.size for x in jax.tree.leaves(nn.unbox(shapes)))
    assert count == parameter_count(37_000, model.d_model, model.d_ff, 6)
    assert round(count / 1e6, 1) == pytest.approx(millions, abs=0.06)


class NumPyTransformer:
    """Vaswani et al. 2017, section 3, on one row in float64."""

    def __init__(self, params, num_heads):
        self.params = params
        self.num_heads = num_heads
        self.table = params["target_embed"]["embedding"]  # (V, M)

    def logits(self, source, target):
        encoder_output = self.embed(source)
        for p in self.layers("encoder"):
            y = self.attend(encoder_output, encoder_output, p["attention"])
            encoder_output = self.norm(encoder_output + y, p["attention_norm"])
            encoder_output = self.norm(
                encoder_output + self.mlp(encoder_output, p["mlp"]), p["mlp_norm"]
            )
        x = self.embed(target)
        for p in self.layers("decoder"):
            y = self.attend(x, x, p["attention"], causal=True)
            x = self.norm(x + y, p["attention_norm"])
            y = self.attend(x, encoder_output, p["cross_attention"])
            x = self.norm(x + y, p["cross_attention_norm"])
            x = self.norm(x + self.mlp(x, p["mlp"]), p["mlp_norm"])
        return x @ self.table.T

    def layers(self, stack):
        stacked = self.params[stack]["layers"]
        for i in range(2):
            yield jax.tree.map(lambda x, i=i: np.asarray(x[i], np.float64), stacked)

    def embed(self, tokens):
        width = self.table.shape[1]
        rates = 10_000 ** (np.arange(0, width, 2) / width)
        angles = np.arange(len(tokens))[:, None] / rates
        positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(tokens), width)
        return self.table[tokens] * np.sqrt(width) + positions

    def attend(self, x, encoder_output, p, causal=False):
        def project(y, name):
            return np.einsum("lm,mhd->lhd", y, p[name]["kernel"]) + p[name]["bias"]

        head_dim = x.shape[1] // self.num_heads
        scores = np.einsum("qhd,khd->hqk", project(x, "query"), project(encoder_output, "key"))
        scores = scores / np.sqrt(head_dim)
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[1:])) > 0, scores, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("hqk,khd->qhd", weights, project(encoder_output, "value"))
        return np.einsum("qhd,hdm->qm", heads, p["out"]["kernel"]) + p["out"]["bias"]

    @staticmethod
    def mlp(x, p):
        hidden = np.maximum(x @ p["wi"]["kernel"] + p["wi"]["bias"], 0)
        return hidden @ p["wo"]["kernel"] + p["wo"]["bias"]

    @staticmethod
    def norm(x, p):
        normalized = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return normalized * p["scale"] + p["bias"]


def test_equals_the_paper_in_numpy():
    model, variables = init()
    logits = np.asarray(model.apply(variables, SOURCE, TARGET))
    assert logits.dtype == np.float32
    reference = NumPyTransformer(jax.device_get(variables["params"]), num_heads=2)
    for row in range(3):
        expected = reference.logits(SOURCE[row], TARGET[row])
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-4)


VARIANTS = pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre"},
        {"positions": "learned", "output_bias": True, "activation": "swish"},
        {"source_vocab_size": 50, "tie_output": False},
        {"positions": "none"},
        {"positions": "rotary"},
        {"positions": "binary", "position_width": 6, "tie_output": False},
        {"cls": BART},
        {"cls": T5},
        {"cls": T5, "gated": True, "tie_output": False},
    ],
)


@pytest.mark.sample("changes8")
@VARIANTS
def test_cached_decoding_equals_the_whole_prefix(changes):
    model, variables = init(**changes)
    lengths = np.array([7, 4, 5])
    segments = (np.arange(7) < lengths[:, None]).astype(np.int32)
    # The target has no segments: its attention is causal only.
    source = Inputs(SOURCE, segment_ids=segments)
    expected = np.asarray(model.apply(variables, source, TARGET))
    encoder_output = model.apply(variables, SOURCE, segment_ids=segments, method="encode")
    params = model.for_decoding(variables["params"])
    logits, state = model.begin(params, TARGET[:, :1], encoder_output, segments, beams=1)
    np.testing.assert_allclose(logits, expected[:, 0], rtol=1e-4, atol=1e-5)
    state = jitted(lambda state: state.resized(4, 7))(state)
    for position in range(1, 4):
        logits, state = model.step(params, state, TARGET[:, position : position + 1])
        logits = np.asarray(logits)
        np.testing.assert_allclose(logits[:, 0], expected[:, position], rtol=1e-4, atol=1e-5)


@pytest.mark.sample("changes5")
@VARIANTS
def test_beams_attend_to_their_ancestors(changes):
    """Two beams, which both continue beam 1 at position 2, equal their prefixes decoded alone."""
    model, variables = init(**changes)
    params = model.for_decoding(variables["params"])
    encoder_output = model.apply(variables, SOURCE, method="encode")
    beams = np.stack([TARGET[:, 1:4], TARGET[:, 3:6]], axis=1)  # (B, 2, 3)
    _, state = model.begin(params, TARGET[:, :1], encoder_output, np.ones_like(SOURCE), beams=2)
    resized = jitted(lambda state: state.resized(4, 7).reorder(jnp.zeros((3, 2), jnp.int32)))
    _, state = model.step(params, resized(state), beams[..., 0])
    reordered = jitted(lambda state: state.reorder(jnp.ones((3, 2), jnp.int32)))
    logits = np.asarray(model.step(params, reordered(state), beams[..., 1])[0])
    for beam in range(2):
        prefix = np.stack([TARGET[:, 0], beams[:, 1, 0], beams[:, beam, 1]], axis=1)
        expected = np.asarray(model.apply(variables, SOURCE, prefix))[:, -1]
        np.testing.assert_allclose(logits[:, beam], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("changes", [{"positions": "learned"}, {"cls": BART}])
def test_an_input_that_is_done_has_no_position_beyond_the_table(changes):
    model, variables = init(max_length=7, **changes)
    params = model.for_decoding(variables["params"])
    encoder_output = model.apply(variables, SOURCE, method="encode")
    _, state = model.begin(params, TARGET[:, :1], encoder_output, np.ones_like(SOURCE), beams=1)
    state = jitted(lambda state: state.resized(9, 7))(state).replace(positions=jnp.array([6, 7, 8]))
    assert np.isfinite(model.step(params, state, TARGET[:, 1:2])[0]).all()


def test_no_leak_from_the_future_or_from_other_segments():
    model, variables = init()

    def logits(source, target):
        source = Inputs(source, segment_ids=segment_ids(3, 4))
        target = Inputs(target, segment_ids=segment_ids(2, 4))
        return np.asarray(model.apply(variables, source, target))

    original = logits(SOURCE, TARGET)
    future = logits(SOURCE, changed(TARGET, 4, 39))
    np.testing.assert_array_equal(original[:, :4], future[:, :4])
    assert not np.allclose(original[:, 4:], future[:, 4:])
    other_source = logits(changed(SOURCE, slice(3), 39), TARGET)
    other_target = logits(SOURCE, changed(TARGET, slice(2), 39))
    np.testing.assert_array_equal(original[:, 2:], other_source[:, 2:])
    np.testing.assert_array_equal(original[:, 2:], other_target[:, 2:])
    assert not np.allclose(original[:, :2], other_source[:, :2])


@pytest.mark.sample("EncoderDecoder")
@pytest.mark.parametrize("cls", FAMILIES)
def test_packed_rows_equal_their_examples_alone(cls):
    model, variables = init(cls)
    other_source = SOURCE[:, ::-1]
    other_target = TARGET[:, ::-1]

    def positions(size):
        return np.broadcast_to(np.tile(np.arange(size), 2), (3, 2 * size))

    packed = model.apply(
        variables,
        *(
            Inputs(
                np.concatenate(examples, axis=1),
                positions=positions(size),
                segment_ids=segment_ids(size, size),
            )
            for examples, size in (([SOURCE, other_source], 7), ([TARGET, other_target], 6))
        ),
    )
    packed = np.asarray(packed)
    expected = model.apply(variables, SOURCE, TARGET)
    np.testing.assert_allclose(packed[:, :6], expected, rtol=1e-4, atol=1e-5)
    expected = model.apply(variables, other_source, other_target)
    np.testing.assert_allclose(packed[:, 6:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("changes", [{"unroll": 2}, {"remat": "full"}, {"remat": "dots"}])
def test_unroll_and_remat_change_neither_parameters_nor_results(changes):
    model, variables = init()
    changed, changed_variables = init(**changes)
    assert jax.tree.structure(variables) == jax.tree.structure(changed_variables)

    def gradients(model):
        def total(variables):
            return (model.apply(variables, SOURCE, TARGET) ** 2).sum()

        return jax.tree.leaves(jax.jit(jax.grad(total))(variables))

    for expected, gradient in zip(gradients(model), gradients(changed)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


def test_bfloat16_is_the_dtype_of_computation_and_not_of_parameters():
    model, variables = init()
    half, half_variables = init(dtype="bfloat16")
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(half_variables))
    hidden = half.apply(variables, SOURCE, TARGET, method="hidden")
    assert hidden.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        half.apply(variables, SOURCE, TARGET), model.apply(variables, SOURCE, TARGET), atol=0.15
    )


@pytest.mark.sample("changes1")
@pytest.mark.parametrize("changes", [{}, {"cls": T5, "head_dim": 24, "gated": True}])
def test_flops_formula_against_the_compiler(changes):
    """The layers are unrolled, so that the compiler counts each of them.

    The compiler counts causal attention without its mask.
    """
    model = build(d_model=64, d_ff=256, vocab_size=128, unroll=2, **changes)
    tokens = jax.ShapeDtypeStruct((1, 64), jnp.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    lowered = jax.jit(model.apply).lower(variables, tokens, tokens)
    assert model.flops(64, 64) == pytest.approx(lowered.cost_analysis()["flops"], rel=0.15)


def test_positions_are_their_formulas():
    """Two bits count to 4; the third column begins again with the lowest."""
    kinds = ("index", "normalized", "binary", "sinusoidal")

    @jax.jit
    def compute(positions):
        return {kind: position_codes(kind, positions, 3, max_length=4) for kind in kinds}

    codes = jax.device_get(compute(jnp.arange(4)))
    np.testing.assert_array_equal(codes["index"], np.arange(4)[:, None] * np.ones(3))
    np.testing.assert_array_equal(codes["normalized"], codes["index"] / 4)
    np.testing.assert_array_equal(codes["binary"], [[0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 1]])
    rates = 10_000.0 ** (-np.array([0, 0, 2]) / 3)
    angles = np.arange(4)[:, None] * rates
    expected = np.where([True, False, True], np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(codes["sinusoidal"], expected, atol=1e-6)


def test_rotary_positions_are_distances():
    """A second example of a row has other slots than alone, and the same logits."""
    model, variables = init(positions="rotary")
    alone = model.apply(variables, SOURCE, TARGET)
    packed = model.apply(
        variables,
        Inputs(np.concatenate([SOURCE[:, :3], SOURCE], axis=1), segment_ids=segment_ids(3, 7)),
        Inputs(np.concatenate([TARGET[:, :2], TARGET], axis=1), segment_ids=segment_ids(2, 6)),
    )
    np.testing.assert_allclose(packed[:, 2:], alone, rtol=1e-4, atol=1e-4)
    # The order of the words matters, unlike without positions.
    for kind, differs in (("rotary", True), ("none", False)):
        model, variables = init(positions=kind)
        orders = [model.apply(variables, x, TARGET[:, :1]) for x in (SOURCE, SOURCE[:, ::-1])]
        assert np.allclose(*orders, rtol=1e-4, atol=1e-4) != differs


@pytest.mark.sample("learned")
@pytest.mark.parametrize("kind", ["index", "normalized", "learned", "sinusoidal"])
def test_concatenated_positions_narrow_the_words(kind):
    narrow = dict(positions=kind, position_width=4, tie_output=False)
    model, variables = init(**narrow)
    assert variables["params"]["target_embed"]["embedding"].shape == (40, 12)
    assert variables["params"]["output_embed"]["embedding"].shape == (40, 16)

    def embedded(model):
        return model._embed(model.source_embed, SOURCE, None, False)

    inputs = np.asarray(model.apply(variables, method=embedded))
    words = np.asarray(variables["params"]["target_embed"]["embedding"])[SOURCE] * 4
    np.testing.assert_allclose(inputs[..., :12], words, rtol=1e-6)
    if kind == "learned":
        expected = np.asarray(variables["params"]["position_embed"]["embedding"])[:7] * 4
    else:
        expected = position_codes(kind, jnp.arange(7), 4, 64)
    np.testing.assert_allclose(inputs[..., 12:], np.broadcast_to(expected, (3, 7, 4)), rtol=1e-6)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(position_width=16), "position_width=16: must be from 0 to d_model - 1 = 15"),
        (dict(position_width=4, positions="none"), "positions='none' has no vectors; set it to 0"),
        (dict(position_width=4, positions="rotary"), "positions='rotary' has no vectors; set it t"),
        (dict(positions="rotary", head_dim=3), "config.model.head_dim=3: must be even for rotary"),
        (dict(position_width=4), "set config.model.tie_output=false"),
    ],
)
def test_widths_of_positions_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        build(**changes).check()


def test_without_positions_the_encoder_is_a_bag_of_words():
    order = np.array([3, 1, 0, 2, 6, 5, 4])
    _, variables = init()
    for kind, is_bag in (("none", True), ("index", False)):
        model = Jitted(build(positions=kind))
        encoder_output = np.asarray(model.apply(variables, SOURCE, method="encode"))
        permuted = np.asarray(model.apply(variables, SOURCE[:, order], method="encode"))
        assert np.allclose(permuted, encoder_output[:, order], atol=1e-5) == is_bag
