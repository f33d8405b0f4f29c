"""Log-probabilities of whole texts, by one protocol for all kinds of model.

How a text is scored follows from what a model was trained to do. A `Scoring` lays out the rows that
the model reads for a text, each with the tokens that it predicts there, and computes their
log-probabilities:

- `LeftToRight`: each token given the tokens before it, for causal and recurrent models;
- `Masked`: each token given all others, one row for each (Salazar et al. 2020);
- `Permuted`: the tokens in their own order, which is one of the orders that XLNet was trained on;
- `Unified`: a mask for each token that attends to the tokens before it (Dong et al. 2019);
- `BlankSource`: each token of the target given those before it, for a source without content;
- `Discriminator`: whether each token is original (Clark et al. 2020);
- `Forward`: each word given the words before it, by the forward direction of ELMo.

What is left is the same for all of them, and stands in `Scorer`: rows of similar lengths share a
batch, batches are padded to few shapes and split over the devices, and scores return in the order
of the texts.
"""

import abc
import collections
import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs, token_types
from transformer_jax.data import arguments
from transformer_jax.distributed import hosts, sharding
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference import batching
from transformer_jax.inference.batching import chunks, in_order, longest_first, padded, rounded_up
from transformer_jax.layers.embeddings import check_ids, token_log_probs
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# What is scored, and what the scores are.

Kind = Literal["exact", "pseudo", "discriminator"]


class TextScore(NamedTuple):
    """The score of a text.

    Attributes:
      log_prob: the sum over the tokens, in nats.
      tokens: the tokens, for display.
      log_probs: the score of each token.
    """

    log_prob: float
    tokens: list[str]
    log_probs: list[float]


class Likelihood(NamedTuple):
    log_prob: float  # log P(continuation | context)
    # whether each token was the likeliest one, so that greedy decoding would return them; never so
    # for scores that are not exact
    greedy: bool
    tokens: int  # of the continuation


class Query(NamedTuple):
    """A row that the model reads, and the tokens of a text that it predicts there.

    Attributes:
      row: the arrays of the row, by name, each with an entry per position.
      positions: the positions whose hidden states predict the tokens.
      labels: the ids of these tokens.
      first: the index in the text of the first of these tokens, which are consecutive.
    """

    row: Mapping[str, Sequence]
    positions: Sequence[int]
    labels: Sequence[int]
    first: int


TokenScores = tuple[Float[Array, "B P"], Bool[Array, "B P"]]
Row = Mapping[str, Array]  # the arrays (B, L) of a batch of rows


@dataclasses.dataclass(frozen=True)
class Scoring(abc.ABC):
    """How a kind of model scores a text. Instances are hashable, as jitted functions need them.

    Attributes:
      kind: "exact" if the scores are log-probabilities that sum to one over all texts of a length,
        so that a perplexity is one of the text; "pseudo" if each token is predicted from both
        sides; "discriminator" if no token is predicted.
    """

    kind: ClassVar[Kind] = "exact"
    model: Any  # the Linen module
    tokenizer: Any

    def started(self, context: list[int]) -> list[int]:
        """Returns a context with the tokens in front that start a document, if any."""
        return context

    def num_queries(self, text: list[int]) -> int:
        """Returns the number of rows that predict the tokens of a text."""
        return 1

    @abc.abstractmethod
    def length(self, context: list[int], text: list[int]) -> int:
        """Returns the number of positions in the longest row of a text that follows `context`."""

    @abc.abstractmethod
    def query(self, context: list[int], text: list[int], index: int) -> Query:
        """Returns row number `index` of a text. All rows together predict each token once."""

    @abc.abstractmethod
    def states(self, params, row: Row, positions) -> Float[Array, "B P M"]:
        """Returns the hidden states that predict the tokens at `positions` (B, P)."""

    def token_scores(self, params, row: Row, positions, labels) -> TokenScores:
        """Returns the log-probabilities of the labels, and whether each is the likeliest token."""
        apply = partial(self.model.apply, {"params": params})
        states = apply(self.states(params, row, positions), method="transformed")
        # The output layer is passed on rather than applied, so that the logits of all rows never
        # exist at once. It computes one sequence at a time, and a sequence of one position would
        # read the whole table for it: rows with one prediction are joined.
        shape = labels.shape
        if shape[1] == 1:
            joined = math.gcd(shape[0] // sharding.parts("batch"), _JOINED)
            states, labels = (x.reshape(-1, joined, *x.shape[2:]) for x in (states, labels))
        scores = token_log_probs(states, apply(method="limited_output"), labels)
        return tuple(each.reshape(shape) for each in scores)

    @property
    def longest_row(self) -> int:
        """The largest number of positions to which a row may be padded."""
        return self.model.window

    def check(self, context: list[int], text: list[int]) -> None:
        """Raises UserError if the model cannot read a text that follows `context`."""
        if (length := self.length(context, text)) > self.model.window:
            raise UserError(
                f"it has {length} tokens, special tokens included: must have at most "
                f"config.model.max_length={self.model.max_length}; divide it"
            )

    def _hidden(self, params, *inputs: Inputs) -> Float[Array, "B L M"]:
        return self.model.apply({"params": params}, *inputs, method="hidden")


def at(hidden: Float[Array, "B L M"], positions: Int[Array, "B P"]) -> Float[Array, "B P M"]:
    """Returns the hidden states at the positions of predictions."""
    # Gathered before the projection to the vocabulary, which would cost most at all positions.
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


# --------------------------------------------------------------------------------------------------
# The kinds of scoring.


@dataclasses.dataclass(frozen=True)
class LeftToRight(Scoring):
    """The chain rule, for a Causal model.

    The first token is predicted from the token that starts a document in training. A text that
    exceeds the window is read in windows whose predictions do not overlap, and the last window
    reads as much of the text before it as it can. A model that carries a state from row to row
    reads a text in segments of `segment` tokens, as in training.
    """

    mask_documents: bool = False  # of config.data: the end token comes first in each document
    segment: int | None = None

    def started(self, context):
        return batching.with_start(context, self.tokenizer, self.mask_documents)

    def num_queries(self, text):
        return -(-len(text) // self.model.window)

    def length(self, context, text):
        # The last token is predicted, but not read.
        return min(len(context) + len(text) - 1, self.model.window)

    def query(self, context, text, index):
        ids, window = [*context, *text], self.model.window
        start = len(context) + index * window
        stop = min(start + window, len(ids))
        first = max(stop - 1 - window, 0)
        positions = range(start - 1 - first, stop - 1 - first)
        return Query({"tokens": ids[first : stop - 1]}, positions, ids[start:stop], index * window)

    def states(self, params, row, positions):
        tokens = row["tokens"]
        if self.segment is None or tokens.shape[1] <= self.segment:
            return at(self._hidden(params, Inputs(tokens)), positions)
        count = -(-tokens.shape[1] // self.segment)
        tokens = jnp.pad(tokens, ((0, 0), (0, count * self.segment - tokens.shape[1])))
        segments = tokens.reshape(len(tokens), count, self.segment).swapaxes(0, 1)

        # A scan, because a loop would be compiled anew for each number of segments.
        def read(carry, segment):
            states, carry = self.model.apply({"params": params}, segment, carry, method="advance")
            return carry, states

        _, states = jax.lax.scan(read, self.model.initial_carry(len(tokens)), segments)
        return at(states.swapaxes(0, 1).reshape(*tokens.shape, -1), positions)


@dataclasses.dataclass(frozen=True)
class _Framed(Scoring):
    """A text between the special tokens of an encoder, such as [CLS] text [SEP]."""

    @functools.cached_property
    def _frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return batching.text_frame(self.model, self.tokenizer)

    def length(self, context, text):
        return sum(map(len, (*self._frame, context, text)))

    def _row(self, context: list[int], text: list[int]) -> tuple[list[int], int]:
        """Returns the ids of a row, and the position of the first token of the text."""
        begin, end = self._frame
        return [*begin, *context, *text, *end], len(begin) + len(context)

    def states(self, params, row, positions):
        inputs = Inputs(row["tokens"], segment_ids=row["segment_ids"], padding_last=True)
        return at(self._hidden(params, inputs), positions)


@dataclasses.dataclass(frozen=True)
class Masked(_Framed):
    """The pseudo-log-likelihood: each token is masked by itself (Salazar et al. 2020).

    With `within_word`, the tokens after it in its word are masked as well, because they would
    otherwise give a word of several pieces away (Kauf & Ivanova 2023, "PLL-word-l2r").
    """

    kind = "pseudo"
    within_word: bool = False

    def num_queries(self, text):
        return len(text)

    def query(self, context, text, index):
        ids, offset = self._row(context, text)
        stop = index + 1
        if self.within_word:
            while stop < len(text) and self._inside[text[stop]]:
                stop += 1
        ids[offset + index : offset + stop] = [self._mask] * (stop - index)
        row = {"tokens": ids, "segment_ids": [1] * len(ids)}
        return Query(row, (offset + index,), (text[index],), index)

    @functools.cached_property
    def _mask(self) -> int:
        return self.tokenizer.required("mask", user="a pseudo-log-likelihood")[0]

    @functools.cached_property
    def _inside(self) -> list[bool]:
        """For each id whether its piece continues a word, by letters or digits.

        Byte-level and SentencePiece tokenizers join punctuation to the word before it.
        """
        pieces = self.tokenizer.pieces(list(range(self.tokenizer.vocab_size)))
        return [
            bool(continues) and any(map(str.isalnum, piece))
            for continues, piece in zip(self.tokenizer.continues, pieces)
        ]


@dataclasses.dataclass(frozen=True)
class Permuted(Scoring):
    """The tokens in the order of the text, one of those of permutation language modeling.

    The first token is predicted from the separator in front of it.
    """

    def length(self, context, text):
        return 1 + len(context) + len(text)

    def query(self, context, text, index):
        (separator,) = self.tokenizer.required("sep", user="a permuted model")
        ids = [separator, *context, *text]
        return Query({"tokens": ids}, range(1 + len(context), len(ids)), text, 0)

    def states(self, params, row, positions):
        tokens = row["tokens"]
        # Padding comes last in this order, too, and is seen by no token.
        ranks = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        inputs = Inputs(tokens, ranks=ranks)
        return self.model.apply({"params": params}, inputs, positions, method="permuted")[0]


@dataclasses.dataclass(frozen=True)
class Unified(Scoring):
    """A mask at the position of each token that attends to the tokens before it (Dong et al. 2019).

    Masks follow the text in one row, and no token attends to a mask. `objective` is
    "left_to_right", where the text follows [CLS], or "sequence_to_sequence", where it is the target
    of an empty source.
    """

    objective: str = "left_to_right"

    @functools.cached_property
    def _source(self) -> tuple[int, ...]:
        cls, sep = self.tokenizer.required("cls", "sep", user="a text by masks")
        return (cls,) if self.objective == "left_to_right" else (cls, sep)

    def length(self, context, text):
        return len(self._source) + len(context) + len(text)

    @property
    def longest_row(self):
        return 2 * self.model.window  # the masks have the positions of the tokens

    def query(self, context, text, index):
        (mask,) = self.tokenizer.required("mask", user="a text by masks")
        first_type, second_type = token_types(self.objective, self.model.num_token_types)
        num_source = len(self._source)
        ids = [*self._source, *context, *text]
        num_read, num_masks = len(ids), len(text)
        positions = [*range(num_read), *range(num_read - num_masks, num_read)]
        # A source has rank 0. The rank of a mask lies between that of the token at its position and
        # that of the token before.
        ranks = [2 * max(position - num_source + 1, 0) for position in positions]
        ranks[num_read:] = [rank - 1 for rank in ranks[num_read:]]
        row = {
            "tokens": [*ids, *[mask] * num_masks],
            "positions": positions,
            "segment_ids": [1] * len(positions),
            "token_types": [
                first_type if position < num_source else second_type for position in positions
            ],
            "ranks": ranks,
            "private": [0] * num_read + [1] * num_masks,
        }
        return Query(row, range(num_read, num_read + num_masks), text, 0)

    def states(self, params, row, positions):
        inputs = Inputs(**{**row, "private": row["private"] > 0})
        return at(self._hidden(params, inputs), positions)


@dataclasses.dataclass(frozen=True)
class BlankSource(Scoring):
    """The chain rule over a target, given a source without content, for a SequenceToSequence model.

    The default source is the end token alone. `blank` are ids that stand for a missing text: they
    are the source, and `lead` are the ids in front of the text in the target. A context is a part
    of the target, so that the scores of a text add up to those of its parts.
    """

    blank: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()

    @classmethod
    def denoising(cls, model, tokenizers, sentinel: int | None, mask: int | None) -> "BlankSource":
        """Returns the scoring of a model that restores texts: the whole text is missing.

        A `sentinel` stands for it in source and target, or else a `mask` in the source.
        """
        if sentinel is not None:
            return cls(model, tokenizers, blank=(sentinel,), lead=(sentinel,))
        return cls(model, tokenizers, blank=() if mask is None else (mask,))

    @functools.cached_property
    def _start(self) -> tuple[int, ...]:
        target = self.tokenizer.target
        return (target.start_id, *target.framed([])[:-1], *self.lead)

    def length(self, context, text):
        return len(self._start) + len(context) + len(text) - 1

    def query(self, context, text, index):
        source = self.tokenizer.source.framed(list(self.blank))
        read = [*self._start, *context, *text][:-1]
        row = {
            "source": source,
            "source_segment_ids": [1] * len(source),
            "target": read,
            "target_segment_ids": [1] * len(read),
        }
        return Query(row, range(len(read) - len(text), len(read)), text, 0)

    def states(self, params, row, positions):
        source, target = (
            Inputs(row[side], segment_ids=row[f"{side}_segment_ids"])
            for side in ("source", "target")
        )
        return at(self._hidden(params, source, target), positions)


@dataclasses.dataclass(frozen=True)
class Discriminator(_Framed):
    """The log-probability that each token is original, all in one pass (Clark et al. 2020)."""

    kind = "discriminator"

    def query(self, context, text, index):
        ids, first = self._row(context, text)
        row = {"tokens": ids, "segment_ids": [1] * len(ids)}
        return Query(row, range(first, first + len(text)), text, 0)

    def token_scores(self, params, row, positions, labels):
        states = self.states(params, row, positions)
        logits = self.model.apply({"params": params}, states, method="detected")
        # The logits are of being replaced.
        return jax.nn.log_sigmoid(-logits), logits < 0


@dataclasses.dataclass(frozen=True)
class Forward(Scoring):
    """The chain rule over words, by the forward direction of a model with two directions."""

    @functools.cached_property
    def _spelled(self) -> np.ndarray:
        return self.tokenizer.spelled(self.model.max_characters).table

    def length(self, context, text):
        return len(context) + len(text)

    def query(self, context, text, index):
        read = [self.tokenizer.eos_id, *context, *text][:-1]
        return Query({"tokens": self._spelled[read]}, range(len(context), len(read)), text, 0)

    def states(self, params, row, positions):
        # The backward direction reads the same words, and what it computes is not used.
        tokens = jnp.stack([row["tokens"]] * 2, axis=2)
        carry = self.model.initial_carry(len(tokens))
        states, _ = self.model.apply({"params": params}, tokens, carry, method="advance")
        return at(states[:, :, 0], positions)


# --------------------------------------------------------------------------------------------------
# Computing the scores of many texts.

# Texts that are encoded and sorted by length together, which saves padding. It is not all of them,
# because the texts may be a stream.
_SORTED = 4096
# Rows with one prediction whose logits are computed together.
_JOINED = 64
# A batch of rows of this length has `config.decode.batch` rows, and one of shorter rows has more.
_LENGTH = 64


def _shape_length(length: int) -> int:
    """Returns the length to which rows are padded: few lengths, and little padding in each."""
    return rounded_up(length, 8 if length <= 32 else 16 if length <= 64 else 64)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores texts, in batches of about `batch` rows that are split over the devices."""

    scoring: Scoring
    batch: int
    placement: Placement

    def __call__(
        self, params, pairs: Sequence[tuple[list[int], list[int]]], names: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the log-probabilities of the tokens of each text, given its context.

        Pairs are (context, text), and results arrays of one number per token of the text: float32,
        and bool for whether it was the likeliest one. Errors call the pairs by `names`.
        """
        scoring = self.scoring
        for name, (context, text) in zip(names, pairs):
            try:
                scoring.check(context, text)
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
        missing = [scoring.num_queries(text) if text else 0 for _, text in pairs]
        lengths = [scoring.length(*pair) if pair[1] else 0 for pair in pairs]
        if scoring.kind == "pseudo":
            rows = collections.Counter()
            for length, count in zip(lengths, missing):
                rows[length] += count
            flops = sum(scoring.model.flops(length, 1) * count for length, count in rows.items())
            say(
                f"each token is masked by itself: {sum(missing):,} rows for {len(pairs):,} texts, "
                f"{flops / 1e12:.3g} TFLOP"
            )
        return in_order(self._complete(params, pairs, lengths, missing))

    def _complete(self, params, pairs, lengths: list[int], missing: list[int]):
        """Yields (index of a pair, its scores) when its last row is done."""
        scores = [(np.zeros(len(text), np.float32), np.zeros(len(text), bool)) for _, text in pairs]
        yield from ((number, scores[number]) for number, left in enumerate(missing) if not left)
        # Only the numbers of rows are kept, because a masked model has millions of them.
        rows = [(pair, index) for pair in longest_first(lengths) for index in range(missing[pair])]
        start = 0
        while start < len(rows):
            length = _shape_length(lengths[rows[start][0]])
            size = self.placement.rows(max(self.batch * _LENGTH // length, 1))
            chosen = rows[start : start + size]
            start += size
            if len(chosen) == len(rows):
                # Few rows have one of few numbers of rows, because each number is compiled.
                size = min(size, self.placement.rows(1 << (len(rows) - 1).bit_length()))
            queries = [self.scoring.query(*pairs[pair], index) for pair, index in chosen]
            computed = self._computed(params, queries, size)
            for (pair, _), query, log_probs, likeliest in zip(chosen, queries, *computed):
                part = slice(query.first, query.first + len(query.labels))
                scores[pair][0][part] = log_probs[: len(query.labels)]
                scores[pair][1][part] = likeliest[: len(query.labels)]
                missing[pair] -= 1
                if not missing[pair]:
                    yield pair, scores[pair]

    def _computed(self, params, queries: list[Query], size: int):
        """Returns the scores (rows, P) of the labels of each row."""
        row = {}
        for name in queries[0].row:
            arrays = [query.row[name] for query in queries]
            length = min(_shape_length(max(map(len, arrays))), self.scoring.longest_row)
            row[name] = padded(arrays, length, size)
        most = max(len(query.labels) for query in queries)
        most = most if most == 1 else _shape_length(most)
        positions, labels = (
            padded([getattr(query, name) for query in queries], most, size)
            for name in ("positions", "labels")
        )
        # The lengths of a batch are not known when the mesh is chosen, which need not divide them.
        lengths = {array.shape[1] for array in row.values()}
        placement = self.placement.dividing(length=lengths.pop() if len(lengths) == 1 else 1)
        batch = (row, positions, labels)
        return jax.device_get(hosts.run(_token_scores, self.scoring, placement, params, batch))


@partial(jax.jit, static_argnums=(0, 1))
def _token_scores(
    scoring: Scoring,
    placement: Placement,
    params,
    batch: tuple[dict[str, Int[Array, "B L ..."]], Int[Array, "B P"], Int[Array, "B P"]],
) -> TokenScores:
    """Returns the scores of the labels. `batch` is (rows by name, positions, labels)."""
    with placement.use():
        return gathered(scoring.token_scores(params, *split_rows(batch)))


# --------------------------------------------------------------------------------------------------
# The methods of a task whose model scores texts.


class TextScores(abc.ABC):
    """The methods of a task whose model scores texts."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    @property
    @abc.abstractmethod
    def scoring(self) -> Scoring:
        """How the model scores a text. Its `kind` says what the scores are."""

    def log_probability(
        self, params, texts: Iterable[str], *, within_word: bool = False
    ) -> Iterator[TextScore]:
        """Yields the log-probability of each text, in order, in nats.

        The first token is predicted from what starts a document: the start token of the tokenizer
        or the separator of documents. `task.scoring.kind` is "exact" for the chain rule, "pseudo"
        where each token is masked and predicted from both sides, which takes a row for each token,
        and "discriminator" for the log-probability that no token was replaced. Only exact scores
        are probabilities of texts, from which perplexities follow. The probabilities are over the
        whole vocabulary, as in the training loss. `within_word` also masks the tokens that follow
        in the same word.

        Raises UserError for a text that is too long for a model that cannot read it in parts, for a
        text of unknown pieces only, and for `within_word` with a model that is not a masked one.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> good, bad = task.log_probability(params, ["The cat sat.", "The cat xqzj."])
          >>> good.log_prob > bad.log_prob
          True
        """
        return self._log_probability(
            params, self._scoring_of(within_word), arguments.as_texts(texts)
        )

    def _scoring_of(self, within_word: bool) -> Scoring:
        scoring = self.scoring
        if not within_word:
            return scoring
        if not isinstance(scoring, Masked):
            raise UserError(
                "within_word: it is for masked language models, and this run (config.task.name="
                f"{self.config.task.name!r}) predicts no token from the tokens after it"
            )
        return dataclasses.replace(scoring, within_word=True)

    def _log_probability(self, params, scoring, texts) -> Iterator[TextScore]:
        tokenizer = self.tokenizer.target
        start = scoring.started([])
        for chunk in _chunks(scoring, enumerate(texts, 1)):
            names = [f"text {number}" for number, _ in chunk]
            encoded = tokenizer.encode([text for _, text in chunk])
            for name, ids in zip(names, encoded):
                if is_unknown(ids, tokenizer):
                    raise UserError(f"{name}: the tokenizer knows no piece of it")
            scored = self._scored(params, scoring, [(start, ids) for ids in encoded], names)
            for ids, (log_probs, _) in zip(encoded, scored):
                yield TextScore(_total(log_probs), tokenizer.pieces(ids), log_probs.tolist())

    def log_likelihoods(
        self,
        params,
        pairs: Iterable[tuple[str, str]],
        *,
        from_start: bool = False,
        within_word: bool = False,
    ) -> Iterator[Likelihood]:
        """Yields log P(continuation | context) for each (context, continuation), in order.

        With an empty context, the continuation starts a document; with `from_start`, every context
        does, as in `log_probability`. `within_word` is also as there. A causal model reads the end
        of a context that is too long. The probabilities are over the whole vocabulary, as in the
        training loss and in other libraries, also where it is larger than the tokenizer. Scores of
        models that are not causal have the kind of `task.scoring`; see `log_probability`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> right, wrong = task.log_likelihoods(params, [("The c", "at"), ("The c", "xq")])
          >>> right.log_prob > wrong.log_prob
          True
        """
        return self._log_likelihoods(params, self._scoring_of(within_word), pairs, from_start)

    def _log_likelihoods(self, params, scoring, pairs, from_start) -> Iterator[Likelihood]:
        for chunk in _chunks(scoring, enumerate(pairs, 1)):
            names = [f"pair {number}" for number, _ in chunk]
            encoded = _encoded([pair for _, pair in chunk], self.tokenizer.target)
            start = scoring.started([])
            started = [
                ([*start, *context] if from_start else scoring.started(context), text)
                for context, text in encoded
            ]
            yield from self._likelihoods(params, scoring, started, names)

    def token_log_likelihoods(
        self, params, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[Likelihood]:
        """Like `log_likelihoods`, but for token ids.

        Raises UserError for an empty context of a causal model, and for ids that are not in the
        vocabulary.
        """
        names = [f"pair {number}" for number in range(1, len(pairs) + 1)]
        return self._likelihoods(params, self.scoring, pairs, names)

    def _likelihoods(self, params, scoring, pairs, names) -> Iterator[Likelihood]:
        for name, (context, text) in zip(names, pairs):
            try:
                self._check_ids(scoring, context, text)
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
        return (
            Likelihood(
                _total(log_probs), scoring.kind == "exact" and bool(likeliest.all()), len(log_probs)
            )
            for log_probs, likeliest in self._scored(params, scoring, pairs, names)
        )

    def _check_ids(self, scoring, context: Sequence[int], text: Sequence[int]) -> None:
        model = scoring.model
        if isinstance(scoring, LeftToRight):
            if not len(context):
                raise UserError("the context is empty; begin a document with eos_id")
            if len(text) > model.window:
                raise UserError(
                    f"the continuation has {len(text)} tokens: must have at most "
                    f"config.model.max_length={model.max_length}"
                )
        check_ids(np.array([*context, *text]), model.vocab_size)
        if len(text) and max(text) >= model.num_outputs:
            raise UserError(
                f"the id {max(text)} belongs to no token, because the tokenizer has "
                f"{model.num_outputs}"
            )

    def _scored(self, params, scoring, pairs, names):
        placement = Placement.of(params, self.config.mesh)
        return Scorer(scoring, self.config.decode.batch, placement)(params, pairs, names)


def _total(log_probs: np.ndarray) -> float:
    # In float64, because the sum over a long text would lose digits in float32.
    return float(log_probs.sum(dtype=np.float64))


def is_unknown(ids: Sequence[int], tokenizer) -> bool:
    """Whether a text has tokens, and all of them stand for unknown pieces."""
    return tokenizer.unk_id is not None and {*ids} == {tokenizer.unk_id}


def _chunks(scoring: Scoring, items: Iterable) -> Iterator[list]:
    """Yields items that are encoded and sorted together: all of them, if the cost is to be told."""
    return iter([list(items)]) if scoring.kind == "pseudo" else chunks(items, _SORTED)


def _encoded(pairs: Sequence[tuple[str, str]], tokenizer) -> list[tuple[list[int], list[int]]]:
    """Returns the token ids of contexts and continuations.

    Spaces at the end of a context are counted as part of the continuation, because the tokenizer
    joins them to the word that follows. For the same reason, a token that spans the end of the
    context belongs to the continuation.
    """
    # "The cat" + " sat" and "The cat " + "sat" must get the same score.
    contexts = [context.rstrip() for context, _ in pairs]
    texts = tokenizer.encode([context + continuation for context, continuation in pairs])
    pairs_of_ids = []
    for ids, context_ids in zip(texts, tokenizer.encode(contexts)):
        # The split is where the ids begin to differ, because the whole text is encoded at once, as
        # in training, and its first tokens may differ from those of the context alone.
        border = len(os.path.commonprefix([ids, context_ids]))
        pairs_of_ids.append((ids[:border], ids[border:]))
    return pairs_of_ids
