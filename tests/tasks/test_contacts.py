"""Contacts by attention: correction, precision, a resumed run, a mesh, and uses of a run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jitted import jitted
from tests.tasks.test_masked_residues import MODEL
from tests.training.test_loop import final_state, lines
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.families.esm import contacts
from transformer_jax.families.esm.tasks.contacts import precision
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import Program, init_params
from transformer_jax.training.trainer import run

SOURCE = dict(name="protein_families", families=2, members=8, held_out=4, strands=3, rungs=4)


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """Returns the workdir of an ESM at step 0."""
    folder = tmp_path_factory.mktemp("esm")
    config = configs.experiment(
        model=MODEL, task=dict(name="masked_residues", length=32), source=SOURCE
    )
    task = make_task(config)
    spec.create(folder / "run", task, init_params(task))
    return folder / "run"


def build(esm, **keys):
    config = configs.experiment(
        model=dict(name="esm"),
        task=dict(name="contacts", length=32, l1=1e-3),
        source=SOURCE,
        data=dict(cache=str(esm.parent / "cache")),
        train=dict(num_steps=3, batch=8, log_every=1, eval_every=3),
        optimizer=dict(name="adam", learning_rate=0.1),
        checkpoint=dict(every=1),
        decode=dict(batch=4),
        init_from=str(esm),
    )
    for key, value in keys.items():
        configs.set_key(config, key.replace("__", "."), value)
    return config


def test_the_correction_is_that_of_each_protein_alone():
    weights = np.asarray(jax.random.uniform(jax.random.key(0), (2, 2, 3, 8, 8)))
    segments = np.array([[1] * 8, [1] * 6 + [0] * 2])
    maps = np.asarray(jitted(contacts.corrected)(weights, segments))
    assert maps.shape == (2, 6, 6, 6)
    for row, size in enumerate((6, 4)):
        for layer, head in np.ndindex(2, 3):
            x = weights[layer, row, head][1 : size + 1, 1 : size + 1]
            x = x + x.T
            expected = x - x.sum(1, keepdims=True) * x.sum(0, keepdims=True) / x.sum()
            actual = maps[row, :size, :size, 3 * layer + head]
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    assert not maps[1, 4:].any() and not maps[1, :, 4:].any()


def test_precision_of_as_many_pairs_as_residues():
    logits = np.full((2, 4, 4), -np.inf, np.float32)
    logits[:, 0, 2], logits[:, 0, 3], logits[:, 1, 3] = 3, 2, 1
    touch = np.zeros((2, 4, 4), np.int32)
    touch[:, 0, 2] = touch[:, 1, 3] = 1
    values = precision(jnp.array(logits), jnp.array(touch), jnp.array([4, 2]))
    np.testing.assert_allclose(values, [2 / 3, 1 / 2])


@pytest.mark.full
def test_a_resumed_run_is_bit_equal_and_a_mesh_has_its_losses(esm, tmp_path):
    """Only the regression is trained. A resumed run no longer needs the run that it began with."""
    workdir = tmp_path / "straight"
    resolved = resolve(build(esm), workdir)
    config, task = resolved.config, resolved.task()
    program = Program.of(config, task, jax.devices()[:1])
    spec.begin(config, task, workdir)
    run(config, task, workdir, program, origin=resolved.origin)
    shutil.copytree(workdir, tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "3")
    resolved = resolve(build(esm), tmp_path / "resumed")
    run(resolved.config, resolved.task(), tmp_path / "resumed", program, origin=resolved.origin)
    assert lines(workdir) == lines(tmp_path / "resumed")
    ends = [final_state(x, config, program, 3).params for x in (workdir, tmp_path / "resumed")]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    before = open_run(esm)[1]
    _, params = open_run(workdir)
    assert (params["contact"]["kernel"] != before["contact"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], before["encoder"])

    sizes = [("model." + key, value) for key, value in MODEL.items() if key != "name"]
    alone = build(esm, init_from=None, **{key.replace(".", "__"): v for key, v in sizes})
    one, _ = losses(alone, 3)
    mesh = dict(train__accumulation=2, mesh__fsdp=2)
    for key, value in mesh.items():
        configs.set_key(alone, key.replace("__", "."), value)
    many, _ = losses(alone, 3, devices=2)
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)


def test_the_uses_of_a_run(esm, tmp_path):
    workdir = tmp_path / "run"
    resolved = resolve(build(esm, train__num_steps=1), workdir)
    spec.begin(resolved.config, resolved.task(), workdir)
    run(resolved.config, resolved.task(), workdir, origin=resolved.origin)
    task, params = open_run(workdir)
    scores = task.evaluate(params, "valid")
    assert 0 <= scores["precision"] <= 1 and scores["records"] == 8
    protein = "MKTAYIAKQRQISFVKSHFS"
    prediction, empty = task.predict(params, [protein, ""])
    assert empty.text == "" and len(prediction.details["contacts"]) == 20
    first, second, probability = prediction.details["contacts"][0]
    assert second - first >= 6 and prediction.text.startswith(f"{first}-{second}:")
    ((whole,), (alone,)) = ([*task.contacts(params, [x])] for x in (protein, protein))
    np.testing.assert_array_equal(whole, alone)
    np.testing.assert_allclose(whole[first - 1, second - 1], probability, atol=1e-6)
    figure = task.result(params, [])
    assert [axes.get_title() for axes in figure.axes[:2]] == ["predicted", "true"]
    assert len(task.result(params, [protein]).axes) == 2
    with pytest.raises(UserError, match="the text has 42 tokens: must have at most"):
        list(task.contacts(params, ["MKTAYIAKQR" * 4]))
    # The regression is a part of the checkpoints of Hugging Face.
    convert.to_hf(workdir, tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "back", [("model.vocab_multiple", "2")])
    jax.tree.map(np.testing.assert_array_equal, open_run(tmp_path / "back")[1], params)


def test_refusals(esm):
    for keys, message in (
        (dict(task__min_separation=0), "config.task.min_separation=0: must be at least 1"),
        (dict(task__l1=-1.0), "config.task.l1=-1.0: must be at least 0"),
        (dict(init_from=None), "config.init_from is missing"),
    ):
        with pytest.raises(UserError, match=message):
            resolve(build(esm, **keys), esm.parent / "new").task()
    with pytest.raises(UserError, match="config.model.name='bert': does not predict contacts"):
        contacts.check_contacts(configs.named_class("model", "bert"), "bert")
