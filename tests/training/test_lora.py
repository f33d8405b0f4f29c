"""Low-rank adapters: of any family, trained alone, merged or apart, in runs and checkpoints."""

import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.training.test_guests import MODELS, config_of
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.layers import low_rank, parameters
from transformer_jax.layers.low_rank import Adapters
from transformer_jax.layers.parameters import tensors_by_name
from transformer_jax.planning import estimate
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.training import step
from transformer_jax.training.step import Program
from transformer_jax.training.warm_start import untrained_tokens

STEPS = 4
LORA = dict(lora__rank=2, lora__alpha=4.0, lora__matrices=("*/kernel",))


def randomised(params, seed=0):
    """Returns parameters whose adapters are random, B included."""
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        is_adapter = low_rank.is_adapter(parameters.names(path)[-1])
        return jnp.array(generator.normal(0, 0.2, leaf.shape), leaf.dtype) if is_adapter else leaf

    return jax.tree_util.tree_map_with_path(draw, params)


@pytest.mark.sample("awd_lstm")
@pytest.mark.parametrize("family", MODELS)
def test_merged_equals_applied_in_every_family(family, tmp_path):
    """All matrices have adapters. The gradients are those of training, where layers may differ."""
    config = config_of(family, tmp_path)
    for key, value in dict(rank=2, matrices=("*",)).items():
        configs.set_key(config, f"lora.{key}", value)
    task = make_task(config)
    new = step.init_params(task)
    batch = jax.tree.map(jnp.asarray, task.rows().train.batch(0, range(8)))
    carry = task.initial_carry(8)

    @functools.partial(jax.jit, static_argnums=0)
    def of_batch(merges, params, batch):
        def loss(params):
            params = low_rank.joined(params, task._adapters.merged) if merges else params
            context = Context(jax.random.key(0), jnp.int32(0), carry, train=True)
            return sum(task.loss(params, batch, context).terms.values())

        return jax.value_and_grad(loss)(params)

    def values(params, merges):
        return of_batch(merges, params, batch)

    params = randomised(new)
    num_matrices = sum(low_rank.is_adapter(name) for name in tensors_by_name(params)) / 2
    assert num_matrices == len(task._matrices) > 1
    (applied, grads), (merged, expected) = values(params, False), values(params, True)
    np.testing.assert_allclose(applied, merged, rtol=1e-6)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
    for name, grad in tensors_by_name(grads).items():
        np.testing.assert_allclose(
            grad, tensors_by_name(expected)[name], atol=1e-5 * largest, rtol=1e-4
        )
    # New adapters change no bit.
    np.testing.assert_array_equal(values(new, False)[0], values(low_rank.without(new), False)[0])


@pytest.mark.parametrize(
    "shape, inputs, layers", [((6, 4), 1, ""), ((3, 6, 2, 2), 1, ""), ((5, 2, 3, 4), 2, "1::2")]
)
def test_a_merged_matrix_is_the_sum(shape, inputs, layers):
    stacked = len(shape) > 2
    box = low_rank.Declared(
        jnp.ones(shape), ("layers",) * stacked + ("embed",) * (len(shape) - stacked), inputs=inputs
    )
    adapters = Adapters(6.0, layers)
    a, b = adapters.initial(jax.random.key(0), 2, box)
    assert not b.value.any() and a.names[-1] is None and b.names[stacked] is None
    fan_in = np.prod(shape[stacked : stacked + inputs])
    assert a.inputs == inputs and 0.2 < float(a.value.std()) * (3 * fan_in) ** 0.5 < 2
    merged = adapters.merged(box.value, a.value, b.value)
    np.testing.assert_array_equal(merged, box.value)
    b = jnp.arange(b.value.size, dtype=jnp.float32).reshape(b.value.shape)
    expected = np.ones(shape).reshape(shape[0] if stacked else 1, fan_in, -1)
    for index, layer in enumerate(adapters.chosen(len(expected)) if stacked else [0]):
        of_layer = np.asarray(a.value[index] if stacked else a.value, np.float64)
        rows = np.asarray(b[index] if stacked else b, np.float64)
        expected[layer] += 3 * of_layer.reshape(fan_in, 2) @ rows.reshape(2, -1)
    actual = adapters.merged(box.value, a.value, b)
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-6, atol=1e-5)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The workdir of a GPT at step 0."""
    folder = tmp_path_factory.mktemp("base")
    task = make_task(build_gpt(folder))
    spec.create(folder / "run", task, step.init_params(task))
    return folder / "run"


def build(folder, base, **overrides):
    steps = dict(train__num_steps=STEPS, train__log_every=2, train__eval_every=STEPS)
    steps |= dict(checkpoint__every=2, checkpoint__keep=9, task__sample_tokens=3)
    return build_gpt(folder, **{"init_from": str(base), **steps, **LORA, **overrides})


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """The config and the workdir of a run whose adapters are trained."""
    folder = tmp_path_factory.mktemp("adapted")
    config = build(folder, base, lora__layers="1:")
    train(config, folder / "run")
    return config, folder / "run"


def test_adapters_alone_are_trained_and_the_rest_is_written_once(adapted, base):
    config, workdir = adapted
    [part] = (workdir / "frozen").iterdir()
    size = {
        name: sum(path.stat().st_size for path in (workdir / name).rglob("*") if path.is_file())
        for name in (f"frozen/{part.name}/0/params", "checkpoints/4/params")
    }
    frozen_size, trained_size = size.values()
    assert trained_size < frozen_size / 2
    _, before = open_run(base)
    task, params = open_run(workdir, merged=False)
    jax.tree.map(np.testing.assert_array_equal, low_rank.without(params), before)
    trained = [
        name for name in tensors_by_name(params) if task.group((*name.split("/"),)) is not None
    ]
    assert trained == [name for name in tensors_by_name(params) if low_rank.is_adapter(name)]
    assert len(trained) == 12 and all(len(tensors_by_name(params)[name]) == 1 for name in trained)
    _, merged = open_run(workdir)
    kernels = merged["decoder"]["layers"]["mlp"]["wi"]["kernel"]
    earlier = before["decoder"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_array_equal(kernels[0], earlier[0])
    assert not np.array_equal(kernels[1], earlier[1])


def test_a_use_of_a_run_reads_merged_parameters(adapted):
    _, workdir = adapted
    task, merged = open_run(workdir)
    _, params = open_run(workdir, merged=False)
    scores = task.evaluate(merged, "valid")
    assert scores["loss"] == pytest.approx(task.evaluate(params, "valid")["loss"], rel=1e-6)
    recorded = [line for line in spec.metrics(workdir) if "valid/loss" in line]
    assert recorded[-1]["valid/loss"] > 0
    (text,) = task.generate(merged, ["the"], max_tokens=3)
    assert text.text


@pytest.mark.full
def test_a_run_continues_the_same_adapters_and_merges_others(adapted, base, tmp_path):
    config, workdir = adapted
    _, trained = open_run(workdir, merged=False)
    _, merged = open_run(workdir)

    def initial(**overrides):
        other = build(tmp_path, workdir, train__num_steps=1, **overrides)
        run = resolve(other, tmp_path / "other")
        program = Program.of(run.config, run.task(), jax.devices()[:1])
        params = step.init(run.config, program).params
        return run.origin.params(run.config, program, params)

    jax.tree.map(np.testing.assert_array_equal, initial(lora__layers="1:"), trained)
    jax.tree.map(np.testing.assert_array_equal, initial(lora__rank=None), merged)
    others = initial(lora__rank=3, lora__layers="")
    jax.tree.map(np.testing.assert_array_equal, low_rank.without(others), merged)


@pytest.mark.full
def test_a_resumed_run_is_bit_equal(adapted, tmp_path):
    config, straight = adapted
    shutil.copytree(straight, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(STEPS))
    train(config, tmp_path / "run")
    expected, actual = (
        open_run(folder, STEPS, merged=False)[1] for folder in (straight, tmp_path / "run")
    )
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.full
def test_a_mesh_has_the_losses_of_one_device(base, tmp_path):
    config = build(tmp_path, base, model__dropout=0.0, model__attention_dropout=0.0)
    one, _ = losses(config, 3)
    config.train.accumulation = 2
    config.mesh.update(data=2, fsdp=2, tensor=2)
    many, _ = losses(config, 3, devices=8)
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)


@pytest.mark.full
def test_dry_run_counts_optimizer_state_and_gradients_of_adapters_alone(base, tmp_path):
    """The model has wide layers and few rows, so that gradients are the largest temporaries."""
    sizes = dict(model__d_model=128, model__num_layers=3, train__batch=8, model__remat="full")
    sizes |= dict(task__length=8)
    estimates = []
    for rank in (None, 1):
        config = build(tmp_path, base, **sizes, lora__rank=rank)
        task = make_task(config)
        program = Program.of(config, task, jax.devices()[:1])
        estimates.append(estimate.estimate(config, task, program))
    whole, adapters = estimates
    params = whole.consumers["parameters"]
    assert whole.consumers["optimizer state"] > 2 * params
    assert adapters.consumers["optimizer state"] < 0.05 * params
    assert whole.temporaries - adapters.temporaries > 0.5 * params
    numbers = task.parameter_counts()
    of_adapters = [
        x for name, x in tensors_by_name(program.state.params).items() if "_lora_" in name
    ]
    assert numbers["params_trained"] == sum(x.size for x in of_adapters)


def test_the_head_of_a_fine_tuning_is_trained_whole(base, tmp_path):
    (tmp_path / "train.tsv").write_text("good\ta cat\nbad\ta dog\n" * 4)
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(name="classification", length=16),
        data=dict(train_files=str(tmp_path / "train.tsv")),
        train=dict(num_steps=1, batch=8),
        lora=dict(rank=2, trained=("norm/*",)),
        init_from=str(base),
    )
    run = resolve(config, tmp_path / "run")
    task = run.task()
    groups = {
        name: task.group((*name.split("/"),))
        for name in tensors_by_name(step.abstract_params(task))
    }
    trained = {name for name, group in groups.items() if group is not None}
    adapters = {name for name in groups if low_rank.is_adapter(name)}
    assert len(adapters) == 4
    assert trained - adapters == {"head/out/kernel", "norm/scale", "norm/bias"} | {
        name for name in groups if name.startswith("head/")
    }


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The workdir of a GPT whose vocabulary has no room for further tokens."""
    folder = tmp_path_factory.mktemp("full")
    config = build_gpt(folder)
    configs.set_key(config, "model.vocab_size", make_task(config).tokenizer.vocab_size)
    task = make_task(config)
    spec.create(folder / "run", task, step.init_params(task))
    return folder / "run"


@pytest.mark.parametrize(
    "task, lora, number",
    [
        ("chat", dict(rank=2), 4),
        ("classification", dict(rank=2), 3),
        ("chat", dict(rank=2, trained=("token_embed/embedding",)), 0),
        ("chat", dict(rank=2, matrices=("query/kernel", "token_embed/embedding")), 0),
        ("causal_lm", dict(rank=2), 0),  # without new tokens
        ("chat", dict(), 0),
    ],
)
def test_new_tokens_that_are_not_trained_are_named(task, lora, number, full, tmp_path):
    """Their random embeddings would otherwise stay, among them the one of a reply's end."""
    chats = {"prompt": "a cat", "completion": "a dog"}
    files = {
        "chat": json.dumps(chats) + "\n",
        "classification": "good\ta cat\nbad\ta dog\n",
        "causal_lm": "a cat\n\na dog\n",
    }
    (tmp_path / "train.jsonl").write_text(files[task])
    (tmp_path / "train.txt").write_text(files[task])
    ending = "jsonl" if task == "chat" else "txt"
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(name=task, length=16),
        data=dict(train_files=str(tmp_path / f"train.{ending}"), cache=str(tmp_path / "cache")),
        train=dict(num_steps=1, batch=8),
        lora=lora,
        init_from=str(full),
    )
    if task == "causal_lm":
        config.model = spec.read(full).config.model
    run = resolve(config, tmp_path / "run")
    made = run.task()
    line = untrained_tokens(made, Program.of(run.config, made, jax.devices()[:1]), run.origin)
    remedy = """--config.lora.trained='("token_embed/embedding",)' trains them"""
    assert line.endswith(remedy) if number else not line
    assert f"the embeddings of the {number} new tokens are random" in line or not number


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(lora__rank=0), "config.lora.rank=0: must be at least 1"),
        (dict(lora__rank=-3), "config.lora.rank=-3: must be at least 1"),
        (dict(lora__alpha=0.0), "config.lora.alpha=0.0: must be above 0"),
        (
            dict(lora__matrices=("q_proj",)),
            "config.lora.matrices: no parameter matches 'q_proj'; there are "
            "decoder/layers/attention/key/kernel, .*token_embed/embedding",
        ),
        (dict(lora__matrices=()), "config.lora.matrices is empty"),
        (dict(lora__matrices=(3,)), r"config.lora.matrices=\(3,\): must hold patterns of names"),
        (dict(lora__trained=("haed",)), "config.lora.trained: no parameter matches 'haed'"),
        (dict(lora__layers="top"), "config.lora.layers='top': no numbers"),
        (dict(lora__layers="5"), "config.lora.layers='5': decoder/.* has 2 layers, numbered from"),
        (
            dict(lora__layers="1:", optimizer__layer_decay=0.9),
            "config.optimizer.layer_decay=0.9: needs adapters in all layers",
        ),
        (dict(init_from=None), "config.lora.rank=2: adapters need a trained model; name its run"),
    ],
)
def test_mistakes_cost_one_line(base, tmp_path, overrides, message):
    with pytest.raises(UserError) as error:
        train(build(tmp_path, base, **overrides), tmp_path / "run")
    assert re.fullmatch(f"{message}[^\n]*", str(error.value)), error.value
    assert not (tmp_path / "run" / "config.json").exists()
