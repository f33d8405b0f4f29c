"""A state that passes from update to update: its rows, its gradients, meshes and resume."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from tests.training import recurrent
from tests.training.test_loop import final_state, resumed_bit_equal
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program


def updated(config, task, steps, devices=1):
    """Returns the state after some updates, and the loss of each of them."""
    program = Program.of(config, task, jax.devices()[:devices])
    state = states.init(task.config, program)
    losses = []
    for batch in trainer.stream(
        task.rows().train.batch,
        config.train.batch,
        config.train.accumulation,
        program.batch_sharding,
        range(steps),
    ):
        state = program.train_step(state, batch)
        total, count = state.metrics["loss"]
        losses.append(float(total) / max(float(count), 1))
        state = state.replace(metrics=jax.tree.map(jnp.zeros_like, state.metrics))
    return jax.device_get(state), losses


def test_updates_continue_each_other(tmp_path):
    """Without learning, the losses of three updates are those of one row three times as long."""
    exact = dict(optimizer__learning_rate=1e-30, model__dropout=0.0)
    config = recurrent.build(tmp_path, **exact)
    task = make_task(config)
    state, losses = updated(config, task, 3)
    parts = [task.rows().train.batch(step, range(8)) for step in range(3)]
    whole = {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    np.testing.assert_array_equal(whole["tokens"][:, 1:], whole["labels"][:, :-1])
    assert whole["restarts"][:, 0].all() and 0 < whole["restarts"].mean() < 0.5
    loss = jitted(task.loss)(state.params, whole, Context(carry=task.initial_carry(8)))
    assert float(loss.terms["loss"]) / whole["tokens"].size == pytest.approx(np.mean(losses))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), loss.carry, state.carry)


@pytest.mark.full
def test_meshes_and_accumulation_give_each_row_its_own_carry(tmp_path):
    config = recurrent.build(tmp_path, model__dropout=0.0)
    one, losses = updated(config, make_task(config), 3)
    for changes, devices in (
        (dict(train__accumulation=4), 1),
        (dict(train__accumulation=2, mesh__data=2), 2),  # reduced once an update
        (dict(mesh__fsdp=2, mesh__tensor=2), 4),
    ):
        config = recurrent.build(tmp_path, model__dropout=0.0, **changes)
        many, of_many = updated(config, make_task(config), 3, devices)
        np.testing.assert_allclose(of_many, losses, atol=1e-5, rtol=0)
        np.testing.assert_allclose(many.carry[0], one.carry[0], atol=1e-5)


@pytest.mark.full
def test_a_run_that_stops_at_any_step_resumes_with_its_carry(tmp_path):
    """State and metrics are bit-equal to those of a straight run; evaluations read a stream."""
    last = 6
    config = recurrent.build(
        tmp_path,
        task__length=40,
        train__num_steps=last,
        train__accumulation=2,
        train__log_every=3,
        train__eval_every=3,
        checkpoint__every=1,
        checkpoint__keep=9,
    )
    task = make_task(config)
    assert task.rows().train.phases[0].num_segments < last  # the streams begin anew
    program = Program.of(config, task, jax.devices()[:2])
    expected = resumed_bit_equal(config, task, program, tmp_path, range(1, last))
    assert expected.carry[0].any(axis=-1).all()
    other = Program.of(config, task, jax.devices()[:4])  # the carry moves to another mesh
    moved = final_state(tmp_path / "straight", config, other, last)
    jax.tree.map(np.testing.assert_array_equal, moved, expected)


def test_evaluate_reads_the_text_once_as_one_stream(tmp_path):
    config = recurrent.build(tmp_path)
    task = make_task(config)
    params = states.init_params(task)
    scores = task.evaluate(params, "valid")
    assert scores["stride"] == task.length
    rows = task.rows().eval["valid"]
    parts = [rows.batch(step, [0], 1) for step in range(rows.num_batches(1))]
    whole = {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    assert whole["weights"].sum() == scores["tokens"]
    loss = jitted(task.loss)(params, whole, Context(carry=task.initial_carry(1)))
    assert float(loss.terms["loss"]) / scores["tokens"] == pytest.approx(scores["loss"])


def test_a_carry_that_is_not_finite_is_not_kept(tmp_path, monkeypatch):
    config = recurrent.build(tmp_path)
    task = make_task(config)
    before, _ = updated(config, task, 1)
    loss = type(task).loss

    def broken(self, params, batch, context):
        return loss(self, params, batch, context)._replace(
            carry=jax.tree.map(lambda x: x / 0, context.carry)
        )

    monkeypatch.setattr(type(task), "loss", broken)
    after, _ = updated(config, task, 1)
    assert (int(before.skipped), int(after.skipped)) == (0, 1)
    assert not after.carry[0].any() and before.carry[0].any()


def test_a_carry_of_another_shape_is_refused(tmp_path, monkeypatch):
    config = recurrent.build(tmp_path)
    task = make_task(config)
    loss = type(task).loss

    def half(self, params, batch, context):
        returned = loss(self, params, batch, context)
        carry = jax.tree.map(lambda x: x.astype(jnp.bfloat16), returned.carry)
        return returned._replace(carry=carry)

    monkeypatch.setattr(type(task), "loss", half)
    with pytest.raises(UserError, match=r"'causal_lm': its loss returns the carry .*bfloat16"):
        Program.of(config, task, jax.devices()[:1])


def test_a_task_with_a_carry_makes_one_pass(tmp_path, monkeypatch):
    config = recurrent.build(tmp_path)
    task = make_task(config)
    monkeypatch.setattr(type(task), "passes", (2, 1))
    with pytest.raises(UserError, match=r"'causal_lm': has a carry, so it makes one pass"):
        Program.of(config, task, jax.devices()[:1])


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(train__batch=512), "too few for a stream in each row"),
        (dict(train__first_batch=4, train__ramp_steps=2), "first_batch=4: not with"),
    ],
)
def test_rows_that_cannot_be_streams_are_refused(changes, words, tmp_path):
    config = recurrent.build(tmp_path, **changes)
    with pytest.raises(UserError, match=words):
        make_task(config).rows()


def test_a_state_without_a_carry_is_saved_as_before(tmp_path):
    config = recurrent.build(tmp_path)
    parts = {"step", "opt_state", "skipped", "last_skipped"}
    for carry, saved in ((True, parts | {"carry"}), (False, parts)):
        config.task.carry = carry
        task = make_task(config)
        state = Program.of(task.config, task, jax.devices()[:1]).state
        assert set(state.rest()) == saved
