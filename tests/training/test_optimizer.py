"""Optimizers, schedules, and groups of parameters."""

import re
import shutil
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from tests.conftest import build_gpt
from tests.training.test_loop import final_state, lines
from transformer_jax import config as configs
from transformer_jax.config import OPTIMIZERS, UserError
from transformer_jax.families.awd_lstm import AwdLSTM
from transformer_jax.families.gpt import GPT
from transformer_jax.layers.parameters import Traits
from transformer_jax.planning import estimate
from transformer_jax.runs.spec import make_task
from transformer_jax.training import optimizer
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run


def section(**keys):
    """Returns config.optimizer with these keys."""
    return configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, optimizer=keys
    ).optimizer


DEPTH = GPT().depth


def make(keys, traits, num_steps=10, group=lambda path: "", depth=DEPTH):
    task = types.SimpleNamespace(group=group, depth=depth, growths={})
    return optimizer.make(section(**keys), num_steps, task, traits)


def rates(counts, num_steps, **keys):
    rate = optimizer.schedule(section(learning_rate=1.0, **keys), num_steps)
    return [round(float(rate(count)), 4) for count in counts]


# schedules


def test_the_schedule_of_the_transformer():
    keys = dict(learning_rate=(512 * 4000) ** -0.5, schedule="inverse_sqrt", warmup_steps=4000)
    rate = optimizer.schedule(section(**keys), 100_000)
    for step in (1, 100, 3999, 4000, 4001, 50_000):  # equation 3 of the paper
        assert float(rate(step - 1)) == pytest.approx(
            512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-5
        )


def test_the_schedule_of_t5():
    """1 / sqrt(max(s, 10^4)) at update s (Raffel et al. 2020, section 3.1.2)."""
    keys = dict(learning_rate=0.01, schedule="truncated_inverse_sqrt", warmup_steps=10_000)
    rate = optimizer.schedule(section(**keys), 2**19)
    for step in (1, 9_999, 10_000, 10_001, 2**19):
        assert float(rate(step - 1)) == pytest.approx(max(step, 10_000) ** -0.5, rel=1e-5)


def test_schedules_that_fall_end_at_a_fraction_of_the_peak():
    falling = dict(num_steps=110, warmup_steps=10, final_fraction=0.1)
    cosine = rates((4, 9, 59, 109), schedule="cosine", **falling)
    assert cosine == [0.5, 1.0, 0.5641, 0.1002]
    linear = rates((10, 59, 109, 199), schedule="linear", **falling)
    assert linear == [1.0, 0.559, 0.109, 0.1]
    square = rates((10, 60, 110, 199), schedule="polynomial", power=2.0, **falling)
    assert square == [1.0, 0.325, 0.1, 0.1]
    stable = dict(schedule="warmup_stable_decay", cooldown_steps=20)
    assert rates((4, 10, 90, 100, 110, 199), **stable, **falling) == [0.5, 1, 1, 0.55, 0.1, 0.1]


def test_a_slanted_triangle_starts_and_ends_at_the_peak_over_the_ratio():
    """Howard & Ruder 2018, section 3.2, with T = 100 and cut_frac = 0.1."""
    keys = dict(schedule="slanted_triangular", warmup_steps=0.1, ratio=32.0)
    expected = []
    for t in (0, 5, 10, 55, 100):
        p = t / 10 if t < 10 else 1 - (t - 10) / (10 * (1 / 0.1 - 1))
        expected.append(round((1 + p * (32 - 1)) / 32, 4))
    assert rates((0, 5, 10, 55, 100), 100, **keys) == expected
    assert expected[0] == expected[-1] == round(1 / 32, 4) and expected[2] == 1


# the layers of a stack

TRAITS = {
    "query": Traits(("layers", "embed", "heads", "head_dim"), decays=True, inputs=1),
    "out": Traits(("layers", "heads", "head_dim", "embed"), decays=True, inputs=2),
    "bias": Traits(("layers", "heads", "head_dim")),
    "scale": Traits(("layers", "norm")),
}
SHAPES = {"query": (2, 128, 4, 40), "out": (2, 4, 40, 128), "bias": (2, 4, 40), "scale": (2, 128)}
EMBEDDING = Traits(("vocab", "embed"), decays=True)
MATRICES = {"query": (128, 160), "out": (160, 128), "bias": (160,), "scale": (128,)}
ALONE = {name: {**TRAITS[name].__dict__, "axes": TRAITS[name].axes[1:]} for name in TRAITS}


@jax.jit
def _drawn(seed):
    keys = iter(jax.random.split(jax.random.key(seed), len(SHAPES) + 1))
    scales = jnp.array([5.0, 0.1])
    layers = {
        name: jax.random.normal(next(keys), shape) * scales.reshape(-1, *[1] * (len(shape) - 1))
        for name, shape in SHAPES.items()
    }
    return {"layers": layers, "embedding": jax.random.normal(next(keys), (130, 128))}


def tree(seed):
    """Returns a stack of two layers of different scales, and an embedding."""
    return jax.device_get(_drawn(seed))


def unrolled(tree, shapes=None):
    """Returns the tree with each layer apart; with `shapes`, kernels are matrices."""
    layers = {
        f"layer_{i}": {
            name: leaf[i] if shapes is None else leaf[i].reshape(shapes[name])
            for name, leaf in tree["layers"].items()
        }
        for i in range(2)
    }
    return {**layers, "embedding": tree["embedding"]}


def updates(tx, trees):
    """Returns the second update of `tx`: parameters, then gradients."""

    @jax.jit
    def second(params, *gradients):
        state = tx.init(params)
        for grads in gradients:
            update, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, update)
        return update

    return jax.device_get(second(*trees))


def is_kernel(params):
    return jax.tree.map(lambda x: x.ndim == 2, params)


def of_optax(name):
    """Returns optax's own optimizer, for parameters that are matrices and vectors.

    Weight decay is part of ours only: here it is that of adamw, by the learning rate.
    """
    decay = [optax.add_decayed_weights(0.1, is_kernel), optax.scale(-0.01)]
    in_layers = optax.contrib.muon(-1.0, consistent_rms=0.2)
    return {
        "adam": optax.adam(0.01),
        "adamw": optax.adamw(0.01, weight_decay=0.1, mask=is_kernel),
        "lamb": optax.lamb(0.01, eps=1e-8, weight_decay=0.1, mask=is_kernel),
        "adafactor": optax.chain(optax.adafactor(None), optax.scale(-1), *decay),
        "sgd": optax.chain(optax.trace(0.9), *decay),
        "rmsprop": optax.chain(optax.rmsprop(-1.0, 0.999, eps_in_sqrt=False), *decay),
        "adagrad": optax.chain(optax.adagrad(-1.0, 0.0, 1e-8), *decay),
        "adadelta": optax.chain(optax.adadelta(-1.0, 0.999, 1e-8), *decay),
        "lion": optax.lion(0.01, 0.9, 0.999, weight_decay=0.1, mask=is_kernel),
        "muon": optax.chain(
            optax.multi_transform(
                {"matrix": in_layers, "other": optax.scale_by_adam()},
                lambda params: {
                    key: jax.tree.map(lambda x: "matrix" if x.ndim == 2 else "other", subtree)
                    if key != "embedding"
                    else "other"
                    for key, subtree in params.items()
                },
            ),
            *decay,
        ),
    }[name]


@pytest.mark.sample("lamb", "adafactor", "sgd", "muon")
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "schedule_free"])
def test_each_layer_of_a_stack_is_updated_as_a_parameter_of_its_own(name):
    """A scanned stack gives what an unrolled one does, and what optax gives for matrices."""
    keys = dict(name=name, learning_rate=0.01, weight_decay=0.0 if name == "adam" else 0.1)
    trees = [tree(seed) for seed in range(3)]
    stacked = updates(make(keys, {"layers": TRAITS, "embedding": EMBEDDING}), trees)
    alone = {name: Traits(**fields) for name, fields in ALONE.items()}
    traits = {**{f"layer_{i}": alone for i in range(2)}, "embedding": EMBEDDING}
    apart = updates(make(keys, traits), [unrolled(tree) for tree in trees])
    matrices = updates(of_optax(name), [unrolled(tree, MATRICES) for tree in trees])

    def same(ours, expected):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), ours, expected
        )

    same(unrolled(stacked), apart)
    same(unrolled(stacked, MATRICES), matrices)


@pytest.mark.parametrize("name", ["sgd", "lion", "adam", "adamw"])
def test_finite_gradients_make_finite_updates(name):
    """So that no test of the update is needed before it is applied."""
    keys = dict(name=name, learning_rate=0.1, weight_decay=0.0 if name == "adam" else 0.1)
    assert optimizer.keeps_finite(section(**keys))
    largest, least = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    values = np.array([0, least, 1e-30, 1, 1e18, 1e30, largest / 4], np.float32)
    gradients = np.stack([values, -values, values[::-1]])
    tx = make(keys, {"w": Traits(("embed",), decays=True)})
    params = {"w": jnp.ones_like(values)}

    def update(state, gradient):
        updates, state = tx.update({"w": gradient}, state, params)
        return state, updates["w"]

    _, found = jax.jit(partial(jax.lax.scan, update))(tx.init(params), gradients)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "keys", [dict(name="muon"), dict(name="adamw", eps=1e-39), dict(learning_rate=1e38)]
)
def test_other_updates_are_tested(keys):
    assert not optimizer.keeps_finite(section(**keys))


def test_schedule_free_parameters_are_the_averaged_ones_of_optax():
    trees = [tree(seed) for seed in range(4)]
    keys = dict(name="schedule_free", learning_rate=0.01, weight_decay=0.1, warmup_steps=3)
    ours = make(keys, {"layers": TRAITS, "embedding": EMBEDDING})
    decays = {"layers": {k: t.decays for k, t in TRAITS.items()}, "embedding": True}
    rate = optimizer.schedule(section(**keys), 10)
    base = optax.chain(
        optax.scale_by_rms(0.999, 1e-8, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(0.1, decays),
        optax.scale_by_learning_rate(rate),
    )
    theirs = contrib.schedule_free(base, lambda count: rate(count - 1))
    x, *gradients = trees
    y, state, expected = x, jax.jit(ours.init)(x), jax.jit(theirs.init)(x)
    point, evaluated = jax.jit(optimizer.gradient_point), jax.jit(contrib.schedule_free_eval_params)
    same = partial(jax.tree.map, partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5))

    @jax.jit
    def updated(x, y, states, grads):
        update, state = ours.update(grads, states[0], x)
        x = optax.apply_updates(x, update)
        update, expected = theirs.update(grads, states[1], y)
        return x, optax.apply_updates(y, update), (state, expected)

    for grads in gradients:
        same(point(x, state), y)
        x, y, (state, expected) = jax.device_get(updated(x, y, (state, expected), grads))
        same(x, evaluated(expected, y))
    assert abs(x["embedding"] - y["embedding"]).max() > 1e-4


# decay, groups and frozen parameters


def test_frozen_parameters_and_weight_decay():
    params = {"a": {"kernel": jnp.ones(3), "bias": jnp.ones(3)}, "b": {"kernel": jnp.ones(3)}}
    traits = jax.tree.map(lambda _: Traits((None,)), params)
    traits["a"]["kernel"] = traits["b"]["kernel"] = Traits((None,), decays=True)
    keys = dict(weight_decay=0.1, learning_rate=1.0)
    tx = make(keys, traits, group=lambda path: None if path[0] == "b" else "")
    state = jax.jit(tx.init)(params)
    update, state = jax.jit(tx.update)(jax.tree.map(jnp.zeros_like, params), state, params)
    np.testing.assert_allclose(update["a"]["kernel"], -0.1)
    np.testing.assert_allclose(update["a"]["bias"], 0)
    np.testing.assert_allclose(update["b"]["kernel"], 0)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 4 * 3 + 2  # and two counts


def test_layer_decay_goes_from_the_top_down():
    params = {
        "target_embed": {"embedding": jnp.ones(2)},
        "encoder": {"layers": {"kernel": jnp.ones((3, 2))}},
        "output_embed": {"embedding": jnp.ones(2)},
        "head": {"kernel": jnp.ones(2)},
    }
    traits = jax.tree.map(lambda _: Traits(("embed",)), params)
    traits["encoder"]["layers"]["kernel"] = Traits(("layers", "embed"), layers=3)
    tx = make(dict(name="sgd", momentum=0.0, learning_rate=1.0, layer_decay=0.5), traits)
    update, _ = jax.jit(tx.update)(params, jax.jit(tx.init)(params), params)
    factors = jax.tree.map(lambda leaf: -np.asarray(leaf)[..., 0], update)
    np.testing.assert_allclose(factors["encoder"]["layers"]["kernel"], [1 / 8, 1 / 4, 1 / 2])
    assert factors["target_embed"]["embedding"] == 1 / 16
    assert factors["output_embed"]["embedding"] == 1
    assert factors["head"]["kernel"] == 1


def test_a_model_declares_the_order_of_layers_that_are_no_stack():
    """The groups of the parameters do not change the number of layers."""
    model = AwdLSTM(num_layers=3)
    names = ("token_embed", "layer_0", "layer_1", "layer_2", "output_bias", "head")
    params = dict.fromkeys(names, jnp.ones(2))
    traits = jax.tree.map(lambda _: Traits((None,)), params)
    keys = dict(name="sgd", momentum=0.0, learning_rate=1.0, layer_decay=0.5)
    groups = tuple((name, ()) for name in names[:4])
    grouped = make(keys | {"groups": groups}, traits, group=model.group, depth=model.depth)
    for tx in (make(keys, traits, depth=model.depth), grouped):
        update, _ = tx.update(params, tx.init(params), params)
        factors = [-float(update[name][0]) for name in names]
        assert factors == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1]


def test_a_group_has_the_optimizer_of_its_section():
    params = {"body": jnp.ones(2), "head": jnp.ones(2)}
    traits = {"body": Traits((None,)), "head": Traits((None,))}
    groups = (("head", (("learning_rate", 0.5), ("clip_norm", 1.0))),)
    keys = dict(name="sgd", learning_rate=0.1, momentum=0.0)
    group = {("body",): "", ("head",): "head"}.get
    tx = make(keys | {"groups": groups}, traits, group=group)
    update, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(update["body"], -0.1)
    np.testing.assert_allclose(update["head"], -0.5 / 2**0.5, rtol=1e-6)  # the norm of its gradient
    # What the group's optimizer does not use is not taken over.
    body = dict(weight_decay=0.1, b2=0.95, schedule="linear", final_fraction=0.1)
    group_of = (("head", (("name", "adam"), ("schedule", "constant"))),)
    head = configs.optimizer_sections(section(**body, groups=group_of))["head"]
    assert (head.weight_decay, head.b2, head.final_fraction) == (0.0, 0.95, 0.0)
    with pytest.raises(UserError, match="no section for the task's group 'head'"):
        make(keys, traits, group=group)
    with pytest.raises(UserError, match="no parameter is in group 'head'; .* none by name"):
        make(keys | {"groups": groups}, traits)


@pytest.mark.sample("sgd")  # op by op, the others are more programs
@jax.disable_jit()  # a compiled branch may round otherwise
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon", "schedule_free"])
def test_a_group_begins_as_a_run_of_its_own(name):
    """Before `begin` neither it nor its optimizer changes; the other group learns all the time."""
    params = {
        name: np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4) for name in ("body", "head")
    }
    traits = jax.tree.map(lambda _: Traits(("embed", "mlp"), inputs=1, decays=True), params)
    keys = dict(name=name, learning_rate=0.1, warmup_steps=0.5, weight_decay=0.1)
    groups = (("late", (("begin", 0.4),)),)
    group = {("body",): "late", ("head",): ""}.get
    late = make(keys | {"groups": groups}, traits, group=group)
    start = 4  # 0.4 of 10 updates
    alone = {"body": make(keys, traits, num_steps=10 - start), "head": make(keys, traits)}
    expected = dict.fromkeys(alone, params)
    states = {name: tx.init(params) for name, tx in alone.items()}
    state = late.init(params)
    for number in range(10):
        grads = {name: np.cos(np.asarray(x) + np.float32(number)) for name, x in params.items()}
        learning = {"head": alone["head"]} | ({"body": alone["body"]} if number >= start else {})
        for name, tx in learning.items():
            update, states[name] = tx.update(grads, states[name], expected[name])
            expected[name] = optax.apply_updates(expected[name], update)
        update, state = late.update(grads, state, params)
        params = optax.apply_updates(params, update)
        for name in params:
            np.testing.assert_array_equal(params[name], expected[name][name])


# training

GROUPS = (
    ("attention", (("name", "muon"), ("learning_rate", 0.003))),
    (
        "mlp",
        (("name", "adafactor"), ("learning_rate", 0.1), ("weight_decay", 0.1), ("begin", 0.75)),
    ),
)


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    """Returns config and program of a GPT: attention by muon, MLPs by adafactor from the last
    update on, all else schedule-free.
    """
    monkeypatch.setattr(optimizer, "_LEAST", 16)

    def build(devices, **keys):
        config = build_gpt(
            tmp_path,
            model__dropout=0.0,
            model__attention_dropout=0.0,
            optimizer__name="schedule_free",
            optimizer__groups=GROUPS,
            optimizer__warmup_steps=1,
            train__num_steps=4,
            checkpoint__every=2,
            **keys,
        )
        task = make_task(config)
        names = {name for name, _ in GROUPS}
        task.group = lambda path: "".join(names & set(path))
        return config, task, Program.of(config, task, jax.devices()[:devices])

    return build


@pytest.mark.full
def test_a_run_with_three_optimizers_on_a_mesh(grouped, tmp_path):
    """Its losses are those of one device, its states are split, and it resumes bit for bit."""
    one = grouped(devices=1)
    many = grouped(devices=4, mesh__fsdp=2, mesh__tensor=2)
    states = {}
    for name, (config, task, program) in dict(one=one, many=many).items():
        run(config, task, tmp_path / name, program)
        states[name] = final_state(tmp_path / name, config, program, 4)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), states["one"], states["many"])
    config, task, program = many
    shutil.rmtree(tmp_path / "many" / "checkpoints" / "4")
    run(config, task, tmp_path / "many", program)
    resumed = final_state(tmp_path / "many", config, program, 4)
    jax.tree.map(np.testing.assert_array_equal, resumed, states["many"])
    table = [re.split(r"\s{2,}", line.strip()) for line in estimate.table(program)]
    assert {
        "rows/decoder/layers/mlp/wi/kernel": ["(2, 32, 1)", "(-, fsdp, -)"],
        "columns/decoder/layers/mlp/wi/kernel": ["(2, 1, 128)", "(-, -, tensor)"],
        "mu/decoder/layers/attention/out/kernel": ["(2, 2, 16, 32)", "(-, tensor, -, fsdp)"],
        "z/token_embed/embedding": ["(300, 32)", "(tensor, fsdp)"],
    }.items() <= {name: row for name, *row, _ in table}.items()

    # What a run evaluates and saves are the averaged parameters.
    params, opt_state = resumed.params, resumed.opt_state
    loss = task.mean_metrics(params, task.rows().eval["valid"])["loss"]
    assert lines(tmp_path / "many")[-1]["valid/loss"] == pytest.approx(loss, rel=1e-5)
    at_point = optimizer.gradient_point(params, opt_state)
    loss = task.mean_metrics(at_point, task.rows().eval["valid"])["loss"]
    assert lines(tmp_path / "many")[-1]["valid/loss"] != pytest.approx(loss, rel=1e-5)
