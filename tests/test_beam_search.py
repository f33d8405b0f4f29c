"""Beam search against brute force, on a vocabulary so small that all outputs can be listed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.jitted import jitted
from transformer_jax.inference.beam_search import BeamSearch, _largest, length_penalty
from transformer_jax.layers.decoding import Ring, Rows

# Ids 1 (the end), 2 and 3 can be generated; 0 is padding and impossible.
V, T, EOS = 4, 4, 1


@functools.cache
def model(seed, batch):
    """Returns a random language model: the logits (B, codes, V) by row and code of a prefix."""
    table = 1.5 * np.array(jax.random.normal(jax.random.key(seed), (batch, 5**T, V)))
    table[..., 0] = -1e9
    return table


def log_probs(seed, batch):
    return scipy.special.log_softmax(model(seed, batch), axis=-1)


class Toy:
    """A model whose logits are a table's rows, by the number of an input and its prefix's code.

    `begin` returns the logits of the first tokens and the state. `step` reads a token.
    """

    def __init__(self, seed, batch, beam):
        self.batch, self.beam = batch, beam
        self.table = model(seed, batch)

    def logits_of(self, rows, codes):
        return jnp.asarray(self.table)[rows, codes]

    def first_logits(self):
        return self.logits_of(jnp.arange(self.batch), jnp.zeros(self.batch, jnp.int32))


class RowsToy(Toy):
    """Its cache is the number of the input and the code of the prefix."""

    def begin(self):
        cache = {"input": jnp.arange(self.batch), "code": jnp.zeros(self.batch, jnp.int32)}
        return self.first_logits(), Rows(cache, jnp.zeros((self.batch, 1), jnp.int32))

    def step(self, state, tokens):
        cache = state.cache
        code = cache["code"] * 4 + tokens.reshape(-1)
        logits = self.logits_of(cache["input"], code % 5**T).reshape(*tokens.shape, V)
        return logits, state.replace(cache=cache | {"code": code}, lengths=state.lengths + 1)


class RingToy(Toy):
    """Its cache holds the tokens that the beams wrote, its cross-cache the number of the input."""

    def begin(self):
        cells = jnp.zeros((self.batch, 1, self.beam, 1), jnp.int32)
        number = jnp.arange(self.batch).reshape(-1, 1, 1, 1)
        collections = {"cache": {"values": cells}, "cross_cache": {"values": number}}
        segments = jnp.ones((self.batch, 1), jnp.int32)
        return self.first_logits(), Ring.started(collections, segments, self.beam)

    def step(self, state, tokens):
        state = state.opened()
        rows = jnp.arange(len(tokens))
        slots = state.ancestors.shape[2]
        cells = state.cache["values"].reshape(-1, slots, self.beam).at[:, state.slot].set(tokens)
        code = jnp.zeros(tokens.shape, jnp.int32)
        for p in range(1, T):
            # The slot of position p, for inputs that have reached it.
            back = (state.slot - (state.positions - p)) % slots
            # The token that the beam's ancestor wrote there.
            ancestors = state.ancestors[rows, :, back]
            token = jnp.take_along_axis(cells[rows, back], ancestors, axis=1)
            code = jnp.where(p <= state.positions[:, None], code * 4 + token, code)
        logits = self.logits_of(state.cross_cache["values"][:, 0, 0], code % 5**T)
        return logits, state.written({"cache": {"values": cells.reshape(len(tokens), 1, -1, 1)}})


TOYS = pytest.mark.parametrize("toy", [RowsToy, RingToy])


def decode(toy, seed, limits, beam, alpha, n_best=1):
    search, toy = BeamSearch(beam, alpha, EOS, n_best), toy(seed, len(limits), beam)

    @jax.jit
    def best():
        started = search.begin(jnp.array(limits), *toy.begin())
        return search.best(search.advance(search.resized(started, T, 1), toy.step, len(limits)))

    return jax.device_get(best())


def brute_force(seed, batch, row, limit, alpha):
    """Returns all outputs that end within the limit, [(score, ids without the end)], best first."""
    table, outputs = log_probs(seed, batch), []
    for length in range(1, limit + 1):
        for body in itertools.product((2, 3), repeat=length - 1):
            code, log_p = 0, 0.0
            for token in (*body, EOS):
                log_p += float(table[row, code % 5**T, token])
                code = code * 4 + token
            outputs.append((log_p / float(length_penalty(length, alpha)), list(body)))
    return sorted(outputs, reverse=True)


@pytest.mark.sample("0.6-0-RowsToy", "1.5-1-RingToy", "0.0-1-RowsToy")
@TOYS
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_wide_beams_find_the_outputs_of_brute_force(toy, seed, alpha):
    limits, n_best = [4, 3, 2], 3
    beams = decode(toy, seed, limits, beam=16, alpha=alpha, n_best=n_best)
    for row, limit in enumerate(limits):
        scores, bodies = zip(*brute_force(seed, 3, row, limit, alpha)[:n_best])
        assert beams.row(row).tokens(EOS) == list(bodies)
        np.testing.assert_allclose(beams.scores[row], scores, atol=1e-4)


def test_an_input_does_not_depend_on_other_inputs():
    first = decode(RingToy, 7, [4, 2, 3], beam=3, alpha=0.6, n_best=2)
    second = decode(RingToy, 7, [4, 4, 4], beam=3, alpha=0.6, n_best=2)
    np.testing.assert_array_equal(first.ids[0], second.ids[0])
    np.testing.assert_allclose(first.scores[0], second.scores[0], rtol=1e-6)


class SearchRows:
    """Four inputs in the rows of a search; input 4 stands for a free row."""

    LIMITS = np.array([4, 2, 3, 4, 1])

    def __init__(self, toy, beam, count, slots):
        self.count = count
        self.search = BeamSearch(beam, 0.6, EOS, n_best=min(beam, 2))
        self.toy = toy(5, len(self.LIMITS), beam)
        self.inputs = np.full(count, -1)  # in each row
        self.queue = [0, 1, 2, 3]
        of_rows = toy(5, count, beam)
        shape = jax.eval_shape(lambda: of_rows.begin()[1])

        @jax.jit
        def begin():
            new_inputs = self.search.begin(jnp.array(self.LIMITS), *self.toy.begin())
            blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
            wide = blank.reorder(jnp.zeros((count, beam), jnp.int32)).resized(slots, 1)
            return new_inputs, self.search.empty(count, slots, wide)

        self.new_inputs, self.state = begin()
        self.admitted = jax.jit(self.search.admit)

        @jitted
        def advanced(state, free, slots):
            state = self.search.advance(state, self.toy.step, free)
            outcome = self.search.running(state), self.search.best(state)
            return self.search.resized(state, slots, 1), outcome

        self.advanced = advanced

    def admit(self):
        for row in np.flatnonzero(self.inputs < 0)[: len(self.queue)]:
            self.inputs[row] = self.queue.pop(0)
            self.state = self.admitted(
                self.state,
                self.new_inputs,
                indices=np.array([row] * 2),
                rows=np.array([self.inputs[row]] * 2),
            )

    def advance(self, slots):
        """Yields (input, its best hypotheses) of the rows that are done, and frees them.

        The state has `slots` slots thereafter.
        """
        free = 1 if self.queue else self.count
        self.state, outcome = self.advanced(self.state, free, slots)
        running, best = jax.device_get(outcome)
        for row in np.flatnonzero((self.inputs >= 0) & ~running):
            yield self.inputs[row], best.ids[row], best.scores[row]
            self.inputs[row] = -1


@pytest.mark.sample("fixed-2-RowsToy")
@TOYS
@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("ring", [[4] * 9, [9, 4, 7, 5, 4, 8, 6, 5, 4]], ids=["fixed", "resized"])
def test_an_input_that_is_admitted_later_has_the_same_output(toy, beam, ring):
    """Four inputs share two rows. The ring is filled several times; its size may change."""
    expected = decode(toy, 5, SearchRows.LIMITS, beam, 0.6, min(beam, 2))
    rows, ring = SearchRows(toy, beam, 2, ring[0]), iter(ring)
    while rows.queue or (rows.inputs >= 0).any():
        rows.admit()
        for number, ids, scores in rows.advance(next(ring)):
            np.testing.assert_array_equal(ids[:, :T], expected.ids[number])
            np.testing.assert_allclose(scores, expected.scores[number], rtol=1e-6)


@TOYS
def test_a_search_stops_when_an_input_has_no_more_room(toy):
    search, toy = BeamSearch(2, 0.6, eos_id=-1), toy(0, 2, 2)

    @jitted
    def advanced(state, slots):
        state = search.advance(search.resized(state, slots, 1), toy.step, 2)
        return state, search.running(state)

    state = jax.jit(lambda: search.begin(jnp.array([4, 4]), *toy.begin()))()
    state, running = advanced(state, 2)
    assert state.lengths.tolist() == [2, 2] and np.all(running)
    state, running = advanced(state, 4)
    assert state.lengths.tolist() == [4, 4] and not np.any(running)


@pytest.mark.parametrize("size", [5, 300, 2049, 4096])
def test_the_largest_by_blocks_are_the_largest(size):
    # Many of the numbers are equal.
    x = np.float32(jax.random.randint(jax.random.key(size), (7, size), 0, 50))
    both = jax.jit(lambda x: (_largest(x, 5), jax.lax.top_k(x, 5)))(x)
    for actual, expected in zip(*both):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_the_limit_holds_even_if_nothing_ends(beam):
    def logits(*shape):
        return jnp.broadcast_to(jnp.array([-1e9, -1e9, 0.3, 0.0]), (*shape, V))

    def step(state, tokens):
        return logits(2, beam), state

    search = BeamSearch(beam, 0.6, EOS)

    @jax.jit
    def best():
        started = search.begin(jnp.array([2, 4]), logits(2), Rows((), jnp.zeros((2, 1), jnp.int32)))
        return search.best(search.advance(search.resized(started, 6), step, 2))

    beams = best()
    assert beams.lengths.tolist() == [[2], [4]]
    assert np.isfinite(beams.scores).all()


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_follows_the_likeliest_token(seed):
    beams = decode(RingToy, seed, [4, 3], beam=1, alpha=0.6)
    table = log_probs(seed, 2)
    for row, limit in enumerate((4, 3)):
        code, body, log_p = 0, [], 0.0
        for _ in range(limit):
            token = int(table[row, code % 5**T].argmax())
            log_p += float(table[row, code % 5**T, token])
            if token == EOS:
                break
            body.append(token)
            code = code * 4 + token
        assert beams.row(row).tokens(EOS) == [body]
        score = log_p / float(length_penalty(len(body) + (token == EOS), 0.6))
        assert float(beams.scores[row, 0]) == pytest.approx(score, abs=1e-4)
