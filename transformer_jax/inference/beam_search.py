"""Beam search, and the best continuations of prompts that it finds."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.inference.generation import limit_in_window
from transformer_jax.layers.decoding import State, on_rows

# --------------------------------------------------------------------------------------------------
# The hypotheses of a beam search, open and ended, and the outputs that they become.


class Beams(NamedTuple):
    """K hypotheses of each of B inputs, the best first. The lowest score marks an empty place."""

    ids: jax.Array  # (B, K, T) int32; the end is one of them
    scores: jax.Array  # (B, K) float32


class Outputs(NamedTuple):
    """The best hypotheses of each of B inputs, the best first."""

    ids: jax.Array  # (B, n_best, T) int32, 0 after the end
    lengths: jax.Array  # (B, n_best) int32: tokens, including the end
    scores: jax.Array  # (B, n_best) float32

    def row(self, number: int) -> "Outputs":
        """Returns the outputs of an input, (n_best, ...)."""
        return jax.tree.map(lambda x: x[number], self)

    def tokens(self, eos_id: int) -> list[list[int]]:
        """Returns the tokens of each output of one input, without the end."""
        outputs = [row[:length].tolist() for row, length in zip(self.ids, self.lengths)]
        return [ids[:-1] if ids[-1:] == [eos_id] else ids for ids in outputs]


class Search(NamedTuple):
    """B places. Each holds an input with its K open hypotheses, or nothing.

    Inputs come and go while the search of other inputs continues.
    """

    # (B,) int32: most tokens of an output, including the end; 0: an empty place
    limits: jax.Array
    lengths: jax.Array  # (B,) int32: tokens of each open hypothesis
    open: Beams  # (B, K, T)
    ended: Beams  # (B, K, T)
    state: State  # the tokens that the model has read
    # (B, P) int32: the tokens in front of an output, -1 for padding there; None: no constraint
    # reads them
    before: jax.Array | None = None

    @property
    def slots(self) -> int:
        """The most tokens T that there is room for."""
        return self.open.ids.shape[2]


# --------------------------------------------------------------------------------------------------
# Constraints of beam search, which change the log-probabilities of the next tokens.
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


# --------------------------------------------------------------------------------------------------
# Beam search with a length penalty (Wu et al. 2016, equation 14), as in Vaswani et al. 2017,
# section 6.1, or as in transformers.

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


# --------------------------------------------------------------------------------------------------
# The best continuations of prompts, by beam search with a causal language model.

# Lengths are padded to multiples of it, so that few shapes are compiled.
_LENGTH_MULTIPLE = 64


class ScoredContinuation(NamedTuple):
    text: str
    tokens: int  # generated
    # "end": at the end of the document; "length": after max_tokens
    finished: str
    score: float  # log-probability over the length penalty


@dataclasses.dataclass(frozen=True)
class BestContinuations:
    """Finds continuations with a Causal model, for `batch` prompts at a time.

    `with_start(ids)` returns a prompt's ids behind the token that a document starts with in
    training. The devices share the prompts of a batch. See CausalUse.generate_beam.
    """

    model: Any  # the Linen module
    tokenizer: Any
    with_start: Callable[[list[int]], list[int]]
    batch: int
    placement: Placement

    def __call__(
        self, params, prompts: Iterable[str], search: BeamSearch, max_tokens: int | None
    ) -> Iterator[list[ScoredContinuation]]:
        if max_tokens is not None and max_tokens < 1:
            raise UserError(f"max_tokens={max_tokens}: must be at least 1")
        params = self.model.for_decoding(params)
        first, size = 0, 0
        for texts in chunks(prompts, self.batch):
            # The last batch is filled up to the shape of the others.
            size = size or self.placement.rows(len(texts))
            ids = [self.with_start(ids) for ids in self.tokenizer.encode(texts)]
            limits = [
                limit_in_window(self.model, ids[row], first + row, max_tokens)
                for row in range(len(ids))
            ]
            program, inputs = self._inputs(ids, limits, size, search)
            outputs = jax.device_get(hosts.run(_Program.best, program, params, *inputs))
            for row, prompt in enumerate(ids):
                yield self._continuations(prompt, outputs.row(row))
            first += len(texts)

    def _inputs(
        self, prompts: list[list[int]], limits: list[int], size: int, search: BeamSearch
    ) -> tuple["_Program", tuple[np.ndarray, ...]]:
        """Returns the program of a batch, and its inputs of `size` rows."""
        lengths = [len(ids) for ids in prompts]
        slots = rounded_up(max(map(sum, zip(lengths, limits))), _LENGTH_MULTIPLE)
        slots = min(slots, self.model.window)
        length = min(rounded_up(max(lengths), _LENGTH_MULTIPLE), slots)
        room = min(rounded_up(max(limits), _LENGTH_MULTIPLE), slots)
        missing = size - len(prompts)
        # A row without a prompt has no room for an output.
        inputs = (
            padded(prompts, length, size),
            np.array(lengths + [1] * missing, np.int32),
            np.array(limits + [0] * missing, np.int32),
        )
        return _Program(self.model, search, self.placement, slots, room), inputs

    def _continuations(self, prompt: list[int], outputs: Outputs) -> list[ScoredContinuation]:
        """Returns the continuations of a prompt."""
        rows = outputs.tokens(self.tokenizer.eos_id)
        # A continuation that is decoded without its prompt may lose its first space.
        begin, *texts = self.tokenizer.decode([prompt, *(prompt + ids for ids in rows)])
        return [
            ScoredContinuation(
                text[len(begin) :],
                len(ids),
                "length" if len(ids) == length else "end",
                float(score),
            )
            for text, ids, length, score in zip(texts, rows, outputs.lengths, outputs.scores)
        ]


@dataclasses.dataclass(frozen=True)
class _Program:
    """The compiled search. Its parameters are those of the model's `for_decoding`."""

    model: Any
    search: BeamSearch
    placement: Placement
    slots: int  # of the cache
    room: int  # tokens of the longest output

    @partial(jax.jit, static_argnums=0)
    def best(
        self,
        params,
        prompts: Int[Array, "B L"],
        lengths: Int[Array, " B"],
        limits: Int[Array, " B"],
    ) -> Outputs:
        """Returns the best outputs (B, n_best, T). `limits` (B,) are their most tokens."""
        with self.placement.use():
            prompts, lengths, limits = split_rows((prompts, lengths, limits))
            logits, state = self.model.begin(params, prompts, lengths, slots=self.slots)
            begun = self.search.begin(limits, logits, state, _at_the_end(prompts, lengths))
            begun = self.search.resized(begun, self.room)
            ended = self.search.advance(begun, partial(self.model.step, params), len(prompts))
            return gathered(self.search.best(ended))


def _at_the_end(prompts: Int[Array, "B L"], lengths: Int[Array, " B"]) -> Int[Array, "B L"]:
    """Returns the prompts, moved to the ends of their rows; -1 stands in front of them."""
    places = jnp.arange(prompts.shape[1]) - prompts.shape[1] + lengths[:, None]
    moved = jnp.take_along_axis(prompts, jnp.maximum(places, 0), axis=1)
    return jnp.where(places < 0, -1, moved)


def checked_search(
    beam: Any, n_best: Any, *, decode: Any, tokenizer: Tokenizer, vocab_size: int
) -> BeamSearch:
    """Returns the search of config.decode with other numbers of beams and outputs.

    Raises UserError for an impossible number.
    """
    for name, value in (("beam", beam), ("n_best", n_best)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name}={value!r}: must be a whole number of at least 1")
    if n_best > min(beam, vocab_size):
        raise UserError(
            f"n_best={n_best}: must be at most beam={beam} and config.model.vocab_size={vocab_size}"
        )
    search = BeamSearch.of(decode, tokenizer.eos_id, n_best, continues=True, never=tokenizer.never)
    return dataclasses.replace(search, beam=beam)
