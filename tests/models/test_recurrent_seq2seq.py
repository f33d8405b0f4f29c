"""Recurrent encoder-decoders: formulas of attention, packed rows, order of reading, decoding."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import Jitted, jit_apply, jitted
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.families.recurrent_seq2seq import RecurrentSeq2Seq
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.recurrent_decoder import Attend, RecurrentAttention
from transformer_jax.planning import estimate

KEY = jax.random.key(0)
CLOSE = dict(rtol=1e-4, atol=1e-5)
SOURCE = np.asarray(jax.random.randint(jax.random.key(1), (2, 7), 1, 20))
TARGET = np.asarray(jax.random.randint(jax.random.key(2), (2, 6), 1, 20))
# One option of each kind at least.
MODELS = {
    "reversed": dict(
        attention="none", input_feeding=False, encoder_kind="forward", reverse_source=True
    ),
    "summary": dict(
        attention="none", encoder_kind="forward", cell="gru_reset_before", bridge="project"
    ),
    "search": dict(attention="before", score="additive", cell="gru", bridge="project"),
    "feeding": dict(num_encoder_layers=2, num_decoder_layers=2, reverse_source=True),
    "location": dict(score="location", input_feeding=False, cell="rnn"),
    "monotonic": dict(score="dot", attention_window="monotonic", radius=1),
    "hybrid": dict(
        score="scaled_dot",
        attention_window="predicted",
        radius=2,
        encoder_kind="transformer",
        bridge="project",
    ),
    "content": dict(score="content", encoder_width=3, bridge="project", tie_output=True),
}


@functools.cache
def build(name, **options):
    """Returns a tiny model and parameters far from their small initial values."""
    sizes = dict(vocab_size=20, d_model=8, max_length=32, num_heads=2, d_ff=16)
    model = RecurrentSeq2Seq(**sizes | MODELS[name] | options)
    model.check()

    def perturb(x):
        return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape)

    @jax.jit
    def init():
        return jax.tree.map(perturb, nn.unbox(model.init(KEY, SOURCE, TARGET))["params"])

    return model, init()


def softmax(x):
    exp = np.exp(x - x.max())
    return exp / exp.sum()


@pytest.mark.parametrize("score", ["content", "additive", "location", "general", "dot"])
def test_scores_equal_their_formulas(score):
    module = RecurrentAttention(Attend(score, "all", 1), 4, 4, 9)
    annotations = jax.random.normal(KEY, (1, 5, 4))
    query = jax.random.normal(jax.random.key(3), (1, 2, 4))
    positions = jnp.arange(5)[None]

    def attend(module, query):
        weights = module.weights()
        visible = jnp.array([[[True] * 4 + [False]]])
        source = module.source(annotations, positions) | module.vectors()

        def product(name, x):
            matrix, bias = weights[name]
            return x @ matrix + (0 if bias is None else bias)

        return module.attend(product, source, query, visible, jnp.zeros((1, 2)))

    @jax.jit
    def compute():
        variables = nn.unbox(module.init(KEY, query, method=attend))
        variables = jax.tree.map(lambda x: x + 0.1, variables)
        return variables.get("params", {}), module.apply(variables, query, method=attend)

    p, (context, weights) = jax.device_get(compute())
    h = np.asarray(annotations)[0, :4]
    for number, s in enumerate(np.asarray(query)[0]):
        match score:
            case "content":
                k = s @ p["query"] + p["query_bias"]["bias"]
                cosine = h @ k / np.linalg.norm(h, axis=1) / np.linalg.norm(k)
                expected = np.log1p(np.exp(s @ p["strength"])) * cosine
            case "additive":
                q = s @ p["query"] + p["query_bias"]["bias"]
                expected = np.tanh(q + h @ p["key"]["kernel"]) @ p["energy"]
            case "location":
                expected = (s @ p["query"] + p["query_bias"]["bias"])[:4]
            case "general":
                expected = h @ p["key"]["kernel"] @ s
            case "dot":
                expected = h @ s
        expected = softmax(expected)
        np.testing.assert_allclose(weights[0, number], [*expected, 0], **CLOSE)
        np.testing.assert_allclose(context[0, number], expected @ h, **CLOSE)


@jitted
def attended(window, query, target_positions, radius=2):
    """Returns the weights of equal scores, in a source of 8 of 10 positions."""
    attend = Attend("dot", window, radius)
    positions = jnp.arange(10.0)[None]
    source = {"values": jnp.zeros((1, 10, 3)), "keys": jnp.zeros((1, 10, 3))}
    source |= {"positions": positions, "place": jnp.array([1.0, 0, 0])}
    visible = (positions < 8)[:, None]
    return attend(lambda name, x: x, source, query, visible, target_positions)[1][0]


def test_windows_of_local_attention():
    query = np.zeros((1, 3, 3))
    weights = np.asarray(attended("monotonic", query, np.array([[0.0, 4.0, 30.0]])))
    np.testing.assert_allclose(weights[0, :4], [1 / 3] * 3 + [0], atol=1e-6)
    np.testing.assert_allclose(weights[1, 1:8], [0] + [1 / 5] * 5 + [0], atol=1e-6)
    # A target that is longer than the source attends to its end.
    np.testing.assert_allclose(weights[2, 4:8], [0] + [1 / 3] * 3, atol=1e-6)
    # The predicted position is 8 sigmoid(tanh(0)) = 4, and the deviation 2 / 2.
    weights = np.asarray(attended("predicted", query[:, :1], np.zeros((1, 1))))
    distance = np.array([-2, -1, 0, 1, 2])
    np.testing.assert_allclose(weights[0, 2:7], np.exp(-(distance**2) / 2) / 5, rtol=1e-5)
    assert not weights[0, :2].any() and not weights[0, 7:].any()


def test_a_scaled_dot_is_the_dot_at_keys_divided_by_the_root_of_the_width():
    """So a model with one score has the logits of the other with such annotations."""
    query, keys = jax.random.normal(KEY, (2, 1, 4, 9))
    visible = jnp.ones((1, 1, 4), bool)
    source = {"values": keys, "positions": jnp.arange(4.0)[None]}

    @jitted
    def weights(score, keys):
        attend = Attend(score, "all", 1)
        seen = source | {"keys": keys}
        return attend(lambda name, x: x, seen, query, visible, jnp.zeros((1, 4)))[1]

    np.testing.assert_allclose(weights("scaled_dot", keys), weights("dot", keys / 3), **CLOSE)


@pytest.mark.sample("search")
@pytest.mark.parametrize("name", MODELS)
def test_pairs_of_a_row_and_padding_do_not_change_each_other(name):
    """A row of two pairs and padding has the states of its pairs alone, and its loss a gradient."""
    model, params = build(name)

    def packed(params):
        """Returns a loss of the pairs of the row, and the states of all positions."""
        states = model.apply(
            {"params": params},
            Inputs(
                jnp.concatenate([SOURCE[:1, :4], SOURCE[1:, :3], SOURCE[:1, :2]], axis=1),
                segment_ids=jnp.array([[1] * 4 + [2] * 3 + [0] * 2]),
            ),
            Inputs(
                jnp.concatenate([TARGET[:1, :3], TARGET[1:, :5], TARGET[:1, :2]], axis=1),
                segment_ids=jnp.array([[1] * 3 + [2] * 5 + [0] * 2]),
            ),
            method="hidden",
        )[0]
        return (states[:8] ** 2).sum(), states

    gradients, states = jax.device_get(jax.jit(jax.grad(packed, has_aux=True))(params))
    alone = jax.jit(lambda *tokens: model.apply({"params": params}, *tokens, method="hidden")[0])
    np.testing.assert_allclose(states[:3], alone(SOURCE[:1, :4], TARGET[:1, :3]), **CLOSE)
    np.testing.assert_allclose(states[3:8], alone(SOURCE[1:, :3], TARGET[1:, :5]), **CLOSE)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(gradient).all()
        if "output_embed" not in jax.tree_util.keystr(path):
            assert np.abs(gradient).max() > 0, path


@pytest.mark.sample("search", "hybrid")
@pytest.mark.parametrize("name", MODELS)
def test_decoding_equals_the_whole_prefix(name):
    """Three hypotheses of each source, after hypotheses have been reordered and a source cut."""
    model, params = build(name)
    decoder = Jitted(model)
    segments = (np.arange(7) < np.array([[5], [7]])).astype(np.int32)

    @jax.jit
    def forward(source, target):
        memory = model.apply({"params": params}, source, segment_ids=segments, method="encode")
        options = dict(source_segment_ids=segments, method="decode")
        hidden = model.apply({"params": params}, target, memory, **options)
        return memory, model.apply({"params": params}, hidden, method="logits")

    memory, expected = forward(SOURCE, TARGET)
    logits, state = decoder.begin(params, TARGET[:, :1], memory, segments, beams=3)
    np.testing.assert_allclose(logits, np.asarray(expected)[:, 0], **CLOSE)

    @jax.jit
    def multiplied(state):
        state = state.resized(0, 9)  # room for longer sources
        return state.reorder(jnp.zeros((2, 3), jnp.int32))  # (2, 1) hypotheses to (2, 3)

    state = multiplied(state)
    others = (TARGET[:, 1:3, None] + np.arange(3)) % 20  # (2, 2, 3)
    for position in range(2):
        logits, state = decoder.step(params, state, others[:, position])
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    state = jax.jit(lambda state: state.reorder(jnp.array(parents)))(state)
    logits = np.asarray(decoder.step(params, state, np.full((2, 3), 7))[0])
    for row, beam in itertools.product(range(2), range(3)):
        prefix = [TARGET[row, 0], *others[row, :, parents[row, beam]], 7, 0, 0]
        _, expected = forward(SOURCE, np.broadcast_to(prefix, (2, 6)))
        np.testing.assert_allclose(logits[row, beam], np.asarray(expected)[row, 3], **CLOSE)


def test_a_source_replaces_another():
    """The state of a row belongs to the source that was admitted, of another length."""
    model, params = build("search")
    model = Jitted(model)
    ones = np.ones((2, 7), np.int32)
    variables = {"params": params}
    memory = model.apply(variables, SOURCE, method="encode")
    _, state = model.begin(params, TARGET[:, :1], memory, ones, beams=1)
    short = model.apply(variables, SOURCE[:1, :4], method="encode")
    _, new = model.begin(params, TARGET[:1, :1], short, ones[:1, :4], beams=1)
    expected, _ = model.step(params, new, TARGET[:1, 1:2])
    moved = dict(indices=jnp.array([1]), rows=jnp.array([0]))
    admit = jax.jit(lambda state, new: state.admit(new, **moved))
    logits, _ = model.step(params, admit(state, new), TARGET[[0, 0], 1:2])
    np.testing.assert_allclose(np.asarray(logits)[1], np.asarray(expected)[0], **CLOSE)


def test_a_reversed_source_is_read_backwards_up_to_its_end_token():
    forward, params = build("reversed", reverse_source=False)
    backward, _ = build("reversed")
    mirrored = np.concatenate([SOURCE[:, -2::-1], SOURCE[:, -1:]], axis=1)

    def read(model, source):
        logits = model.apply({"params": params}, source, TARGET)
        return logits, model.apply({"params": params}, source, method="encode")[..., :8]

    both = jax.jit(lambda: (read(forward, mirrored), read(backward, SOURCE)))
    logits, annotations = zip(*jax.device_get(both()))
    np.testing.assert_allclose(*logits, **CLOSE)
    # The annotations of both stand at their own words.
    np.testing.assert_allclose(annotations[0][:, :-1][:, ::-1], annotations[1][:, :-1], **CLOSE)


@pytest.mark.full
def test_attention_weights_are_of_the_state_before_or_after_the_step(monkeypatch):
    """In RNNsearch a token has no influence on the weights of its own step, in Luong's model it has
    one. The weights of a step add up to 1."""
    jit_apply(monkeypatch)
    changed = TARGET.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 20
    for name, first in (("search", 4), ("feeding", 3)):
        model, params = build(name)
        one, other = (
            weights_in(model, params, "decoder", SOURCE[:1], target[:1], cross=True)
            for target in (TARGET, changed)
        )
        assert one.shape == (1, 1, 6, 7)
        np.testing.assert_allclose(one.sum(axis=-1), 1, rtol=1e-5)
        differs = np.abs(one - other).max(axis=(0, 1, 3)) > 1e-6
        assert differs.argmax() == first and differs[first]
        assert model.attentions == ("cross",)
    model, params = build("hybrid")
    weights = weights_in(model, params, "encoder", SOURCE[:1], method="encode")
    assert weights.shape == (1, 2, 7, 7) and model.attentions == ("cross", "encoder")


@pytest.mark.sample("content", "monotonic")
@pytest.mark.parametrize("name", MODELS)
def test_flops_count_the_matrix_products(name):
    model, _ = build(name)
    inputs = [jax.ShapeDtypeStruct((1, length), jnp.int32) for length in (7, 6)]
    params = jax.eval_shape(model.init, KEY, *inputs)
    assert estimate.flops(model.apply, params, *inputs) == model.flops(7, 6)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(encoder_width=6), "config.model.bridge='copy': must be 'project'"),
        (dict(num_encoder_layers=2), "config.model.bridge='copy': must be 'project'"),
        (
            dict(encoder_kind="transformer", bridge="project", reverse_source=True),
            "config.model.reverse_source=True: must be False",
        ),
        (
            dict(attention="none", bridge="project"),
            "config.model.encoder_kind='bidirectional': must be 'forward'",
        ),
        (
            dict(score="dot", encoder_width=8, bridge="project"),
            "config.model.score='dot': must be 'general'",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_errors(options, message):
    with pytest.raises(UserError, match=message):
        RecurrentSeq2Seq(d_model=8, **options).check()
