"""Log-probabilities of whole texts, by one protocol for all kinds of model.

How a text is scored follows from what a model was trained to do. A `Scoring` lays out the rows that
the model reads for a text, each with the tokens that it predicts there, and computes their
log-probabilities:

- `LeftToRight`: each token given the tokens before it, for causal and recurrent models;
- `Masked`: each token given all others, one row for each (Salazar et al. 2020);
- `Permuted`: the tokens in their own order, which is one of the orders that XLNet was trained on;
- `Unified`: a mask for each token that attends to the tokens before it (Dong et al. 2019);
- `EncoderDecoder`: each token of the target given those before it, for a source without content;
- `Discriminator`: whether each token is original (Clark et al. 2020);
- `Forward`: each word given the words before it, by the forward direction of ELMo.

What is left is the same for all of them, and stands in `Scorer`: rows of similar lengths share a
batch, batches are padded to few shapes and split over the devices, and scores return in the order
of the texts.
"""

import abc
import dataclasses
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
from transformer_jax.distributed import hosts
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
    greedy: bool  # whether each token was the likeliest one: greedy decoding would return it
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

    @abc.abstractmethod
    def queries(self, context: list[int], text: list[int]) -> Iterator[Query]:
        """Yields the rows that predict each token of `text`, which follows `context`, once."""

    @abc.abstractmethod
    def states(self, params, row: Row, positions) -> Float[Array, "B P M"]:
        """Returns the hidden states that predict the tokens at `positions` (B, P)."""

    def token_scores(self, params, row: Row, positions, labels) -> TokenScores:
        """Returns the log-probabilities of the labels, and whether each is the likeliest token."""
        apply = partial(self.model.apply, {"params": params})
        states = apply(self.states(params, row, positions), method="transformed")
        # The output layer is passed on rather than applied, so that the logits of all rows never
        # exist at once.
        return token_log_probs(states, apply(method="limited_output"), labels)

    def flops(self, query: Query) -> float:
        """Returns the FLOPs of a forward pass over a row."""
        length = max(map(len, query.row.values()))
        return self.model.flops(length, len(query.labels))

    def _hidden(self, params, *inputs: Inputs) -> Float[Array, "B L M"]:
        return self.model.apply({"params": params}, *inputs, method="hidden")

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens > self.model.window:
            raise UserError(
                f"it has {num_tokens} tokens, special tokens included: must have at most "
                f"config.model.max_length={self.model.max_length}; divide it"
            )


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
    reads as much of the text before it as it can. A model that carries a state from row to row is
    given one text in segments of `segment` tokens, as in training.
    """

    mask_documents: bool = False  # of config.data: the end token comes first in each document
    segment: int | None = None

    def started(self, context):
        return batching.with_start(context, self.tokenizer, self.mask_documents)

    def queries(self, context, text):
        ids = [*context, *text]
        for start in range(len(context), len(ids), self.model.window):
            stop = min(start + self.model.window, len(ids))
            # The last token is predicted, but not read.
            first = max(stop - 1 - self.model.window, 0)
            positions = range(start - 1 - first, stop - 1 - first)
            row = {"tokens": ids[first : stop - 1]}
            yield Query(row, positions, ids[start:stop], start - len(context))

    def states(self, params, row, positions):
        tokens = row["tokens"]
        if self.segment is None or tokens.shape[1] <= self.segment:
            return at(self._hidden(params, Inputs(tokens)), positions)
        carry, states = self.model.initial_carry(len(tokens)), []
        for start in range(0, tokens.shape[1], self.segment):
            segment = tokens[:, start : start + self.segment]
            hidden, carry = self.model.apply({"params": params}, segment, carry, method="advance")
            states.append(hidden)
        return at(jnp.concatenate(states, axis=1), positions)


@dataclasses.dataclass(frozen=True)
class Masked(Scoring):
    """The pseudo-log-likelihood: each token is masked by itself (Salazar et al. 2020).

    With `within_word`, the tokens after it in its word are masked as well, because they would
    otherwise give a word of several pieces away (Kauf & Ivanova 2023, "PLL-word-l2r").
    """

    kind = "pseudo"
    within_word: bool = False

    def queries(self, context, text):
        begin, end = batching.text_frame(self.model, self.tokenizer)
        ids = [*begin, *context, *text, *end]
        self._check_length(len(ids))
        offset = len(begin) + len(context)
        ones = [1] * len(ids)
        for index, token in enumerate(text):
            masked, stop = ids.copy(), index + 1
            if self.within_word:
                while stop < len(text) and self.tokenizer.continues[text[stop]]:
                    stop += 1
            masked[offset + index : offset + stop] = [self._mask] * (stop - index)
            row = {"tokens": masked, "segment_ids": ones}
            yield Query(row, (offset + index,), (token,), index)

    @property
    def _mask(self) -> int:
        return self.tokenizer.required("mask", user="a pseudo-log-likelihood")[0]

    def states(self, params, row, positions):
        inputs = Inputs(row["tokens"], segment_ids=row["segment_ids"])
        return at(self._hidden(params, inputs), positions)


@dataclasses.dataclass(frozen=True)
class Permuted(Scoring):
    """The tokens in the order of the text, one of those of permutation language modeling.

    The first token is predicted from the separator in front of it.
    """

    def queries(self, context, text):
        (separator,) = self.tokenizer.required("sep", user="a permuted model")
        ids = [separator, *context, *text]
        self._check_length(len(ids))
        first = 1 + len(context)
        yield Query({"tokens": ids}, range(first, len(ids)), text, 0)

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

    def queries(self, context, text):
        cls, sep, mask = self.tokenizer.required("cls", "sep", "mask", user="a text by masks")
        source = [cls] if self.objective == "left_to_right" else [cls, sep]
        first_type, second_type = token_types(self.objective, self.model.num_token_types)
        ids = [*source, *context, *text]
        self._check_length(len(ids))
        num_read, num_masks = len(ids), len(text)
        positions = [*range(num_read), *range(num_read - num_masks, num_read)]
        # A source has rank 0. The rank of a mask lies between that of the token at its position and
        # that of the token before.
        ranks = [2 * max(position - len(source) + 1, 0) for position in positions]
        ranks[num_read:] = [rank - 1 for rank in ranks[num_read:]]
        row = {
            "tokens": [*ids, *[mask] * num_masks],
            "positions": positions,
            "segment_ids": [1] * len(positions),
            "token_types": [
                first_type if position < len(source) else second_type for position in positions
            ],
            "ranks": ranks,
            "private": [0] * num_read + [1] * num_masks,
        }
        yield Query(row, range(num_read, num_read + num_masks), text, 0)

    def states(self, params, row, positions):
        inputs = Inputs(**{**row, "private": row["private"] > 0})
        return at(self._hidden(params, inputs), positions)


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(Scoring):
    """The chain rule over a target, given a source without content, for a SequenceToSequence model.

    The default source is the end token alone. `blank` are ids that stand for a missing text: they
    are the source, and `lead` are the ids in front of the text in the target. A context is a part
    of the target, so that the scores of a text add up to those of its parts.
    """

    blank: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()

    def queries(self, context, text):
        target = self.tokenizer.target
        source = self.tokenizer.source.framed(list(self.blank))
        start = [target.start_id, *target.framed([])[:-1], *self.lead]
        ids = [*start, *context, *text]
        self._check_length(len(ids) - 1)
        read = ids[:-1]
        row = {
            "source": source,
            "source_segment_ids": [1] * len(source),
            "target": read,
            "target_segment_ids": [1] * len(read),
        }
        yield Query(row, range(len(read) - len(text), len(read)), text, 0)

    def states(self, params, row, positions):
        source, target = (
            Inputs(row[side], segment_ids=row[f"{side}_segment_ids"])
            for side in ("source", "target")
        )
        return at(self._hidden(params, source, target), positions)

    def flops(self, query):
        target = len(query.row["target"])
        return self.model.flops(len(query.row["source"]), target)


@dataclasses.dataclass(frozen=True)
class Discriminator(Scoring):
    """The log-probability that each token is original, all in one pass (Clark et al. 2020)."""

    kind = "discriminator"

    def queries(self, context, text):
        begin, end = batching.text_frame(self.model, self.tokenizer)
        ids = [*begin, *context, *text, *end]
        self._check_length(len(ids))
        first = len(begin) + len(context)
        row = {"tokens": ids, "segment_ids": [1] * len(ids)}
        yield Query(row, range(first, first + len(text)), text, 0)

    def states(self, params, row, positions):
        inputs = Inputs(row["tokens"], segment_ids=row["segment_ids"])
        return at(self._hidden(params, inputs), positions)

    def token_scores(self, params, row, positions, labels):
        states = self.states(params, row, positions)
        logits = self.model.apply({"params": params}, states, method="detected")
        # The logits are of being replaced.
        return jax.nn.log_sigmoid(-logits), logits < 0


@dataclasses.dataclass(frozen=True)
class Forward(Scoring):
    """The chain rule over words, by the forward direction of a model with two directions."""

    def queries(self, context, text):
        spelled = self.tokenizer.spelled(self.model.max_characters).table
        ids = [self.tokenizer.eos_id, *context, *text]
        row = {"tokens": spelled[ids[:-1]]}
        yield Query(row, range(len(context), len(ids) - 1), text, 0)

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
        rows = []  # (index of a pair, query)
        missing = []  # the number of queries of each pair
        for number, (name, (context, text)) in enumerate(zip(names, pairs)):
            try:
                queries = list(self.scoring.queries(context, text)) if text else []
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
            rows += [(number, query) for query in queries]
            missing.append(len(queries))
        if self.scoring.kind == "pseudo":
            flops = sum(self.scoring.flops(query) for _, query in rows)
            say(
                f"each token is masked by itself: {len(rows):,} rows for {len(pairs):,} texts, "
                f"{flops / 1e12:.3g} TFLOP"
            )
        return in_order(self._complete(params, pairs, rows, missing))

    def _complete(self, params, pairs, rows, missing):
        """Yields (index of a pair, its scores) when its last row is done."""
        scores = [(np.zeros(len(text), np.float32), np.zeros(len(text), bool)) for _, text in pairs]
        yield from ((number, scores[number]) for number, left in enumerate(missing) if not left)
        order = longest_first([_longest(query) for _, query in rows])
        while order:
            length = _shape_length(_longest(rows[order[0]][1]))
            size = self.placement.rows(max(self.batch * _LENGTH // length, 1))
            numbers, order = order[:size], order[size:]
            chosen = [rows[number] for number in numbers]
            for (pair, query), log_probs, likeliest in zip(
                chosen, *self._computed(params, [query for _, query in chosen], size)
            ):
                part = slice(query.first, query.first + len(query.labels))
                scores[pair][0][part] = log_probs[: len(query.labels)]
                scores[pair][1][part] = likeliest[: len(query.labels)]
                missing[pair] -= 1
                if not missing[pair]:
                    yield pair, scores[pair]

    def _computed(self, params, queries: list[Query], size: int):
        """Returns the scores (rows, P) of the labels of each row."""
        # A batch that is not full has one of few numbers of rows, because each is compiled.
        size = min(size, self.placement.rows(1 << (len(queries) - 1).bit_length()))
        lengths = {
            name: _shape_length(max(len(query.row[name]) for query in queries))
            for name in queries[0].row
        }
        window = self.scoring.model.window
        if set(lengths) == {"tokens"}:
            lengths = {name: min(length, window) for name, length in lengths.items()}
        row = {
            name: padded([query.row[name] for query in queries], length, size)
            for name, length in lengths.items()
        }
        most = max(len(query.labels) for query in queries)
        most = most if most == 1 else _shape_length(most)
        positions, labels = (
            padded([getattr(query, name) for query in queries], most, size)
            for name in ("positions", "labels")
        )
        # The lengths of a batch are not known when the mesh is chosen, which need not divide them.
        fitting = {"length": next(iter(lengths.values()))} if len(lengths) == 1 else {"length": 1}
        placement = self.placement.dividing(**fitting)
        batch = (row, positions, labels)
        return jax.device_get(hosts.run(_token_scores, self.scoring, placement, params, batch))


def _longest(query: Query) -> int:
    return max(map(len, query.row.values()))


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
        scoring = self.scoring
        if within_word:
            if not isinstance(scoring, Masked):
                raise UserError(
                    "within_word: it is for scores by masks, and this run "
                    f"(config.task.name={self.config.task.name!r}) scores its texts without"
                )
            scoring = dataclasses.replace(scoring, within_word=True)
        texts = arguments.as_texts(texts)
        if scoring.kind == "pseudo":
            texts = list(texts)
        return self._log_probability(params, scoring, texts)

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
        self, params, pairs: Iterable[tuple[str, str]], *, from_start: bool = False
    ) -> Iterator[Likelihood]:
        """Yields log P(continuation | context) for each (context, continuation), in order.

        With an empty context, the continuation starts a document; with `from_start`, every context
        does, as in `log_probability`. A causal model reads the end of a
        context that is too long. The probabilities are over the whole vocabulary, as in the
        training loss and in other libraries, also where it is larger than the tokenizer. Scores of
        models that are not causal have the kind of `task.scoring`; see `log_probability`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/gpt")
          >>> right, wrong = task.log_likelihoods(params, [("The c", "at"), ("The c", "xq")])
          >>> right.log_prob > wrong.log_prob
          True
        """
        scoring = self.scoring
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
            Likelihood(_total(log_probs), bool(likeliest.all()), len(log_probs))
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
