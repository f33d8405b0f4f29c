"""Beginning from a pre-trained run: its config, its parameters, its head."""

import json
import shutil

import numpy as np
import pytest

from tests.conftest import build_gpt
from tests.finetuning.examples import build, pretrained
from transformer_jax.config import UserError
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.training.step import init_params
from transformer_jax.training.trainer import run

ONE_UPDATE = dict(train__num_steps=1)
NO_CHANGE = dict(train__num_steps=1, optimizer__learning_rate=0.0)


def test_keys_of_the_model_change_the_model_of_the_earlier_run(runs, tmp_path):
    """The keys of the config count, and after them those of the command line."""
    overrides = dict(model__dropout=0.3, model__attention_dropout=0.2)
    config = build(tmp_path, "classification", runs["bert"], **overrides)
    model = resolve(config, tmp_path / "none", [("model.attention_dropout", "0.4")]).config.model
    assert (model.dropout, model.attention_dropout, model.vocab_size) == (0.3, 0.4, 80)
    resolved = resolve(config, tmp_path / "none").config
    model = resolve(resolved, tmp_path / "none").config.model
    assert (model.dropout, model.attention_dropout, model.vocab_size) == (0.3, 0.2, 80)


@pytest.mark.full
def test_train_does_not_change_its_config(runs, tmp_path):
    """So the same config with another init_from trains the other model."""
    wide = pretrained(tmp_path, "bert", model__d_model=48)
    config = build(tmp_path, "classification", runs["bert"], **ONE_UPDATE)
    copy = config.to_dict()
    train(config, tmp_path / "first", overrides=[("model.dropout", "0.2")])
    resolve(config, tmp_path / "none", [("model.dropout", "0.2")])
    assert config.to_dict() == copy

    config.init_from = str(wide)
    train(config, tmp_path / "second")
    first, second = (spec.read(tmp_path / name).config for name in ("first", "second"))
    assert (first.model.d_model, first.model.dropout) == (32, 0.2)
    assert (second.model.d_model, second.model.dropout) == (48, 0.0)
    assert (first.init_from, second.init_from) == (str(runs["bert"]), str(wide))
    assert first.task.labels == second.task.labels == ("cat", "dog")


@pytest.mark.full
def test_the_earlier_run_may_have_an_older_record_but_no_newer_one(runs, tmp_path):
    """An older record may lack keys."""
    earlier = tmp_path / "earlier"
    shutil.copytree(runs["bert"], earlier)
    content = json.loads((earlier / "config.json").read_text())
    for key in ("best_mode", "keep"):
        del content["config"]["checkpoint"][key]
    (earlier / "config.json").write_text(json.dumps(content))
    config = build(tmp_path, "classification", earlier, **ONE_UPDATE)
    train(config, tmp_path / "run")
    (earlier / "config.json").write_text(json.dumps(content | {"checkpoint_format": 999}))
    with pytest.raises(UserError, match="written by a newer version"):
        train(config, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_run_without_its_origin_does_not_begin(runs, tmp_path):
    config = resolve(build(tmp_path, "classification", runs["bert"]), tmp_path / "none").config
    with pytest.raises(ValueError, match="run needs its argument origin"):
        run(config, make_task(config), tmp_path / "run")


@pytest.mark.full
def test_a_run_that_continues_does_not_need_init_from(runs, tmp_path, monkeypatch):
    def train_until(num_steps, init_from):
        config = build(tmp_path, "classification", runs["bert"], train__num_steps=num_steps)
        config.init_from = init_from
        train(config, tmp_path / "run")

    train_until(1, str(runs["bert"]))
    train_until(2, None)
    monkeypatch.chdir(runs["bert"].parent)
    train_until(3, runs["bert"].name)
    with pytest.raises(UserError, match="another config: init_from"):
        train_until(4, str(runs["gpt"]))


@pytest.mark.full
def test_pretrained_parameters_are_used_by_default(runs, tmp_path):
    def table(name, **overrides):
        config = build(tmp_path, "classification", runs["gpt"], **NO_CHANGE, **overrides)
        train(config, tmp_path / name)
        return open_run(tmp_path / name)[1]["token_embed"]["embedding"]

    earlier = open_run(runs["gpt"])[1]["token_embed"]["embedding"]
    table_of_run = table("pretrained")
    np.testing.assert_array_equal(table_of_run[:300], earlier)
    assert table_of_run[300:].std() > 0
    random = table("random", train__pretrained=False, train__seed=1)
    assert not np.array_equal(random[:300], earlier)


@pytest.mark.full
def test_a_head_is_used_for_the_same_task_and_labels_only(runs, tmp_path):
    """A fine-tuned run may begin another. The head's labels keep their order."""
    labels = dict(task__labels=("dog", "cat"))
    config = build(tmp_path / "a", "classification", runs["bert"], train__num_steps=3, **labels)
    train(config, tmp_path / "first")
    head = open_run(tmp_path / "first")[1]["head"]["out"]["kernel"]

    def run_from_first(name, kind, **overrides):
        config = build(tmp_path / name, kind, tmp_path / "first", **NO_CHANGE, **overrides)
        train(config, tmp_path / name / "run")
        task, params = open_run(tmp_path / name / "run")
        return task, params["head"]["out"]["kernel"]

    task, same_head = run_from_first("b", "classification")
    assert task.names == ["dog", "cat"]
    np.testing.assert_array_equal(same_head, head)
    _, span_head = run_from_first("c", "span")
    assert not np.array_equal(span_head, head)
    _, other_head = run_from_first("d", "classification", task__labels=("cat", "dog"))
    assert not np.array_equal(other_head, head)


@pytest.mark.full
def test_new_tokens_are_initialised_in_a_padded_vocabulary(runs, tmp_path):
    task = make_task(build_gpt(tmp_path / "gpt", model__vocab_multiple=64))
    (tmp_path / "padded").mkdir()
    spec.create(tmp_path / "padded", task, init_params(task))
    train(build(tmp_path, "classification", tmp_path / "padded", **NO_CHANGE), tmp_path / "run")
    table = open_run(tmp_path / "run")[1]["token_embed"]["embedding"]
    assert table.shape[0] == 320
    assert np.abs(table[300:303]).min(axis=-1).all() and not table[303:].any()


def test_runs_of_the_wrong_kind_are_refused(runs, tmp_path):
    config = build(tmp_path, "classification", tmp_path / "nothing")
    with pytest.raises(UserError, match="no run here"):
        train(config, tmp_path / "run")
    config.init_from = str(runs["bert"])
    with pytest.raises(UserError, match="holds a masked_lm run, not a classification one"):
        train(config, runs["bert"])
