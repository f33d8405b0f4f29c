"""A word's neighbours by context: which occurrences are near, and those of the same sense."""

import collections
import types

import numpy as np
import pytest

from tests.fixtures.make_huggingface import HERE
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.inference import neighbours

SENSES = HERE.parent / "senses.tsv"


class ByTopic:
    """A task whose states are known: in layer 1, all words of a text point to its topic."""

    def __init__(self, tokenizer, topics):
        self.tokenizer = self.text_tokenizer = tokenizer
        self.topics = topics
        self.model = types.SimpleNamespace(num_states=2, word_table="embed/table", can=())

    def features(self, params, texts, layers):
        for text in texts:
            ids = [self.tokenizer.cls_id, *self.tokenizer.encode(text), self.tokenizer.sep_id]
            topic = next((n for n, word in enumerate(self.topics) if word in text), 0)
            # A large mean, which hides the angles between texts until it is subtracted.
            states = np.full((2, len(ids), 3), 100, np.float32)
            states[0] += np.arange(len(ids))[:, None] * [0, 1, 2]
            states[1] += np.eye(3)[topic]
            yield self.tokenizer.pieces(ids), states


@pytest.fixture(scope="module")
def task():
    texts = ["the bank of the river", "a bank lends money", "money in the bank", "the river bank."]
    return texts, ByTopic(tokenizers.train(texts, "wordpiece", 90), ("river", "money"))


def test_the_nearest_occurrence_is_that_of_the_same_topic(task):
    texts, by_topic = task
    table = np.random.default_rng(0).normal(size=(by_topic.tokenizer.vocab_size, 4))
    params = {"embed": {"table": table}}
    labelled = [("river" if "river" in text else "money", text) for text in texts]
    by_context = neighbours.word_neighbours(by_topic, params, "Bank", labelled)
    assert by_context.texts == texts and by_context.cosines.shape == (2, 4, 4)
    assert by_context.nearest[1].tolist() == [3, 2, 1, 0]
    assert by_context.same_sense[1].all() and not by_context.same_sense[0].all()
    by_layer, chance = neighbours.accuracies([by_context])
    assert by_layer[1] == 1 and chance == pytest.approx(1 / 3)
    assert by_context.pairs(1)[0][:2] == (texts[0], texts[3])
    assert by_context.pairs(1)[0][2] == pytest.approx(1, abs=1e-3)
    # The mean is subtracted, so texts of different topics are far from each other.
    assert by_context.cosines[1, 0, 1] < 0

    centred = table - table.mean(axis=0)
    ids = by_topic.tokenizer.encode("Bank")
    vector = centred[ids].mean(axis=0)
    cosines = centred @ vector / np.linalg.norm(centred, axis=1) / np.linalg.norm(vector)
    cosines[ids] = -2
    word, cosine = by_context.static[0]
    assert word == by_topic.tokenizer.pieces([int(cosines.argmax())])[0]
    assert cosine == pytest.approx(cosines.max(), rel=1e-4)


def test_of_occurrences_that_are_as_near_each_counts_its_share():
    cosines = np.full((1, 4, 4), 0.5, np.float32)
    cosines[:, range(4), range(4)] = -np.inf
    cosines[0, 3, 0] = 0.9
    word = neighbours.Neighbours(["a", "b", "c", "d"], ["x", "x", "y", "x"], cosines, [])
    np.testing.assert_allclose(word.same_sense, [[2 / 3, 2 / 3, 0, 1]])


def test_two_occurrences_in_one_text_are_no_neighbours(task):
    _, by_topic = task
    params = {"embed": {"table": np.eye(by_topic.tokenizer.vocab_size)}}
    texts = [("", "the bank, the bank of the river"), ("", "a bank lends money"), ("", "")]
    by_context = neighbours.word_neighbours(by_topic, params, "bank", texts)
    assert (
        by_context.nearest[:, :2].tolist() == [[2, 2], [2, 2]]
        and (by_context.nearest[:, 2] < 2).all()
    )
    assert neighbours.accuracies([by_context]) is None  # the senses are not known
    with pytest.raises(UserError, match="--word=bank: fewer than two of the texts"):
        neighbours.word_neighbours(by_topic, params, "bank", texts[:1])


def test_the_list_of_ambiguous_words_is_balanced():
    by_word = neighbours.read(str(SENSES), "")
    assert len(by_word) == 24
    for word, texts in by_word.items():
        assert set(collections.Counter(sense for sense, _ in texts).values()) == {2}
        assert len({sense for sense, _ in texts}) == 2
        assert all(f" {word}" in text.lower() for _, text in texts)
    assert neighbours.read(str(SENSES), "bank").keys() == {"bank"}


@pytest.mark.parametrize(
    "content, word, message",
    [
        ("a bank\n", "", ":1: must be a word, a sense and a text"),
        ("bank\ta bank\n", "bank", ":1: must be a word, a sense and a text"),
        ("bat\tclub\ta bat\n", "bank", "no line of --word=bank"),
    ],
)
def test_a_file_of_another_form_is_refused(content, word, message, tmp_path):
    (tmp_path / "texts").write_text(content)
    with pytest.raises(UserError, match=message):
        neighbours.read(str(tmp_path / "texts"), word)
