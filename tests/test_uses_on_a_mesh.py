"""The methods of trained tasks give the same results on several devices as on one."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_gpt
from tests.finetuning import examples
from tests.training import recurrent
from transformer_jax.config import UserError
from transformer_jax.runs import open as opening
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.training.step import init_params

MESHES = {
    "two": {"mesh.fsdp": 2},
    "eight": {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2},
}
SMALL = dict(model__d_model=16, model__num_layers=1, decode__batch=3)
PAIRS = [("the cat", " sat on the mat"), ("a", " dog"), ("", "the"), ("to the", " mat")]
PROMPTS = ["the cat", "a", "", "the dog ran to", "a cat"]
MASKED = ["the [MASK] sat", "a [MASK] ran [MASK]", "[MASK]", ""]


def causal(task, params):
    sampling = dict(max_tokens=9, temperature=0.8, top_p=0.9, repetition_penalty=1.3, seed=2)
    yield from task.generate(params, PROMPTS, **sampling)
    yield from task.log_likelihoods(params, PAIRS)
    yield task.evaluate(params, "valid")
    yield task.attention(params, "the cat").weights


def streamed(task, params):
    yield from task.generate(params, PROMPTS[:1], max_tokens=9, temperature=0)
    yield task.evaluate(params, "valid")


def encoder(task, params):
    yield from task.fill(params, MASKED, top_k=2)
    yield from task.features(params, PROMPTS, layers=(0, -1))


def tuned(task, params):
    lines = [examples.LINES["choice"]] * 2 + ["", "a cat sat\tto the dog\tto the cat"]
    yield from task.predict(params, lines)
    yield task.evaluate(params, "valid")


def of_choices(folder):
    """Returns the settled config of a fine-tuning of an encoder."""
    config = examples.build(folder, "choice", examples.pretrained(folder, "bert"), decode__batch=3)
    return resolve(config).config


FAMILIES = {
    "gpt": (lambda folder: build_gpt(folder, **SMALL, model__init_std=0.3), causal),
    "lstm": (lambda folder: recurrent.build(folder, model__dropout=0.0), streamed),
    "bert": (lambda folder: build_bert(folder, **SMALL), encoder),
    "choice": (of_choices, tuned),
}


def flat(results):
    """Returns the texts among the results, and the numbers."""
    leaves = jax.tree.leaves(results)
    texts = [leaf for leaf in leaves if isinstance(leaf, str)]
    return texts, [leaf for leaf in leaves if not isinstance(leaf, str)]


@pytest.mark.sample("two-gpt")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mesh", MESHES)
def test_results_on_a_mesh_are_those_of_one_device(mesh, family, tmp_path, monkeypatch):
    """Rows do not fill the devices: batches are padded, and results of padding are dropped."""
    build, uses = FAMILIES[family]
    workdir = tmp_path / "run"
    workdir.mkdir()
    task = make_task(build(tmp_path / "data"))
    spec.create(workdir, task, init_params(task))
    texts, numbers = flat(list(uses(*opening.open_run(workdir))))

    size = 2 ** len(MESHES[mesh])
    monkeypatch.setattr(opening, "local_devices", lambda: jax.local_devices()[:size])
    task, params = opening.open_run(workdir, overrides=MESHES[mesh])
    assert {leaf.sharding.mesh.size for leaf in jax.tree.leaves(params)} == {size}
    on_mesh = flat(list(uses(task, params)))
    assert on_mesh[0] == texts and len(on_mesh[1]) == len(numbers)
    for actual, expected in zip(on_mesh[1], numbers):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_mesh_that_does_not_fit(tmp_path, monkeypatch):
    """A recorded mesh may be of another machine. A mesh that a use gives is an error."""
    config = build_gpt(tmp_path, model__d_model=12, mesh__data=1, mesh__fsdp=-1)
    workdir = tmp_path / "run"
    workdir.mkdir()
    task = make_task(config)
    spec.create(workdir, task, init_params(task))
    monkeypatch.setattr(opening, "local_devices", jax.local_devices)
    _, params = opening.open_run(workdir)
    assert params["token_embed"]["embedding"].sharding.is_fully_replicated
    with pytest.raises(UserError, match="config.mesh.fsdp=8 does not divide 12"):
        opening.open_run(workdir, overrides={"mesh.fsdp": 8})
    with pytest.raises(UserError, match="the product is 3, and the devices are 8"):
        opening.open_run(workdir, overrides={"mesh.fsdp": 3})
