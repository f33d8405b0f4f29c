"""Beam search against brute force on a tiny vocabulary, where every output can be listed."""
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.beam_search import beam_search, length_penalty
from transformer_jax.decoding.sampling import greedy

V, T, EOS, BOS = 4, 4, 1, 2  # ids 1 (end), 2, 3 can be produced; 0 pads and is impossible


def model(seed, batch):
    """A random 'language model' whose next-token distribution depends on the whole prefix: tables by prefix hash."""
    table = jax.random.normal(jax.random.key(seed), (batch, 5**T, V)) * 1.5

    def logits_of(rows, codes):
        return table[rows, codes].at[..., 0].set(-1e9)

    return logits_of


def decode(seed, limits, beam, alpha, n_best=1, search=beam_search):
    """The cache holds what a model's would: the token of each beam at each position, where the beam wrote it; greedily, each row's prefix."""
    batch = len(limits)
    logits_of = model(seed, batch)
    rows = jnp.arange(batch)

    def follow(cache, tokens, position, ancestors):
        cache = cache.at[:, position].set(tokens)
        code = jnp.zeros((batch, beam), jnp.int32)
        for p in range(1, T):
            own = jnp.take_along_axis(cache[:, p], ancestors[:, :, p], axis=1)  # what the beam descends from wrote
            code = jnp.where(p <= position, code * 4 + own, code)
        return logits_of(rows[:, None], code % 5**T), cache

    def step(code, tokens, position):
        code = code * 4 + tokens
        return logits_of(rows, code % 5**T), code

    start, kwargs = logits_of(rows, jnp.zeros(batch, jnp.int32)), dict(alpha=alpha, max_steps=T, eos_id=EOS)
    if search is beam_search:
        return jax.jit(lambda: search(follow, start, jnp.zeros((batch, T, beam), jnp.int32), jnp.array(limits), beam=beam, n_best=n_best, **kwargs))()
    return jax.jit(lambda: search(step, start, jnp.zeros(batch, jnp.int32), jnp.array(limits), **kwargs))()


def brute_force(seed, batch, row, limit, alpha):
    """Every output that ends within the limit, the best first: [(score, ids without the end)]."""
    logits_of, found = model(seed, batch), []
    for length in range(1, limit + 1):
        for body in itertools.product((2, 3), repeat=length - 1):
            code, log_p = 0, 0.0
            for token in (*body, EOS):
                log_p += float(jax.nn.log_softmax(logits_of(row, code % 5**T))[token])
                code = code * 4 + token
            found.append((log_p / float(length_penalty(length, alpha)), list(body)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_wide_beams_find_what_brute_force_finds(seed, alpha):
    limits, n_best = [4, 3, 2], 3
    found = decode(seed, limits, beam=16, alpha=alpha, n_best=n_best)
    for row, limit in enumerate(limits):
        expected = brute_force(seed, 3, row, limit, alpha)[:n_best]
        for place, (score, body) in enumerate(expected):
            assert [int(i) for i in found.ids[row, place] if i] == body
            assert float(found.scores[row, place]) == pytest.approx(score, abs=1e-4)


def test_an_input_does_not_depend_on_its_neighbours():
    together = decode(7, [4, 2, 3], beam=3, alpha=0.6, n_best=2)
    short = decode(7, [4, 4, 4], beam=3, alpha=0.6, n_best=2)
    np.testing.assert_array_equal(together.ids[0], short.ids[0])
    np.testing.assert_allclose(together.scores[0], short.scores[0], rtol=1e-6)


def test_the_limit_holds_even_if_nothing_ends():
    batch, beam = 2, 3
    never_ends = lambda *shape: jnp.broadcast_to(jnp.array([-1e9, -1e9, 0.3, 0.0]), (*shape, V))
    step = lambda cache, tokens, position, ancestors: (never_ends(batch, beam), cache)
    found = beam_search(step, never_ends(batch), {}, jnp.array([2, 4]), beam=beam, alpha=0.6, max_steps=6, eos_id=EOS)
    assert [(row[0] > 0).sum() for row in np.asarray(found.ids)] == [2, 4]
    assert np.isfinite(found.scores).all()
    one = lambda cache, tokens, position: (never_ends(batch), cache)
    found = greedy(one, never_ends(batch), {}, jnp.array([2, 4]), alpha=0.6, max_steps=6, eos_id=EOS)
    assert [(row[0] > 0).sum() for row in np.asarray(found.ids)] == [2, 4]


@pytest.mark.parametrize("seed", range(3))
def test_greedy_follows_the_likeliest_token(seed):
    found = decode(seed, [4, 3], beam=1, alpha=0.6, search=greedy)
    logits_of = model(seed, 2)
    for row, limit in enumerate((4, 3)):
        code, body, log_p = 0, [], 0.0
        for _ in range(limit):
            log_probs = jax.nn.log_softmax(logits_of(row, code % 5**T))
            token = int(log_probs.argmax())
            log_p += float(log_probs[token])
            if token == EOS:
                break
            body.append(token)
            code = code * 4 + token
        assert [int(i) for i in found.ids[row, 0] if i] == body
        length = len(body) + (token == EOS)
        assert float(found.scores[row, 0]) == pytest.approx(log_p / float(length_penalty(length, 0.6)), abs=1e-4)
