"""Longformer: windows, global tokens, and a run that begins with RoBERTa."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conversion.checkpoints import CLOSE, copied, refused
from tests.fixtures import make_huggingface_longformer as make
from tests.fixtures.make_huggingface import HERE
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError, build_model
from transformer_jax.models.longformer import Longformer
from transformer_jax.models.roberta import RoBERTa
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import resolve
from transformer_jax.training.program import Program

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


@pytest.fixture(scope="module")
def longformer():
    """A model with windows of 8 tokens, its parameters and two rows of packed examples."""
    model = Longformer(**SIZES, attention_window=(8,))
    tokens = jax.random.randint(jax.random.key(0), (2, LENGTH), 0, 50)
    segments = jnp.where(jnp.arange(LENGTH) < jnp.array([[LENGTH], [250]]), 1, 0)
    segments = segments + (jnp.arange(LENGTH) >= 120) * segments
    return model, model.init(jax.random.key(1), tokens)["params"], tokens, segments


def hidden(model, params, tokens, **options):
    run = jax.jit(lambda *arrays, **options: model.apply(*arrays, method="hidden", **options))
    return np.asarray(run({"params": params}, tokens, **options))


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
    other = tokens.at[:, 60].set((tokens[:, 60] + 1) % 50)
    changed = {}
    for name, positions in (("none", [-1, -1]), ("global", [60, -1]), ("far", [200, -1])):
        options = dict(segment_ids=segments, global_positions=jnp.array([positions] * 2))
        before, after = (hidden(one_layer, params, x, **options) for x in (tokens, other))
        changed[name] = (before != after).any(axis=-1) & np.asarray(segments > 0)
    assert changed["none"][:, 56:65].all() and changed["none"].sum() == 2 * 9
    # It is seen by its own example alone. One of another example sees neither.
    assert changed["global"][:, :120].all() and not changed["global"][:, 120:].any()
    np.testing.assert_array_equal(changed["far"], changed["none"])


def test_a_checkpoint_gives_the_published_outputs_and_is_written_unchanged(tmp_path):
    run = tmp_path / "run"
    convert.from_hf(make.FOLDER, run)
    task, params = open_run(run)
    assert task.model.attention_window == (4, 8)
    expected = np.load(make.FOLDER / "expected.npz")
    filled = expected["filled"] > 0
    states = task.model.apply(
        {"params": params},
        expected["ids"],
        segment_ids=expected["filled"],
        global_positions=expected["global_positions"],
        method="layers",
    )
    logits = np.asarray(task.model.apply({"params": params}, states[-1], method="logits"))
    np.testing.assert_allclose(states[:, filled], expected["hidden"][:, filled], **CLOSE)
    np.testing.assert_allclose(logits[filled], expected["logits"][filled], **CLOSE)

    convert.to_hf(run, tmp_path / "back")
    convert.from_hf(tmp_path / "back", tmp_path / "again")
    again, other_params = open_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, params, other_params)
    assert configs.differences(task.config, again.config) == []


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
    params = flax.linen.unbox(task.init(jax.random.key(0)))
    params = run.origin.params(run.config, program, params)
    # An update takes the memory of each.
    leaves = jax.tree.leaves(params)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
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
