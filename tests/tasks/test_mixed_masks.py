"""UniLM's pre-training: rows of four objectives, and transformers' logits under their masks."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert
from tests.conversion.checkpoints import CLOSE, read_json, weights
from tests.fixtures import make_huggingface_unilm as make
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.contracts.model import token_types
from transformer_jax.data.masking import OBJECTIVES, ranks
from transformer_jax.huggingface import family
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program, init_params

MODEL = dict(name="bert", vocab_size=80, d_model=16, num_layers=2, num_heads=2, max_length=32)


def build(folder, model=MODEL, **task):
    """Returns the config of a pre-training on documents of one sentence a line."""
    config = configs.experiment(
        model=model | dict(num_token_types=6),
        task=dict(name="mixed_masks", phases=((1.0, 24, 4),)) | task,
    )
    config.data = build_bert(folder).data
    return config


def test_a_checkpoint_has_the_logits_of_transformers_under_each_mask(tmp_path):
    """BertForMaskedLM takes a mask with four dimensions as it is. Here one batch has all masks."""
    convert.from_hf(make.FOLDER, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    expected = np.load(make.FOLDER / "expected.npz")
    is_second = np.arange(make.LENGTH) >= make.FIRST
    types = []
    for objective in OBJECTIVES:
        first, second = token_types(objective, task.model.num_token_types)
        types.append(np.where(is_second, second, first))
        np.testing.assert_array_equal(types[-1], make.types(objective))
    order = [ranks(objective, is_second) for objective in OBJECTIVES]

    @jax.jit
    def logits(tokens, types, order):
        inputs = dict(token_types=types, ranks=order)
        hidden = task.model.apply({"params": params}, tokens, **inputs, method="hidden")
        return task.model.apply({"params": params}, hidden, method="logits")

    rows = [np.repeat(values, 2, axis=0) for values in (types, order)]
    outputs = logits(np.tile(expected["ids"], (4, 1)), *rows)
    for objective, output in zip(OBJECTIVES, np.split(outputs, 4)):
        np.testing.assert_allclose(output, expected[objective], **CLOSE, err_msg=objective)

    convert.to_hf(tmp_path / "run", tmp_path / "back")
    original, written = weights(make.FOLDER), weights(tmp_path / "back")
    for name in written:
        np.testing.assert_array_equal(original[name], written[name], err_msg=name)
    assert read_json(tmp_path / "back" / "config.json")["type_vocab_size"] == 6


def test_rows_of_each_objective(tmp_path):
    task = make_task(build(tmp_path))
    (phase,) = task.rows().train.phases
    (component,) = phase.components
    (tokens,) = component.store.read([(0, component.store.meta["tokens"])])
    text = " ".join(map(str, tokens))
    batch = component.rows([(n % len(component), n) for n in range(300)])
    counts = dict.fromkeys(OBJECTIVES, 0)
    for row in batch:
        length = row["segment_ids"].sum()
        tokens, types, order = (row[key][:length] for key in ("tokens", "token_types", "ranks"))
        tokens = tokens.copy()
        masked = row["masked_weights"] > 0
        tokens[row["masked_positions"][masked]] = row["masked_labels"][masked]
        ends = np.flatnonzero(tokens == task.tokenizer.sep_id)
        objective = next(name for name in OBJECTIVES if types[0] == token_types(name, 6)[0])
        counts[objective] += 1
        is_pair = objective in ("bidirectional", "sequence_to_sequence")
        assert len(ends) == 1 + is_pair and ends[-1] == length - 1
        is_second = (np.arange(length) > ends[0]) & is_pair
        first, second = token_types(objective, 6)
        np.testing.assert_array_equal(types, np.where(is_second, second, first))
        np.testing.assert_array_equal(order, ranks(objective, is_second))
        assert row["paired"] == (objective == "bidirectional")
        if objective == "bidirectional":
            continue
        assert row["follows"] == 1
        if not is_pair:
            assert " ".join(map(str, tokens[1:-1])) in text
    shares = np.array([*counts.values()]) / 300
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=0.09)
    spec = task.batch_spec(0)
    shapes = {name: array.shape for name, array in batch[0].items()}
    assert {name: array.shape[1:] for name, array in spec.items()} == shapes
    alone = make_task(build(tmp_path, next_sentence=0.0))
    assert alone.batch_spec(0) == spec and alone.coefficients == {"mlm": 1.0}


def test_next_sentences_are_predicted_in_bidirectional_rows_alone(tmp_path):
    task = make_task(build(tmp_path))
    batch = task.rows().train.batch(0, range(8))
    assert task.weights(batch)["nsp"] == batch["paired"].sum() < 8


@pytest.mark.full
def test_a_run_begins_with_a_bert_of_two_token_types(tmp_path):
    config = build_bert(tmp_path / "bert", model__d_model=16, model__max_length=32)
    task = make_task(config)
    spec.create(tmp_path / "run", task, init_params(task))
    config = build(tmp_path)
    configs.set_key(config, "init_from", str(tmp_path / "run"))
    resolved = resolve(config, tmp_path / "unilm")
    task = resolved.task()
    program = Program.of(resolved.config, task, jax.devices()[:1])
    params = resolved.origin.params(resolved.config, program, init_params(task))
    _, before = open_run(tmp_path / "run")
    table = np.asarray(before["type_embed"]["embedding"])
    np.testing.assert_array_equal(params["type_embed"]["embedding"], table[[0, 1, 0, 0, 0, 1]])


def test_runs_are_written_as_bert(tmp_path):
    assert family.run_family(build(tmp_path)).architecture == "BertForPreTraining"


@pytest.mark.parametrize("shares", [(0.5, 0.5), (-1, 1, 1, 1), ("a", 1, 1, 1)])
def test_other_shares_are_refused(tmp_path, shares):
    with pytest.raises(UserError, match="config.task.shares=.*: must be the shares of bidirect"):
        make_task(build(tmp_path, shares=shares))
