"""Beam search, and its use for continuing prompts with a causal language model."""

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
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.inference.generation import limit_in_window
from transformer_jax.inference.token_constraints import UNCONSTRAINED, Constraints, Written, end_ids
from transformer_jax.layers.decoding import State, on_rows

# ----------------------------------------------------------- the state of a search, and its outputs


class Beams(NamedTuple):
    """K hypotheses of each of B inputs, best first. An empty entry has the score `NEVER`."""

    ids: jax.Array  # (B, K, T) int32, end token included
    scores: jax.Array  # (B, K) float32


class Outputs(NamedTuple):
    """The best hypotheses of each of B inputs, best first."""

    ids: jax.Array  # (B, n_best, T) int32, 0 after the end token
    lengths: jax.Array  # (B, n_best) int32: number of tokens, end token included
    scores: jax.Array  # (B, n_best) float32

    def row(self, number: int) -> "Outputs":
        """Returns the outputs of one input, (n_best, ...)."""
        return jax.tree.map(lambda x: x[number], self)

    def tokens(self, eos_id: int | tuple[int, ...]) -> list[list[int]]:
        """Returns the tokens of each output of one input, without the end token.

        `eos_id` is the id that ends an output, or several such ids.
        """
        ends = _as_tuple(eos_id)
        outputs = [row[:length].tolist() for row, length in zip(self.ids, self.lengths)]
        return [ids[:-1] if ids and ids[-1] in ends else ids for ids in outputs]


class Search(NamedTuple):
    """The search for B inputs with K hypotheses each. A row of the batch may be free.

    Inputs can be put into free rows while the search for the other inputs goes on (continuous
    batching).
    """

    # (B,) int32: maximum number of tokens of an output, end token included; 0 in a free row
    limits: jax.Array
    lengths: jax.Array  # (B,) int32: number of tokens of each open hypothesis
    open: Beams  # (B, K, T)
    ended: Beams  # (B, K, T)
    state: State  # KV cache or recurrent state of the tokens that the model has read
    # (B, P) int32: the tokens in front of an output, padded with -1 on the left; None unless a
    # constraint reads them
    before: jax.Array | None = None

    @property
    def slots(self) -> int:
        """The capacity T for tokens of an output."""
        return self.open.ids.shape[2]


# -------------------------------------------------------------------------------------- beam search

# The length penalty is equation 14 of Wu et al. 2016, which Vaswani et al. 2017, section 6.1,
# follow, or the one of transformers, so that converted checkpoints translate as they do there.

_BLOCK_SIZE = 128  # of `_largest`, where small blocks mean many maxima, large ones long searches
NEVER = -1e9  # score of an empty entry: finite, because -inf minus -inf would be NaN
_EMPTY = NEVER / 10  # a threshold that all hypotheses exceed and no empty entry reaches


def length_penalty(length: Array | float | int, alpha: float, kind: str = "gnmt") -> Array | float:
    """Returns ((5 + length) / 6)^alpha, or length^alpha for the kind "length" of transformers.

    The length includes the end token.
    """
    return ((5.0 + length) / 6.0 if kind == "gnmt" else 1.0 * length) ** alpha


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Finds the `n_best` hypotheses of each input with a beam of `beam` open hypotheses.

    The score of a hypothesis is its log-probability divided by `length_penalty`. A hypothesis ends
    with `eos_id`, or with one of them if there are several. One that reaches the limit of its input
    without an end token counts only if no other has ended, unless `continues` is set: then it
    counts like one that has ended. A beam of 1 is greedy search.

    `early_stopping` decides when an input is done. With "exact", it is done once none of its open
    hypotheses can still become one of the `n_best`. Because a log-probability only falls as tokens
    are added, the current log-probability divided by the penalty of the longest possible output is
    an upper bound of the score. The other values follow `_beam_search` in transformers'
    generation/utils.py: with "never", none can still become one of the `beam` best; with "estimate"
    (False there), none would at its current length; with "first" (True there), `beam` hypotheses
    have ended. With these three, a hypothesis ends with `eos_id` or at the limit, and only if it is
    among the `beam` likeliest candidates.
    """

    beam: int
    alpha: float
    eos_id: int | tuple[int, ...]
    n_best: int = 1
    continues: bool = False
    penalty: str = "gnmt"
    early_stopping: str = "exact"
    constraints: Constraints = UNCONSTRAINED

    @classmethod
    def of(
        cls,
        decode: Any,
        eos_id: int | tuple[int, ...],
        n_best: int = 1,
        *,
        continues: bool = False,
        **others,
    ) -> "BeamSearch":
        """Returns the search that config.decode describes. `others` are further constraints."""
        return cls(
            continues=continues,
            beam=decode.beam,
            alpha=decode.alpha,
            eos_id=eos_id,
            n_best=n_best,
            penalty=decode.penalty,
            early_stopping=decode.early_stopping,
            constraints=Constraints.of(decode, _as_tuple(eos_id), **others),
        )

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a hypothesis."""
        return _as_tuple(self.eos_id)

    def empty(
        self, num_rows: int, slots: int, state: State, before: Int[Array, "B P"] | None = None
    ) -> Search:
        """Returns a search whose `num_rows` rows are all free.

        `state`, and the tokens `before` an output (B, P), may have any finite content.
        """
        none = Beams(
            jnp.zeros((num_rows, self.beam, slots), jnp.int32),
            jnp.full((num_rows, self.beam), NEVER),
        )
        zeros = jnp.zeros(num_rows, jnp.int32)
        before = before if self.constraints.read_text else None
        return Search(zeros, zeros, open=none, ended=none, state=state, before=before)

    def begin(
        self,
        limits: Int[Array, " N"],
        logits: Float[Array, "N V"],
        state: State,
        before: Int[Array, "N P"] | None = None,
    ) -> Search:
        """Starts a search for N inputs and chooses their first tokens.

        `limits` are the maximum lengths of the outputs, and `logits` predict their first tokens.
        `state` has a single hypothesis for each input. `before` (N, P) holds the tokens in front of
        each output, padded with -1 on the left.
        """
        beams = (len(limits), self.beam)
        state = on_rows(type(state).reorder, state, jnp.zeros(beams, jnp.int32))
        # One slot is enough for the first tokens. `admit` and `resized` add those of the search
        # that the inputs join.
        search = self.empty(len(limits), 1, state, before)
        # At the start all K hypotheses of an input are equal. Only the first may branch; otherwise
        # the beam would hold K copies of the same hypothesis.
        first = search.open.scores.at[:, 0].set(0)
        search = search._replace(limits=limits, open=search.open._replace(scores=first))
        return on_rows(self._choose, search, jnp.repeat(logits[:, None], self.beam, axis=1))

    def admit(
        self,
        search: Search,
        new_inputs: Search,
        *,
        indices: Int[Array, " N"],
        rows: Int[Array, " N"],
    ) -> Search:
        """Returns `search` with the inputs in `rows` of `new_inputs` put into its rows `indices`.

        A repeated pair of the two has no further effect.
        """
        missing = search.slots - new_inputs.slots
        new_inputs = new_inputs._replace(
            open=new_inputs.open._replace(ids=_lengthened(new_inputs.open.ids, missing)),
            ended=new_inputs.ended._replace(ids=_lengthened(new_inputs.ended.ids, missing)),
        )
        state = search.state.admit(new_inputs.state, indices=indices, rows=rows)
        moved = jax.tree.map(
            lambda old, new: old.at[indices].set(new[rows]),
            search._replace(state=None),
            new_inputs._replace(state=None),
        )
        return moved._replace(state=state)

    def advance(self, search: Search, step: Callable, free: Int[Array, ""] | int) -> Search:
        """Continues until `free` rows are free or done, or until an input needs more slots.

        `step(state, tokens (B, K))` returns (logits (B, K, V), state). It reads one token for each
        hypothesis.
        """

        def is_unfinished(search):
            running = self.running(search)
            # A running input needs a slot for its next token. Only the host can add slots, between
            # two calls, because shapes are fixed within one.
            return (jnp.sum(~running) < free) & jnp.all(~running | (search.lengths < search.slots))

        def write(search):
            # The index is -1 in a free row, which is harmless, because nothing reads what such a
            # row writes.
            last = (search.lengths - 1)[:, None, None]
            tokens = jnp.take_along_axis(search.open.ids, last, axis=2)[..., 0]
            logits, state = step(search.state, tokens)
            return on_rows(self._choose, search._replace(state=state), logits)

        return jax.lax.while_loop(is_unfinished, write, search)

    def running(self, search: Search) -> Bool[Array, " B"]:
        """Returns which rows have an input that is not done, (B,) bool."""
        return self._may_improve(search) & (search.lengths < search.limits)

    def _may_improve(self, search: Search) -> Bool[Array, " B"]:
        """Returns the rows whose best open hypothesis may still become one of the outputs."""
        if self.early_stopping == "first":
            # Ended hypotheses are sorted, so that the last entry is filled once there are `beam` of
            # them.
            return search.ended.scores[:, -1] < _EMPTY
        lengths = search.limits
        if self.early_stopping == "estimate":
            # A free row has length 0, by whose penalty, 0 in the kind "length", the score would be
            # divided.
            lengths = jnp.maximum(search.lengths, 1)
        num_best = self.n_best if self.early_stopping == "exact" else self.beam
        bound = search.open.scores[:, 0] / self._penalty(lengths)
        return bound > search.ended.scores[:, num_best - 1]

    def _penalty(self, lengths: Array) -> Array:
        return length_penalty(lengths, self.alpha, self.penalty)

    def best(self, search: Search) -> Outputs:
        """Returns the best hypotheses of each row, (B, n_best)."""
        unended = search.open.scores / self._penalty(search.limits)[:, None]
        # Hypotheses without an end token rank behind all that have ended, because a translation
        # that is cut off is incomplete. A continuation may end anywhere, so there they count as
        # much.
        behind = 0 if self.continues and self.early_stopping == "exact" else _EMPTY
        ranking = jnp.concatenate([search.ended.scores, unended + behind], axis=1)
        _, order = jax.lax.top_k(ranking, self.n_best)
        ids = _pick(jnp.concatenate([search.ended.ids, search.open.ids], axis=1), order)
        # Slots that are not written yet hold 0, which may be the id of an end token.
        written = jnp.arange(search.slots) < search.lengths[:, None, None]
        ends = jnp.isin(ids, np.array(self.ends)) & written
        return Outputs(
            ids,
            jnp.where(ends.any(axis=2), ends.argmax(axis=2) + 1, search.lengths[:, None]),
            _pick(jnp.concatenate([search.ended.scores, unended], axis=1), order),
        )

    def resized(self, search: Search, slots: int, length: int = 0) -> Search:
        """Returns the search with room for `slots` tokens, which no output may exceed so far.

        `length` is the length of the longest source.
        """

        def fit(ids):
            first = ids[..., :slots]
            return _lengthened(first, slots - first.shape[2])

        return search._replace(
            open=search.open._replace(ids=fit(search.open.ids)),
            ended=search.ended._replace(ids=fit(search.ended.ids)),
            state=search.state.resized(slots, length),
        )

    def _constrained(self, log_p: Float[Array, "B K V"], search: Search) -> Float[Array, "B K V"]:
        """Returns the log-probabilities of the next tokens that the constraints allow."""
        text, lengths = None, search.lengths
        if search.before is not None:
            before = jnp.repeat(search.before[:, None], log_p.shape[1], axis=1)
            text = jnp.concatenate([before, search.open.ids], axis=2)
            lengths = before.shape[2] + search.lengths
        written = Written(text, lengths, search.lengths, search.limits)
        return self.constraints(log_p, written, self.ends)

    def _choose(self, search: Search, logits: Float[Array, "B K V"]) -> Search:
        """Extends the hypotheses by one token, for which `logits` are given."""
        (batch, beam, vocab), length = logits.shape, search.lengths
        # Among (1 + E) K candidates, at most E K end, because each hypothesis has E end tokens. So
        # K open hypotheses are left. Greedy search needs a single candidate: it ends if the
        # likeliest token is an end token.
        num_candidates = (1 + len(self.ends)) * beam if beam > 1 else 1
        # A score sums the log-probabilities of all tokens, for which bfloat16 is too coarse.
        logits = logits.astype(jnp.float32)
        log_p = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        # Constraints see the log-probabilities of single tokens, before the scores of the
        # hypotheses are added, as in transformers.
        log_p = self._constrained(log_p, search) + search.open.scores[..., None]
        scores, chosen = _largest(log_p.reshape(batch, beam * vocab), num_candidates)
        parent = chosen // vocab
        token = (chosen % vocab).astype(jnp.int32)
        ids = jnp.where(
            jnp.arange(search.slots) == length[:, None, None],
            token[..., None],
            _pick(search.open.ids, parent),
        )
        live = self.running(search)[:, None]  # inputs that are done must not change any more

        is_end = jnp.isin(token, np.array(self.ends))
        ends = is_end & live
        # As in transformers, only the `beam` likeliest candidates end, and all of them do at the
        # limit.
        if self.early_stopping != "exact":
            at_limit = (length + 1 == search.limits)[:, None] & live
            ends = (ends | at_limit) & (jnp.arange(num_candidates) < beam)
        ended_scores = jnp.where(ends, scores / self._penalty(length + 1.0)[:, None], NEVER)
        # Earlier hypotheses come first, so that a later one with an equal score does not replace
        # them.
        best, order = jax.lax.top_k(
            jnp.concatenate([search.ended.scores, ended_scores], axis=1), beam
        )
        ended = Beams(_pick(jnp.concatenate([search.ended.ids, ids], axis=1), order), best)

        open_scores, order = jax.lax.top_k(jnp.where(is_end, NEVER, scores), beam)
        open_ = jax.tree.map(
            lambda new, old: jnp.where(live.reshape(batch, *[1] * (new.ndim - 1)), new, old),
            Beams(_pick(ids, order), open_scores),
            search.open,
        )
        return search._replace(
            lengths=length + live[:, 0],
            open=open_,
            ended=ended,
            # The states of inputs that are done are reordered, too, since nothing reads them any
            # more.
            state=search.state.reorder(_pick(parent, order)),
        )


def _as_tuple(ids: int | tuple[int, ...]) -> tuple[int, ...]:
    return ids if isinstance(ids, tuple) else (ids,)


def _lengthened(ids: Int[Array, "B K T"], count: int) -> Int[Array, "B K _"]:
    """Returns ids (B, K, T) with `count` more zeros on the last axis."""
    return jnp.pad(ids, ((0, 0), (0, 0), (0, count)))


def _largest(
    x: Float[Array, "B N"], count: int
) -> tuple[Float[Array, "B {count}"], Int[Array, "B {count}"]]:
    """Returns jax.lax.top_k(x, count), five times as fast on a CPU.

    The `count` largest entries lie in the `count` blocks with the largest maxima, so only these
    blocks are searched.
    """
    starts = jnp.arange(0, x.shape[1], _BLOCK_SIZE)
    if len(starts) <= count:
        return tuple(jax.lax.top_k(x, count))
    window = (1, _BLOCK_SIZE)
    padding = ((0, 0), (0, -x.shape[1] % _BLOCK_SIZE))
    maxima = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)
    # In top_k, the lower index comes first among equal numbers. With the blocks in the order of
    # their indices, this holds for the whole row.
    blocks = jnp.sort(jax.lax.top_k(maxima, count)[1], axis=1)
    index = (starts[blocks][..., None] + jnp.arange(_BLOCK_SIZE)).reshape(len(x), -1)
    # The last block may reach beyond the row, where reads are filled with NaN, which would win.
    largest, order = jax.lax.top_k(jnp.where(index < x.shape[1], _pick(x, index), -jnp.inf), count)
    return largest, _pick(index, order)


def _pick(x: Shaped[Array, "B N ..."], chosen: Int[Array, "B M"]) -> Shaped[Array, "B M ..."]:
    """Returns the entries of x (B, N, ...) at the indices `chosen` (B, M), (B, M, ...)."""
    return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), axis=1)


# ---------------------------------------------------------------- continuing prompts by beam search

# Lengths are padded to multiples of this, so that few shapes are compiled.
_LENGTH_MULTIPLE = 64


class ScoredContinuation(NamedTuple):
    text: str
    tokens: int  # generated
    # "end": at the end of the document; "length": after max_tokens
    finished: str
    score: float  # log-probability divided by the length penalty


@dataclasses.dataclass(frozen=True)
class BestContinuations:
    """Continues prompts by beam search with a Causal model, `batch` prompts at a time.

    `with_start(ids)` puts the token that starts a document in training in front of a prompt. The
    prompts of a batch are split over the devices. See CausalUse.generate_beam.
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
            # The last batch is padded to the shape of the others, so that nothing is recompiled.
            size = size or self.placement.rows(len(texts))
            ids = [self.with_start(ids) for ids in self.tokenizer.encode(texts)]
            limits = [
                limit_in_window(self.model, ids[row], first + row, max_tokens)
                for row in range(len(ids))
            ]
            program, inputs = self._inputs(ids, limits, size, search)
            outputs = jax.device_get(hosts.run(_Program.best, program, params, *inputs))
            for row, prompt in enumerate(ids):
                yield self._continuations(prompt, outputs.row(row), search.ends)
            first += len(texts)

    def _inputs(
        self, prompts: list[list[int]], limits: list[int], size: int, search: BeamSearch
    ) -> tuple["_Program", tuple[np.ndarray, ...]]:
        """Returns the program of a batch, and its inputs in `size` rows."""
        lengths = [len(ids) for ids in prompts]
        slots = rounded_up(max(map(sum, zip(lengths, limits))), _LENGTH_MULTIPLE)
        slots = min(slots, self.model.window)
        length = min(rounded_up(max(lengths), _LENGTH_MULTIPLE), slots)
        room = min(rounded_up(max(limits), _LENGTH_MULTIPLE), slots)
        missing = size - len(prompts)
        # Rows that pad the batch have the limit 0, so that they count as free and the loop does not
        # wait for them.
        inputs = (
            padded(prompts, length, size),
            np.array(lengths + [1] * missing, np.int32),
            np.array(limits + [0] * missing, np.int32),
        )
        return _Program(self.model, search, self.placement, slots, room), inputs

    def _continuations(
        self, prompt: list[int], outputs: Outputs, ends: tuple[int, ...]
    ) -> list[ScoredContinuation]:
        """Returns the continuations of a prompt."""
        rows = outputs.tokens(ends)
        # Decoded with its prompt, because a continuation may lose its first space without it.
        start, *texts = self.tokenizer.decode([prompt, *(prompt + ids for ids in rows)])
        return [
            ScoredContinuation(
                text[len(start) :],
                len(ids),
                # Compared before and after `tokens`, because that removes an end token, if there
                # was one.
                "length" if len(ids) == length else "end",
                float(score),
            )
            for text, ids, length, score in zip(texts, rows, outputs.lengths, outputs.scores)
        ]


@dataclasses.dataclass(frozen=True)
class _Program:
    """The compiled search. It takes parameters in the form of the model's `for_decoding`."""

    model: Any
    search: BeamSearch
    placement: Placement
    slots: int  # of the KV cache
    room: int  # maximum number of tokens of an output

    @partial(jax.jit, static_argnums=0)
    def best(
        self,
        params,
        prompts: Int[Array, "B L"],
        lengths: Int[Array, " B"],
        limits: Int[Array, " B"],
    ) -> Outputs:
        """Returns the best outputs (B, n_best, T) of up to `limits` tokens each."""
        with self.placement.use():
            prompts, lengths, limits = split_rows((prompts, lengths, limits))
            logits, state = self.model.begin(params, prompts, lengths, slots=self.slots)
            search = self.search.begin(limits, logits, state, _right_aligned(prompts, lengths))
            # All slots at once: no input joins later, so the loop need not return to the host for
            # more.
            search = self.search.resized(search, self.room)

            def step(state, tokens):
                return self.model.step(*sharding.gather_after(params, state), tokens)

            search = self.search.advance(search, step, len(prompts))
            return gathered(self.search.best(search))


def _right_aligned(prompts: Int[Array, "B L"], lengths: Int[Array, " B"]) -> Int[Array, "B L"]:
    """Returns the prompts, moved to the ends of their rows and padded with -1 on the left.

    Each output then directly follows its prompt, as the search for repeated n-grams requires.
    """
    indices = jnp.arange(prompts.shape[1]) - prompts.shape[1] + lengths[:, None]
    moved = jnp.take_along_axis(prompts, jnp.maximum(indices, 0), axis=1)
    return jnp.where(indices < 0, -1, moved)


def checked_search(
    beam: Any, n_best: Any, *, decode: Any, tokenizer: Tokenizer, vocab_size: int
) -> BeamSearch:
    """Returns the search of config.decode, but with these numbers of beams and outputs.

    Raises UserError for numbers that are not possible.
    """
    for name, value in (("beam", beam), ("n_best", n_best)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name}={value!r}: must be a whole number of at least 1")
    if n_best > min(beam, vocab_size):
        raise UserError(
            f"n_best={n_best}: must be at most beam={beam} and the {vocab_size} tokens of the "
            "vocabulary"
        )
    ends = end_ids(decode, tokenizer)
    search = BeamSearch.of(decode, ends, n_best, continues=True, never=tokenizer.never)
    return dataclasses.replace(search, beam=beam)
