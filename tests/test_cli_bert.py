"""BERT on the command line: training, evaluation, filled masks, features, and mistakes."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.programs import call
from tests.tasks.test_masked_lm import build
from transformer_jax import config as configs

SIZES = (
    "model.vocab_size",
    "model.d_model",
    "model.num_layers",
    "model.num_heads",
    "model.max_length",
    "task.phases",
    "data.train_files",
    "data.valid_files",
    "data.cache",
    "train.batch",
    "train.log_every",
)


@pytest.mark.full
def test_the_whole_path(tmp_path):
    config = build(tmp_path)
    flags = [
        *(f"--config.{key}={configs.get(config, key)}" for key in SIZES),
        "--config.train.num_steps=4",
        "--config.train.eval_every=4",
        "--config.checkpoint.every=4",
    ]
    run = f"--workdir={tmp_path}/run"
    done = call("train_bert", "--config=configs/bert/base.py", *flags, run)
    assert done.returncode == 0 and "valid/nsp_accuracy" in done.stderr, done.stderr

    scores = json.loads(call("evaluate", run).stdout)
    assert scores["masked"] > 0 and 0 <= scores["nsp_accuracy"] <= 1
    one, other = call(
        "fill_mask", run, "--text=the [MASK] sat on the [MASK]", "--top_k=3"
    ).stdout.splitlines()
    assert len(one.split()) == len(other.split()) == 6
    masks = json.loads(call("fill_mask", run, "--json", text="a [MASK] ran\n").stdout)
    assert len(masks) == 1 and len(masks[0]) == 5 and 0 < masks[0][0]["probability"] <= 1

    pieces = call(
        "features",
        run,
        f"--output={tmp_path}/states.safetensors",
        "--layers=0,1,-1",
        text="the cat\na dog ran\n",
    ).stdout.splitlines()
    states = load_file(tmp_path / "states.safetensors")
    assert [states[f"text_{i}"].shape for i in range(2)] == [
        (3, len(json.loads(line)), 32) for line in pieces
    ]
    call("features", run, f"--output={tmp_path}/states.npz", "--layers=-1", text="the cat\n")
    np.testing.assert_allclose(
        np.load(tmp_path / "states.npz")["text_0"][0], states["text_0"][-1], rtol=1e-5, atol=1e-5
    )

    for program, arguments, words in (
        ("fill_mask", ["--text=none"], "no [MASK]"),
        ("features", ["--output=states.txt"], "*.npz"),
        ("generate", [], "not one that continues"),
        ("evaluate", ["--zero_shot=lambada", "--file=x"], "not one that is of a causal model"),
        ("features", [f"--output={tmp_path}/x.npz", "--layers=7"], "layer 7"),
    ):
        wrong = call(program, run, *arguments, text="the cat\n")
        assert wrong.returncode == 2, wrong.stderr
        assert words in wrong.stderr, wrong.stderr
        assert "Traceback" not in wrong.stderr, wrong.stderr
