"""Beam search against brute force, on a vocabulary so small that all outputs can be listed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.inference.beam_search import BeamSearch, _largest, length_penalty

# Ids 1 (the end), 2 and 3 can be generated; 0 is padding and impossible.
V, T, EOS = 4, 4, 1


def model(seed, batch):
    """Returns a random language model: tables of logits by row and by the code of a prefix."""
    table = jax.random.normal(jax.random.key(seed), (batch, 5**T, V)) * 1.5

    def logits_of(rows, codes):
        return table[rows, codes].at[..., 0].set(-1e9)

    return logits_of


def step_of_model(seed, batch, beam):
    """Returns the step of a model, and its logits of the first tokens.

    The cache (B, P, K) holds the token that each beam wrote to each slot.
    """
    logits_of, rows = model(seed, batch), jnp.arange(batch)

    def step(cache, tokens, positions, slot, ancestors):
        cache = cache.at[:, slot].set(tokens)
        code = jnp.zeros((batch, beam), jnp.int32)
        for p in range(1, T):
            # The slot of position p, for inputs that have reached it.
            back = (slot - (positions[:, 0] - p)) % cache.shape[1]
            # The token that the beam's ancestor wrote there.
            token = jnp.take_along_axis(cache[rows, back], ancestors[rows, :, back], axis=1)
            code = jnp.where(p <= positions, code * 4 + token, code)
        return logits_of(rows[:, None], code % 5**T), cache

    return step, logits_of(rows, jnp.zeros(batch, jnp.int32))


def resize_to(slots):
    """Returns the function that resizes a cache to `slots`."""

    def resize(cache, shift):
        cache = jnp.roll(cache, shift, axis=1)[:, :slots]
        return jnp.pad(cache, ((0, 0), (0, slots - cache.shape[1]), (0, 0)))

    return resize


def same_cache(cache, shift):
    return cache


def decode(seed, limits, beam, alpha, n_best=1):
    batch, search = len(limits), BeamSearch(beam, alpha, EOS, n_best)
    step, start = step_of_model(seed, batch, beam)

    @jax.jit
    def best():
        cache = jnp.zeros((batch, 1, beam), jnp.int32)
        state = search.resized(search.begin(jnp.array(limits), start, cache), T, resize_to(T))
        return search.best(search.advance(state, step, batch))

    return best()


def brute_force(seed, batch, row, limit, alpha):
    """Returns all outputs that end within the limit, [(score, ids without the end)], best first."""
    logits_of, outputs = model(seed, batch), []
    for length in range(1, limit + 1):
        for body in itertools.product((2, 3), repeat=length - 1):
            code, log_p = 0, 0.0
            for token in (*body, EOS):
                log_p += float(jax.nn.log_softmax(logits_of(row, code % 5**T))[token])
                code = code * 4 + token
            outputs.append((log_p / float(length_penalty(length, alpha)), list(body)))
    return sorted(outputs, reverse=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_wide_beams_find_the_outputs_of_brute_force(seed, alpha):
    limits, n_best = [4, 3, 2], 3
    beams = decode(seed, limits, beam=16, alpha=alpha, n_best=n_best)
    for row, limit in enumerate(limits):
        expected = brute_force(seed, 3, row, limit, alpha)[:n_best]
        for place, (score, body) in enumerate(expected):
            assert [int(i) for i in beams.ids[row, place] if i] == body
            assert float(beams.scores[row, place]) == pytest.approx(score, abs=1e-4)


def test_an_input_does_not_depend_on_other_inputs():
    first = decode(7, [4, 2, 3], beam=3, alpha=0.6, n_best=2)
    second = decode(7, [4, 4, 4], beam=3, alpha=0.6, n_best=2)
    np.testing.assert_array_equal(first.ids[0], second.ids[0])
    np.testing.assert_allclose(first.scores[0], second.scores[0], rtol=1e-6)


class Places:
    """Four inputs in the places of a search; input 4 stands for an empty place."""

    LIMITS = np.array([4, 2, 3, 4, 1])

    def __init__(self, beam, count, slots):
        self.beam, self.count = beam, count
        self.search = BeamSearch(beam, 0.6, EOS, n_best=min(beam, 2))
        self.model_step, start = step_of_model(5, len(self.LIMITS), beam)
        self.new_inputs = self.search.begin(jnp.array(self.LIMITS), start, None)
        self.inputs = np.full(count, -1)  # in each place
        self.queue = [0, 1, 2, 3]
        self.state = self.search.empty(count, slots, jnp.full((count, slots, beam), 9))

    def admit(self):
        for place in np.flatnonzero(self.inputs < 0)[: len(self.queue)]:
            self.inputs[place] = self.queue.pop(0)
            self.state = self.search.admit(
                self.state,
                self.new_inputs,
                lambda cache, slot: cache,
                places=jnp.array([place] * 2),
                rows=jnp.array([self.inputs[place]] * 2),
            )

    def step(self, cache, tokens, positions, slot, ancestors):
        """The model's tables are in the order of the inputs, the cache in that of the places."""

        def by_input(x, fill):
            return jnp.full((len(self.LIMITS), *x.shape[1:]), fill, x.dtype).at[self.inputs].set(x)

        logits, cache = self.model_step(
            by_input(cache, 0),
            by_input(tokens, 2),
            by_input(positions, 1),
            slot,
            by_input(ancestors, 0),
        )
        return logits[self.inputs], cache[self.inputs]

    def advance(self):
        self.state = self.search.advance(self.state, self.step, 1 if self.queue else self.count)

    def done(self):
        """Yields (input, its best hypotheses) of the places that are done, and frees them."""
        running = np.asarray(self.search.running(self.state))
        for place in np.flatnonzero((self.inputs >= 0) & ~running):
            best = self.search.best(self.state)
            yield self.inputs[place], best.ids[place], best.scores[place]
            self.inputs[place] = -1


@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("ring", [[4] * 9, [9, 4, 7, 5, 4, 8, 6, 5, 4]], ids=["fixed", "resized"])
def test_an_input_that_is_admitted_later_has_the_same_output(beam, ring):
    """Four inputs share two places. The ring is filled several times; its size may change."""
    expected = decode(5, Places.LIMITS, beam, 0.6, min(beam, 2))
    places, ring = Places(beam, 2, ring[0]), iter(ring)
    while places.queue or (places.inputs >= 0).any():
        places.admit()
        places.advance()
        for number, ids, scores in places.done():
            np.testing.assert_array_equal(ids[:, :T], expected.ids[number])
            np.testing.assert_allclose(scores, expected.scores[number], rtol=1e-6)
        slots = next(ring)
        places.state = places.search.resized(places.state, slots, resize_to(slots))


def test_a_search_stops_when_an_input_has_filled_the_ring():
    search, limits = BeamSearch(2, 0.6, eos_id=-1), jnp.array([4, 4])
    step, start = step_of_model(0, 2, 2)
    state = search.begin(limits, start, jnp.zeros((2, 1, 2), jnp.int32))
    state = search.advance(search.resized(state, 2, resize_to(2)), step, 2)
    assert state.lengths.tolist() == [2, 2] and search.running(state).all()
    state = search.advance(search.resized(state, 4, resize_to(4)), step, 2)
    assert state.lengths.tolist() == [4, 4] and not search.running(state).any()


def test_an_input_that_is_done_gets_no_position_beyond_its_limit():
    """Its limit may be the model's last position."""
    search, limits = BeamSearch(2, 0.6, eos_id=-1), jnp.array([2, 4])
    step, start = step_of_model(0, 2, 2)

    def step_with_max_position(max_position, tokens, positions, slot, ancestors):
        cache = jnp.zeros((2, 4, 2), jnp.int32)
        logits, _ = step(cache, tokens, positions, slot, ancestors)
        return logits, jnp.maximum(max_position, positions)

    state = search.begin(limits, start, jnp.zeros((2, 1), jnp.int32))
    state = search.advance(search.resized(state, 4, same_cache), step_with_max_position, 2)
    assert state.cache[:, 0].tolist() == [1, 3]


@pytest.mark.parametrize("size", [5, 300, 2049, 4096])
def test_the_largest_by_blocks_are_the_largest(size):
    # Many of the numbers are equal.
    x = jax.random.randint(jax.random.key(size), (7, size), 0, 50).astype(jnp.float32)
    for actual, expected in zip(_largest(x, 5), jax.lax.top_k(x, 5)):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_the_limit_holds_even_if_nothing_ends(beam):
    def logits(*shape):
        return jnp.broadcast_to(jnp.array([-1e9, -1e9, 0.3, 0.0]), (*shape, V))

    def step(cache, *_):
        return logits(2, beam), cache

    search = BeamSearch(beam, 0.6, EOS)
    state = search.resized(search.begin(jnp.array([2, 4]), logits(2), None), 6, same_cache)
    beams = search.best(search.advance(state, step, 2))
    assert [(row[0] > 0).sum() for row in np.asarray(beams.ids)] == [2, 4]
    assert np.isfinite(beams.scores).all()


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_follows_the_likeliest_token(seed):
    beams = decode(seed, [4, 3], beam=1, alpha=0.6)
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
        assert [int(i) for i in beams.ids[row, 0] if i] == body
        score = log_p / float(length_penalty(len(body) + (token == EOS), 0.6))
        assert float(beams.scores[row, 0]) == pytest.approx(score, abs=1e-4)
