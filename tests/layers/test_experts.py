"""Experts: which positions each of them computes, the sum of its outputs, and their devices."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.jitted import Jitted
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.layers import activations, parameters
from transformer_jax.layers.experts import Experts, capacity
from transformer_jax.layers.low_rank import is_matrix
from transformer_jax.planning import estimate, hlo
from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

LENGTH, WIDTH, D_FF, COUNT = 12, 8, 16, 4
X = np.random.default_rng(1).normal(size=(3, LENGTH, WIDTH)).astype(np.float32)


@functools.cache
def layer(per_token=2, factor=None):
    """Returns a layer, and parameters with which its experts are far from equally frequent."""
    init = nn.initializers.normal(1.0)
    module = Jitted(Experts(D_FF, COUNT, per_token, factor, jax.nn.silu, init, jnp.float32))
    return module, jax.device_get(nn.unbox(module.init(jax.random.key(0), X)))


def trained(module, params, x):
    """Returns the outputs in a training with the loss of balance."""
    return module.apply(params, x, train=True, mutable=["losses"])[0]


# The references compute with NumPy.


def chosen_experts(params, x, per_token: int):
    """Returns the experts of each position, the most probable first, and all probabilities."""
    exponentials = np.exp(x @ params["params"]["router"])
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return np.argsort(-probabilities, axis=-1)[..., :per_token], probabilities


def expert(params, x, number: int):
    """Returns the outputs of one expert for vectors."""
    wi, wv, wo = (params["params"][name]["kernel"][number] for name in ("wi", "wv", "wo"))
    hidden = x @ wi
    return (hidden / (1 + np.exp(-hidden)) * (x @ wv)) @ wo


@pytest.mark.parametrize("per_token", [1, 2, COUNT])
def test_an_output_is_the_weighted_sum_of_the_chosen_experts(per_token):
    module, params = layer(per_token)
    chosen, probabilities = chosen_experts(params, X, per_token)
    every = np.stack([expert(params, X, number) for number in range(COUNT)], axis=2)
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    if per_token > 1:
        weights /= weights.sum(axis=-1, keepdims=True)
    expected = (np.take_along_axis(every, chosen[..., None], axis=2) * weights[..., None]).sum(2)
    for train in (False, True):
        found, _ = module.apply(params, X, train=train, mutable=["losses"])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_an_expert_computes_the_first_positions_up_to_its_limit():
    module, params = layer(1, 0.5)
    room = capacity(LENGTH, COUNT, 1, 0.5)
    assert room == 2
    chosen, probabilities = chosen_experts(params, X, 1)
    found = np.asarray(trained(module, params, X))
    left_out = 0
    for row in range(len(X)):
        counts = [0] * COUNT
        for position, (number,) in enumerate(chosen[row]):
            counts[number] += 1
            expected = np.zeros(WIDTH)
            if counts[number] <= room:
                weight = probabilities[row, position, number]
                expected = weight * expert(params, X[row, position], number)
            else:
                left_out += 1
            np.testing.assert_allclose(found[row, position], expected, rtol=1e-4, atol=1e-4)
    assert left_out > 3
    # Without the loss of balance, nothing is left out, in training or not.
    for train in (False, True):
        assert np.abs(np.asarray(module.apply(params, X, train=train))).min(axis=-1).all()


def test_a_limit_leaves_earlier_positions_and_other_rows_unchanged():
    module, params = layer(2, 1.0)
    changed = X.copy()
    changed[1, 7] *= -1
    before, after = (np.asarray(trained(module, params, x)) for x in (X, changed))
    differs = np.abs(before - after).max(axis=-1) > 0
    assert differs[1, 7] and not differs[1, :7].any() and not differs[[0, 2]].any()


@pytest.mark.parametrize(
    "factor, expected", [(None, 12), (1.0, 6), (1.25, 8), (0.1, 1), (100.0, 12)]
)
def test_the_capacity_is_relative_to_an_equal_share(factor, expected):
    assert capacity(LENGTH, COUNT, 2, factor) == expected


def test_the_loss_of_balance_is_that_of_shares_and_probabilities():
    module, params = layer()
    chosen, probabilities = chosen_experts(params, X, 2)
    shares = np.stack([(chosen == number).mean(axis=(1, 2)) for number in range(COUNT)], axis=1)
    expected = COUNT * (shares * probabilities.mean(axis=1)).sum()
    _, kept = module.apply(params, X, train=True, mutable=["losses"])
    assert float(parameters.sown_losses(kept)["balance"]) == pytest.approx(expected, rel=1e-5)
    _, kept = module.apply(params, X, mutable=["losses"])
    assert not kept
    # All experts equally probable: the loss of each row is its smallest value.
    equal = jax.tree.map(np.zeros_like, params)
    _, kept = module.apply(equal, X, train=True, mutable=["losses"])
    assert float(parameters.sown_losses(kept)["balance"]) == pytest.approx(len(X))


# --------------------------------------------------------------------------------------------------
# Training.


def build(folder, mesh=(), **model):
    """Returns the config of a tiny decoder with four experts."""
    gpt = build_gpt(folder)
    sizes = dict(vocab_size=300, d_model=32, d_ff=48, num_layers=2, num_heads=2, max_length=64)
    config = configs.experiment(
        model=dict(name="decoder", num_experts=4, **sizes, **model),
        task=dict(name="causal_lm", length=32),
        data=gpt.data.to_dict(),
        train=gpt.train.to_dict(),
        optimizer=dict(learning_rate=1e-2, warmup_steps=10),
        mesh=dict(mesh),
    )
    configs.validate(config)
    return config


MESHES = [
    dict(data=2, expert=4),
    dict(fsdp=2, expert=2, tensor=2),
    dict(expert=2, sequence=2, data=2),
]
# A loss of balance that is as large as that of tokens.
BALANCED = dict(capacity_factor=1.25, balance=5.0)


@pytest.mark.sample("0")
@pytest.mark.parametrize("mesh", MESHES, ids=["0", "1", "2"])
def test_losses_do_not_depend_on_the_mesh(mesh, tmp_path):
    expected, _ = losses(build(tmp_path, **BALANCED))
    found, _ = losses(build(tmp_path, mesh, **BALANCED), devices=8)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("train", [dict(accumulation=4), dict(accumulation=2)])
def test_losses_do_not_depend_on_the_microbatches(train, tmp_path):
    expected, _ = losses(build(tmp_path, **BALANCED))
    config = build(tmp_path, **BALANCED)
    configs.set_key(config, "train.accumulation", train["accumulation"])
    np.testing.assert_allclose(losses(config)[0], expected, rtol=1e-5)


def test_recomputed_layers_save_the_products_of_experts(tmp_path):
    """With "dots", a backward pass repeats the scores of attention, and no product of experts."""

    def flops(remat):
        task = make_task(build(tmp_path, remat=remat))
        params = nn.unbox(jax.eval_shape(task.init, jax.random.key(0)))
        batch = {name: jnp.zeros((4, 32), jnp.int32) for name in ("tokens", "labels", "weights")}

        def total(params):
            context = Context(train=True, rng=jax.random.key(0))
            return sum(task.loss(params, batch, context).terms.values())

        return estimate.flops(jax.grad(total), params)

    none, dots, full = map(flops, ("none", "dots", "full"))
    assert 0 <= dots - none < 0.2 * (full - none)


def test_experts_have_no_adapters(tmp_path):
    task = make_task(build(tmp_path))
    leaves = jax.tree_util.tree_leaves_with_path(parameters.traits(task.param_shapes))
    adapted = {"/".join(parameters.names(path)) for path, leaf in leaves if is_matrix(leaf)}
    layer = "decoder/layers"
    assert f"{layer}/attention/query/kernel" in adapted
    assert not adapted & {f"{layer}/mlp/{name}/kernel" for name in ("wi", "wv", "wo")}


def test_activations_of_experts_are_read(tmp_path):
    task = make_task(build(tmp_path))
    params = nn.unbox(jax.jit(task.init)(jax.random.key(0)))
    names = activations.names(task.model, params, np.zeros((2, 8), np.int32))
    assert {"decoder/layers/mlp/probabilities", "decoder/layers/mlp/hidden"} < {*names}


def test_the_router_is_float32_in_decoding(tmp_path):
    task = make_task(build(tmp_path, dtype="bfloat16"))
    params = nn.unbox(jax.jit(task.init)(jax.random.key(0)))
    (layer, _) = task.model.for_decoding(params)["decoder"]["layers"]["mlp"]["router"]
    assert layer.dtype == jnp.float32


def test_a_pipeline_refuses_experts(tmp_path):
    config = build(tmp_path, dict(pipeline=2, data=1))
    configs.set_key(config, "train.accumulation", 2)
    with pytest.raises(UserError, match="keeps losses, as layers with experts do"):
        losses(config, devices=2)


def test_devices_exchange_positions_and_hold_their_own_experts(tmp_path):
    config = build(tmp_path, dict(data=1, expert=4), capacity_factor=1.0)
    program = Program.of(config, make_task(config), jax.devices()[:4])
    kernel = program.state.params["decoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 1, 32, 48)
    text = program.train_step.lower(program.state, program.batch).compile().as_text()
    # Positions are exchanged, gradients are summed, and nothing else is sent.
    assert {*hlo.summary(hlo.collectives(text, 4))} == {"all-reduce", "all-to-all"}


def test_the_loss_of_balance_is_added_and_logged(tmp_path):
    config = build(tmp_path)
    task = make_task(config)
    assert task.coefficients == {"loss": 1.0, "balance": 0.02}
    batch = next(
        trainer.stream(
            task.rows().train.batch,
            8,
            1,
            Program.of(config, task, jax.devices()[:1]).batch_sharding,
            range(1),
        )
    )
    # The denominators are those of the whole batch, which has an axis of microbatches.
    assert task.weights(batch)["balance"] == 8
    batch = jax.tree.map(lambda x: x[0], batch)
    params = nn.unbox(jax.jit(task.init)(jax.random.key(0)))
    loss = jax.jit(
        lambda params: task.loss(params, batch, Context(train=True, rng=jax.random.key(1)))
    )(params)
    value, rows = loss.metrics["balance"]
    assert rows == 8 and value == loss.terms["balance"]
    # Small initial weights choose nearly at random.
    assert 1 <= value / rows < 1.2
    evaluated = jax.jit(lambda params: task.loss(params, batch, Context()))(params)
    assert {*evaluated.terms} == {"loss"} and "balance" not in evaluated.metrics


def test_more_experts_for_a_token_than_there_are_is_refused(tmp_path):
    with pytest.raises(UserError, match="experts_per_token=5: must be at most .*num_experts=4"):
        make_task(build(tmp_path, experts_per_token=5))
