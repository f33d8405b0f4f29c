"""GloVe: counts of pairs by their definition, the loss, and training."""

import collections

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.conftest import build_bert
from tests.jitted import jitted
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.families.word_vectors import word_contexts
from transformer_jax.runs.spec import make_task


@pytest.fixture
def config(tmp_path):
    config = configs.experiment(
        model=dict(name="glove", vocab_size=80, d_model=8),
        task=dict(name="glove", window=3, most=4.0, length=64),
        optimizer=dict(name="adagrad", learning_rate=0.05),
        train=dict(num_steps=60, log_every=20, batch=8, eval_every=60),
    )
    config.data = build_bert(tmp_path).data
    for key, value in (("tokenizer", "words"), ("min_count", 1)):
        configs.set_key(config, f"data.{key}", value)
    configs.validate(config)
    return config


def test_counts_and_loss_are_those_of_the_definition(config, monkeypatch):
    # Pairs cross the blocks of tokens that are counted at once.
    monkeypatch.setattr(word_contexts, "_TOGETHER", 7)
    task = make_task(config)
    component = task.rows().train.phases[0].components[0]
    expected = collections.Counter()
    for document in open(config.data.train_files).read().split("\n\n"):
        ids = [i for i in task.tokenizer.encode(document) if not task.tokenizer.special[i]]
        for position, word in enumerate(ids):
            for other in range(max(position - 3, 0), position):
                expected[word, ids[other]] += 1 / (position - other)
                expected[ids[other], word] += 1 / (position - other)
    rows = component.rows([(number, 0) for number in range(len(component))])
    first, second, counts = (
        np.concatenate([row[name] for row in rows]) for name in ("first", "second", "counts")
    )
    pairs = {(a, b): x for a, b, x in zip(first, second, counts) if x}
    assert pairs.keys() == expected.keys() and (counts > 0).sum() == len(expected)
    np.testing.assert_allclose([pairs[pair] for pair in expected], [*expected.values()], rtol=1e-6)

    random = np.random.default_rng(0)
    params = jax.eval_shape(lambda: nn.meta.unbox(task.init(jax.random.key(0))))
    params = jax.tree.map(lambda x: np.float32(random.normal(size=x.shape)), params)
    w, v = (params[name]["embedding"] for name in ("token_embed", "output_embed"))
    b, c = (params[name]["bias"] for name in ("token_bias", "output_bias"))
    batch = task.rows().train.batch(0, range(8))
    flat = zip(*(batch[name].ravel().tolist() for name in ("first", "second", "counts")))
    expected = sum(
        min(1, (x / 4) ** 0.75) * (w[i] @ v[j] + b[i] + c[j] - np.log(x)) ** 2
        for i, j, x in flat
        if x
    )
    loss = jitted(task.loss)(params, batch, Context()).terms["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    vectors = jitted(task.model.apply)({"params": params}, method="vectors")
    np.testing.assert_allclose(vectors, w + v, rtol=1e-6)


@pytest.mark.full
def test_a_run_learns_the_counts(config):
    by_step, _ = losses(config, 40)
    assert np.mean(by_step[-5:]) < np.mean(by_step[:5]) / 4


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("text", ["cat\n\ndog\n\nbird\n", "one\n"])
def test_a_text_without_pairs_is_one_line(split, text, config, tmp_path):
    (tmp_path / "alone.txt").write_text(text)
    configs.set_key(config, f"data.{split}_files", str(tmp_path / "alone.txt"))
    with pytest.raises(UserError, match=f"^the {split} text has no two known words .*=3 of each"):
        make_task(config).rows()


def test_a_word_beside_itself_is_a_pair(config, tmp_path):
    """Both orders of a pair count: twice 4 / 1 + 3 / 2 + 2 / 3 for a word that comes five times."""
    (tmp_path / "same.txt").write_text("a a a a a\n")
    configs.set_key(config, "data.train_files", str(tmp_path / "same.txt"))
    configs.set_key(config, "data.valid_files", None)
    batch = make_task(config).rows().train.batch(0, [0])
    assert np.count_nonzero(batch["counts"]) == 1
    np.testing.assert_allclose(batch["counts"][0, 0], 2 * (4 + 3 / 2 + 2 / 3), rtol=1e-6)


def test_another_model_is_refused(config):
    config.model = configs.experiment(
        model=dict(name="word_vectors", vocab_size=80), task=dict(name="word_vectors")
    ).model
    with pytest.raises(
        UserError, match="'word_vectors': predicts no co-occurrence counts; take glove"
    ):
        make_task(config)
