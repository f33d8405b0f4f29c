"""A table of bigrams: trained by the loop's step, it ends at the relative frequencies."""

import jax
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_gpt
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

SIZE = 24


def build(folder, **overrides):
    config = configs.experiment(
        model=dict(name="bigram", vocab_size=SIZE, d_model=SIZE),
        task=dict(name="causal_lm", length=64),
        optimizer=dict(name="adam", learning_rate=1.0, schedule="cosine", final_fraction=0.0),
    )
    other = build_gpt(folder, data__tokenizer="characters")
    for section in ("data", "train", "checkpoint", "decode"):
        config[section] = other[section]
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


@pytest.mark.full
def test_training_converges_to_the_counts(tmp_path):
    steps = 300
    config = build(tmp_path, train__num_steps=steps)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = task.rows().train.batch(0, range(config.train.batch))
    counts = np.zeros((SIZE, SIZE))
    np.add.at(counts, (batch["tokens"], batch["labels"]), 1)
    apply = jax.jit(task.model.apply)
    before = apply({"params": state.params}, batch["tokens"])
    np.testing.assert_array_equal(before, 0)
    same = trainer.stream(
        lambda step, indices: task.rows().train.batch(0, indices),
        config.train.batch,
        config.train.accumulation,
        program.batch_sharding,
        range(steps),
    )
    for each in same:
        state = program.train_step(state, each)
    logits = np.asarray(apply({"params": state.params}, np.arange(SIZE)[:, None]))[:, 0]
    predicted = scipy.special.softmax(logits, axis=-1)
    occur = counts.sum(axis=1) > 0
    expected = counts[occur] / counts[occur].sum(axis=1, keepdims=True)
    assert occur.sum() > 10 and (expected > 0).sum(axis=1).max() > 3
    np.testing.assert_allclose(predicted[occur], expected, atol=1e-3)

    # It writes the likeliest next token.
    (text,) = task.generate(state.params, ["t"], max_tokens=1, temperature=0.0)
    after_t = np.argmax(counts[task.tokenizer.encode("t")[0]])
    assert text.text == task.tokenizer.decode([int(after_t)])


def test_a_width_that_is_not_the_vocabulary_is_refused(tmp_path):
    with pytest.raises(UserError, match="config.model.d_model=8: must be config.model.vocab_size"):
        build(tmp_path, model__d_model=8)
