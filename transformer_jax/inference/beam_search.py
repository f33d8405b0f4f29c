"""Beam search with a length penalty (Wu et al. 2016, equation 14), as in Vaswani et al. 2017,
section 6.1.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_BLOCK_SIZE = 128  # numbers of a block in the search for the largest
NEVER = -1e9  # log-probability of the impossible: finite, so that differences are numbers


class Beams(NamedTuple):
    """K hypotheses of each of B inputs, the best first. The lowest score marks an empty place."""

    ids: jax.Array  # (B, K, T) int32, 0 after the end
    scores: jax.Array  # (B, K) float32


class Search(NamedTuple):
    """B places. Each holds an input with its K open hypotheses, or nothing.

    Inputs come and go while the search of other inputs continues.

    The cache is a ring of P slots. At each turn all places write to the same slot, whatever the
    positions of their inputs are. The K hypotheses write side by side, and nothing is moved later:
    `ancestors[b, k, p]` is the beam in slot p that beam k continues, -1 where it continues none.
    Reordering this table costs nothing; reordering the cache would cost as much as the model.
    """

    # (B,) int32: most tokens of an output, including the end; 0: an empty place
    limits: jax.Array
    lengths: jax.Array  # (B,) int32: tokens of each open hypothesis
    open: Beams  # (B, K, P)
    ended: Beams  # (B, K, P)
    ancestors: jax.Array  # (B, K, P) int32
    turn: jax.Array  # () int32: the slot of the next turn, modulo P
    cache: Any  # the cache of `step`, arrays (B, ...)

    @property
    def slots(self) -> int:
        return self.ancestors.shape[2]


def length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """Returns ((5 + length) / 6)^alpha; the length counts the end token."""
    return ((5.0 + length) / 6.0) ** alpha


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Finds the `n_best` hypotheses of each input, with `beam` open hypotheses at a time.

    A hypothesis' score is its log-probability over `length_penalty`. It ends with `eos_id`. A
    hypothesis that reaches its input's limit without an end counts only if no other one ends.

    An input is done when none of its open hypotheses can come among its `n_best` any more. The
    log-probability only falls, so an upper bound of a score is the present log-probability over
    the penalty of the longest output. One beam is greedy search.
    """

    beam: int
    alpha: float
    eos_id: int
    n_best: int = 1

    def empty(self, places: int, slots: int, cache) -> Search:
        """Returns a search with nothing in any place. `cache` may have any finite content."""
        none = Beams(
            jnp.zeros((places, self.beam, slots), jnp.int32), jnp.full((places, self.beam), NEVER)
        )
        return Search(
            limits=jnp.zeros(places, jnp.int32),
            lengths=jnp.zeros(places, jnp.int32),
            open=none,
            ended=none,
            ancestors=none.ids - 1,
            turn=jnp.int32(0),
            cache=cache,
        )

    def begin(self, limits: jax.Array, logits: jax.Array, cache) -> Search:
        """Returns a search of N inputs with their first tokens.

        `limits` is (N,). `logits` (N, V) predict the first tokens. The cache has one slot, for the
        token before the first.
        """
        search = self.empty(len(limits), 1, cache)
        # All beams are equal at first, so only the first beam may branch.
        first = search.open.scores.at[:, 0].set(0)
        search = search._replace(
            limits=limits,
            open=search.open._replace(scores=first),
            ancestors=search.ancestors * 0,
            turn=search.turn + 1,
        )
        return self._choose(search, jnp.repeat(logits[:, None], self.beam, axis=1))

    def admit(
        self,
        search: Search,
        new_inputs: Search,
        put: Callable,
        *,
        places: jax.Array,
        rows: jax.Array,
    ) -> Search:
        """Returns `search` with `rows` (N,) of `new_inputs` at the free `places` (N,).

        A repeated pair of row and place has no further effect. `put(cache, slot)` returns the cache
        with the only slot of these inputs written to `slot` at their places.
        """
        slot = (search.turn - 1) % search.slots
        missing = search.slots - 1
        new_inputs = new_inputs._replace(
            open=new_inputs.open._replace(ids=_lengthened(new_inputs.open.ids, missing, 0)),
            ended=new_inputs.ended._replace(ids=_lengthened(new_inputs.ended.ids, missing, 0)),
            ancestors=jnp.roll(_lengthened(new_inputs.ancestors, missing, -1), slot, axis=2),
            cache=None,
        )

        def move(old, new):
            return old.at[places].set(new[rows]) if old.ndim else old

        moved = jax.tree.map(move, search._replace(cache=None), new_inputs)
        return moved._replace(cache=put(search.cache, slot))

    def advance(self, search: Search, step: Callable, free: jax.Array) -> Search:
        """Continues until `free` () places are empty or done, or an input fills the ring.

        `step(cache, tokens (B, K), positions (B, 1), slot (), ancestors)` returns (logits
        (B, K, V), cache). It reads one token for each hypothesis, all in one slot. The positions
        count the tokens of each input from 0.
        """

        def is_unfinished(search):
            running = self.running(search)
            return (jnp.sum(~running) < free) & jnp.all(~running | (search.lengths < search.slots))

        def write(search):
            last = (search.lengths - 1)[:, None, None]
            tokens = jnp.take_along_axis(search.open.ids, last, axis=2)[..., 0]
            slot = search.turn % search.slots
            ancestors = search.ancestors.at[:, :, slot].set(jnp.arange(self.beam))
            # An input that is done may have no next position.
            positions = jnp.where(self.running(search), search.lengths, 0)
            logits, cache = step(search.cache, tokens, positions[:, None], slot, ancestors)
            return self._choose(
                search._replace(ancestors=ancestors, turn=search.turn + 1, cache=cache), logits
            )

        return jax.lax.while_loop(is_unfinished, write, search)

    def running(self, search: Search) -> jax.Array:
        """Returns the places whose inputs are not done, (B,) bool."""
        bound = search.open.scores[:, 0] / length_penalty(search.limits, self.alpha)
        return (bound > search.ended.scores[:, self.n_best - 1]) & (search.lengths < search.limits)

    def best(self, search: Search) -> Beams:
        """Returns the best hypotheses of each place, (B, n_best)."""
        unended = search.open.scores / length_penalty(search.limits, self.alpha)[:, None]
        # Hypotheses without an end rank behind all that have ended.
        ranking = jnp.concatenate([search.ended.scores, unended + NEVER / 10], axis=1)
        _, order = jax.lax.top_k(ranking, self.n_best)
        return Beams(
            _pick(jnp.concatenate([search.ended.ids, search.open.ids], axis=1), order),
            _pick(jnp.concatenate([search.ended.scores, unended], axis=1), order),
        )

    def resized(self, search: Search, slots: int, resize_cache: Callable) -> Search:
        """Returns the search with a ring of `slots`, at least the length of any input.

        `resize_cache(cache, shift)` rotates the slots of a cache forward by `shift`. Then it cuts
        off the last slots, or adds slots.
        """
        num_kept = min(slots, search.slots)
        shift = num_kept - search.turn  # puts the newest slot last among those that are kept

        def fit(x, fill):
            return _lengthened(x[..., :num_kept], slots - num_kept, fill)

        return search._replace(
            open=search.open._replace(ids=fit(search.open.ids, 0)),
            ended=search.ended._replace(ids=fit(search.ended.ids, 0)),
            ancestors=fit(jnp.roll(search.ancestors, shift, axis=2), -1),
            turn=jnp.int32(num_kept),
            cache=resize_cache(search.cache, shift),
        )

    def _choose(self, search: Search, logits: jax.Array) -> Search:
        """Returns the search with the next token of each hypothesis, from logits (B, K, V)."""
        (batch, beam, vocab), length = logits.shape, search.lengths
        # With 2K candidates, K of them continue even if the others end. One beam ends where its
        # likeliest token is the end.
        num_candidates = 2 * beam if beam > 1 else 1
        logits = logits.astype(jnp.float32)
        log_p = (
            logits
            - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
            + search.open.scores[..., None]
        )
        scores, chosen = _largest(log_p.reshape(batch, beam * vocab), num_candidates)
        parent = chosen // vocab
        token = (chosen % vocab).astype(jnp.int32)
        ids = jnp.where(
            jnp.arange(search.slots) == length[:, None, None],
            token[..., None],
            _pick(search.open.ids, parent),
        )
        live = self.running(search)[:, None]  # an input that is done does not change

        ends = (token == self.eos_id) & live
        ended_scores = jnp.where(
            ends, scores / length_penalty(length + 1.0, self.alpha)[:, None], NEVER
        )
        best, order = jax.lax.top_k(
            jnp.concatenate([search.ended.scores, ended_scores], axis=1), beam
        )
        without_eos = jnp.where(ids == self.eos_id, 0, ids)
        ended = Beams(_pick(jnp.concatenate([search.ended.ids, without_eos], axis=1), order), best)

        open_scores, order = jax.lax.top_k(jnp.where(token == self.eos_id, NEVER, scores), beam)
        open_ = jax.tree.map(
            lambda new, old: jnp.where(live.reshape(batch, *[1] * (new.ndim - 1)), new, old),
            Beams(_pick(ids, order), open_scores),
            search.open,
        )
        return search._replace(
            lengths=length + live[:, 0],
            open=open_,
            ended=ended,
            ancestors=_pick(search.ancestors, _pick(parent, order)),
        )


def _lengthened(x: jax.Array, count: int, fill: int) -> jax.Array:
    """Returns x (B, K, P) with `count` more values `fill` on its last axis."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, count)), constant_values=fill)


def _largest(x: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Returns jax.lax.top_k(x (B, N), count), five times as fast on a CPU.

    Only the blocks with the largest maxima are sorted.
    """
    starts = jnp.arange(0, x.shape[1], _BLOCK_SIZE)
    if len(starts) <= count:
        return jax.lax.top_k(x, count)
    window = (1, _BLOCK_SIZE)
    padding = ((0, 0), (0, -x.shape[1] % _BLOCK_SIZE))
    maxima = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)
    # Sorted blocks keep the order of top_k: of equal numbers the first comes first.
    blocks = jnp.sort(jax.lax.top_k(maxima, count)[1], axis=1)
    index = (starts[blocks][..., None] + jnp.arange(_BLOCK_SIZE)).reshape(len(x), -1)
    largest, order = jax.lax.top_k(jnp.where(index < x.shape[1], _pick(x, index), -jnp.inf), count)
    return largest, _pick(index, order)


def _pick(x: jax.Array, chosen: jax.Array) -> jax.Array:
    """Returns the chosen entries (B, M, ...) of x (B, N, ...), from their numbers (B, M)."""
    return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), axis=1)
