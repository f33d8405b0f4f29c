"""Checkpoints and runs for the tests of conversion."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import transformer_jax
from tests.fixtures.make_huggingface import HERE
from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step

GPT1 = "OpenAIGPTLMHeadModel"
GPT2 = "GPT2LMHeadModel"
CLOSE = dict(rtol=0, atol=1e-4)


def logits(run, ids):
    """Returns the logits of a run's language model."""
    model, params, _ = transformer_jax.load(run)
    return jitted(model.apply)({"params": params}, np.asarray(ids))


def copied(architecture, folder, **changes):
    """Copies a committed checkpoint, with other keys in its config.json. `...` removes a key."""
    shutil.copytree(HERE / architecture, folder)
    content = read_json(folder / "config.json") | changes
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))
    return pathlib.Path(folder)


def weights(folder):
    return load_file(folder / "model.safetensors")


def read_json(path):
    return json.loads(path.read_text())


def rewrite(folder, tensors):
    """Replaces all weights of a checkpoint."""
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder, tmp_path, message):
    """Asserts that the conversion raises a UserError of one line and leaves nothing behind."""
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.from_hf(folder, tmp_path / "new" / "run")
    assert not list(tmp_path.glob("new/*"))


def gpt_config(**model):
    """Returns the config of a tiny language model with a committed tokenizer."""
    sizes = dict(vocab_size=267, d_model=16, num_layers=3, num_heads=2, max_length=24)
    return configs.experiment(
        model=dict(name="gpt", **{**sizes, **model}),
        task=dict(name="causal_lm", length=24),
        data=dict(train_files="unknown", tokenizer_files=str(HERE / GPT2)),
    )


def random_run(config, folder):
    """Writes a run whose parameters are all random, biases, norms and padding included."""
    task = make_task(config)
    generator = np.random.default_rng(0)

    def draw(x):
        return generator.normal(0, 0.5, x.shape).astype(np.float32)

    spec.create(folder, task, jax.tree.map(draw, step.abstract_params(task)))
    return folder
