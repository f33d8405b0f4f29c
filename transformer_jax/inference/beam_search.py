"""Beam search with a length penalty (Wu et al. 2016, equation 14), as in Vaswani et al. 2017,
section 6.1, or as in transformers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.inference.hypotheses import Beams, Outputs, Search
from transformer_jax.layers.decoding import State, on_rows

# Constraints of beam search: they change the log-probabilities of the next tokens.
#
# Each equals the class of the same purpose in transformers, `generation/logits_process.py`. A token
# that is impossible gets -inf. The others keep their log-probabilities unless `renormalize` says
# otherwise.
LogProbs = Float[Array, "B K V"]


@dataclasses.dataclass(frozen=True)
class Constraints:
    """The constraints of all outputs of a search. The defaults change nothing."""

    never: tuple[int, ...] = ()  # tokens that no output holds
    min_length: int = 0  # fewest tokens of an output, including the end
    no_repeat_ngram: int = 0  # no sequence of so many tokens occurs twice; 0: each may
    first: tuple[int, ...] = ()  # the first tokens of each output
    force_end: bool = False  # an output that reaches its limit ends there
    renormalize: bool = False  # the probabilities of the tokens that are left sum to 1

    def __call__(self, log_p: LogProbs, search: Search, eos_id: int) -> LogProbs:
        """Returns the log-probabilities of the tokens that the open hypotheses may write next."""
        if self.no_repeat_ngram:
            text = jnp.concatenate(
                [jnp.repeat(search.before[:, None], log_p.shape[1], axis=1), search.open.ids],
                axis=2,
            )
            lengths = search.before.shape[1] + search.lengths
            log_p = without_repeats(log_p, text, lengths, self.no_repeat_ngram)
        if self.never:
            log_p = without(log_p, self.never)
        if self.min_length:
            too_short = search.lengths + 1 < self.min_length
            log_p = jnp.where(_rows(too_short), without(log_p, (eos_id,)), log_p)
        for place, token in enumerate(self.first):
            log_p = forced(log_p, search.lengths == place, token)
        if self.force_end:
            log_p = forced(log_p, search.lengths + 1 == search.limits, eos_id)
        return normalized(log_p) if self.renormalize else log_p


def without(log_p: LogProbs, tokens: tuple[int, ...]) -> LogProbs:
    """Returns the log-probabilities with -inf for `tokens`."""
    return jnp.where(np.isin(np.arange(log_p.shape[2]), tokens), -jnp.inf, log_p)


def forced(log_p: LogProbs, inputs: Bool[Array, " B"], token: int) -> LogProbs:
    """Returns the log-probabilities, where `token` is certain as the next token of `inputs`."""
    certain = jnp.where(np.arange(log_p.shape[2]) == token, 0.0, -jnp.inf)
    return jnp.where(_rows(inputs), certain, log_p)


def without_repeats(
    log_p: LogProbs, text: Int[Array, "B K T"], lengths: Int[Array, " B"], size: int
) -> LogProbs:
    """Returns the log-probabilities with -inf where a token repeats `size` tokens of its text.

    The first `lengths` (B,) tokens of a text have been written or read.
    """
    batch, beams, vocab = log_p.shape
    num_windows = text.shape[2] - size + 1
    if num_windows < 1:
        return log_p
    # A window ends with the token that must not follow its other tokens again.
    repeats = jnp.arange(num_windows) + size <= _rows(lengths)
    for place in range(size - 1):
        last = jnp.maximum(_rows(lengths) - size + 1 + place, 0)
        same = text[..., place : place + num_windows] == jnp.take_along_axis(text, last, axis=2)
        repeats = repeats & same
    # The id beyond the vocabulary is dropped.
    tokens = jnp.where(repeats, text[..., size - 1 :], vocab)
    inputs, hypotheses = jnp.ogrid[:batch, :beams]
    return log_p.at[inputs[..., None], hypotheses[..., None], tokens].set(-jnp.inf, mode="drop")


def normalized(log_p: LogProbs) -> LogProbs:
    """Returns the log-probabilities of the possible tokens among themselves."""
    total = jax.nn.logsumexp(log_p, axis=-1, keepdims=True)
    return log_p - jnp.where(jnp.isfinite(total), total, 0.0)


def _rows(x: Array) -> Array:
    """Returns x (B,) as (B, 1, 1)."""
    return x[:, None, None]


_BLOCK_SIZE = 128  # numbers of a block in the search for the largest
NEVER = -1e9  # score of an empty place: finite, so that differences are numbers
_EMPTY = NEVER / 10  # lower than the score of any hypothesis


def length_penalty(length: Array | float | int, alpha: float, kind: str = "gnmt") -> Array | float:
    """Returns ((5 + length) / 6)^alpha, or length^alpha for the kind "length" of transformers.

    The length counts the end token.
    """
    return ((5.0 + length) / 6.0 if kind == "gnmt" else 1.0 * length) ** alpha


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Finds the `n_best` hypotheses of each input, with `beam` open hypotheses at a time.

    A hypothesis' score is its log-probability over `length_penalty`. It ends with `eos_id`. A
    hypothesis that reaches its input's limit without an end counts only if no other one ends, or,
    where `continues`, as one that ends. One beam is greedy search.

    An input is done when none of its open hypotheses can come among its `n_best` any more. The
    log-probability only falls, so an upper bound of a score is the present log-probability over
    the penalty of the longest output. This is `early_stopping` "exact". The other values are those
    of transformers, `_beam_search` in generation/utils.py. "never": none can come among the best
    `beam`. "estimate" (False there): none could with its present length. "first" (True there):
    `beam` hypotheses have ended. With these three, a hypothesis ends with `eos_id` or at the limit,
    and only where it is among the `beam` likeliest candidates.
    """

    beam: int
    alpha: float
    eos_id: int
    n_best: int = 1
    continues: bool = False
    penalty: str = "gnmt"
    early_stopping: str = "exact"
    constraints: Constraints = Constraints()

    @classmethod
    def of(
        cls, decode: Any, eos_id: int, n_best: int = 1, *, continues: bool = False, **others
    ) -> "BeamSearch":
        """Returns the search of config.decode. `others` are further constraints."""
        return cls(
            continues=continues,
            beam=decode.beam,
            alpha=decode.alpha,
            eos_id=eos_id,
            n_best=n_best,
            penalty=decode.penalty,
            early_stopping=decode.early_stopping,
            constraints=Constraints(
                min_length=decode.min_length,
                no_repeat_ngram=decode.no_repeat_ngram,
                force_end=decode.force_end,
                renormalize=decode.renormalize,
                **others,
            ),
        )

    def empty(
        self, places: int, slots: int, state: State, before: Int[Array, "B P"] | None = None
    ) -> Search:
        """Returns a search with nothing in any place.

        `state`, and the tokens `before` an output (B, P), may have any finite content.
        """
        none = Beams(
            jnp.zeros((places, self.beam, slots), jnp.int32), jnp.full((places, self.beam), NEVER)
        )
        zeros = jnp.zeros(places, jnp.int32)
        before = before if self.constraints.no_repeat_ngram else None
        return Search(zeros, zeros, open=none, ended=none, state=state, before=before)

    def begin(
        self,
        limits: Int[Array, " N"],
        logits: Float[Array, "N V"],
        state: State,
        before: Int[Array, "N P"] | None = None,
    ) -> Search:
        """Returns a search of N inputs with their first tokens.

        `limits` is (N,). `logits` (N, V) predict the first tokens. `state` has one hypothesis for
        each input: what the model has read. `before` (N, P) are the tokens of an output's text in
        front of it, -1 for padding there.
        """
        beams = (len(limits), self.beam)
        state = on_rows(type(state).reorder, state, jnp.zeros(beams, jnp.int32))
        search = self.empty(len(limits), 1, state, before)
        # All beams are equal at first, so only the first beam may branch.
        first = search.open.scores.at[:, 0].set(0)
        search = search._replace(limits=limits, open=search.open._replace(scores=first))
        return on_rows(self._choose, search, jnp.repeat(logits[:, None], self.beam, axis=1))

    def admit(
        self,
        search: Search,
        new_inputs: Search,
        *,
        places: Int[Array, " N"],
        rows: Int[Array, " N"],
    ) -> Search:
        """Returns `search` with `rows` (N,) of `new_inputs` at the free `places` (N,).

        A repeated pair of row and place has no further effect.
        """
        missing = search.slots - new_inputs.slots
        new_inputs = new_inputs._replace(
            open=new_inputs.open._replace(ids=_lengthened(new_inputs.open.ids, missing)),
            ended=new_inputs.ended._replace(ids=_lengthened(new_inputs.ended.ids, missing)),
        )
        state = search.state.admit(new_inputs.state, places=places, rows=rows)
        moved = jax.tree.map(
            lambda old, new: old.at[places].set(new[rows]),
            search._replace(state=None),
            new_inputs._replace(state=None),
        )
        return moved._replace(state=state)

    def advance(self, search: Search, step: Callable, free: Int[Array, ""] | int) -> Search:
        """Continues until `free` () places are empty or done, or an input has no more room.

        `step(state, tokens (B, K))` returns (logits (B, K, V), state). It reads one token for each
        hypothesis.
        """

        def is_unfinished(search):
            running = self.running(search)
            return (jnp.sum(~running) < free) & jnp.all(~running | (search.lengths < search.slots))

        def write(search):
            last = (search.lengths - 1)[:, None, None]
            tokens = jnp.take_along_axis(search.open.ids, last, axis=2)[..., 0]
            logits, state = step(search.state, tokens)
            return on_rows(self._choose, search._replace(state=state), logits)

        return jax.lax.while_loop(is_unfinished, write, search)

    def running(self, search: Search) -> Bool[Array, " B"]:
        """Returns the places whose inputs are not done, (B,) bool."""
        return self._may_improve(search) & (search.lengths < search.limits)

    def _may_improve(self, search: Search) -> Bool[Array, " B"]:
        """Returns the places with an open hypothesis that may still come among the best."""
        if self.early_stopping == "first":
            return search.ended.scores[:, -1] < _EMPTY
        lengths = search.limits
        if self.early_stopping == "estimate":
            lengths = jnp.maximum(search.lengths, 1)
        num_best = self.n_best if self.early_stopping == "exact" else self.beam
        bound = search.open.scores[:, 0] / self._penalty(lengths)
        return bound > search.ended.scores[:, num_best - 1]

    def _penalty(self, lengths: Array) -> Array:
        return length_penalty(lengths, self.alpha, self.penalty)

    def best(self, search: Search) -> Outputs:
        """Returns the best hypotheses of each place, (B, n_best)."""
        unended = search.open.scores / self._penalty(search.limits)[:, None]
        # Hypotheses without an end rank behind all that have ended, unless texts are continued.
        behind = 0 if self.continues and self.early_stopping == "exact" else _EMPTY
        ranking = jnp.concatenate([search.ended.scores, unended + behind], axis=1)
        _, order = jax.lax.top_k(ranking, self.n_best)
        ids = _pick(jnp.concatenate([search.ended.ids, search.open.ids], axis=1), order)
        written = jnp.arange(search.slots) < search.lengths[:, None, None]
        ends = (ids == self.eos_id) & written
        return Outputs(
            ids,
            jnp.where(ends.any(axis=2), ends.argmax(axis=2) + 1, search.lengths[:, None]),
            _pick(jnp.concatenate([search.ended.scores, unended], axis=1), order),
        )

    def resized(self, search: Search, slots: int, length: int = 0) -> Search:
        """Returns the search with room for `slots` tokens, at least those of any input.

        `length` is that of the longest source.
        """

        def fit(ids):
            first = ids[..., :slots]
            return _lengthened(first, slots - first.shape[2])

        return search._replace(
            open=search.open._replace(ids=fit(search.open.ids)),
            ended=search.ended._replace(ids=fit(search.ended.ids)),
            state=search.state.resized(slots, length),
        )

    def _choose(self, search: Search, logits: Float[Array, "B K V"]) -> Search:
        """Returns the search with the next token of each hypothesis, from logits (B, K, V)."""
        (batch, beam, vocab), length = logits.shape, search.lengths
        # With 2K candidates, K of them continue even if the others end. One beam ends where its
        # likeliest token is the end.
        num_candidates = 2 * beam if beam > 1 else 1
        logits = logits.astype(jnp.float32)
        log_p = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        log_p = self.constraints(log_p, search, self.eos_id) + search.open.scores[..., None]
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
        if self.early_stopping != "exact":
            at_limit = (length + 1 == search.limits)[:, None] & live
            ends = (ends | at_limit) & (jnp.arange(num_candidates) < beam)
        ended_scores = jnp.where(ends, scores / self._penalty(length + 1.0)[:, None], NEVER)
        best, order = jax.lax.top_k(
            jnp.concatenate([search.ended.scores, ended_scores], axis=1), beam
        )
        ended = Beams(_pick(jnp.concatenate([search.ended.ids, ids], axis=1), order), best)

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
            state=search.state.reorder(_pick(parent, order)),
        )


def _lengthened(ids: Int[Array, "B K T"], count: int) -> Int[Array, "B K _"]:
    """Returns ids (B, K, T) with `count` more zeros on the last axis."""
    return jnp.pad(ids, ((0, 0), (0, 0), (0, count)))


def _largest(
    x: Float[Array, "B N"], count: int
) -> tuple[Float[Array, "B {count}"], Int[Array, "B {count}"]]:
    """Returns jax.lax.top_k(x (B, N), count), five times as fast on a CPU.

    Only the blocks with the largest maxima are sorted.
    """
    starts = jnp.arange(0, x.shape[1], _BLOCK_SIZE)
    if len(starts) <= count:
        return tuple(jax.lax.top_k(x, count))
    window = (1, _BLOCK_SIZE)
    padding = ((0, 0), (0, -x.shape[1] % _BLOCK_SIZE))
    maxima = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)
    # Sorted blocks keep the order of top_k: of equal numbers the first comes first.
    blocks = jnp.sort(jax.lax.top_k(maxima, count)[1], axis=1)
    index = (starts[blocks][..., None] + jnp.arange(_BLOCK_SIZE)).reshape(len(x), -1)
    largest, order = jax.lax.top_k(jnp.where(index < x.shape[1], _pick(x, index), -jnp.inf), count)
    return largest, _pick(index, order)


def _pick(x: Shaped[Array, "B N ..."], chosen: Int[Array, "B M"]) -> Shaped[Array, "B M ..."]:
    """Returns the chosen entries (B, M, ...) of x (B, N, ...), from their numbers (B, M)."""
    return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), axis=1)
