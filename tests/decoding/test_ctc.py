"""CTC: the loss and the decoders equal sums over all paths."""

import collections
import functools
import itertools

import jax
import numpy as np
import optax
import pytest

from transformer_jax.families.wav2vec2 import ctc
from transformer_jax.families.wav2vec2.ctc import SpellingModel
from transformer_jax.scores.ngrams import NGrams

BLANK = 0


def log_probs(frames, tokens, seed=0):
    logits = 2 * np.random.default_rng(seed).normal(size=(frames, tokens))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def of_path(path):
    """Returns the sequence that a path stands for."""
    joined = [token for token, _ in itertools.groupby(path)]
    return tuple(token for token in joined if token != BLANK)


def by_brute_force(frames):
    """Returns the probability of each sequence, a sum over its paths."""
    totals = collections.Counter()
    for path in itertools.product(range(frames.shape[1]), repeat=len(frames)):
        totals[of_path(path)] += np.exp(frames[np.arange(len(frames)), path].sum())
    return totals


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_a_sum_over_all_paths(seed):
    frames = log_probs(5, 3, seed)
    totals = by_brute_force(frames)
    lengths = np.array([len(labels) for labels in totals])
    padded = np.array([labels + (0,) * (5 - len(labels)) for labels in totals])
    loss = jax.jit(functools.partial(optax.ctc_loss, blank_id=BLANK))(
        np.broadcast_to(frames, (len(totals), 5, 3)),
        np.zeros(padded.shape),
        padded,
        (np.arange(5) >= lengths[:, None]).astype(np.float32),
    )
    np.testing.assert_allclose(loss, -np.log([*totals.values()]), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_all_prefixes_has_their_probabilities(seed):
    frames = log_probs(5, 3, seed)
    expected = by_brute_force(frames)
    search = ctc.PrefixBeam(beam=1000, least=-np.inf)
    decoded = search(frames, n_best=1000)
    assert {each.tokens for each in decoded} == set(expected)
    for tokens, score in decoded:
        np.testing.assert_allclose(score, np.log(expected[tokens]), rtol=1e-9)
    scores = [each.score for each in decoded]
    assert scores == sorted(scores, reverse=True)


def test_a_language_model_and_a_bonus_are_added():
    frames = log_probs(4, 3)
    lm = np.log([0.2, 0.5, 0.3])  # token 1 is the boundary
    search = ctc.PrefixBeam(
        beam=1000,
        language_model=lambda tokens: lm if tokens[0] == 1 else None,
        lm_weight=0.7,
        length_bonus=0.3,
        boundary=1,
        least=-np.inf,
    )
    expected = by_brute_force(frames)
    for tokens, score in search(frames, n_best=1000):
        added = sum(0.3 + 0.7 * lm[token] for token in tokens)
        end = 0.7 * lm[1] if tokens else 0.0
        np.testing.assert_allclose(score, np.log(expected[tokens]) + added + end, rtol=1e-9)


def test_the_greedy_sequence_is_that_of_the_likeliest_path():
    path = [1, 1, 0, 1, 2, 2, 0]
    frames = np.log(np.full((7, 3), 0.1))
    frames[np.arange(7), path] = np.log(0.8)
    decoded = ctc.greedy(frames)
    assert decoded.tokens == (1, 1, 2)
    assert decoded.score == pytest.approx(7 * np.log(0.8))
    assert ctc.greedy(frames[:0]).tokens == ()


def test_a_narrow_beam_may_end_elsewhere_than_the_greedy_path():
    """Two paths of the sequence (1,) are together likelier than the likeliest path."""
    frames = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert ctc.greedy(frames).tokens == ()
    assert ctc.PrefixBeam(beam=2)(frames)[0].tokens == (1,)


def test_the_spelling_model_has_the_probabilities_of_its_counts():
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 4, 5).tolist() for _ in range(40)]
    model = SpellingModel.count_texts(texts, 3, 5, boundary=4)
    tokens = (4, 1, 2, 3, 4, 2)
    stream = np.array(tokens)
    expected = model.ngrams.occurrences(stream).interpolated(model.weights)
    for end in range(len(tokens)):
        following = np.exp(model(tokens[:end]))
        assert following.sum() == pytest.approx(1.0)
        assert following[tokens[end]] == pytest.approx(expected[end])


def test_an_unseen_context_falls_back_to_a_shorter_one():
    ngrams = NGrams.count(np.array([0, 1, 0, 2]), 2, 4)
    weights = np.full((2, 64), 0.5)
    weights[:, 0] = 0
    np.testing.assert_allclose(ngrams.following((3,), weights), ngrams.following((), weights))
