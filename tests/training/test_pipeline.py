"""Stages of layers on a mesh: the losses of one device, neighbors that exchange hidden states."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_bert, build_config, build_gpt
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers.blocks import Stack
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import declared
from transformer_jax.layers.pipeline import bubble
from transformer_jax.planning import estimate, hlo
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

GPT = dict(
    model__num_layers=4, model__dropout=0.0, model__attention_dropout=0.0, task__sample_tokens=0
)
PIPELINE = dict(mesh__pipeline=4, mesh__data=2)
WITH_OTHERS = dict(mesh__pipeline=2, mesh__fsdp=2, mesh__tensor=2)
NO_DROPOUT = dict(model__dropout=0.0, model__attention_dropout=0.0)
MODELS = {
    "gpt": (build_gpt, GPT),
    "bert": (build_bert, NO_DROPOUT | dict(model__num_layers=4)),
    # Rows with several sentence pairs, cross-attention, and two stacks.
    "encoder_decoder": (
        build_config,
        dict(model__num_encoder_layers=4, model__num_decoder_layers=4, model__dropout=0.0),
    ),
}


@pytest.mark.sample("gpt-mesh0")
@pytest.mark.parametrize(
    "model, mesh",
    [
        ("gpt", PIPELINE),
        ("gpt", WITH_OTHERS),
        ("bert", PIPELINE),
        ("bert", WITH_OTHERS),
        # Not with the others: XLA on CPU starts the collectives of the encoder and those of the
        # decoder's embedding in another order on each virtual device, which may never end.
        ("encoder_decoder", PIPELINE),
    ],
    ids=["gpt-mesh0", "gpt-mesh1", "bert-mesh0", "bert-mesh1", "encoder_decoder-mesh0"],
)
def test_the_losses_are_those_of_one_device(model, mesh, tmp_path):
    build, keys = MODELS[model]
    keys = keys | dict(train__batch=16)
    expected, _ = losses(build(tmp_path, **keys))
    config = build(tmp_path, **keys, **mesh, train__accumulation=8)
    np.testing.assert_allclose(losses(config, devices=8)[0], expected, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("keys", [dict(model__remat="full"), dict(model__local_window=8)])
def test_recomputed_layers_and_windows(keys, tmp_path):
    expected, _ = losses(build_gpt(tmp_path, **GPT, **keys))
    config = build_gpt(tmp_path, **GPT, **keys, **PIPELINE, train__accumulation=4)
    np.testing.assert_allclose(losses(config, devices=8)[0], expected, rtol=1e-5)


def test_dropout_differs_by_stage_and_group(tmp_path):
    """Runs with other seeds of dropout differ from each other, and are near one without dropout."""
    keys = GPT | PIPELINE | dict(train__batch=16, train__accumulation=4)
    plain, _ = losses(build_gpt(tmp_path, **keys), devices=8)
    keys = keys | dict(model__dropout=0.1)
    first, _ = losses(build_gpt(tmp_path, **keys, train__dropout_seed=0), devices=8)
    second, _ = losses(build_gpt(tmp_path, **keys, train__dropout_seed=1), devices=8)
    assert first != second
    np.testing.assert_allclose(first, plain, rtol=0.05)


def test_each_stage_and_group_draws_its_own_part():
    mesh_config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh=dict(pipeline=2, data=2)
    ).mesh
    mesh, table = sharding.make_mesh(mesh_config, jax.devices()[:4]), sharding.rules(mesh_config)

    def on_group(group):
        with sharding.within_group(group, 2):
            return jax.vmap(lambda key: sharding.draw_rows(jax.random.normal, key, (3, 5)))(keys)

    @jax.jit
    def drawn():
        with sharding.use(mesh, table):
            return jax.vmap(on_group)(jnp.arange(2))

    keys = jax.random.split(jax.random.key(0), 2)  # of two stages
    whole = jax.vmap(lambda key: jax.random.normal(key, (6, 5)))(keys)
    np.testing.assert_array_equal(drawn(), jnp.moveaxis(whole.reshape(2, 2, 3, 5), 1, 0))


class Direction(nn.Module):
    """A layer whose derivative at zero is not finite."""

    @nn.compact
    def __call__(self, x, *, mask, train):
        scale = self.param("scale", declared(nn.initializers.ones, ("norm",)), (x.shape[-1],))
        return x + scale * x / jnp.linalg.norm(x, axis=-1, keepdims=True)


class Table(nn.Module):
    """A layer that adds a row to all rows, or another one to each."""

    @nn.compact
    def __call__(self, x, table, *, mask, train):
        scale = self.param("scale", declared(nn.initializers.ones, ("norm",)), (x.shape[-1],))
        return x + scale * table


def stacked(block, *args, stages: int):
    """Returns the sum of the outputs of four layers, and its gradients."""
    mesh_config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh=dict(pipeline=stages)
    ).mesh
    mesh = sharding.make_mesh(mesh_config, jax.devices()[:stages])
    stack = Stack((block,), 4)
    x = jax.random.normal(jax.random.key(1), (8, 3, 6))
    params = nn.unbox(stack.init(jax.random.key(0), x, *args, mask=Mask()))

    def total(params):
        with sharding.use(mesh, sharding.rules(mesh_config)):
            return jnp.square(stack.apply(params, x, *args, mask=Mask())).sum()

    return jax.jit(jax.value_and_grad(total))(params)


def test_stages_without_a_microbatch_leave_gradients_finite():
    expected, found = (stacked(Direction, stages=stages) for stages in (1, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_layers_read_one_row_for_all_or_one_for_each():
    for rows in (1, 8):
        table = jax.random.normal(jax.random.key(2), (rows, 3, 6))
        expected, found = (stacked(Table, table, stages=stages) for stages in (1, 4))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    with pytest.raises(UserError, match=r"layers read an array \(3, 6\), which has not one row"):
        stacked(Table, table[0], stages=4)


@pytest.mark.parametrize(
    "rule, message",
    [
        (("layers", ("fsdp",)), "layers are split over pipeline alone"),
        (("batch", ("data", "fsdp")), "the axes of batch and lookup must contain pipeline"),
    ],
)
def test_rules_that_a_pipeline_can_not_follow(rule, message):
    mesh = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh=dict(pipeline=2, rules=(rule,))
    ).mesh
    with pytest.raises(UserError, match=message):
        sharding.rules(mesh)


def sent(folder, accumulation: int):
    """Returns the collectives of an update with so many microbatches, and the parameters."""
    config = build_gpt(folder, **GPT, **PIPELINE, train__batch=16, train__accumulation=accumulation)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:8])
    compiled = program.train_step.lower(program.state, program.batch).compile()
    return hlo.summary(hlo.collectives(compiled.as_text(), 8)), program.state.params


def test_stages_send_to_their_neighbors_and_gradients_cross_data_once(tmp_path):
    four, params = sent(tmp_path, 4)
    eight, _ = sent(tmp_path, 8)
    assert {*four} == {*eight} == {"all-reduce", "collective-permute"}
    # Gradients do not cross the axis data for each microbatch, but hidden states go on for each.
    assert four["all-reduce"] == eight["all-reduce"]
    assert eight["collective-permute"]["count"] > four["collective-permute"]["count"]
    layers = estimate.bytes_per_device(params["decoder"])  # a quarter of them
    others = estimate.bytes_per_device(params) - layers
    # Embeddings and the last norm are on all stages, whose gradients are summed as well. Losses and
    # norms are the rest.
    assert layers + others <= eight["all-reduce"]["bytes"] < layers + 3 * others + 2000


def test_a_run_goes_on_without_stages(tmp_path):
    """The metrics of the first update after the checkpoint are those of one device."""
    keys = GPT | dict(train__batch=16, train__accumulation=4, train__eval_every=2)
    keys |= dict(checkpoint__every=2, train__log_every=1)

    def trained(folder, **changes):
        config = build_gpt(tmp_path / "text", **keys, **changes)
        return run(config, make_task(config), tmp_path / folder)

    others = dict(mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    trained("stages", **PIPELINE, train__num_steps=2)
    resumed = trained("stages", **others, train__num_steps=4)
    whole = trained("whole", **others, train__num_steps=4)
    assert resumed["valid/loss"] == pytest.approx(whole["valid/loss"], rel=1e-4)


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(train__accumulation=1), "pipeline=4 does not divide config.train.accumulation=1"),
        (dict(train__accumulation=4, model__num_layers=3), "pipeline=4 does not divide 3"),
        (dict(train__accumulation=16), "config.mesh.data=2 does not divide 1"),
    ],
)
def test_what_can_not_be_divided_is_named(keys, message, tmp_path):
    config = build_gpt(tmp_path, **GPT | PIPELINE | dict(train__batch=16) | keys)
    with pytest.raises(UserError, match=message):
        Program.of(config, make_task(config), jax.devices()[:8])


def test_a_model_without_a_stack_is_refused(tmp_path):
    data = build_gpt(tmp_path).data.to_dict()
    config = configs.experiment(
        model=dict(name="recurrent", vocab_size=300, d_model=16, num_layers=4),
        task=dict(name="causal_lm", length=32),
        data=data,
        train=dict(num_steps=2, batch=16, accumulation=4),
        mesh=dict(pipeline=4, data=2),
    )
    with pytest.raises(UserError, match="config.mesh.pipeline=4: is for models whose layers are"):
        losses(config, devices=8)


def test_the_bubble_of_a_plan():
    assert bubble(1, 8) == 0
    assert bubble(4, 8) == pytest.approx(3 / 11)
