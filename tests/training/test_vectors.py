"""A run that begins with a file of word vectors, which learns them or not."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert, build_config
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import array_files
from transformer_jax.inference.static_vectors import StaticVectors
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train
from transformer_jax.training import warm_start
from transformer_jax.training.step import Program, init_params

LSTM = dict(name="recurrent", vocab_size=80, d_model=8)
BERT = dict(name="bert", vocab_size=80, d_model=8, num_layers=1, num_heads=2, max_length=32)


def build(folder, model, task):
    config = configs.experiment(
        model=model,
        task=task,
        train=dict(num_steps=2, log_every=1, batch=8),
        checkpoint=dict(every=2),
    )
    config.data = build_bert(folder).data
    for key, value in (("tokenizer", "words"), ("min_count", 1), ("valid_files", None)):
        configs.set_key(config, f"data.{key}", value)
    return config


def written(folder, words, width=8):
    """Returns a file of vectors of words, and of one that no text has."""
    path = folder / "vectors.bin"
    values = np.random.default_rng(0).normal(size=(len(words) + 1, width)).astype(np.float32)
    array_files.write(path, [*words, "zzz"], values)
    return str(path), values[:-1]


@pytest.mark.sample("True")
@pytest.mark.parametrize("freeze", [True, False])
def test_an_lstm_begins_with_the_vectors_of_its_words(freeze, tmp_path, capsys):
    config = build(tmp_path, LSTM, dict(name="causal_lm", length=16))
    words = make_task(config).tokenizer.pieces([*range(6, 12)])
    path, values = written(tmp_path, words)
    overrides = {"train.init_vectors": path, "train.freeze_vectors": freeze}
    train(config, tmp_path / "run", overrides=overrides)
    assert f"from {path}: the vectors of 6 of " in capsys.readouterr().err
    task, params = open_run(tmp_path / "run", step="latest")
    table = np.asarray(params["token_embed"]["embedding"])
    initial = np.asarray(init_params(task)["token_embed"]["embedding"])
    if freeze:
        np.testing.assert_array_equal(table[6:12], values)
        np.testing.assert_array_equal(table[12:], initial[12:])
        others = (tree["output_embed"]["embedding"] for tree in (params, init_params(task)))
        assert np.not_equal(*others).any()
    else:
        assert (table[6:12] != values).all()
        np.testing.assert_allclose(table[6:12], values, atol=0.01)


@pytest.mark.full
def test_any_model_takes_them_by_its_vocabulary(tmp_path):
    masked = dict(name="masked_lm", phases=((1.0, 16, 3),), next_sentence=0.0)
    bert = build(tmp_path, BERT, masked)
    pairs = build_config(tmp_path / "pairs")
    recurrent = configs.experiment(
        model=dict(name="recurrent_seq2seq", vocab_size=60, d_model=8),
        task=dict(name="translation"),
    )
    recurrent.data = pairs.data
    configs.set_key(recurrent, "data.tokenizer", "words")
    configs.set_key(recurrent, "data.min_count", 1)
    for config in (bert, recurrent):
        config = config.copy_and_resolve_references()
        words = make_task(config).tokenizer.target.pieces([7, 9])
        path, values = written(tmp_path, words)
        configs.set_key(config, "train.init_vectors", path)
        task = make_task(config)
        warm_start.check_vectors(task, Program.of(config, task, jax.devices()[:1]), is_new=True)
        params = warm_start.put_vectors(task, init_params(task))
        name = task.model.vocabulary[0].split("/")[0]
        table = np.asarray(params[name]["embedding"])
        np.testing.assert_array_equal(table[[7, 9]], values)
        np.testing.assert_array_equal(table[8], init_params(task)[name]["embedding"][8])


def test_other_files_are_refused(tmp_path):
    config = build(tmp_path, LSTM, dict(name="causal_lm", length=16))
    path, _ = written(tmp_path, ["dog"], width=7)
    with pytest.raises(UserError, match="vectors have 7 numbers, the embeddings of this model 8"):
        train(config, tmp_path / "run", overrides={"train.init_vectors": path})
    damaged = tmp_path / "damaged.txt"
    damaged.write_text("2 8\ndog 1 2 3 4 5 6 7 8\n")
    with pytest.raises(UserError, match="has 1 words, but its first line says 2"):
        train(config, tmp_path / "run", overrides={"train.init_vectors": str(damaged)})
    assert not (tmp_path / "run").exists()
    path, _ = written(tmp_path, [])
    with pytest.raises(UserError, match="has no word of the vocabulary"):
        train(config, tmp_path / "run", overrides={"train.init_vectors": path})


def test_the_vectors_of_a_model_are_those_it_exports(tmp_path):
    """context2vec's are its targets, in one space with the contexts; ELMo reads characters."""
    elmo = dict(name="elmo", vocab_size=80, d_model=8, lstm_width=8, filters=((1, 4),))
    config = build(tmp_path, elmo, dict(name="bidirectional_lm", length=16))
    path, _ = written(tmp_path, ["dog"], width=4)
    with pytest.raises(UserError, match="no embeddings of words of its own"):
        train(config, tmp_path / "run", overrides={"train.init_vectors": path})
    task = make_task(config)
    with pytest.raises(UserError, match="elmo has no context-independent word vectors"):
        StaticVectors.from_run(task, init_params(task))

    context2vec = dict(name="context2vec", vocab_size=80, d_model=8, d_embed=4)
    config = build(tmp_path, context2vec, dict(name="words_in_context", length=16))
    words = make_task(config).tokenizer.pieces([7, 9])
    path, values = written(tmp_path, words)
    configs.set_key(config, "train.init_vectors", path)
    task = make_task(config)
    params = warm_start.put_vectors(task, init_params(task))
    np.testing.assert_array_equal(StaticVectors.from_run(task, params).table[[7, 9]], values)
