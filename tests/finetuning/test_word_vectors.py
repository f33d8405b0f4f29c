"""The mean of word vectors and a linear layer, fine-tuned as any encoder is."""

import jax
import numpy as np

from tests.finetuning.examples import build
from tests.jitted import jitted
from tests.tasks import test_word_vectors
from tests.training.test_step import losses
from transformer_jax.contracts.task import Context
from transformer_jax.data import array_files
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task
from transformer_jax.training import warm_start
from transformer_jax.training.step import init_params


def test_a_classification_is_linear_in_the_mean_of_the_vectors(tmp_path):
    pretrained = make_task(test_word_vectors.build(tmp_path / "texts"))
    workdir = tmp_path / "run"
    workdir.mkdir()
    spec.create(workdir, pretrained, init_params(pretrained))
    values = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    words = pretrained.tokenizer.pieces([*range(6, 12)])
    array_files.write(tmp_path / "a.txt", words, values)
    config = build(
        tmp_path / "examples",
        "classification",
        workdir,
        train__init_vectors=str(tmp_path / "a.txt"),
        task__head_dropout=0.0,
        optimizer__learning_rate=0.3,
    )
    config.model = pretrained.config.model
    task = make_task(config)
    params = warm_start.put_vectors(task, init_params(task))
    table = np.asarray(params["token_embed"]["embedding"])
    np.testing.assert_array_equal(table[6:12], values)
    assert params.keys() == {"token_embed", "head"}

    batch = task.rows().train.batch(0, range(4))
    outputs, _ = jitted(task.outputs)(params, batch, Context())
    filled = batch["segment_ids"][..., None] > 0
    means = (table[batch["tokens"]] * filled).sum(axis=1) / filled.sum(axis=1)
    out = jax.tree.map(np.asarray, params["head"]["out"])
    np.testing.assert_allclose(outputs, means @ out["kernel"] + out["bias"], atol=1e-5)

    # Forward and backward pass of a sum of vectors; the log divides by it.
    assert task.flops() == 3 * task.length * 8

    by_step, _ = losses(config, 60)
    assert by_step[-1] < by_step[0] / 3
