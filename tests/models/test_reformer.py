"""Reformer: attention within buckets and chunks, reversible layers, and conversion."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from ml_collections import ConfigDict

from tests.conversion.checkpoints import CLOSE, copied, read_json, refused, weights
from tests.fixtures import make_huggingface_reformer as make
from tests.jitted import Jitted, jitted
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.families.reformer import Reformer
from transformer_jax.layers import reversible
from transformer_jax.layers.lsh_attention import LSHAttention
from transformer_jax.layers.masks import Mask
from transformer_jax.runs.open import open_run

LENGTH = 64
SIZES = dict(
    vocab_size=37,
    d_model=16,
    d_ff=24,
    num_layers=4,
    num_heads=2,
    head_dim=8,
    lsh_chunk=8,
    local_chunk=8,
    rounds=3,
    buckets=(4, 2),
    max_length=LENGTH,
    axial_shape=(8, 8),
    axial_widths=(4, 12),
    mlp_chunk=10,
    init_std=0.3,
)
TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (2, LENGTH), 0, 37))
EXACT = dict(rtol=0, atol=1e-5)
apply = jitted(nn.Module.apply)


@pytest.fixture(scope="module")
def reformer():
    model = Reformer(**SIZES, dropout=0.1, attention_dropout=0.1)
    return model, nn.unbox(jax.jit(model.init)(jax.random.key(0), TOKENS))["params"]


def logits(model, params, tokens=TOKENS, **options):
    return np.asarray(apply(model, {"params": params}, tokens, **options))


def attention(length, **options):
    """Returns an attention layer with its parameters, and states (2, length, 16)."""
    options = dict(num_heads=2, head_dim=8, use_bias=False, num_buckets=(4,)) | options
    layer = LSHAttention(**options)
    x = jax.random.normal(jax.random.key(2), (2, length, 16))
    init = jax.jit(lambda x: layer.init(jax.random.key(3), x, mask=Mask(causal=True)))
    return layer, jax.device_get(nn.unbox(init(x))["params"]), np.asarray(x)


def by_hand(layer, params, x, weights_of):
    """Returns the outputs of attention with `weights_of(queries, keys)` (B, H, Q, K)."""
    q, v = (np.einsum("blm,mhd->bhld", x, params[n]["kernel"]) for n in ("query_key", "value"))
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    y = weights_of(np.einsum("bhqd,bhkd->bhqk", q, k)) @ v
    return np.einsum("bhld,hdm->blm", y, params["out"]["kernel"])


def test_a_chunk_of_the_row_is_attention_with_shared_queries_and_keys():
    """A token sees itself only where it sees no other one (section 2)."""
    layer, params, x = attention(12, chunk=16, across_buckets=True, rounds=2)
    y, _ = apply(layer, {"params": params}, x, mask=Mask(causal=True))
    positions = np.arange(12)
    before = positions[:, None] > positions

    def weights_of(scores):
        scores = np.where(before, scores, -np.inf)
        scores[:, :, 0, 0] = 0.0
        return scipy.special.softmax(scores, axis=-1)

    np.testing.assert_allclose(y, by_hand(layer, params, x, weights_of), **EXACT)


def test_a_token_sees_the_last_keys_of_its_buckets():
    """The weight of a key counts the rounds that show it; rows have two segments and padding."""
    layer, params, x = attention(40, chunk=6, rounds=3)
    segments = np.repeat([1, 2, 0], (22, 15, 3))[None].repeat(2, axis=0)
    mask = Mask(causal=True, query_segments=segments, key_segments=segments)
    y, buckets = jax.device_get(apply(layer, {"params": params}, x, mask=mask))
    count = np.zeros((2, 2, 40, 40))
    for row, head, number in np.ndindex(2, 2, 3):
        own = buckets[row, head, number]
        for query in range(37):
            same = (own[:query] == own[query]) & (segments[row, :query] == segments[row, query])
            # With its own position, a chunk.
            count[row, head, query, np.flatnonzero(same)[-5:]] += 1

    def weights_of(scores):
        scores = np.where(count > 0, np.exp(scores) * count, 0)
        alone = (scores.sum(axis=-1, keepdims=True) == 0) & np.eye(40, dtype=bool)
        scores = np.where(alone, 1.0, scores)
        return scores / scores.sum(axis=-1, keepdims=True)

    expected = by_hand(layer, params, x, weights_of)
    np.testing.assert_allclose(y[:, :37], expected[:, :37], **EXACT)


def test_what_a_token_does_not_see_changes_nothing(reformer):
    """Neither later tokens, nor the length of a row, nor another document."""
    model, params = reformer
    whole = logits(model, params)
    later = np.where(np.arange(LENGTH) < 40, TOKENS, (TOKENS + 1) % 37)
    np.testing.assert_allclose(logits(model, params, later)[:, :40], whole[:, :40], **EXACT)
    short = logits(model, params, TOKENS[:, :37])
    np.testing.assert_allclose(short, whole[:, :37], **EXACT)
    slots = np.arange(LENGTH)[None]
    segments = np.where(slots < 24, 1, 2).repeat(2, axis=0)
    positions = np.where(slots < 24, slots, slots - 24).repeat(2, axis=0)
    packed = logits(model, params, positions=positions, segment_ids=segments)
    np.testing.assert_allclose(packed[:, :24], whole[:, :24], **EXACT)
    # A chunk of the row begins with the second document.
    alone = logits(model, params, TOKENS[:, 24:])
    np.testing.assert_allclose(packed[:, 24:], alone, **EXACT)


@pytest.mark.sample("True")
@pytest.mark.parametrize("across", [False, True])
def test_decoding_gives_the_logits_of_whole_rows(reformer, across):
    """Across buckets, that holds for a row of one chunk."""
    model, params = reformer
    slots = 8 if across else LENGTH
    model = model.clone(across_buckets=across)
    expected = logits(model, params, TOKENS[:, :slots])
    model = Jitted(model)
    prepared = model.for_decoding(params)
    rows, lengths = np.arange(2), np.array([slots // 3, slots // 5])
    actual, state = model.begin(prepared, TOKENS[:, : slots // 2], lengths, slots=slots)
    np.testing.assert_allclose(actual, expected[rows, lengths - 1], **EXACT)
    for number in range(slots // 2):
        actual, state = model.step(prepared, state, TOKENS[rows, lengths + number][:, None])
        actual = np.asarray(actual)
        np.testing.assert_allclose(actual[:, 0], expected[rows, lengths + number], **EXACT)


def loss(model, params):
    rngs = {"dropout": jax.random.key(3)}
    return (model.apply({"params": params}, TOKENS, train=True, rngs=rngs) ** 2).mean()


@pytest.mark.full
def test_the_reversible_stack_has_the_gradients_of_autodiff(reformer, monkeypatch):
    """With dropout, whose masks the backward pass draws again."""
    model, params = reformer
    actual = jax.jit(jax.grad(lambda params: loss(model, params)))(params)
    stored = reversible._Layers.forward
    monkeypatch.setattr(reversible._Layers, "outputs", lambda self, *args: stored(self, *args)[0])
    expected = jax.jit(jax.grad(lambda params: loss(model, params)))(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **EXACT), actual, expected)


@pytest.mark.full
@pytest.mark.parametrize("remat", ["reversible", "none"])
def test_reversible_activations_do_not_grow_with_the_layers(remat):
    """Six more layers add their buckets, two bytes for each token, head and round."""
    sizes = SIZES | dict(d_model=64, axial_widths=(16, 48), d_ff=256, remat=remat)

    def temporary(num_layers):
        model = Reformer(**sizes | dict(num_layers=num_layers))
        params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), TOKENS))["params"]
        gradient = jax.jit(jax.grad(lambda params: loss(model, params)))
        analysis = gradient.lower(params).compile().memory_analysis()
        of_params = sum(4 * leaf.size for leaf in jax.tree.leaves(params["decoder"]))
        return analysis.temp_size_in_bytes, of_params

    (few, few_params), (many, many_params) = temporary(2), temporary(8)
    growth = many - few - (many_params - few_params)
    state = TOKENS.size * 64 * 4
    if remat == "reversible":
        assert growth <= 3 * TOKENS.size * 2 * 3 * 2 + 20_000
    else:
        assert growth > 6 * 10 * state


@pytest.mark.full
def test_a_checkpoint_gives_the_published_logits_and_is_written_unchanged(tmp_path):
    convert.from_hf(make.FOLDER, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.model.attention == ("local", "lsh") and task.model.num_layers == 4
    assert_published(task.model, params, *np.load(make.FOLDER / "expected.npz").values())
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    original, written = weights(make.FOLDER), weights(tmp_path / "back")
    assert original.keys() == written.keys()
    for name, array in original.items():
        np.testing.assert_array_equal(array, written[name], err_msg=name)
    config = read_json(make.FOLDER / "config.json")
    for key, value in read_json(tmp_path / "back" / "config.json").items():
        assert config.get(key) in (value, None), key


def assert_published(model, params, ids, rotations, expected):
    variables = {"params": params}
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    options = dict(mask=Mask(causal=True), rotations=rotations)
    states = apply(model, variables, ids, positions, **options, method="decoded")
    actual = apply(model, variables, states, method="logits")
    np.testing.assert_allclose(actual, expected, **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        dict(attn_layers=["lsh"], num_buckets=4, num_hashes=1),
        dict(attn_layers=["local", "local", "lsh"] * 2, num_buckets=8, num_hashes=4)
        | dict(axial_pos_embds=False),
    ],
)
def test_random_models_of_transformers(changes, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    expected = make.checkpoint(tmp_path / "hf", **changes)
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert_published(task.model, params, *expected)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(is_decoder=False), "is_decoder=False: only True"),
        (dict(num_buckets=None), "num_buckets=None: must be a number"),
        (dict(lsh_num_chunks_after=1), "lsh_num_chunks_after=1: only 0"),
        (dict(attn_layers=["local"] * 4), "missing from the weights: .*key"),
    ],
)
def test_configs_without_an_equivalent_are_refused(changes, message, tmp_path):
    refused(copied(make.FOLDER.name, tmp_path / "hf", **changes), tmp_path, message)


def test_two_rates_of_dropout_are_named(tmp_path, capsys):
    folder = copied(make.FOLDER.name, tmp_path / "hf", local_attention_probs_dropout_prob=0.25)
    convert.from_hf(folder, tmp_path / "run")
    assert "local_attention_probs_dropout_prob=0.25 becomes 0" in capsys.readouterr().err


def test_positions_beyond_the_grid_have_no_vector(reformer):
    model, params = reformer
    positions = np.full(TOKENS.shape, LENGTH)
    with pytest.raises(UserError, match="the id 64 is not from 0 to 63 .*max_length=64"):
        model.apply({"params": params}, TOKENS, positions=positions)
    compiled = jax.jit(lambda x: model.apply({"params": params}, TOKENS, positions=x))
    assert np.isnan(compiled(positions)).all()


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(attention=("lsh", "full")), "must be of local and lsh"),
        (dict(num_layers=3), "must be a multiple of the 2 entries"),
        (dict(buckets=(4, 3)), "must be even numbers"),
        (dict(buckets=()), "must be even numbers"),
        (dict(rounds=0), "rounds=0: must be at least 1"),
        (dict(axial_shape=(8, 9)), "the product must be config.model.max_length=64"),
        (dict(axial_widths=(8, 9)), "the sum must be config.model.d_model=16"),
        (dict(axial_shape=(64,)), "must have equal lengths"),
    ],
)
def test_wrong_keys_are_named(keys, message):
    with pytest.raises(UserError, match=message):
        configs.build_model(ConfigDict({"model": {"name": "reformer", **SIZES, **keys}}))


def test_enwik8_has_the_parameters_of_the_published_model():
    config = configs.load("configs/reformer/enwik8.py")
    model = configs.build_model(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 256), jnp.int32))
    count = sum(x.size for x in jax.tree.leaves(nn.unbox(shapes)["params"]))
    assert count - model.num_padding() == 149_179_649
