"""Fine-tuning works for every family of a kind, by what the family declares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.finetuning.examples import build, pretrained
from tests.finetuning.test_tasks import train
from transformer_jax.config import UserError
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.inference.filling import Reader
from transformer_jax.layers.embeddings import Embed
from transformer_jax.models import model as kinds
from transformer_jax.runs.open import open_run


def test_a_recurrent_language_model_learns_two_labels(tmp_path):
    origin = pretrained(tmp_path, "lstm")
    config = build(
        tmp_path, "classification", origin, task__lm_weight=0.5, optimizer__learning_rate=1e-2
    )
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.model.vocab_size == 303 and task.model.kind == "causal"
    assert task.evaluate(params, "valid")["accuracy"] > 0.85
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "cat"
    with pytest.raises(UserError, match="the model LSTM has no attention"):
        task.attention(params, "the cat sat")


class Plain(kinds.Encoder):
    """An encoder that declares nothing: its states are the embeddings."""

    vocab_size: int = 9
    d_model: int = 4
    max_length = None

    def setup(self):
        self.token_embed = Embed(self.vocab_size, self.d_model)

    def hidden(self, tokens, *, positions=None, segment_ids=None, token_types=None, train=False):
        return self.token_embed(tokens)

    def layers(self, tokens, *, positions=None, segment_ids=None, token_types=None):
        return self.hidden(tokens)[None]

    def output(self):
        return self.token_embed.table(), None

    def flops(self, length, predictions):
        return 0.0


def test_the_summary_of_an_encoder_that_does_not_pool_is_its_first_state():
    encoder = Encoder(Plain())
    params = encoder.init(jax.random.key(0), summary=True)
    row = {
        "tokens": jnp.array([[1, 2, 3, 0]]),
        "token_types": jnp.zeros((1, 4), jnp.int32),
        "segment_ids": jnp.array([[1, 1, 1, 0]]),
    }
    hidden = encoder.hidden(params, row, None, train=False)
    np.testing.assert_array_equal(encoder.summary(params, hidden, row), hidden[:, 0])


def test_an_encoder_that_does_not_predict_tokens_fills_no_masks():
    class Marks:
        def required(self, *names, user):
            return (0,) * len(names)

    with pytest.raises(UserError, match="the model Plain does not fill masks"):
        Reader(Plain(), Marks(), 2, None).fill({}, ["a [MASK]"], 5, "split")
