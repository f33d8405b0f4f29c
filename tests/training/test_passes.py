"""Experience and several passes over it: a bandit that learns from its own actions."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import build_gpt
from tests.training.test_loop import lines, resumed_bit_equal
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Loss
from transformer_jax.data import rows
from transformer_jax.layers.parameters import declared
from transformer_jax.objectives.texts import BaseTask
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

ACTIONS = 4


class Contexts:
    """Rows of numbers; the best action is the index of the largest one."""

    def __len__(self):
        return 64

    def rows(self, numbers):
        return [
            {"context": np.random.default_rng(key).normal(size=ACTIONS).astype(np.float32)}
            for key in numbers
        ]


@dataclasses.dataclass
class Bandit(BaseTask):
    """Proximal policy optimisation (Schulman et al. 2017, equation 7), with rewards of 0 and 1."""

    passes: tuple = (2, 2)
    poisoned: int = -1  # the number of the action whose probability is not a number

    coefficients = {"loss": 1.0}
    fingerprint = evaluate = None

    def batch_spec(self, row_shape):
        batch = self.config.train.batch
        return {"context": jax.ShapeDtypeStruct((batch, ACTIONS), jnp.float32)}

    def init(self, rng):
        kernel = declared(jax.nn.initializers.normal(0.1), ("embed", None), decays=True, inputs=1)
        return {"policy": {"kernel": kernel(rng, (ACTIONS, ACTIONS))}}

    def rows(self):
        train = rows.train_rows([Contexts()], self.config.train, self.config.data.seed)
        return types.SimpleNamespace(train=train, eval={})

    def experience(self, params, batch, context):
        scores = self.log_p(params, batch)
        action = jax.random.categorical(context.rng, scores)
        return batch | {
            "action": action,
            "old": jnp.take_along_axis(scores, action[:, None], 1)[:, 0],
            "reward": (action == batch["context"].argmax(axis=1)).astype(jnp.float32),
        }, None

    def log_p(self, params, batch):
        return jax.nn.log_softmax(batch["context"] @ params["policy"]["kernel"])

    def weights(self, batch):
        return {"loss": jnp.float32(batch["reward"].size)}

    def loss(self, params, batch, context):
        new = jnp.take_along_axis(self.log_p(params, batch), batch["action"][:, None], 1)[:, 0]
        new = jnp.where(batch["action"] == self.poisoned, jnp.nan, new)
        ratio = jnp.exp(new - batch["old"])
        gain = batch["reward"] - 1 / ACTIONS
        total = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).sum()
        count = jnp.int32(len(gain))
        metrics = {"loss": (total, count), "reward": (batch["reward"].sum(), count)}
        return Loss({"loss": total}, metrics | {"filled": (count, count)})

    def flops(self, row_shape=0):
        return 1.0

    def positions(self, row_shape=0):
        return 1


def build(folder, passes=(2, 2), **overrides):
    exact = dict(train__batch=16, train__num_steps=6, train__log_every=3, checkpoint__every=1)
    config = build_gpt(folder, **{**exact, "checkpoint__keep": 9, **overrides})
    return config, Bandit(config, None, passes=passes)


def stepped(config, task, steps=3, devices=1):
    """Returns the state after some steps, and the mean loss of each of them."""
    program = Program.of(config, task, jax.devices()[:devices])
    state = states.init(task.config, program)
    losses = []
    train = config.train
    for batch in trainer.stream(
        task.rows().train.batch,
        train.batch,
        train.accumulation,
        program.batch_sharding,
        range(steps),
    ):
        state = program.train_step(state, batch)
        total, count = state.metrics["loss"]
        losses.append(float(total) / max(float(count), 1))
        state = state.replace(metrics=jax.tree.map(jnp.zeros_like, state.metrics))
    return jax.device_get(state), losses


def counts(state):
    """Returns all counts of updates in the optimizer's state."""
    leaves = jax.tree_util.tree_leaves_with_path(state.opt_state)
    return {int(leaf) for path, leaf in leaves if "count" in str(path[-1])}


def test_updates_of_a_step_and_the_schedule(tmp_path):
    """The schedule counts updates, and reaches its end at the last update of the run."""
    config, task = build(
        tmp_path, optimizer__schedule="linear", optimizer__warmup_steps=0, train__num_steps=3
    )
    program = Program.of(config, task, jax.devices()[:1])
    state, _ = stepped(config, task)
    assert (int(state.step), int(state.updates), counts(state)) == (3, 12, {12})
    assert float(program.learning_rate(11)) < 0.1 * float(program.learning_rate(0))


@pytest.mark.full
def test_the_losses_do_not_depend_on_mesh_or_accumulation(tmp_path):
    _, losses = stepped(*build(tmp_path))
    for changes, devices in (
        (dict(mesh__fsdp=2), 2),
        (dict(train__accumulation=2), 2),
    ):
        _, others = stepped(*build(tmp_path, **changes), devices=devices)
        np.testing.assert_allclose(others, losses, atol=1e-5, rtol=0)


def test_each_pass_has_the_minibatches_of_its_own_order(tmp_path):
    """Updates by hand, with the documented keys, give the parameters of the compiled step."""
    config, task = build(tmp_path)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    apart = 2**31 - 1

    @jax.jit
    def by_hand(params, opt_state, batch):
        key = jax.random.fold_in(jax.random.key(config.train.seed), 0)
        context = types.SimpleNamespace(rng=jax.random.fold_in(key, apart))
        batch, _ = task.experience(params, batch, context)
        for epoch in range(2):
            order = jax.random.permutation(
                jax.random.fold_in(jax.random.fold_in(key, epoch), apart), 16
            )
            for part in order.reshape(2, 8):
                rows_of_part = {name: values[part] for name, values in batch.items()}
                grads = jax.grad(
                    lambda params, part: task.loss(params, part, None).terms["loss"] / 8
                )(params, rows_of_part)
                updates, opt_state = program.tx.update(grads, opt_state, params)
                params = optax.apply_updates(params, updates)
        return params

    batch = task.rows().train.batch(0, range(16))
    expected = jax.device_get(by_hand(state.params, state.opt_state, batch))
    actual, _ = stepped(config, task, steps=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), actual.params, expected)


def test_a_resumed_run_is_bit_equal_and_learns(tmp_path):
    config, task = build(tmp_path, train__num_steps=60, train__log_every=30, checkpoint__every=30)
    program = Program.of(config, task, jax.devices()[:2])
    resumed_bit_equal(config, task, program, tmp_path, [30])
    first, last = (line["train/reward"] for line in lines(tmp_path / "straight"))
    assert last > first + 0.1 and last > 0.5


def test_a_pass_that_is_not_finite_is_skipped_and_the_others_are_applied(tmp_path):
    config, task = build(tmp_path, passes=(1, 16), train__batch=16)
    task.poisoned = 2
    state, _ = stepped(config, task, steps=1)
    assert 0 < int(state.skipped) < 16 and counts(state) == {16 - int(state.skipped)}
    assert np.isfinite(state.params["policy"]["kernel"]).all() and int(state.last_skipped) == 0


def test_rows_that_the_passes_do_not_divide_are_refused_before_compiling(tmp_path):
    config, task = build(tmp_path, passes=(1, 3))
    with pytest.raises(UserError, match="16 rows can't be divided into 3 x 1 parts"):
        Program.of(config, task, jax.devices()[:1])
