"""Beam search with a length penalty (Wu et al. 2016, equation 14), as in Vaswani et al. 2017,
section 6.1.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_BLOCK = 128  # numbers of which the largest are looked for together
NEVER = -1e9  # log-probability of what can't be: finite, so that differences stay numbers


class Beams(NamedTuple):
    """Hypotheses of B inputs, K of each, the best first; the lowest score marks an empty place."""

    ids: jax.Array  # (B, K, T) int32, 0 after the end
    scores: jax.Array  # (B, K) float32


class Search(NamedTuple):
    """B places, each of which holds an input with its K open hypotheses, or nothing; inputs come
    and go while the others are being written.

    The cache is a ring of P slots: at each turn all places write to the same one, whatever position
    an input has come to. What K hypotheses write stands side by side and stays where it was
    written: `ancestors[b, k, p]` is the beam in slot p that beam k goes on from, -1 where it has
    none. To reorder this table with the beams costs nothing, to reorder the cache would cost as
    much as the model itself.
    """

    # (B,) int32: the most tokens of an output, the end included; 0: an empty place
    limits: jax.Array
    lengths: jax.Array  # (B,) int32: tokens of each open hypothesis
    open: Beams  # (B, K, P)
    ended: Beams  # (B, K, P)
    ancestors: jax.Array  # (B, K, P) int32
    turn: jax.Array  # () int32: the slot that is written next, modulo P
    cache: Any  # as `step` wants it; rows first

    @property
    def slots(self) -> int:
        return self.ancestors.shape[2]


def length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + l) / 6)^alpha; l counts the end token."""
    return ((5.0 + length) / 6.0) ** alpha


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The `n_best` hypotheses of each input with the highest log-probability over `length_penalty`,
    from `beam` open ones at a time.

    A hypothesis ends with `eos_id`; one that has all the tokens its input may have without it
    counts only if nothing else ends. An input is done when none of its open hypotheses can still
    come among its `n_best`: the log-probability only falls, so the bound is the present one over
    the penalty of the longest allowed output. One beam is greedy: the likeliest token each time.
    """

    beam: int
    alpha: float
    eos_id: int
    n_best: int = 1

    def empty(self, places: int, slots: int, cache) -> Search:
        """Nothing in any place; `cache`: as `step` wants it, with anything finite in it."""
        none = Beams(
            jnp.zeros((places, self.beam, slots), jnp.int32), jnp.full((places, self.beam), NEVER)
        )
        return Search(
            jnp.zeros(places, jnp.int32),
            jnp.zeros(places, jnp.int32),
            none,
            none,
            none.ids - 1,
            jnp.int32(0),
            cache,
        )

    def begin(self, limits: jax.Array, logits: jax.Array, cache) -> Search:
        """As many inputs as there are `limits` (N,), each with its first tokens, which `logits` (N,
        V) predict; the cache has what comes before these in its only slot.
        """
        search = self.empty(len(limits), 1, cache)
        # all beams begin alike: only the first may branch
        first = search.open.scores.at[:, 0].set(0)
        search = search._replace(
            limits=limits,
            open=search.open._replace(scores=first),
            ancestors=search.ancestors * 0,
            turn=search.turn + 1,
        )
        return self._choose(search, jnp.repeat(logits[:, None], self.beam, axis=1))

    def admit(
        self, search: Search, places: jax.Array, begun: Search, rows: jax.Array, put: Callable
    ) -> Search:
        """Of the inputs that have begun, those in `rows` (N,) come to `places` (N,), which are
        free; the same twice is as once.

        `put(cache, slot)`: the cache with what those have in their only slot, at these places in
        that slot.
        """
        slot = (search.turn - 1) % search.slots
        wide = lambda x, fill: jnp.pad(
            x, ((0, 0), (0, 0), (0, search.slots - 1)), constant_values=fill
        )
        open_, ended = (
            beams._replace(ids=wide(beams.ids, 0)) for beams in (begun.open, begun.ended)
        )
        begun = begun._replace(
            open=open_,
            ended=ended,
            ancestors=jnp.roll(wide(begun.ancestors, -1), slot, axis=2),
            cache=None,
        )
        move = lambda old, new: old.at[places].set(new[rows]) if old.ndim else old
        return jax.tree.map(move, search._replace(cache=None), begun)._replace(
            cache=put(search.cache, slot)
        )

    def advance(self, search: Search, step: Callable, free: jax.Array) -> Search:
        """Writes until `free` () places hold nothing or what is done, or an input fills the ring.

        `step(cache, tokens (B, K), positions (B, 1), slot (), ancestors) -> (logits (B, K, V),
        cache)`: one token each, at their inputs' positions, which count from the beginning at 0,
        and all in one slot.
        """

        def running(search):
            running = self.running(search)
            return (jnp.sum(~running) < free) & jnp.all(~running | (search.lengths < search.slots))

        def write(search):
            tokens = jnp.take_along_axis(
                search.open.ids, (search.lengths - 1)[:, None, None], axis=2
            )[..., 0]
            slot = search.turn % search.slots
            ancestors = search.ancestors.at[:, :, slot].set(jnp.arange(self.beam))
            # one that is done may stand where there is no position any more
            positions = jnp.where(self.running(search), search.lengths, 0)
            logits, cache = step(search.cache, tokens, positions[:, None], slot, ancestors)
            return self._choose(
                search._replace(ancestors=ancestors, turn=search.turn + 1, cache=cache), logits
            )

        return jax.lax.while_loop(running, write, search)

    def running(self, search: Search) -> jax.Array:
        """(B,) bool: the places whose inputs are not done."""
        bound = search.open.scores[:, 0] / length_penalty(search.limits, self.alpha)
        return (bound > search.ended.scores[:, self.n_best - 1]) & (search.lengths < search.limits)

    def best(self, search: Search) -> Beams:
        """The hypotheses of each place, (B, n_best)."""
        # behind whatever has ended
        unended = search.open.scores / length_penalty(search.limits, self.alpha)[:, None]
        _, order = jax.lax.top_k(
            jnp.concatenate([search.ended.scores, unended + NEVER / 10], axis=1), self.n_best
        )
        return Beams(
            _pick(jnp.concatenate([search.ended.ids, search.open.ids], axis=1), order),
            _pick(jnp.concatenate([search.ended.scores, unended], axis=1), order),
        )

    def resized(self, search: Search, slots: int, resized: Callable) -> Search:
        """With a ring of so many slots, at least as many as any input has come to.

        `resized(cache, shift)`: the cache with what its slots hold moved on by `shift`, around the
        end; then with `slots` of them, the last cut off or added.
        """
        kept = min(slots, search.slots)
        shift = kept - search.turn  # the newest is the last that is kept
        fit = lambda x, fill: jnp.pad(
            x[..., :kept], ((0, 0), (0, 0), (0, slots - kept)), constant_values=fill
        )
        open_, ended = (
            beams._replace(ids=fit(beams.ids, 0)) for beams in (search.open, search.ended)
        )
        return search._replace(
            open=open_,
            ended=ended,
            ancestors=fit(jnp.roll(search.ancestors, shift, axis=2), -1),
            turn=jnp.int32(kept),
            cache=resized(search.cache, shift),
        )

    def _choose(self, search: Search, logits: jax.Array) -> Search:
        """The next token of each hypothesis, by its logits (B, K, V)."""
        (batch, beam, vocab), length = logits.shape, search.lengths
        # so many that `beam` of them go on, whatever ends; one beam ends where its likeliest token
        # does
        wide = 2 * beam if beam > 1 else 1
        logits = logits.astype(jnp.float32)
        log_p = (
            logits
            - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
            + search.open.scores[..., None]
        )
        scores, chosen = _largest(log_p.reshape(batch, beam * vocab), wide)
        parent, token = chosen // vocab, (chosen % vocab).astype(jnp.int32)
        ids = jnp.where(
            jnp.arange(search.slots) == length[:, None, None],
            token[..., None],
            _pick(search.open.ids, parent),
        )
        live = self.running(search)[:, None]  # what is done changes no more
        ends = (token == self.eos_id) & live

        candidates = jnp.where(
            ends, scores / length_penalty(length + 1.0, self.alpha)[:, None], NEVER
        )
        best, order = jax.lax.top_k(
            jnp.concatenate([search.ended.scores, candidates], axis=1), beam
        )
        without_eos = jnp.where(ids == self.eos_id, 0, ids)
        ended = Beams(_pick(jnp.concatenate([search.ended.ids, without_eos], axis=1), order), best)

        going, order = jax.lax.top_k(jnp.where(token == self.eos_id, NEVER, scores), beam)
        open_ = jax.tree.map(
            lambda new, old: jnp.where(live.reshape(batch, *[1] * (new.ndim - 1)), new, old),
            Beams(_pick(ids, order), going),
            search.open,
        )
        return search._replace(
            lengths=length + live[:, 0],
            open=open_,
            ended=ended,
            ancestors=_pick(search.ancestors, _pick(parent, order)),
        )


def _largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """jax.lax.top_k(x (B, N), count) by blocks: of those with the largest maxima alone the numbers
    are sorted. Five times as fast on a CPU.
    """
    starts = jnp.arange(0, x.shape[1], _BLOCK)
    if len(starts) <= count:
        return jax.lax.top_k(x, count)
    maxima = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, _BLOCK), (1, _BLOCK), ((0, 0), (0, -x.shape[1] % _BLOCK))
    )
    # of equal numbers the first is the larger, as in top_k
    blocks = jnp.sort(jax.lax.top_k(maxima, count)[1], axis=1)
    index = (starts[blocks][..., None] + jnp.arange(_BLOCK)).reshape(len(x), -1)
    largest, order = jax.lax.top_k(jnp.where(index < x.shape[1], _pick(x, index), -jnp.inf), count)
    return largest, _pick(index, order)


def _pick(x: jax.Array, chosen: jax.Array) -> jax.Array:  # (B, N, ...), (B, M) -> (B, M, ...)
    return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), axis=1)
