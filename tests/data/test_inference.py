"""The built-in inference pairs: right by construction, balanced, without the unseen labels."""

import collections
import functools
import itertools

import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.corpora.grammar import inference as grammar
from transformer_jax.corpora.grammar import split_of
from transformer_jax.data.sources import tables
from transformer_jax.data.texts import open_documents

ABOUT = "This example is about "
NAMES = {
    noun.english: kind for kind, noun in grammar.GENERAL.items() if kind not in ("kin", "building")
}
NAMES |= {"clothing": "wear", "animals": "animal", "vehicles": "vehicle", "drinks": "drink"}


def data(**keys):
    return experiment(model={"name": "bert"}, task={"name": "classification"}, data=keys).data


def objects_in(text):
    """Returns the objects of a sentence, each with its kind, without those that subjects have."""
    kinds = [(noun.english, noun.kind) for noun in grammar.nouns_in(text)]
    words = text.rstrip(".").split()
    kinds += [(NAMES[word], NAMES[word]) for word in words if word in NAMES]
    return [(name, kind) for name, kind in kinds if kind in NAMES.values()]


@functools.cache
def pairs():
    return [grammar.pair(0, "train", index) for index in range(3000)]


def topics():
    return [pair for pair in pairs() if pair[1].startswith(ABOUT)]


def clauses():
    return [pair for pair in pairs() if not pair[1].startswith(ABOUT)]


def is_negative(text):
    return " not " in text


def test_each_label_has_a_third_of_the_pairs():
    assert collections.Counter(label for *_, label in pairs()) == dict.fromkeys(
        grammar.LABELS, 1000
    )
    assert len(topics()) == 1000


def test_labels_of_clauses_follow_from_object_and_negation():
    """The clause without adverbials ends in its object; the other is a premise unless negated."""
    num_checked = 0
    for premise, hypothesis, label in clauses():
        plain, other = (premise, hypothesis) if is_negative(premise) else (hypothesis, premise)
        objects = objects_in(plain)
        if not objects:
            continue  # relatives and buildings may also be subjects and places
        name, kind = objects[-1]
        of_kind = [other_name for other_name, its_kind in objects_in(other) if its_kind == kind]
        assert bool(of_kind) == (label != "neutral"), (premise, hypothesis)
        if label == "neutral":
            continue
        assert (is_negative(premise) == is_negative(hypothesis)) == (label == "entailment")
        is_same, is_general = name in of_kind, name == kind
        assert is_same or is_general or name == "furniture", (premise, hypothesis)
        num_checked += 1
    assert num_checked > 500


def test_labels_of_topics_follow_from_the_nouns():
    for premise, hypothesis, label in topics():
        topic = hypothesis.removeprefix(ABOUT).rstrip(".")
        nouns = grammar.nouns_in(premise)
        kind = grammar.SEEN.get(topic)
        if kind is None:
            (noun,) = grammar.nouns_in(topic)
            assert (noun in nouns) == (label == "entailment"), (premise, hypothesis)
            kind = noun.kind
        assert (kind in {noun.kind for noun in nouns}) == (label == "entailment")


def test_a_topic_says_nothing_about_the_label():
    by_label = collections.Counter((pair[1], pair[2]) for pair in topics())
    hypothesis = f"{ABOUT}buildings."
    counts = [by_label[hypothesis, label] for label in ("entailment", "contradiction")]
    assert min(counts) > 0.6 * max(counts)


def test_the_unseen_labels_are_no_topics_of_the_training():
    names = {pair[1].removeprefix(ABOUT).rstrip(".") for pair in topics()}
    assert grammar.SEEN.keys() <= names and not grammar.UNSEEN.keys() & names
    for index in range(40):
        text, label = grammar.labelled_text(0, "test", index)
        kinds = {noun.kind for noun in grammar.nouns_in(text)}
        assert kinds & {*grammar.UNSEEN.values()} == {grammar.UNSEEN[label]}
        assert split_of(text) == "test"


def test_the_premise_decides_about_the_split():
    for split in ("train", "valid", "test"):
        pairs = tables.open_inference(data(corpus="inference", corpus_size=30), split, ("premise",))
        premises = [record.values[0] for record in itertools.islice(pairs, 30)]
        assert {split_of(premise) for premise in premises} == {split}


def test_columns_and_documents():
    settings = data(corpus="inference", corpus_size=30)
    records = [*tables.open_inference(settings, "train", ("hypothesis", "label"))]
    assert [record.values for record in records] == [pair[1:] for pair in pairs()[:30]]
    texts = [*open_documents(settings, "valid")]
    assert len(texts) == 334 and all(text.count("\n") == 1 for text in texts)


@pytest.mark.parametrize(
    "keys, columns, message",
    [
        (dict(corpus="inference"), ("1",), "corpus=inference: no column '1'; it has premise"),
        (dict(corpus="grammar"), ("1",), "corpus=grammar: has no labeled examples; only inf"),
        (
            dict(corpus="inference", train_files="a.tsv"),
            ("1",),
            "corpus=inference and config.data.train_files: name one source",
        ),
    ],
)
def test_mistakes_are_refused(keys, columns, message):
    with pytest.raises(UserError, match=message):
        tables.open_inference(data(**keys), "train", columns)
