"""The built-in English-German corpus: unique translations, disjoint splits, pure draws."""

import hashlib
import itertools
import re

import pytest

from transformer_jax.corpora import grammar

COUNT = 10_000


@pytest.fixture(scope="module")
def sample():
    return list(grammar.pairs(7, "train", COUNT))


def test_the_german_is_a_function_of_the_english(sample):
    others = [grammar.pairs(seed, split, 2_000) for seed, split in ((8, "train"), (7, "valid"))]
    german = {}
    for source, target in itertools.chain(sample, *others):
        assert german.setdefault(source, target) == target, source
    assert len(sample) == COUNT and len(german) > 0.9 * (COUNT + 4_000)


def test_sentences_are_well_formed(sample):
    for source, target in sample:
        for side in (source, target):
            assert side[0].isupper() and re.fullmatch(r"[\w' ,-]+[.?!]", side), side
            assert not re.search(r" [ ,]|,[^ ]|,[.?!]", side), side
        assert source[-1] == target[-1] and 3 <= len(source.split()) <= 22


def test_samples_show_the_phenomena(sample):
    text = "\n".join(f"{source}\t{target}" for source, target in sample)
    for pattern in (
        r"Can you help me to translate .*\tKannst du mir helfen, .* zu übersetzen\?",
        r"\tWeil ",
        r", dass ",
        r", ob ",
        r", um .* zu ",
        r" (im|am|ins|zum|zur|vom) ",
        r", de(nen|ren|ssen) ",
        r"\tEs gibt ",
        r" halb ",
        r" and (it|they|them)\b|because (it|they) ",
        r" größer als ",
        r" am \w+sten",
        r"\tBitte ",
        r"\tW(en|em|o) ",
        r" kein(e|en)? ",
        r" Bären ",
        r", deshalb ",
        r" während de[rs] ",
        r" \w+zu\w+en[.,]",
    ):
        assert re.search(pattern, text), pattern


def test_few_sentences_repeat(sample):
    assert len(dict(sample)) > 0.97 * COUNT


def test_splits_are_disjoint_whatever_the_seed():
    drawn = {
        split: {source for seed in (0, 1) for source, _ in grammar.pairs(seed, split, 400)}
        for split in grammar.SPLITS
    }
    for split, sources in drawn.items():
        assert all(grammar.split_of(source) == split for source in sources)
    assert len(set().union(*drawn.values())) == sum(map(len, drawn.values()))
    shares = [grammar.split_of(str(n)) for n in range(20_000)]
    assert abs(shares.count("train") / 20_000 - 0.8) < 0.02


def test_pairs_are_pure_and_the_same_everywhere():
    first = list(grammar.pairs(0, "train", 200))
    assert first == [grammar.sentence_pair(0, "train", index) for index in range(200)]
    assert grammar.sentence_pair(0, "train", 5) != grammar.sentence_pair(1, "train", 5)
    lines = ["\t".join(pair) for split in grammar.SPLITS for pair in grammar.pairs(0, split, 200)]
    golden = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    # a new hash needs a new version
    assert (grammar.VERSION, golden[:16]) == ("1", "1057a7af8c3e5fab")
    with pytest.raises(ValueError, match="split='dev'"):
        grammar.sentence_pair(0, "dev", 0)
