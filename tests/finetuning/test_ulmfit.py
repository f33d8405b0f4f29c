"""ULMFiT's third stage: the head, gradual unfreezing, and rates by layer."""

import jax
import numpy as np
import pytest

from tests.finetuning.examples import build, pretrained, task_of
from tests.finetuning.test_tasks import train
from tests.jitted import jitted
from transformer_jax.config import UserError
from transformer_jax.families.awd_lstm import AwdLSTM
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

HEAD = dict(task__head_kind="concatenation")
LAYERS = ("layer_2", "layer_1", "layer_0", "token_embed")  # in the order in which they begin


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """The workdir of an initial AWD-LSTM."""
    return pretrained(tmp_path_factory.mktemp("pretrained"), "awd_lstm")


def updates(config, folder, steps):
    """Yields the parameters before each of the first updates, and after the last."""
    config = resolve(config, folder / "none").config
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    yield jax.device_get(state.params)
    train_rows = task.rows().train
    for batch in trainer.stream(
        train_rows.batch, config.train.batch, 1, program.batch_sharding, range(steps)
    ):
        state = program.train_step(state, batch)
        yield jax.device_get(state.params)


def differs(before, after) -> dict[str, bool]:
    """Returns whether any bit of the parameters of each layer differs."""
    changes = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after)
    return {name: any(jax.tree.leaves(tree)) for name, tree in changes.items()}


@pytest.mark.full
def test_a_layer_does_not_change_before_its_group_begins(origin, tmp_path):
    groups = tuple((layer, (("begin", n),)) for n, layer in enumerate(LAYERS, 1))
    options = dict(optimizer__groups=groups, optimizer__name="adam", optimizer__layer_decay=0.5)
    config = build(tmp_path, "classification", origin, **HEAD, **options)
    params = list(updates(config, tmp_path, len(LAYERS) + 1))
    for number, (before, after) in enumerate(zip(params, params[1:])):
        learning = {"head", *LAYERS[:number]}
        assert {name for name, changed in differs(before, after).items() if changed} == learning


@pytest.mark.full
def test_the_rate_of_a_layer_is_that_of_the_layer_above_over_a_factor(origin, tmp_path):
    sgd = dict(optimizer__name="sgd", optimizer__momentum=0.0, optimizer__schedule="constant")
    sgd |= dict(optimizer__warmup_steps=0, optimizer__learning_rate=1.0)
    changes = []
    for decay in (1.0, 1 / 2.6):
        keys = HEAD | sgd | dict(optimizer__layer_decay=decay)
        config = build(tmp_path, "classification", origin, **keys)
        before, after = updates(config, tmp_path, 1)
        changes.append(jax.tree.map(np.subtract, after, before))
    for power, name in enumerate(("head", *LAYERS)):
        for whole, decayed in zip(*(jax.tree.leaves(change[name]) for change in changes)):
            np.testing.assert_allclose(decayed, whole / 2.6**power, rtol=1e-3, atol=1e-6)
            assert np.abs(whole).max() > 0


@pytest.mark.full
def test_a_language_model_learns_two_labels_layer_by_layer(origin, tmp_path):
    epochs = 10
    groups = tuple((layer, (("begin", n / epochs),)) for n, layer in enumerate(LAYERS, 1))
    config = build(
        tmp_path,
        "classification",
        origin,
        **HEAD,
        optimizer__name="adam",
        optimizer__schedule="slanted_triangular",
        optimizer__learning_rate=2e-2,
        optimizer__layer_decay=1 / 2.6,
        optimizer__groups=groups,
    )
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert params["head"]["hidden"]["kernel"].shape == (3 * 16, 50)
    assert task.evaluate(params, "valid")["accuracy"] > 0.85
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "cat"


def test_the_head_reads_the_last_state_and_maximum_and_mean_without_padding():
    encoder = Encoder(AwdLSTM())
    hidden = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, 4)))
    lengths = np.array([5, 2, 0])
    batch = {"segment_ids": (np.arange(5) < lengths[:, None]).astype(np.int32)}
    vectors = np.asarray(jitted(encoder.concatenated)({}, hidden, batch))
    for row, length in enumerate(lengths[:2]):
        states = hidden[row, :length]
        expected = np.concatenate([states[-1], states.max(axis=0), states.mean(axis=0)])
        np.testing.assert_allclose(vectors[row], expected, rtol=1e-5)
    assert np.isfinite(vectors).all()


def test_a_head_that_is_not_linear_reads_one_order_of_a_pair(origin, tmp_path):
    with pytest.raises(UserError, match="symmetric=True: needs a linear head; .*'concatenation'"):
        task_of(tmp_path, "pairs", origin, **HEAD, task__symmetric=True)


def test_a_group_that_the_config_leaves_out_is_named(origin, tmp_path):
    groups = (("layer_2", (("begin", 1),)),)
    config = build(tmp_path, "classification", origin, **HEAD, optimizer__groups=groups)
    with pytest.raises(UserError, match="groups has no section for the task's group 'layer_0'"):
        next(updates(config, tmp_path, 1))
