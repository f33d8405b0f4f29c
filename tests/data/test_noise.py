"""Noises: the properties of each, its share over many texts, and wrong entries of a config."""

import itertools

import numpy as np
import pytest

from transformer_jax import pictures
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.data.noises import Composition, Pieces, Text, noised_pieces

V, MASK = 600, 599
# Tokens from 500 on continue a word.
PIECES = Pieces(np.arange(V) < 500, MASK, 100, V + 100)


def noised(*entries, tokens, sentences=None, seed=0, count=1):
    """Returns `count` noised texts of the tokens."""
    noise, random = Composition.of(entries), np.random.default_rng(seed)
    tokens = np.asarray(tokens)
    sentences = np.zeros_like(tokens) if sentences is None else np.asarray(sentences)
    texts = [noise(Text(tokens, sentences, tokens), PIECES, random) for _ in range(count)]
    return texts if count > 1 else texts[0]


def test_no_noise_is_copying():
    text = noised(tokens=np.arange(50))
    np.testing.assert_array_equal(text.tokens, text.target)
    for name in ("masking", "deletion", "infilling"):
        np.testing.assert_array_equal(noised((name, 0.0), tokens=range(50)).tokens, text.target)


@pytest.mark.sample("deletion-20000")
@pytest.mark.parametrize(
    "name, count", [("masking", 100_000), ("deletion", 20_000), ("infilling", 100_000)]
)
def test_the_share_is_that_of_the_config(name, count):
    """The texts are too short for the share to be a whole number of tokens."""
    noise, random = Composition.of(((name, 0.3),)), np.random.default_rng(0)
    tokens = np.arange(17)
    text = Text(tokens, tokens, tokens)
    num_kept = sum(np.count_nonzero(noise(text, PIECES, random).tokens < 17) for _ in range(count))
    assert 1 - num_kept / (17 * count) == pytest.approx(0.3, abs=5e-4)


def test_masking_keeps_the_positions():
    text = noised(("masking", 0.5), tokens=range(40))
    masked = text.tokens == MASK
    assert masked.sum() == 20
    np.testing.assert_array_equal(text.tokens[~masked], text.target[~masked])


def test_deletion_keeps_the_order():
    for text in noised(("deletion", 0.4), tokens=range(30), count=50):
        assert len(text.tokens) == 18 and (np.diff(text.tokens) > 0).all()


def test_rotation_is_cyclic():
    texts = noised(("rotation",), tokens=range(8), count=500)
    for text in texts:
        np.testing.assert_array_equal(text.tokens, (np.arange(8) + text.tokens[0]) % 8)
    counts = np.bincount([text.tokens[0] for text in texts])
    assert len(counts) == 8 and counts.min() > 35  # any token may be the first


def test_permutation_keeps_the_sentences():
    sentences = np.repeat(range(4), [3, 1, 5, 2])
    texts = noised(("permutation",), tokens=range(11), sentences=sentences, count=400)
    bounds = [range(0, 3), range(3, 4), range(4, 9), range(9, 11)]
    orders = {
        tuple(itertools.chain.from_iterable(order)) for order in itertools.permutations(bounds)
    }
    assert {tuple(text.tokens) for text in texts} == orders  # all 24
    for text in texts:
        np.testing.assert_array_equal(text.sentences, sentences[text.tokens])


def test_infilling_replaces_spans_of_whole_words():
    # Words of one to three tokens.
    tokens = np.concatenate([[i, *[500 + i] * (i % 3)] for i in range(60)])
    words = np.cumsum(tokens < 500) - 1
    lengths = np.zeros(12, int)
    for text in noised(("infilling", 0.3), tokens=tokens, sentences=words, count=2000):
        assert len(text.tokens) <= len(tokens)
        is_mask = text.tokens == MASK
        np.testing.assert_array_equal(text.tokens[~is_mask] % 500, text.sentences[~is_mask])
        intact = np.unique(text.sentences[~is_mask])
        assert len(intact) == 42 and len(text.tokens[~is_mask]) == np.isin(words, intact).sum()
        # The words that are missing between two masks; a mask between two words may be several.
        alone = np.flatnonzero(is_mask[1:-1] & ~is_mask[:-2] & ~is_mask[2:]) + 1
        missing = text.sentences[alone + 1] - text.sentences[alone - 1] - 1
        lengths += np.bincount(np.clip(missing, 0, 11), minlength=12)
    # Poisson(3), cut at the last span of a text: 5 % insertions, and a mean of nearly 3.
    assert lengths[0] / lengths.sum() == pytest.approx(0.05, abs=0.02)
    assert lengths @ np.arange(12) / lengths.sum() == pytest.approx(2.9, abs=0.3)


def test_short_texts_do_not_grow():
    for count in range(1, 8):
        for text in noised(("infilling", 0.5), tokens=range(count), count=300):
            assert 1 <= len(text.tokens) <= count


def test_noises_are_composed_in_order():
    entries = ("permutation",), ("infilling", 0.3), ("deletion", 0.2), ("rotation",)
    sentences = np.repeat(range(6), 10)
    for text in noised(*entries, tokens=range(60), sentences=sentences, count=50):
        intact = text.tokens != MASK
        np.testing.assert_array_equal(text.sentences[intact], sentences[text.tokens[intact]])
        assert len(text.tokens) == len(text.sentences) < 60
        np.testing.assert_array_equal(text.target, range(60))


@pytest.mark.parametrize("share, mean", [(0.15, 3), (0.5, 1), (0.9, 2), (0.0, 3), (1.0, 3)])
def test_span_corruption_can_be_undone(share, mean):
    noise = Composition.of((("span_corruption", share, mean),))
    for length in (*range(1, 12), 100, 150):
        for text in noised(("span_corruption", share, mean), tokens=range(length), count=20):
            assert (len(text.tokens), len(text.target)) == noise.lengths(length)
            num_spans = noise.num_sentinels(length)
            starts = np.flatnonzero(text.target >= V)
            ids = V + 99 - np.arange(num_spans)
            np.testing.assert_array_equal(text.target[starts], ids)
            spans = dict(zip(ids, np.split(text.target, starts)[1:]))
            assert all(len(span) > 1 for span in spans.values())
            parts = [spans[i][1:] if i in spans else [i] for i in text.tokens]
            np.testing.assert_array_equal(np.concatenate(parts), range(length))


def test_span_corruption_has_the_numbers_of_t5():
    """512 inputs and 114 targets of 568 tokens, the end included (Raffel et al. 2020)."""
    noise = Composition.of((("span_corruption",),))
    assert noise.lengths(568) == (511, 113) and noise.lengths(569)[0] == 512
    assert noise.num_sentinels(568) == 28
    # All divisions are equally likely: of 7 tokens, 2 spans of 4 tokens.
    texts = noised(("span_corruption", 0.6, 2), tokens=range(7), count=3000)
    counts = np.unique([text.target for text in texts], axis=0, return_counts=True)[1]
    assert len(counts) == 3 * 2 and counts.min() > 420


def test_mass_masks_one_span_and_writes_it():
    starts = set()
    for text in noised(("mass", 0.5), tokens=range(10), count=200):
        masked = np.flatnonzero(text.tokens == MASK)
        np.testing.assert_array_equal(masked, np.arange(5) + text.start)
        np.testing.assert_array_equal(text.target, masked)
        starts.add(text.start)
    assert starts == {*range(6)}


def test_a_prefix_is_of_any_length_or_of_a_share():
    lengths = set()
    for text in noised(("prefix",), tokens=range(6), count=200):
        np.testing.assert_array_equal(np.concatenate([text.tokens, text.target]), range(6))
        lengths.add(len(text.tokens))
    assert lengths == {1, 2, 3, 4, 5}
    assert len(noised(("prefix", 0.25), tokens=range(8)).tokens) == 2


@pytest.mark.parametrize(
    "entries, message",
    [
        (("infilling", 0.3), r"'infilling' is not \(name, numbers of its own\), as in \(\('perm"),
        ((("infiling", 0.3),), "no noise 'infiling'; did you mean infilling[?]; there are: mask"),
        ((("masking", 1.5),), "the share must be from 0 to 1"),
        ((("infilling", 0.3, 0.5),), "the mean must be from 1 to 1000"),
        ((("permutation", 1),), "permutation takes no numbers"),
        ((("deletion", "all"),), "deletion takes share"),
        ((("infilling",), ("mass",)), "'mass' defines the target and must be alone; here are 2"),
    ],
)
def test_wrong_noises_are_refused(entries, message):
    with pytest.raises(UserError, match=f"^config.task.noises: .*{message}"):
        Composition.of(entries)


def test_the_pieces_of_a_noised_text_have_their_positions():
    text = "The cat sat. A dog ran to it."
    tokenizer = tokenizers.train([text] * 5, "wordpiece", 80)
    (copy, target), (source, _) = (
        noised_pieces(noises, tokenizer, text, seed=1)
        for noises in ((), (("permutation",), ("masking", 0.5)))
    )
    words = ["the", "cat", "sat", ".", "a", "dog", "ran", "to", "it", "."]
    assert copy == target == list(zip(words, range(10)))
    assert [position for _, position in source if position is not None] != [*range(10)]
    assert all(words[position] == piece for piece, position in source if position is not None)
    assert [piece for piece, position in source if position is None] == ["[MASK]"] * 5
    (axes,) = pictures.noised({"source": source, "target": target}, "noise").axes
    assert [drawn.get_text() for drawn in axes.texts] == [
        *("source", *(piece for piece, _ in source)),
        *("target", *words),
    ]
