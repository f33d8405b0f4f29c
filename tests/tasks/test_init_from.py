"""A language model that begins from the parameters of another run."""

import shutil

import jax
import numpy as np
import pytest

from tests.conftest import build_gpt as build
from transformer_jax.config import UserError
from transformer_jax.runs import begin, record
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.runs.train import train
from transformer_jax.training.loop import run


def test_a_run_takes_the_parameters_and_the_tokenizer_of_another(gpt, tmp_path, capsys):
    overrides = dict(train__num_steps=1, optimizer__learning_rate=0.0)
    config = build(tmp_path, init_from=str(gpt.workdir), **overrides)
    task, workdir = make_task(config), tmp_path / "run"
    assert task.tokenizer.fingerprint() == gpt.task.tokenizer.fingerprint()
    workdir.mkdir()
    record.begin(config, task, workdir)
    run(config, task, workdir, origin=begin.origin(config, workdir))
    assert "tensors restored" in capsys.readouterr().err
    _, params = open_run(workdir)
    jax.tree.map(np.testing.assert_array_equal, params, gpt.params)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(model__d_ff=48), r"mlp/wi/bias has shape \(2, 128\) there, \(2, 48\) in this config"),
        (dict(init_from="nothing"), "no run here"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(gpt, tmp_path, overrides, message):
    config = build(tmp_path, **{"init_from": str(gpt.workdir), **overrides})
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "refused")


def test_the_padding_of_a_vocabulary_may_differ(gpt, tmp_path):
    """So a converted GPT-2 can be trained with a config that pads its vocabulary."""
    size, table = gpt.task.model.vocab_size, gpt.params["token_embed"]["embedding"]
    workdir = gpt.workdir
    for multiple, num_rows in ((size + 7, size + 7), (1, size)):
        config = build(
            tmp_path,
            init_from=str(workdir),
            train__num_steps=1,
            optimizer__learning_rate=0.0,
            model__vocab_multiple=multiple,
        )
        workdir = tmp_path / str(multiple)
        train(config, workdir)
        padded = open_run(workdir)[1]["token_embed"]["embedding"]
        assert padded.shape[0] == num_rows and not padded[size:].any()
        np.testing.assert_array_equal(padded[:size], table[:size])


def test_a_run_that_has_begun_does_not_need_the_other_any_more(gpt, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(gpt.workdir, other)
    config = build(tmp_path, init_from=str(other), train__num_steps=2)
    train(config, tmp_path / "run")
    shutil.rmtree(other)
    config.train.num_steps = 3
    assert train(config, tmp_path / "run")["valid/loss"] > 0


def test_tensors_that_this_model_lacks_are_named(gpt, tmp_path, capsys):
    config = build(
        tmp_path, init_from=str(gpt.workdir), train__num_steps=1, model__norm_position="post"
    )
    train(config, tmp_path / "run")
    assert "2 dropped, not in this model: norm/bias, norm/scale" in capsys.readouterr().err
