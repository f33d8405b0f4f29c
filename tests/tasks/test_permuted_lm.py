"""Permuted language modelling: its rows, its memory, its scores, and its limits."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data import permuted_rows
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step, trainer
from transformer_jax.training.step import Program

LENGTH = 24


def build(folder, **changes):
    config = configs.experiment(
        model=dict(name="xlnet", vocab_size=80, d_model=16, num_layers=1, num_heads=2, dropout=0.0),
        task=dict(name="permuted_lm", length=LENGTH),
    )
    other = build_bert(folder)
    for section in ("data", "train", "optimizer", "checkpoint", "decode"):
        config[section] = other[section]
    for key, value in changes.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def test_one_token_in_six_is_a_target():
    random = np.random.default_rng(0)
    counts = []
    for length in (16, 100, 512):
        for _ in range(20):
            targets = permuted_rows.span_targets(length, random)
            assert (np.diff(targets) > 0).all() and 0 <= targets[0] and targets[-1] < length
            assert len(targets) <= permuted_rows.num_targets(length) == -(-length // 6)
            counts.append(len(targets) / length)
    assert 1 / 6.5 < np.mean(counts) < 1 / 4.5
    long = np.diff(permuted_rows.span_targets(10_000, random))
    assert 0.5 < (long == 1).mean() < 0.8  # spans of three on average


def test_rows_are_two_texts_with_an_order(tmp_path):
    task = make_task(build(tmp_path))
    rows = task.rows().train
    batch = rows.batch(0, range(8))
    assert {name: array.shape for name, array in batch.items()} == {
        name: spec.shape for name, spec in task.batch_spec(0).items()
    }
    cls, sep = task.tokenizer.cls_id, task.tokenizer.sep_id
    for name, again in rows.batch(0, range(8)).items():
        np.testing.assert_array_equal(again, batch[name])
    stored = rows.phases[0].components[0].stored
    (text,) = stored.read([(0, stored.meta["tokens"])])
    continued = 0
    for number in range(8):
        row = {name: array[number] for name, array in batch.items()}
        first = int((row["token_types"] == 0).sum()) - 1
        assert row["tokens"][[first, -2, -1]].tolist() == [sep, sep, cls]
        assert np.flatnonzero(np.diff(row["token_types"])).tolist() == [first, LENGTH - 2]
        whole = np.concatenate([row["tokens"][:first], row["tokens"][first + 1 : -2]])
        windows = np.lib.stride_tricks.sliding_window_view(text, len(whole))
        continued += (windows == whole).all(axis=1).any()
        targets = row["target_positions"][row["target_weights"] > 0]
        assert len(targets) and not task.tokenizer.special[row["tokens"][targets]].any()
        permuted = np.flatnonzero(row["ranks"])
        assert set(permuted) == {*targets, first, LENGTH - 2, LENGTH - 1}
        assert sorted(row["ranks"][permuted]) == [*range(1, len(permuted) + 1)]
    assert 0 < continued < 8


def test_rows_with_a_memory_follow_each_other(tmp_path):
    task = make_task(build(tmp_path, model__memory_length=LENGTH))
    rows = task.rows().train
    assert rows.phases[0].num_segments > 2
    half = LENGTH // 2
    before, after = (rows.batch(step, range(8)) for step in range(2))
    (component,) = rows.phases[0].components
    for index in range(8):
        _, number, epoch = rows.numbers(0, [index])[0]
        ((start, _), _) = component._spans(
            number * half + component._offset(epoch), np.random.default_rng(0)
        )
        (text,) = component.stored.read([(start, start + 2 * half)])
        np.testing.assert_array_equal(before["tokens"][index, :half], text[:half])
        np.testing.assert_array_equal(after["tokens"][index, :half], text[half:])
    assert before["restarts"].all() and not after["restarts"].any()
    assert task.rows().eval["valid"].order == "stream"


def test_the_loss_is_that_of_the_targets_and_a_restart_empties_the_memory(tmp_path):
    task = make_task(build(tmp_path, model__memory_length=LENGTH, model__num_layers=2))
    params = step.init_params(task)
    assert set(params) == {"token_embed", "target_embed", "encoder", "output_bias"}
    batch = task.rows().train.batch(0, range(8))
    loss = jax.jit(lambda batch, carry: task.loss(params, batch, Context(carry=carry)))
    empty = loss(batch, task.initial_carry(8))
    random = jax.tree.map(lambda x: x + 1, task.initial_carry(8))
    restarted = loss(batch, random)
    assert restarted.terms["loss"] == empty.terms["loss"]
    continued = loss(batch | {"restarts": 0 * batch["restarts"]}, random)
    assert continued.terms["loss"] != empty.terms["loss"]
    half = LENGTH // 2
    assert np.asarray(empty.carry[1]).sum(axis=1).tolist() == [half] * 8
    # The next row predicts the second half, so the memory knows nothing of it.
    is_second = np.arange(LENGTH) >= half
    other = np.where(is_second, (batch["tokens"] + 1) % 80, batch["tokens"])
    changed = loss(batch | {"tokens": other}, task.initial_carry(8))
    assert changed.terms["loss"] != empty.terms["loss"]
    jax.tree.map(np.testing.assert_array_equal, changed.carry, empty.carry)
    mean = empty.terms["loss"] / task.weights(batch)["loss"]
    assert mean == pytest.approx(np.log(80), abs=0.5)
    scores = task.evaluate(params, "valid")
    assert scores.keys() == {"loss", "accuracy", "perplexity", "rows"}
    assert scores["loss"] == pytest.approx(np.log(80), abs=0.5)


@pytest.mark.full
def test_one_batch_can_be_overfitted(tmp_path):
    changes = dict(model__d_model=32, model__init_std=0.1, optimizer__warmup_steps=10)
    config = build(tmp_path, **changes, train__num_steps=150)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    current = step.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    means = []
    for _ in range(150):
        current = current.replace(metrics=step.zeros(program.state.metrics))
        current = program.train_step(current, batch)
        measured = jax.device_get(current.metrics)
        means.append({name: float(total / count) for name, (total, count) in measured.items()})
    assert means[0]["loss"] > 3 and means[-1]["loss"] < 0.5 and means[-1]["accuracy"] > 0.9


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(task__length=8), "config.task.length=8: must be at least 16"),
        (dict(model__memory_length=-1), "config.model.memory_length=-1: must be at least 0"),
        (dict(mesh__sequence=2), "config.mesh.sequence=2: permuted_lm does not split rows"),
        (
            dict(model__memory_length=8, train__first_batch=4, train__ramp_steps=2),
            "config.train.first_batch=4: not with config.model.memory_length",
        ),
        (dict(task__length=10_000), "a row needs 9,997 .config.task.length=10000."),
        (dict(data__tokenizer="bpe"), "needs a tokenizer with the special tokens cls, sep"),
    ],
)
def test_a_mistake_is_one_line(changes, words, tmp_path):
    with pytest.raises(UserError, match=f"^[^\n]*{words}[^\n]*$"):
        make_task(build(tmp_path, **changes)).rows()


def test_a_model_without_an_order_is_refused(tmp_path):
    config = build_bert(tmp_path)
    config.task = build(tmp_path).task
    with pytest.raises(UserError, match="'bert': predicts no tokens in a permuted order"):
        make_task(config)
