"""Pairs whose words only their context translates: twins of pronouns, words of two senses."""

import collections
import hashlib
import json
import pathlib

import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.corpora import grammar
from transformer_jax.corpora.grammar import ambiguity, corpus
from transformer_jax.corpora.grammar.phrases import Draw
from transformer_jax.data.sources.pairs import open_pairs

COUNT = 3000


def test_twins_differ_in_the_last_word_and_in_the_pronoun():
    adjectives = collections.defaultdict(set)
    for seed in range(COUNT):
        first, second = ambiguity.draw_twins(Draw(seed))
        assert first.english.rpartition(" ")[0] == second.english.rpartition(" ")[0]
        assert (first.referent, first.other) == (second.other, second.referent)
        assert first.pronoun != second.pronoun
        for twin in (first, second):
            words = twin.english.lower().rstrip(".").split()
            assert words.count("it") == 1 and twin.referent in words and twin.other in words
            clause = twin.german.rpartition(", ")[2].split()
            assert clause[0] in ("weil", "da") and clause[1] == twin.pronoun
            adjectives[twin.referent].add(words[-1])
    # A word that explained both would leave the sentence open.
    for schema in ambiguity.SCHEMAS:
        of_first, of_second = (
            {adjective.english for adjective in reasons}
            for reasons in (schema.reasons_first, schema.reasons_second)
        )
        assert not of_first & of_second
    assert "tired" in adjectives["animal"] and "wide" in adjectives["street"]
    assert "wide" not in adjectives["animal"] and "tired" not in adjectives["street"]


def test_the_german_noun_is_that_of_the_sense():
    found = collections.Counter()
    for seed in range(COUNT):
        drawn = ambiguity.draw_in_context(Draw(seed))
        _, senses = ambiguity.WORDS[drawn.word]
        right, wrong = sorted(senses, key=lambda sense: sense.name != drawn.sense)
        german = drawn.german.split()
        assert drawn.word in drawn.english.rstrip(".").split()
        assert any(form in drawn.german for form in right.noun.singular)
        assert not any(word.rstrip(".") in wrong.noun.singular for word in german)
        found[drawn.word, drawn.sense] += 1
    assert len(found) == 2 * len(ambiguity.WORDS)
    assert min(found.values()) > 0.7 * COUNT / len(found)


def test_pairs_are_pure_and_unique_and_those_of_the_grammar_stay():
    data = dict(corpus="ambiguity", corpus_size=COUNT)
    keys = dict(model=dict(name="encoder_decoder"), task=dict(name="translation"))
    pairs = open_pairs(experiment(**keys, data=data).data, "train")
    german = {}
    for source, target in pairs:
        assert german.setdefault(source, target) == target, source
        assert corpus.split_of(source) == "train"
    assert len(german) > 0.9 * COUNT
    assert pairs.fingerprint()["ambiguity"] == ambiguity.VERSION
    others = open_pairs(experiment(**keys, data=data | dict(corpus="grammar")).data, "train")
    assert "ambiguity" not in others.fingerprint()
    assert next(iter(others)) == grammar.sentence_pair(0, "train", 0)
    golden = hashlib.sha256("\n".join(map("\t".join, german.items())).encode()).hexdigest()
    # a new hash needs a new version
    assert (ambiguity.VERSION, golden[:16]) == ("1", "e9e025160676e86b")
    with pytest.raises(UserError, match="corpus=python: has no sentence pairs; grammar and"):
        open_pairs(experiment(**keys, data=dict(corpus="python")).data, "train")


def test_the_measured_rows_show_what_the_page_says():
    """With each of five seeds, pronouns are right and senses apart; with three, a head shows it."""
    path = pathlib.Path(__file__).parents[2] / "benchmarks/results/ambiguity_cpu.json"
    rows = json.loads(path.read_text())["rows"]
    assert [row["seed"] for row in rows] == [*range(5)]
    for row in rows:
        assert row["twins"] > 0.95
        assert abs(row["encoder"]["head_share"] - 0.5) < 0.05
        embeddings, *_, last = row["senses"]
        assert last > 0.8 > 0.6 > embeddings and row["words"]["bank"] > 0.8
    assert [row["cross"]["head_share"] >= 0.75 for row in rows] == [True, False, True, False, True]
