"""Longformer: windows, global tokens, and a run that begins with RoBERTa."""

import json

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, refused
from tests.fixtures import make_huggingface_longformer as make
from tests.fixtures.make_huggingface import HERE
from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError, build_model
from transformer_jax.families.longformer import Longformer
from transformer_jax.families.roberta import RoBERTa
from transformer_jax.layers.longformer_attention import LongformerAttention
from transformer_jax.layers.masks import Mask
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.training.step import Program

LENGTH = 300
SIZES = dict(
    vocab_size=50,
    d_model=16,
    num_layers=2,
    num_heads=2,
    max_length=LENGTH,
    dropout=0.0,
    attention_dropout=0.0,
)
apply = jitted(flax.linen.Module.apply)


@pytest.fixture(scope="module")
def longformer():
    """A model with windows of 8 tokens, its parameters and two rows of packed examples."""
    model = Longformer(**SIZES, attention_window=(8,))
    tokens = np.asarray(jax.random.randint(jax.random.key(0), (2, LENGTH), 0, 50))
    segments = np.where(np.arange(LENGTH) < np.array([[LENGTH], [250]]), 1, 0)
    segments = segments + (np.arange(LENGTH) >= 120) * segments
    params = flax.linen.unbox(jax.jit(model.init)(jax.random.key(1), tokens))["params"]
    return model, jax.device_get(params), tokens, segments


def hidden(model, params, tokens, **options):
    return np.asarray(apply(model, {"params": params}, tokens, method="hidden", **options))


def changed_at(tokens, position):
    """Returns the tokens with another one at this position of each row."""
    tokens = tokens.copy()
    tokens[:, position] = (tokens[:, position] + 1) % 50
    return tokens


def test_a_window_of_twice_the_row_is_the_encoder_that_it_is_made_from(longformer):
    model, params, tokens, segments = longformer
    wide = model.clone(attention_window=(2 * LENGTH,))
    options = dict(segment_ids=segments)
    expected = hidden(RoBERTa(**SIZES), params, tokens, **options)
    np.testing.assert_array_equal(hidden(wide, params, tokens, **options), expected)


def test_a_token_outside_the_window_changes_nothing_until_it_is_global(longformer):
    model, params, tokens, segments = longformer
    one_layer = model.clone(num_layers=1)
    params = dict(params, encoder=jax.tree.map(lambda x: x[:1], params["encoder"]))
    other = changed_at(tokens, 60)
    changed = {}
    for name, positions in (("none", [-1, -1]), ("global", [60, -1]), ("far", [200, -1])):
        options = dict(segment_ids=segments, global_positions=np.array([positions] * 2))
        before, after = (hidden(one_layer, params, x, **options) for x in (tokens, other))
        changed[name] = (before != after).any(axis=-1) & np.asarray(segments > 0)
    assert changed["none"][:, 56:65].all() and changed["none"].sum() == 2 * 9
    # It is seen by its own example alone. One of another example sees neither.
    assert changed["global"][:, :120].all() and not changed["global"][:, 120:].any()
    np.testing.assert_array_equal(changed["far"], changed["none"])


def dense_window(length, reach, dilation, positions):
    """Returns whether a query sees a key (L, L), by section 3.1."""
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    visible = (abs(distance) <= reach * dilation) & (distance % dilation == 0)
    visible[:, [position for position in positions if position >= 0]] = True
    return visible


def attention_in_numpy(params, x, segments, positions, dilations):
    """Returns the outputs of a layer (B, L, M) in float64. `dilations` are those of the heads."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = np.asarray(x, np.float64)

    def heads(name):
        return np.einsum("blm,mhd->blhd", x, params[name]["kernel"]) + params[name]["bias"]

    def attended(names, visible):
        q, k, v = map(heads, names)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = np.where(visible, scores, -np.inf)
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("bhqk,bkhd->bqhd", weights, v)

    segments = np.asarray(segments)
    own = (segments[:, None] == segments[:, :, None])[:, None]  # padding sees padding
    windows = np.array(
        [[dense_window(x.shape[1], 4, d, row) for d in dilations] for row in positions]
    )
    # A query in padding sees its own segment alone, as everything it sees is hidden.
    visible = own & (windows | np.eye(x.shape[1], dtype=bool))
    y = attended(("query", "key", "value"), visible)
    of_global = attended(("global_query", "global_key", "global_value"), own)
    for row, of_row in enumerate(positions):
        of_row = [position for position in of_row if position >= 0]
        y[row, of_row] = of_global[row, of_row]
    return np.einsum("blhd,hdm->blm", y, params["out"]["kernel"]) + params["out"]["bias"]


@pytest.mark.sample("None")
@pytest.mark.parametrize("dilated_heads", [None, 1])
def test_dilated_windows_equal_a_dense_mask_in_numpy(longformer, dilated_heads):
    """The rows are packed and padded; each has a global token."""
    _, params, tokens, segments = longformer
    attention = jax.tree.map(
        lambda x: x[1] + 0.3 * np.sin(np.arange(x[1].size, dtype=np.float32)).reshape(x[1].shape),
        params["encoder"]["layers"]["attention"],
    )
    layer = LongformerAttention(num_heads=2, head_dim=8, dilated_heads=dilated_heads)
    x = np.asarray(jax.random.normal(jax.random.key(4), (2, LENGTH, 16)))
    positions = np.array([[60, -1], [130, 10]])
    window = dict(window=jnp.int32(5), windows=(5, 5), dilation=jnp.int32(7), dilations=(1, 7))
    mask = Mask(query_segments=segments, key_segments=segments, **window)
    filled = segments > 0

    def run(params, x):
        return apply(layer, {"params": params}, x, mask=mask, global_positions=positions)

    dilations = (7, 7 if dilated_heads is None else 1)
    arguments = (attention, x)
    rest = (segments, positions, dilations)
    expected = attention_in_numpy(*arguments, *rest)
    np.testing.assert_allclose(np.asarray(run(*arguments))[filled], expected[filled], **CLOSE)

    # The gradient along a direction, of a function of the outputs.
    direction = jax.tree.map(lambda x: np.cos(np.arange(x.size)).reshape(x.shape), arguments)
    factors = np.where(filled[..., None], np.sin(np.arange(16)), 0)
    gradient = jax.jit(jax.grad(lambda arguments: (run(*arguments) * factors).sum()))(arguments)
    products = jax.tree.map(lambda x, y: (x * y).sum(), jax.device_get(gradient), direction)
    step = 1e-5
    moved = [
        jax.tree.map(lambda x, d, s=s: np.asarray(x, np.float64) + s * d, arguments, direction)
        for s in (step, -step)
    ]
    values = [
        (np.where(filled[..., None], attention_in_numpy(*each, *rest), 0) * factors).sum()
        for each in moved
    ]
    slope = (values[0] - values[1]) / (2 * step)
    np.testing.assert_allclose(sum(jax.tree.leaves(products)), slope, rtol=1e-3)


def test_a_dilated_model_has_a_dilation_in_each_layer(longformer):
    """Layer 0 has no gaps, and layer 1 has a dilation of 3 on one head of two."""
    model, params, tokens, segments = longformer
    plain = dict(segment_ids=segments, global_positions=np.array([[60], [-1]]))
    expected = hidden(model, params, tokens, **plain)
    for values in (dict(attention_dilation=(1, 1)), dict(attention_dilation=(3,), dilated_heads=0)):
        same = hidden(model.clone(**values), params, tokens, **plain)
        np.testing.assert_array_equal(same, expected)
    dilated = model.clone(attention_dilation=(1, 3), dilated_heads=1)
    other = changed_at(tokens, 40)
    before, after = (hidden(dilated, params, x, segment_ids=segments) for x in (tokens, other))
    changed = (before != after).any(axis=-1)
    # The first layer reaches 4 tokens, the second 4 of one head, and up to 12 of the other.
    reached = {40 + near + 3 * far for near in range(-4, 5) for far in range(-4, 5)}
    reached |= {40 + near + far for near in range(-4, 5) for far in range(-4, 5)}
    assert {*np.flatnonzero(changed[0]).tolist()} == reached
    assert dilated.flops(LENGTH, 0) == model.flops(LENGTH, 0)


def test_time_and_memory_of_a_dilated_window_are_linear():
    """The temporary memory of four times the length is four times as much."""
    layer = LongformerAttention(num_heads=2, head_dim=8, dilated_heads=1)
    mask = Mask(window=32, windows=(32,), dilation=2, dilations=(2,))

    def memory(length):
        x = jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
        params = jax.eval_shape(lambda x: layer.init(jax.random.key(0), x, mask=mask), x)
        run = jax.jit(jax.grad(lambda p, x: layer.apply(p, x, mask=mask).sum()))
        compiled = run.lower(flax.linen.unbox(params), x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(8192) < 5 * memory(2048)


@pytest.mark.parametrize(
    "values, message",
    [
        (dict(attention_dilation=(0,)), "attention_dilation=.* at least 1"),
        (dict(attention_dilation=()), "attention_dilation=.* at least 1"),
        (dict(dilated_heads=3), "dilated_heads=3: must be from 0 to config.model.num_heads=2"),
    ],
)
def test_a_dilation_is_a_distance_of_some_heads(values, message):
    config = configs.experiment(
        model=dict(name="longformer", **SIZES, **values),
        task=dict(name="masked_lm", phases=((1.0, 64, 4),), next_sentence=0.0),
    )
    with pytest.raises(UserError, match=message):
        build_model(config)


@pytest.mark.full
def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(tmp_path):
    run = tmp_path / "run"
    convert.from_hf(make.FOLDER, run)
    task, params = open_run(run)
    assert task.model.attention_window == (4, 8)
    expected = np.load(make.FOLDER / "expected.npz")
    filled = expected["filled"] > 0
    states = apply(
        task.model,
        {"params": params},
        expected["ids"],
        segment_ids=expected["filled"],
        global_positions=expected["global_positions"],
        method="layers",
    )
    states = np.asarray(states)
    logits = np.asarray(apply(task.model, {"params": params}, states[-1], method="logits"))
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)

    convert.to_hf(run, tmp_path / "back")
    convert.from_hf(tmp_path / "back", tmp_path / "again")
    again, other_params = open_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, params, other_params)
    assert configs.differences(task.config, again.config) == []


@pytest.mark.full
def test_a_run_begins_with_roberta_by_repeating_positions(tmp_path):
    """Global tokens begin with the projections of all tokens (section 5)."""
    earlier = tmp_path / "roberta"
    convert.from_hf(HERE / "RobertaForMaskedLM", earlier)
    _, roberta = open_run(earlier)
    sizes = dict(d_model=16, num_layers=2, num_heads=4, d_ff=40, vocab_size=271)
    vocab_size = len(roberta["token_embed"]["embedding"])
    sizes |= dict(max_length=100, attention_window=(8,), vocab_size=vocab_size)
    config = configs.experiment(
        model=dict(name="longformer", **sizes),
        task=dict(name="masked_lm", phases=((1.0, 64, 4),), next_sentence=0.0),
        init_from=str(earlier),
        data=dict(tokenizer_files=str(earlier / "tokenizer")),
    )
    run = resolve(config, tmp_path / "longformer")
    task = run.task()
    program = Program.of(run.config, task, jax.devices()[:1])
    params = flax.linen.unbox(jax.jit(task.init)(jax.random.key(0)))
    params = run.origin.params(run.config, program, params)
    # An update takes the memory of each.
    leaves = jax.tree.leaves(params)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    params = jax.device_get(params)
    table, stored = (np.asarray(each["position_embed"]["embedding"]) for each in (params, roberta))
    count = len(stored) - 2
    for position in (0, 45, 46, 99):
        np.testing.assert_array_equal(table[2 + position], stored[2 + position % count])
    attention = params["encoder"]["layers"]["attention"]
    for name in ("query", "key", "value"):
        for kind in ("kernel", "bias"):
            np.testing.assert_array_equal(attention[f"global_{name}"][kind], attention[name][kind])
            np.testing.assert_array_equal(
                attention[name][kind], roberta["encoder"]["layers"]["attention"][name][kind]
            )


def test_a_run_with_a_dilation_has_no_published_checkpoint(tmp_path):
    run = tmp_path / "run"
    convert.from_hf(make.FOLDER, run)
    path = run / "config.json"
    content = path.read_text()
    assert '"attention_dilation"' in content
    saved = json.loads(content)
    saved["config"]["model"]["attention_dilation"] = [1, 2]
    path.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="attention_dilation=.*has no dilated windows"):
        convert.to_hf(run, tmp_path / "back")


@pytest.mark.parametrize("window", [(7,), (0,), (8, 3)])
def test_a_window_is_even(window):
    config = configs.experiment(
        model=dict(name="longformer", **SIZES, attention_window=window),
        task=dict(name="masked_lm", phases=((1.0, 64, 4),), next_sentence=0.0),
    )
    with pytest.raises(UserError, match="attention_window.*must be even"):
        build_model(config)


def test_a_checkpoint_with_another_kind_of_window_is_refused(tmp_path):
    folder = copied("LongformerForMaskedLM", tmp_path / "hf", attention_window="wide")
    refused(folder, tmp_path, "attention_window")
