"""The update: accumulation, meshes, non-finite values, and the schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_bert, build_gpt
from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import ring_attention
from transformer_jax.planning import hlo
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program


def losses(config, steps=3, devices=1):
    """The training loss of each of the first updates, and the last state."""
    task = make_task(config)
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
        losses.append(float(total) / float(count))
        state = state.replace(metrics=jax.tree.map(jnp.zeros_like, state.metrics))
    return losses, state


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    from tests.conftest import build_config

    folder = tmp_path_factory.mktemp("reference")
    return folder, build_config, losses(build_config(folder))[0]


def test_golden_first_losses(reference):
    """float32 on CPU. A change here is a change of the initialization, data order or model."""
    np.testing.assert_allclose(reference[2], GOLDEN, rtol=1e-5)


@pytest.mark.sample("mesh2-8")
@pytest.mark.parametrize(
    "mesh, devices",
    [
        (dict(data=8), 8),
        (dict(data=4, tensor=2), 8),
        (dict(data=2, fsdp=2, tensor=2), 8),
        (dict(fsdp=8), 8),
        (dict(data=2, tensor=2, sequence=2), 8),
    ],
)
def test_equal_losses_on_every_mesh(reference, mesh, devices):
    folder, build, expected = reference
    config = build(folder, **{f"mesh__{axis}": size for axis, size in mesh.items()})
    np.testing.assert_allclose(losses(config, devices=devices)[0], expected, atol=1e-5, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize(
    "build", [pytest.param(build_gpt, marks=pytest.mark.full), build_bert], ids=["gpt", "bert"]
)
def test_meshes_of_the_other_families(build, tmp_path):
    """Also with fsdp and tensor at once, and with split positions, gathered in such short rows."""
    exact = dict(model__dropout=0.0, model__attention_dropout=0.0, train__batch=16)
    one = losses(build(tmp_path, **exact))[0]
    for mesh in (dict(data=2, fsdp=2, tensor=2), dict(data=2, tensor=2, sequence=2)):
        axes = {f"mesh__{axis}": size for axis, size in mesh.items()}
        many = losses(build(tmp_path, **exact, **axes), devices=8)[0]
        np.testing.assert_allclose(one, many, atol=1e-5, rtol=0)


@pytest.mark.full
def test_equal_losses_with_ring_attention(tmp_path, monkeypatch):
    """In groups of rows and in recomputed layers, of which every second has a window."""
    monkeypatch.setattr(ring_attention, "_TILE", 16)
    config = dict(
        model__dropout=0.0,
        model__attention_dropout=0.0,
        model__max_length=128,
        model__local_window=40,
        model__remat="full",
        task__length=128,
        train__accumulation=2,
    )
    one = losses(build_gpt(tmp_path, **config))[0]
    mesh = dict(mesh__data=2, mesh__tensor=2, mesh__sequence=2)
    many = losses(build_gpt(tmp_path, **config, **mesh), devices=8)[0]
    np.testing.assert_allclose(one, many, atol=1e-5, rtol=0)


@pytest.mark.full
def test_dropout_does_not_depend_on_the_mesh(reference):
    folder, build, _ = reference
    one = losses(build(folder, model__dropout=0.2))[0]
    many = losses(build(folder, model__dropout=0.2, mesh__data=4, mesh__tensor=2), devices=8)[0]
    np.testing.assert_allclose(one, many, atol=1e-5, rtol=0)


@pytest.mark.full
def test_dropout_does_not_depend_on_a_mesh_that_splits_the_length(tmp_path):
    """Causal attention has two blocks of queries, each with its own mask."""
    config = dict(
        model__attention_dropout=0.2, model__dropout=0.0, model__max_length=128, task__length=128
    )
    one = losses(build_gpt(tmp_path, **config), steps=1)[0]
    split = build_gpt(tmp_path, **config, mesh__data=4, mesh__sequence=2)
    many = losses(split, steps=1, devices=8)[0]
    np.testing.assert_allclose(one, many, atol=1e-6, rtol=0)


@pytest.mark.full
def test_dropout_does_not_depend_on_the_mesh_with_accumulation(tmp_path):
    """Each group of rows uses its part of the mask of the microbatch."""
    config = dict(model__dropout=0.2, train__batch=16, train__accumulation=2)
    one = losses(build_gpt(tmp_path, **config), steps=2)[0]
    mesh = dict(mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    many = losses(build_gpt(tmp_path, **config, **mesh), steps=2, devices=8)[0]
    np.testing.assert_allclose(one, many, atol=1e-5, rtol=0)


@pytest.mark.full
def test_gradients_cross_the_data_axis_once_an_update(tmp_path):
    """Four microbatches reduce as many bytes as one.

    With parameters that are split over "data", each microbatch has a reduction.
    """

    def reduced(**changes):
        config = build_gpt(tmp_path, model__dropout=0.2, train__batch=32, mesh__data=2, **changes)
        program = Program.of(config, make_task(config), jax.devices()[:2])
        text = program.train_step.lower(program.state, program.batch).compile().as_text()
        return hlo.summary(hlo.collectives(text, 2))["all-reduce"]["bytes"], program.state.params

    once, params = reduced()
    size = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    assert size <= reduced(train__accumulation=4)[0] <= 1.05 * once
    assert reduced(train__accumulation=4, mesh__rules=(("mlp", ("data",)),))[0] > 1.5 * once


@pytest.mark.sample("4")
@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_equals_one_batch(reference, accumulation):
    folder, build, expected = reference
    np.testing.assert_allclose(
        losses(build(folder, train__accumulation=accumulation))[0], expected, atol=1e-5, rtol=0
    )


@pytest.mark.full
def test_every_device_holds_a_part_of_the_parameters(reference):
    folder, build, _ = reference
    config = build(folder, mesh__data=1, mesh__fsdp=4, mesh__tensor=2)
    _, state = losses(config, steps=1, devices=8)
    for name, leaf in (
        ("wi", state.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]),
        ("embed", state.params["target_embed"]["embedding"]),
    ):
        assert leaf.addressable_shards[0].data.size == leaf.size // 8, name
    moments = jax.tree.leaves(state.opt_state)
    assert any(m.size > 1000 and m.addressable_shards[0].data.size == m.size // 8 for m in moments)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"mesh__tensor": 3}, "config.mesh.tensor=3"),
        ({"mesh__data": 3, "mesh__fsdp": 1}, "config.mesh.data=3"),
        # There are two heads.
        ({"mesh__tensor": 4, "mesh__data": 2}, "config.mesh.tensor=4 does not divide 2"),
        ({"train__batch": 6}, "config.mesh.data=8"),
        ({"mesh__rules": (("embd", ("fsdp",)),)}, "no logical axis 'embd'"),
        ({"mesh__rules": ("embed", "fsdp")}, "config.mesh.rules: 'embed'"),
        ({"mesh__rules": (("embed", ("fspd",)),)}, "no mesh axis 'fspd'"),
    ],
)
def test_shapes_that_the_mesh_does_not_divide_are_refused_before_compiling(tiny, changes, words):
    config = tiny(**changes)
    with pytest.raises(UserError, match=words):
        Program.of(config, make_task(config), jax.devices())


@pytest.mark.full
def test_a_non_finite_update_is_recorded_and_not_applied(tiny):
    config = tiny(optimizer__learning_rate=1e-3)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    broken = jax.tree.map(jnp.copy, state.params)
    broken["target_embed"]["embedding"] = broken["target_embed"]["embedding"].at[5].set(jnp.inf)
    opt_state = jax.device_get(state.opt_state)
    state = program.train_step(state.replace(params=broken), batch)
    assert (int(state.step), int(state.skipped), int(state.last_skipped)) == (1, 1, 0)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.opt_state), opt_state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.metrics)))


def test_an_axis_splits_one_dimension_only():
    table = {"embed": ("fsdp", "tensor"), "mlp": ("tensor",)}
    assert sharding.spec(("embed", "mlp"), table) == jax.sharding.PartitionSpec(
        ("fsdp", "tensor"), None
    )


GOLDEN = [5.07359276748285, 5.057554059709822, 5.004081047018161]
