"""Fine-tuning works for every family of a kind, by what the family declares."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests import examples
from tests.finetuning.examples import build, pretrained, task_of
from tests.finetuning.test_tasks import train
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts import model as kinds
from transformer_jax.contracts.task import Context
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.finetuning.encoder import Encoder
from transformer_jax.inference.filling import Reader
from transformer_jax.layers.embeddings import Embed
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import resolve
from transformer_jax.training.step import init_params


@pytest.mark.full
def test_a_recurrent_language_model_learns_two_labels(tmp_path):
    origin = pretrained(tmp_path, "lstm")
    config = build(
        tmp_path, "classification", origin, task__lm_weight=0.1, optimizer__learning_rate=2e-2
    )
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.model.vocab_size == 303 and task.model.kind == "causal"
    accuracy = task.evaluate(params, "valid")["accuracy"]
    assert accuracy > 0.85
    [(measure, is_right)] = task.text_statistics(params, "valid")
    assert measure.scores(is_right.sum(axis=0), len(is_right)) == {"accuracy": accuracy}
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "cat"
    with pytest.raises(UserError, match="the model RecurrentLM has no attention"):
        task.attention(params, "the cat sat")


def test_the_settings_of_gpt_take_a_recurrent_language_model(tmp_path):
    """An LSTM instead of the Transformer (Radford et al. 2018, table 5)."""
    config = configs.tiny("configs/finetune/glue.py:mrpc,gpt")
    for key, value in examples.write(config, tmp_path / "examples").items():
        configs.set_key(config, key, value)
    configs.set_key(config, "data.cache", str(tmp_path / "cache"))
    configs.set_key(config, "init_from", str(pretrained(tmp_path, "lstm")))
    task = resolve(config, tmp_path / "run").task()
    assert type(task.model).__name__ == "RecurrentLM" and task.symmetric and task.lm_weight == 0.5
    params = init_params(task)
    batch = task.rows().train.batch(0, range(2))

    @jax.jit
    @jax.value_and_grad
    def of_batch(params):
        return sum(task.loss(params, batch, Context()).terms.values())

    loss, gradients = jax.device_get(of_batch(params))
    assert float(loss) > 0
    of_layers = [each for path, each in flatten_dict(gradients).items() if "layers" in path]
    assert of_layers and all(np.abs(each).max() > 0 for each in of_layers)


@pytest.mark.full
def test_an_encoder_may_sum_up_a_row_at_its_end(tmp_path):
    """XLNet's rows are A [SEP] B [SEP] [CLS]."""
    origin = pretrained(tmp_path, "xlnet")
    config = build(tmp_path, "classification", origin)
    assert train(config, tmp_path / "run")["valid/accuracy"] > 0.85
    task, params = open_run(tmp_path / "run")
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "cat"
    labels = "the cat [SEP] a dog [SEP] [CLS]".split()
    assert task.attention(params, "the cat\ta dog").queries == labels
    cls, sep = task.tokenizer.cls_id, task.tokenizer.sep_id
    row = task.encoder.row(task.tokenizer, [7, 8], [9], length=8)
    assert row["tokens"].tolist() == [7, 8, sep, 9, sep, cls, 0, 0]
    assert row["token_types"].tolist() == [0, 0, 0, 1, 1, 2, 0, 0]
    task = task_of(tmp_path, "span", origin, task__unanswerable=True)
    example = task.examples(task.read("valid"))[0]
    unanswered = task.row(dataclasses.replace(example, target=None))
    assert unanswered["tokens"][unanswered["first"]] == cls
    assert not unanswered["segment_ids"][unanswered["last"] + 1 :].any()


class Plain(kinds.Encoder):
    """An encoder that declares nothing: its states are the embeddings."""

    vocab_size: int = 9
    d_model: int = 4
    max_length = None

    def setup(self):
        self.token_embed = Embed(self.vocab_size, self.d_model)

    def hidden(self, inputs, *, train=False):
        return self.token_embed(inputs.tokens)

    def layers(self, inputs):
        return self.hidden(inputs)[None]

    def output(self):
        return self.token_embed.output()

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


class Bounded(Tokenizer):
    """A tokenizer whose texts have a beginning, as RoBERTa's."""

    eos_id, cls_id, pair_separators = 2, 0, 2

    def __init__(self):
        pass


class Ended(Tokenizer):
    """A tokenizer whose texts have an end alone, as T5's."""

    eos_id, pad_id = 1, 0

    def __init__(self):
        pass


@pytest.mark.parametrize(
    "tokenizer, one, two, inputs",
    [
        (Bounded(), [0, 7, 8, 2], [0, 7, 8, 2, 2, 9, 2], [2, 0, 7, 8, 2, 2, 9]),
        (Ended(), [7, 8, 1], [7, 8, 1, 9, 1], [0, 7, 8, 1, 9]),
    ],
)
def test_the_decoder_reads_the_framed_texts_behind_its_start(tokenizer, one, two, inputs):
    encoder = Encoder(EncoderDecoder(vocab_size=16))
    assert encoder.row(tokenizer, [7, 8], length=len(one))["tokens"].tolist() == one
    row = encoder.row(tokenizer, [7, 8], [9], length=9)
    padding = [0] * (9 - len(two))
    assert row["tokens"].tolist() == two + padding
    assert row["decoder_tokens"].tolist() == inputs + padding
    assert row["segment_ids"].tolist() == [1] * len(two) + padding
    assert two[encoder.special_tokens(tokenizer).second([7, 8])] == 9


@pytest.mark.full
def test_an_encoder_decoder_tags_by_the_states_of_its_decoder(tmp_path):
    origin = pretrained(tmp_path, "encoder_decoder")
    config = build(tmp_path, "tagging", origin)
    assert train(config, tmp_path / "run")["valid/f1"] > 0.85
    task, params = open_run(tmp_path / "run")
    (prediction,) = task.predict(params, ["the cat sat"])
    assert prediction.text == "the/O cat/B-PET sat/O"
    assert task.attentions == ("encoder",)
    assert task.attention(params, "the cat\ta dog").queries == "the cat </s> a dog </s>".split()


@pytest.mark.parametrize(
    "kind, keys, message",
    [
        ("pairs", dict(task__lm_weight=0.5), "encoder_decoder is not a language model"),
        ("pairs", dict(task__symmetric=True), "symmetric=True: .* encoder_decoder"),
        ("tagging", dict(task__features="weighted"), "features=weighted: must be one of embedd"),
    ],
)
def test_keys_that_an_encoder_decoder_lacks_are_refused(kind, keys, message, tmp_path):
    origin = pretrained(tmp_path, "encoder_decoder")
    with pytest.raises(UserError, match=message):
        train(build(tmp_path, kind, origin, **keys), tmp_path / "run")


@pytest.mark.full
def test_source_and_target_must_share_a_vocabulary(tmp_path):
    origin = pretrained(tmp_path, "encoder_decoder", model__source_vocab_size=90)
    with pytest.raises(UserError, match="source_vocab_size=90: .* one vocabulary"):
        train(build(tmp_path, "choice", origin), tmp_path / "run")


def test_an_encoder_that_does_not_predict_tokens_fills_no_masks():
    class WithMask:
        def required(self, *names, user):
            return (0,) * len(names)

    with pytest.raises(UserError, match="the model Plain does not fill masks"):
        Reader(Plain(), WithMask(), 2, None).fill({}, ["a [MASK]"], 5, "split")
