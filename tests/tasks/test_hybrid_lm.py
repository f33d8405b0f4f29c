"""GPT-BERT: rows of both objectives, their losses, and scores from left to right."""

import jax
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_bert
from tests.jitted import jitted
from tests.tasks.conftest import trained as train
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context
from transformer_jax.runs.spec import make_task

MODEL = dict(
    name="bert", vocab_size=80, d_model=32, num_layers=2, num_heads=2, max_length=64, dropout=0.0
)


def build(folder, model=MODEL):
    other = build_bert(folder, train__num_steps=60)
    config = configs.experiment(
        model=model, task=dict(name="hybrid_lm", length=24, causal_share=0.5, selected=0.2)
    )
    for section in ("data", "train", "optimizer", "checkpoint"):
        config[section] = other[section]
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid_lm")
    return train(build(folder), folder)


def test_rows_have_either_objective(trained):
    rows = trained.task.rows().train
    batch = rows.batch(0, range(rows.size(0)))
    tokenizer = trained.task.tokenizer
    assert (batch["tokens"][:, 0] == tokenizer.cls_id).all()
    assert 0 < batch["causal"].mean() < 1
    for row in range(len(batch["causal"])):
        tokens, labels, weights = (batch[name][row] for name in ("tokens", "labels", "weights"))
        if batch["causal"][row]:
            np.testing.assert_array_equal(batch["ranks"][row], np.arange(24))
            np.testing.assert_array_equal(tokens[1:], labels[:-1])
            assert weights.sum() == 23
        else:
            assert not batch["ranks"][row].any()
            # 20 % of the tokens that are not special; each mask is predicted one position earlier.
            assert 1 <= weights.sum() <= 5
            hidden = np.flatnonzero(tokens == tokenizer.mask_id)
            assert weights[hidden - 1].all()
            changed = np.flatnonzero(tokens[1:] != labels[:-1])
            assert weights[changed].all()


def test_it_learns_both_objectives(trained):
    assert trained.scores["valid/loss"] < 2.6 and trained.scores["valid/masked_loss"] < 3.2
    scores = trained.task.evaluate(trained.params, "valid")
    assert scores["loss"] == pytest.approx(trained.scores["valid/loss"], rel=1e-5)
    assert scores["masked_loss"] == pytest.approx(trained.scores["valid/masked_loss"], rel=1e-5)


def test_the_losses_are_means_over_the_rows_of_each_objective(trained):
    task, params = trained.task, trained.params
    batch = task.rows().train.batch(3, range(8))
    loss = jax.jit(lambda params: task.loss(params, batch, Context()))(params)
    weights = task.weights(batch)
    apply = jitted(task.model.apply)
    inputs = Inputs(batch["tokens"], segment_ids=batch["segment_ids"], ranks=batch["ranks"])
    states = apply({"params": params}, inputs, method="hidden")
    log_probs = scipy.special.log_softmax(
        np.asarray(apply({"params": params}, states, method="logits")), axis=-1
    )
    of_labels = np.take_along_axis(log_probs, batch["labels"][..., None], axis=-1)[..., 0]
    for name, value in (("causal", 1), ("masked", 0)):
        chosen = batch["weights"] * (batch["causal"][:, None] == value)
        assert float(weights[name]) == chosen.sum()
        assert float(loss.terms[name]) == pytest.approx(-(of_labels * chosen).sum(), rel=1e-4)
    assert task.coefficients == {"causal": 0.5, "masked": 0.5}


def test_a_text_is_scored_from_left_to_right(trained):
    task, params = trained.task, trained.params
    assert task.scoring.kind == "exact"
    whole, start = task.log_probability(params, ["the cat sat on", "the cat"])
    np.testing.assert_allclose(whole.log_probs[: len(start.log_probs)], start.log_probs, atol=1e-5)
    ids = task.tokenizer.encode("the cat")
    read = np.array([[task.tokenizer.cls_id, *ids[:-1]]])
    ranks = np.arange(len(ids))[None]
    states = jitted(task.model.apply)(
        {"params": params}, Inputs(read, ranks=ranks), method="hidden"
    )
    logits = jitted(task.model.apply)({"params": params}, states, method="logits")
    by_hand = scipy.special.log_softmax(np.asarray(logits)[0], axis=-1)[np.arange(len(ids)), ids]
    np.testing.assert_allclose(start.log_probs, by_hand, atol=1e-4)


def test_other_models_are_refused(tmp_path):
    model = dict(name="gpt", vocab_size=80, d_model=16, num_heads=2, num_layers=1, max_length=64)
    with pytest.raises(UserError, match="'gpt': takes no attention masks by ranks"):
        make_task(build(tmp_path, model))
