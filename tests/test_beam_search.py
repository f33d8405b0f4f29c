"""Beam search against brute force on a tiny vocabulary, where every output can be listed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.inference.beam_search import BeamSearch, _largest, length_penalty

V, T, EOS, BOS = 4, 4, 1, 2  # ids 1 (end), 2, 3 can be produced; 0 pads and is impossible


def model(seed, batch):
    """A random 'language model' whose next-token distribution depends on the whole prefix: tables
    by prefix hash.
    """
    table = jax.random.normal(jax.random.key(seed), (batch, 5**T, V)) * 1.5

    def logits_of(rows, codes):
        return table[rows, codes].at[..., 0].set(-1e9)

    return logits_of


def follow(seed, batch, beam):
    """A step whose cache (B, P, K) holds what a model's would: the token of each beam in each slot,
    where the beam wrote it.
    """
    logits_of, rows = model(seed, batch), jnp.arange(batch)

    def step(cache, tokens, positions, slot, ancestors):
        cache = cache.at[:, slot].set(tokens)
        code = jnp.zeros((batch, beam), jnp.int32)
        for p in range(1, T):
            # the slot of position p, for inputs that have come so far
            back = (slot - (positions[:, 0] - p)) % cache.shape[1]
            # what the beam descends from wrote
            own = jnp.take_along_axis(cache[rows, back], ancestors[rows, :, back], axis=1)
            code = jnp.where(p <= positions, code * 4 + own, code)
        return logits_of(rows[:, None], code % 5**T), cache

    return step, logits_of(rows, jnp.zeros(batch, jnp.int32))


def moved(cache, shift, slots):
    cache = jnp.roll(cache, shift, axis=1)[:, :slots]
    return jnp.pad(cache, ((0, 0), (0, slots - cache.shape[1]), (0, 0)))


def decode(seed, limits, beam, alpha, n_best=1):
    batch, search = len(limits), BeamSearch(beam, alpha, EOS, n_best)
    step, start = follow(seed, batch, beam)

    @jax.jit
    def found():
        state = search.resized(
            search.begin(jnp.array(limits), start, jnp.zeros((batch, 1, beam), jnp.int32)),
            T,
            lambda cache, shift: moved(cache, shift, T),
        )
        return search.best(search.advance(state, step, batch))

    return found()


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


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_an_input_that_comes_later_is_as_one_that_was_there_from_the_start(beam):
    """Four inputs for two places: each goes where one is done, at any turn; the ring goes round,
    and changes its size on the way.
    """
    limits, places = np.array([4, 2, 3, 4, 1]), 2  # the last stands for an empty place
    search = BeamSearch(beam, 0.6, EOS, n_best=min(beam, 2))
    expected, (_, start) = decode(5, limits, beam, 0.6, search.n_best), follow(5, 5, beam)
    begun = search.begin(jnp.array(limits), start, None)
    for sizes in ([4] * 9, [9, 4, 7, 5, 4, 8, 6, 5, 4]):
        state = search.empty(places, sizes[0], jnp.full((places, sizes[0], beam), 9))
        held, queue, sizes = np.full(places, -1), [0, 1, 2, 3], iter(sizes)
        while queue or (held >= 0).any():
            for place in np.flatnonzero(held < 0)[: len(queue)]:
                held[place] = queue.pop(0)
                state = search.admit(
                    state,
                    begun,
                    lambda cache, slot: cache,
                    places=jnp.array([place] * 2),
                    rows=jnp.array([held[place]] * 2),
                )
            step, _ = follow(5, 5, beam)

            # the tables are the inputs', the cache the places'
            def of_these(cache, tokens, positions, slot, ancestors):
                whole = lambda x, fill: jnp.full((5, *x.shape[1:]), fill, x.dtype).at[held].set(x)
                logits, new = step(
                    whole(cache, 0),
                    whole(tokens, 2),
                    whole(positions, 1),
                    slot,
                    whole(ancestors, 0),
                )
                return logits[held], new[held]

            state = search.advance(state, of_these, 1 if queue else places)
            for place in np.flatnonzero((held >= 0) & ~np.asarray(search.running(state))):
                best = search.best(state)
                np.testing.assert_array_equal(best.ids[place, :, :T], expected.ids[held[place]])
                np.testing.assert_allclose(
                    best.scores[place], expected.scores[held[place]], rtol=1e-6
                )
                held[place] = -1
            slots = next(sizes)
            state = search.resized(state, slots, lambda cache, shift: moved(cache, shift, slots))


def test_a_search_stops_when_an_input_has_filled_the_ring():
    search, limits = BeamSearch(2, 0.6, eos_id=-1), jnp.array([4, 4])
    step, start = follow(0, 2, 2)
    state = search.resized(
        search.begin(limits, start, jnp.zeros((2, 1, 2), jnp.int32)),
        2,
        lambda cache, shift: moved(cache, shift, 2),
    )
    state = search.advance(state, step, 2)
    assert state.lengths.tolist() == [2, 2] and search.running(state).all()
    state = search.advance(
        search.resized(state, 4, lambda cache, shift: moved(cache, shift, 4)), step, 2
    )
    assert state.lengths.tolist() == [4, 4] and not search.running(state).any()


def test_an_input_that_is_done_is_given_no_position_beyond_its_limit():
    """There may be none: its limit and what the model has positions for can be the same."""
    search, limits = BeamSearch(2, 0.6, eos_id=-1), jnp.array([2, 4])
    step, start = follow(0, 2, 2)
    seen = lambda most, tokens, positions, slot, ancestors: (
        step(jnp.zeros((2, 4, 2), jnp.int32), tokens, positions, slot, ancestors)[0],
        jnp.maximum(most, positions),
    )
    state = search.resized(
        search.begin(limits, start, jnp.zeros((2, 1), jnp.int32)), 4, lambda cache, shift: cache
    )
    assert search.advance(state, seen, 2).cache[:, 0].tolist() == [1, 3]


@pytest.mark.parametrize("size", [5, 300, 2049, 4096])
def test_the_largest_by_blocks_are_the_largest(size):
    # with many that are equal
    x = jax.random.randint(jax.random.key(size), (7, size), 0, 50).astype(jnp.float32)
    for mine, theirs in zip(_largest(x, 5), jax.lax.top_k(x, 5)):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("beam", [1, 3])
def test_the_limit_holds_even_if_nothing_ends(beam):
    never_ends = lambda *shape: jnp.broadcast_to(jnp.array([-1e9, -1e9, 0.3, 0.0]), (*shape, V))
    search = BeamSearch(beam, 0.6, EOS)
    state = search.resized(
        search.begin(jnp.array([2, 4]), never_ends(2), None), 6, lambda cache, shift: None
    )
    found = search.best(search.advance(state, lambda cache, *_: (never_ends(2, beam), cache), 2))
    assert [(row[0] > 0).sum() for row in np.asarray(found.ids)] == [2, 4]
    assert np.isfinite(found.scores).all()


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_follows_the_likeliest_token(seed):
    found = decode(seed, [4, 3], beam=1, alpha=0.6)
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
        assert float(found.scores[row, 0]) == pytest.approx(
            log_p / float(length_penalty(length, 0.6)), abs=1e-4
        )
