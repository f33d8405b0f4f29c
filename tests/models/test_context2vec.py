"""context2vec: a context depends on every other word of its sentence, and not on its own."""

import functools

import jax
import numpy as np
import pytest

from tests.conftest import build_bert
from tests.jitted import jitted
from tests.tasks.conftest import trained
from transformer_jax import config as configs
from transformer_jax.contracts.task import Context
from transformer_jax.families.context2vec import Context2Vec
from transformer_jax.families.word_vectors.words import negative_sampling

MODEL = Context2Vec(vocab_size=20, d_model=6, d_embed=4)
# Two sentences and padding.
TOKENS = np.array([[1, 5, 9, 7, 2, 1, 6, 2, 0, 0]])
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0, 0]])


@pytest.fixture(scope="module")
def hidden():
    params = jitted(MODEL.init)(jax.random.key(0), TOKENS, method="hidden")

    @jax.jit
    def apply(tokens, segment_ids=None):
        return MODEL.apply(params, tokens, segment_ids=segment_ids, method="hidden")

    return lambda *arrays: np.asarray(apply(*arrays))


def test_a_context_depends_on_all_other_words_of_its_sentence_alone(hidden):
    contexts = hidden(TOKENS, SEGMENTS)[0]
    for position in range(8):
        other = TOKENS.copy()
        other[0, position] = 11
        differs = np.any(hidden(other, SEGMENTS)[0] != contexts, axis=-1)
        same_sentence = SEGMENTS[0] == SEGMENTS[0, position]
        same_sentence[position] = False
        np.testing.assert_array_equal(differs[:8], same_sentence[:8])


def test_a_sentence_in_a_row_of_two_has_the_contexts_that_it_has_alone(hidden):
    both = hidden(TOKENS, SEGMENTS)[0]
    np.testing.assert_allclose(both[:5], hidden(TOKENS[:, :5])[0], atol=1e-6)
    np.testing.assert_allclose(both[5:8], hidden(TOKENS[:, 5:8])[0], atol=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("context2vec")
    config = configs.experiment(
        model=dict(name="context2vec", vocab_size=80, d_model=24, d_embed=12),
        task=dict(name="words_in_context", length=16, negatives=4, shared_noise=8),
        optimizer=dict(name="adam", learning_rate=2e-2),
        train=dict(num_steps=120, batch=16, log_every=60, eval_every=120),
    )
    config.data = build_bert(folder).data
    for key, value in (("tokenizer", "words"), ("min_count", 1)):
        configs.set_key(config, f"data.{key}", value)
    configs.validate(config)
    return trained(config, folder)


@pytest.mark.full
def test_the_loss_is_that_of_each_word_and_its_context(run):
    task, params = run.task, run.params
    batch = task.rows().train.batch(0, range(4))
    options = dict(segment_ids=batch["segment_ids"], method="hidden")
    contexts = jitted(task.model.apply)({"params": params}, batch["tokens"], **options)
    contexts, u = jax.device_get((contexts, params["output_embed"]["embedding"]))
    score = jax.jit(functools.partial(negative_sampling, negatives=4))
    total = 0.0
    for row, position in zip(*np.nonzero(batch["weights"])):
        word, x = batch["tokens"][row, position], contexts[row, position]
        noise = batch["noise"][row]
        ones = np.ones((1, 1, 1), np.float32)
        repeats = np.float32(noise == word)[None, None]
        arrays = (x[None, None], u[word][None, None], u[noise][None])
        total += np.sum(score(*arrays, ones, repeats))
    loss = jax.jit(lambda params: task.loss(params, batch, Context()).terms["loss"])(params)
    np.testing.assert_allclose(loss, total, rtol=1e-4)
    special = task.tokenizer.special[batch["tokens"]]
    np.testing.assert_array_equal(batch["weights"] > 0, (batch["segment_ids"] > 0) & ~special)


def test_blanks_are_filled_with_the_words_of_the_text(run):
    texts = run.task.config.data.valid_files
    sentence = open(texts).read().splitlines()[0]
    words = sentence.split()
    correct = 0
    for position, word in enumerate(words):
        blank = " ".join([*words[:position], "[MASK]", *words[position + 1 :]])
        ((fillings,),) = run.task.fill(run.params, [blank], 3)
        assert not {"<unk>", "<pad>", "[MASK]"} & {filling.word for filling in fillings}
        correct += word.lower() in [filling.word for filling in fillings]
    assert correct >= len(words) / 2
