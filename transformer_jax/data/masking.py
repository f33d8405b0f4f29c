"""Rows of masked language models: single texts and pairs of texts, and how tokens are masked."""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import rows, sentences, store, texts
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.data.texts import SingleText, blocks
from transformer_jax.pictures.progress import say

# --------------------------------------------------------------------------------------------------
# Token masking and the truncation of pairs, as in BERT (Devlin et al. 2018, section 3.1 and
# appendix A).


@dataclasses.dataclass(frozen=True)
class Masking:
    """Selects a share of a row's tokens for prediction, by default 15 % as in the paper.

    Of the selected tokens, by default 80 % are replaced by [MASK], 10 % by a random token, and 10 %
    are left unchanged.
    """

    mask_id: int
    special: np.ndarray  # (V,) bool: tokens that are neither predicted nor inserted
    continues: np.ndarray  # (V,) bool: pieces that continue the word of the previous piece
    max_predictions: int  # of a row, P
    whole_words: bool = False  # predict either all pieces of a word or none
    # weights of spans of 1, 2, 3, ... tokens, or of as many words with `whole_words`
    ngrams: tuple[float, ...] = (1.0,)
    selected: float = 0.15  # share of all tokens of a row, including special tokens
    # of the selected tokens: the share replaced by [MASK], and the share replaced by random tokens
    shares: tuple[float, float] = (0.8, 0.1)
    # (V,): the probability that a token is selected is proportional to its weight; for a word or a
    # span, to the weight of its first token; None: uniform
    weights: np.ndarray | None = None

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """The ids of the tokens that may be inserted."""
        return np.flatnonzero(~self.special)

    def __call__(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the masked tokens (N,), and the positions, labels and weights to predict (P,).

        `tokens` (N,) includes the special tokens. Keys: tokens, masked_positions, masked_labels,
        masked_weights. Predictions beyond the selected tokens are padding with weight 0, so that
        P is the same for every row.
        """
        candidates = np.flatnonzero(~self.special[tokens])
        # The share is of all tokens, special ones included, as in the published code.
        count = min(
            max(round(self.selected * len(tokens)), 1), self.max_predictions, len(candidates)
        )
        # Single tokens are the common case, and need no loop in Python over the units of a row.
        if count and (self.whole_words or len(self.ngrams) > 1):
            positions = self._spans(tokens, self._units(tokens, candidates), count, random)
        else:
            positions = candidates[self._order(tokens[candidates], random)[:count]]
        positions.sort()
        draws = random.random(len(positions))
        inserted = self.ordinary[random.integers(len(self.ordinary), size=len(positions))]
        labels = tokens[positions]
        masked = tokens.copy()
        hidden, changed = self.shares
        masked[positions] = np.where(
            draws < hidden, self.mask_id, np.where(draws < hidden + changed, inserted, labels)
        )
        return {
            "tokens": masked,
            "masked_positions": padded(positions, self.max_predictions),
            "masked_labels": padded(labels, self.max_predictions),
            "masked_weights": padded(np.ones(len(positions)), self.max_predictions),
        }

    def fates(self, tokens: np.ndarray, row: dict[str, np.ndarray]) -> list[str]:
        """Returns what happened to each of the tokens (N,) in the `row` that a call returned.

        It is "masked", "replaced" or "unchanged", or "" for a token that is not predicted.
        """
        fates = [""] * len(tokens)
        for position in row["masked_positions"][row["masked_weights"] > 0]:
            new = row["tokens"][position]
            is_same = new == tokens[position]
            fates[position] = (
                "masked" if new == self.mask_id else "unchanged" if is_same else "replaced"
            )
        return fates

    def _order(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the indices of the tokens (N,) in random order; large weights tend to come early.

        For any n, the first n of them are a weighted sample without replacement (Efraimidis and
        Spirakis 2006).
        """
        if self.weights is None:
            return random.permutation(len(tokens))
        return np.argsort(random.exponential(size=len(tokens)) / self.weights[tokens])

    def _units(self, tokens: np.ndarray, candidates: np.ndarray) -> list[np.ndarray]:
        """Returns the positions of each unit of masking: a word, or a single token."""
        if not self.whole_words:
            return np.split(candidates, np.arange(1, len(candidates)))
        starts_word = ~self.continues[tokens[candidates]]
        # A special token ends a word too, because the candidates on its two sides are not adjacent.
        # With -2 before it, the first candidate always begins a unit, even at position 0. Its own
        # bound is the one that is dropped below.
        is_after_gap = np.diff(candidates, prepend=-2) > 1
        return np.split(candidates, np.flatnonzero(starts_word | is_after_gap)[1:])

    def _spans(
        self,
        tokens: np.ndarray,
        units: list[np.ndarray],
        count: int,
        random: np.random.Generator,
    ) -> np.ndarray:
        """Returns the positions of random spans of units (Lan et al. 2019, section 4.1).

        A span stops before its drawn length if it reaches a special token or another span, or if
        the total would exceed `count`.
        """
        order = self._order(tokens[[unit[0] for unit in units]], random)
        lengths = [1] * len(units)
        if len(self.ngrams) > 1:
            weights = np.array(self.ngrams) / sum(self.ngrams)
            lengths = 1 + random.choice(len(weights), len(units), p=weights)
        is_selected = np.zeros(len(units), bool)
        positions = []
        # A loop, because the length of a span depends on the spans that were drawn before it.
        for first in order.tolist():
            before = units[first][0] - 1
            for number in range(first, min(first + lengths[first], len(units))):
                unit = units[number]
                fits = len(positions) + len(unit) <= count
                if is_selected[number] or unit[0] != before + 1 or not fits:
                    break
                is_selected[number] = True
                positions.extend(unit)
                before = unit[-1]
        return np.array(positions, np.int64)


def truncated_pair(
    first_length: int, second_length: int, max_tokens: int, random: np.random.Generator
) -> tuple[slice, slice]:
    """Returns the parts of two texts that together have at most `max_tokens` tokens.

    Tokens are removed from the longer text until both are equally long, and then from both in turn.
    Each token is removed from the start or the end of its text with equal probability.
    """
    # The published create_pretraining_data.py removes one token at a time in a loop. This computes
    # how many tokens that loop removes from each text.
    excess = max(first_length + second_length - max_tokens, 0)
    from_longer = min(excess, abs(first_length - second_length))
    from_both = excess - from_longer
    first_loss = from_both // 2
    second_loss = from_both - from_both // 2
    if first_length > second_length:
        first_loss += from_longer
    else:
        second_loss += from_longer
    first_part = _part(first_length, first_loss, random)
    return first_part, _part(second_length, second_loss, random)


def _part(length: int, loss: int, random: np.random.Generator) -> slice:
    """Returns the part of a text that is left after `loss` tokens are removed from its two ends."""
    at_front = random.binomial(loss, 0.5) if loss else 0
    return slice(at_front, length - loss + at_front)


# --------------------------------------------------------------------------------------------------
# Rows that are pairs of texts, and the token store of sentences that they are read from. The store
# keeps the bounds of sentences, because A and B consist of whole ones before they are truncated.

# The share of rows that are shorter, `short_seq_prob` in the published create_pretraining_data.py.
_SHORT_ROWS = 0.1
# Sums of the lengths of texts are stored in 4 bytes up to here, and in 8 beyond. The margin lets
# the length of a row be added to any of them without an overflow of uint32.
_FOUR_BYTES = 2**32 - 2**20


@dataclasses.dataclass(frozen=True)
class Plan:
    """The two segments of a row as token spans, and the generator for all later random draws."""

    first: tuple[int, int]
    second: tuple[int, int]
    follows: bool  # whether the second segment follows the first in the text
    random: np.random.Generator


class SentencePairs:
    """Rows [CLS] A [SEP] B [SEP] with masked tokens, for next-sentence or sentence-order tasks.

    A and B are segments of whole sentences. In half of the rows, B follows A in the text. In the
    other rows, B comes from another document or, with `swaps`, precedes A (Lan et al. 2019). One
    row in ten is shorter. The spans of sentences that are split into A and B are fixed; each epoch
    draws everything else anew. The randomness of a row depends on `key` (seed, phase, component),
    the row number and the epoch.

    Keys, int32: tokens, token_types, segment_ids (L,), masked_positions, masked_labels,
    masked_weights (P,), follows (): 1 if B follows A.

    Raises UserError if the text has too few documents or sentences to form pairs.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: Masking,
        key: tuple[int, int, int],
        swaps: bool = False,
    ):
        self.store = stored
        self.length = length
        self.mask = mask
        self.swaps = swaps
        self.meta = stored.meta
        self._philox_key = philox_key(key)
        # The offset of the first token of each sentence, with the number of tokens at the end. All
        # offsets are held in memory, because each epoch divides the spans into A and B at other
        # sentences.
        self._starts = cumulative(stored.array("sentences"))
        # The index of the first sentence of each document, with the number of sentences at the end,
        # so that every document has an end.
        self._documents = cumulative(stored.array("documents"))
        # [CLS] and two [SEP] take three positions of a row.
        self._spans = _spans(self._starts, self._documents, length - 3)
        too_few = len(self._documents) < 3 and not swaps
        if too_few or not len(self._spans):
            needed = "a document of" if swaps else "two documents, and one of them"
            raise UserError(
                f"pairs of sentences need {needed} two sentences "
                "(documents end with a blank line; config.data.sentences says what ends a sentence)"
            )

    def __len__(self) -> int:
        return len(self._spans)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        # All rows are planned before anything is read, so that one call reads all their spans.
        plans = [self._plan(number, epoch) for number, epoch in numbers]
        spans = [span for plan in plans for span in (plan.first, plan.second)]
        segments = iter(self.store.read(spans))
        return [self._row(plan, next(segments), next(segments)) for plan in plans]

    def _plan(self, number: int, epoch: int) -> Plan:
        random = generator(self._philox_key, number, epoch)
        # `tolist` and `item` return Python integers, which are faster than NumPy's scalars.
        first, last, document = self._spans[number].tolist()
        middle = random.integers(first + 1, last)
        follows = random.random() < 0.5
        first_segment = self._starts.item(first), self._starts.item(middle)
        second = self._starts.item(middle), self._starts.item(last)
        if not follows and self.swaps:
            first_segment, second = second, first_segment
        elif not follows:
            second = self._segment_of_another_document(document, random)
        return Plan(first_segment, second, follows, random)

    def _segment_of_another_document(
        self, document: int, random: np.random.Generator
    ) -> tuple[int, int]:
        """Returns a span that starts at a random sentence of a random other document."""
        # Of N documents, N - 1 are others; `_documents` has N + 1 entries.
        other = random.integers(len(self._documents) - 2)
        other += other >= document
        next_document = self._documents.item(other + 1)
        sentence = random.integers(self._documents.item(other), next_document)
        start = self._starts.item(sentence)
        end_of_document = self._starts.item(next_document)
        # A row never needs more tokens than its length, so the rest of a long document is not read.
        return start, min(start + self.length, end_of_document)

    def _row(self, plan: Plan, first: np.ndarray, second: np.ndarray) -> Row:
        first_part, second_part = truncated_pair(
            len(first), len(second), self._room(plan.random), plan.random
        )
        row = self._masked([first[first_part], second[second_part]], plan.random)
        return row | {"follows": np.int32(plan.follows)}

    def _room(self, random: np.random.Generator) -> int:
        """Returns the maximum number of tokens in a row, not counting special tokens."""
        max_tokens = self.length - 3
        return random.integers(2, max_tokens + 1) if random.random() < _SHORT_ROWS else max_tokens

    def _masked(self, texts: list[np.ndarray], random: np.random.Generator) -> Row:
        """Returns the row of one or two texts, with special tokens and masked tokens."""
        sep = [self.meta["sep_id"]]
        framed = [part for text in texts for part in (text, sep)]
        tokens = np.concatenate([[self.meta["cls_id"]], *framed]).astype(np.int64)
        row = self.mask(tokens, random)
        # [CLS] and the first [SEP] belong to the first text, as in BERT.
        token_types = np.arange(len(tokens)) >= len(texts[0]) + 2
        return row | {
            "tokens": padded(row["tokens"], self.length),
            "token_types": padded(token_types, self.length),
            "segment_ids": padded(np.ones(len(tokens)), self.length),
        }


def cumulative(lengths: np.ndarray) -> np.ndarray:
    """Returns 0 followed by the cumulative sums of the lengths.

    The sums are uint32 while they fit, which halves the memory of the index of a large text.
    """
    is_large = np.sum(lengths, dtype=np.int64) >= _FOUR_BYTES
    sums = np.zeros(len(lengths) + 1, np.int64 if is_large else np.uint32)
    np.cumsum(lengths, out=sums[1:])
    return sums


def inside(starts: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Returns all sorted `starts` that are inside a span, relative to the span's start.

    A start that coincides with the start of the span is not included.
    """
    first, last = np.searchsorted(starts, span, "right")
    within = starts[first:last]
    return (within[within < span[1]] - span[0]).astype(np.int64)


def _spans(starts: np.ndarray, documents: np.ndarray, max_tokens: int) -> np.ndarray:
    """Returns (first sentence, sentence after the last, document) of each span, uint32 (N, 3).

    A span has at least two sentences and ends with the sentence that reaches `max_tokens` tokens. A
    single sentence that is left over at the end of a document is added to the span before it. A
    document with only one sentence has no span.
    """

    def numbers() -> Iterator[int]:
        for document, (start, end) in enumerate(itertools.pairwise(documents.tolist())):
            bounds = []
            first = start
            while end - first >= 2:
                # At least two sentences, even if the first one fills a row, so that A and B have
                # one each.
                last = max(int(np.searchsorted(starts, starts[first] + max_tokens)), first + 2)
                first = min(last, end)
                bounds.append(first)
            if bounds:
                bounds[-1] = end
            for span in zip([start, *bounds], bounds):
                yield from (*span, document)

    # Filled from an iterator of plain numbers: a list of tuples would take many times the memory of
    # the array, which has 12 bytes a row.
    return np.fromiter(numbers(), np.uint32).reshape(-1, 3)


def tokenised(text, data, tokenizer, name: str, *, exact: bool = False) -> store.Store:
    """Returns the token store of a text's sentences; builds the parts that do not exist yet.

    `text` has a fingerprint and parts, which are iterables of documents. The index arrays of the
    store hold the number of tokens in each sentence and of sentences in each document. With
    `exact`, each sentence keeps the white space before it, so that the sentences of a document
    concatenate to its text.
    """
    key = {
        "text": text.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "sentences": data.sentences,
        # The key has the option only where it is used, so that stores that were built before it
        # existed are still found.
        **({"exact": True} if exact else {}),
    }
    content = store.Content(
        parts=text.parts,
        fill=functools.partial(
            _fill,
            tokenizer=tokenizer,
            split=functools.partial(sentences.split, manner=data.sentences, exact=exact),
        ),
        whole=functools.partial(
            _whole, name=name, ids={"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id}
        ),
        title=f"tokenizing {name}",
    )
    stored = store.build(
        data.cache, f"sentences-{name}", key, tokenizer.vocab_size, content, rebuild=data.rebuild
    )
    meta = stored.meta
    say(
        f"{name}: {meta['documents']:,} documents, {meta['sentences']:,} sentences, "
        f"{meta['tokens']:,} tokens"
    )
    return stored


def _fill(writer: store.Writer, texts: Iterable[str], tokenizer, split: Callable) -> dict[str, int]:
    """Writes the sentences of a part and returns its counts."""
    counts = {"documents": 0, "sentences": 0}
    # An empty part needs its arrays too, because `Store.array` reads the arrays of every part.
    for name in counts:
        writer.array(name, np.zeros(0, np.uint32))
    for block in blocks(texts):
        documents = _encoded_documents(block, tokenizer, split)
        encoded = list(itertools.chain.from_iterable(documents))
        writer.append(np.fromiter(itertools.chain.from_iterable(encoded), np.uint32))
        writer.array("sentences", [len(ids) for ids in encoded])
        writer.array("documents", [len(document) for document in documents])
        counts["documents"] += len(documents)
        counts["sentences"] += len(encoded)
    return counts


def _whole(parts: list[dict], name: str, ids: dict[str, int]) -> dict[str, int]:
    """Returns the metadata of a store. Raises UserError if the text has no documents."""
    counts = texts.sums(parts, ("documents", "sentences", "tokens"))
    if not counts["documents"]:
        raise UserError(f"config.data: the {name} text has no document that is not empty")
    return counts | ids


def _encoded_documents(texts: list[str], tokenizer, split: Callable) -> list[list[list[int]]]:
    """Returns the ids of each sentence of each document, without empty sentences and documents."""
    parts = [*map(split, texts)]
    encoded = iter(tokenizer.encode(list(itertools.chain.from_iterable(parts))))
    documents = [[ids for ids in itertools.islice(encoded, len(part)) if ids] for part in parts]
    return [document for document in documents if document]


# --------------------------------------------------------------------------------------------------
# Rows that are single texts: windows of the text, and RoBERTa's full sentences, which replace pairs
# because RoBERTa does without the next-sentence objective (Liu et al. 2019, section 4.2).


class MaskedTexts(abc.ABC):
    """Rows [CLS] text [SEP] of at most L tokens, in which each epoch masks other tokens.

    `key` is (seed, phase, component), and `ids` are the ids of [CLS] and [SEP].

    Keys, int32: tokens, token_types, segment_ids (L,), masked_positions, masked_labels,
    masked_weights (P,).
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: Masking,
        key: tuple[int, int, int],
        ids: tuple[int, int],
    ):
        self.store = stored
        self.length = length
        self.mask = mask
        self.key = key
        self._philox_key = philox_key(key)
        self.cls_id, self.sep_id = ids

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _texts(self, numbers: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns the tokens of each row that come between [CLS] and the last [SEP]."""

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        return [
            self._row(text, generator(self._philox_key, number, epoch))
            for (number, epoch), text in zip(numbers, self._texts(numbers))
        ]

    def _row(self, text: np.ndarray, random: np.random.Generator) -> Row:
        tokens = np.concatenate([[self.cls_id], text, [self.sep_id]])
        row = self.mask(tokens, random)
        return row | {
            "tokens": padded(row["tokens"], self.length),
            "token_types": padded((), self.length),
            "segment_ids": padded(np.ones(len(tokens)), self.length),
        }


class MaskedWindows(MaskedTexts):
    """Windows of L - 2 tokens from the text as one stream, in which [SEP] ends each document."""

    def __init__(self, stored: store.Store, length: int, mask: Masking, key, ids):
        super().__init__(stored, length, mask, key, ids)
        self.windows = texts.Windows(stored, length - 2, False, key)

    def __len__(self) -> int:
        return len(self.windows)

    def _texts(self, numbers):
        return [window["tokens"] for window in self.windows.rows(numbers)]


class FullSentences(MaskedTexts):
    """As many whole sentences as fit, in order and across documents (Liu et al. 2019, section 4.2).

    [SEP] separates the documents in a row. A sentence that is longer than a row is split. Each
    epoch has the same rows, in which other tokens are masked.
    """

    def __init__(self, stored: store.Store, length: int, mask: Masking, key, ids):
        super().__init__(stored, length, mask, key, ids)
        sentences = cumulative(stored.array("sentences"))
        # The offset of the first token of each document, with the number of tokens at the end. It
        # shows where [SEP] belongs in a row, because the store has no token between documents.
        self._documents = sentences[cumulative(stored.array("documents"))]
        # The offset of the first token of each row, with the number of tokens at the end. Rows
        # depend on the lengths of all sentences before them, so they are computed once instead of
        # for each request.
        starts = _row_starts(_pieces(sentences, length - 2), self._documents, length - 2)
        self._starts = np.fromiter(starts, sentences.dtype)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _texts(self, numbers):
        spans = [self._starts[number : number + 2] for number, _ in numbers]
        return [
            np.insert(tokens, inside(self._documents, span), self.sep_id)
            for tokens, span in zip(self.store.read(spans), spans)
        ]


def _pieces(sentences: np.ndarray, most: int) -> np.ndarray:
    """Returns the offset of the first token of each piece, with the number of tokens at the end.

    `sentences` has the same form. A sentence of up to `most` tokens is one piece; a longer one is
    split into pieces of `most` tokens and a rest.
    """
    # Rounded up: every sentence has at least one piece, and the last piece may be shorter.
    counts = (np.diff(sentences) + (most - 1)) // most
    indices = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(np.repeat(sentences[:-1], counts) + most * indices, sentences[-1])


def _row_starts(pieces: np.ndarray, documents: np.ndarray, most: int) -> Iterator[int]:
    """Yields the offset of the first token of each row, and at the end the number of tokens.

    A row has at most `most` tokens, including one [SEP] between two documents.
    """
    # The number of separators between the start of the text and each piece. Adding it to the end of
    # a piece makes the end of the longest row that fits a binary search.
    separators = np.searchsorted(documents, pieces[:-1], "right")
    ends = pieces[1:] + separators
    first = 0
    while first < len(ends):
        yield pieces.item(first)
        start = pieces.item(first) + separators.item(first)
        first = int(np.searchsorted(ends, start + most, "right"))
    yield pieces.item(-1)


# --------------------------------------------------------------------------------------------------
# The rows of masked language models for the texts that `config.data` names, in phases: BERT trains
# most updates on short rows, because the cost of attention grows with the square of the length
# (Devlin et al. 2018, appendix A.2).

# The minimum number of rows in an evaluation. A smaller text is read several times, each time with
# other pairs and masks, so that the random draws add less noise to the result.
_MIN_EVAL_ROWS = 2_000


@dataclasses.dataclass(frozen=True)
class MaskedRows(SingleText):
    """Pairs of texts or single texts, in which each epoch masks other tokens.

    Attributes:
      phases: (share of the updates, tokens per row, maximum predictions per row) of each phase.
      pairs: whether rows are pairs of texts instead of single texts.
      whole_words: whether either all pieces of a word are masked or none.
      ngrams: the weights of masked spans of 1, 2, 3, ... tokens or words.
      swaps: whether the two texts of every pair are consecutive, in either order.
      full_sentences: whether single texts are whole sentences instead of windows.
      rare_words: in training, a token that occurs n times in the training text is masked with a
        probability proportional to n**-rare_words.
      selected: the share of the tokens that are predicted in training.
    """

    # the setting of config.task that makes rows single texts, which error messages name
    single: ClassVar[str] = "next_sentence=0"

    phases: tuple
    pairs: bool
    whole_words: bool
    ngrams: tuple = (1.0,)
    swaps: bool = False
    full_sentences: bool = False
    rare_words: float = 0.0
    selected: float = 0.15

    def check(self, model: Any) -> None:
        """Raises UserError if the phases are invalid or the rows do not suit the model."""
        if self.pairs and model.num_token_types < 2:
            raise UserError(
                f"config.model.num_token_types={model.num_token_types}: pairs of texts need "
                f"2; config.task.{self.single} trains on single texts"
            )
        if self.pairs and self.full_sentences:
            raise UserError(
                "config.task.full_sentences=true: rows are pairs of texts; "
                f"config.task.{self.single} trains on single texts"
            )
        for phase in self.phases or [()]:
            if not _is_phase(phase, model.window):
                raise UserError(
                    f"config.task.phases: {phase} is not (share of the updates, length from 8 to "
                    f"config.model.max_length={model.max_length}, most predictions), "
                    "as in ((1.0,128,20),)"
                )
        # A tolerance, because 0.7 + 0.2 + 0.1 is 0.9999999999999999 in floating point.
        if abs(sum(share for share, _, _ in self.phases) - 1) > 1e-6:
            raise UserError(
                f"config.task.phases={self.phases}: the shares of the updates must add up to 1"
            )
        if not are_weights(self.ngrams):
            raise UserError(
                f"config.task.ngrams={self.ngrams}: must be the weights of spans of 1, 2, ... "
                "tokens, from 0 and not all 0, as in (0.8,0.1,0.1)"
            )
        if self.config.train.first_batch:
            raise UserError(
                f"config.train.first_batch={self.config.train.first_batch}: the batch of masked "
                "language modeling does not grow; set it to 0"
            )

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        shares = itertools.accumulate(share for share, _, _ in self.phases)
        # The ends are rounded, not the shares, so that the phases together have exactly
        # `num_steps`.
        ends = [round(share * self.config.train.num_steps) for share in shares]
        return [end - start for start, end in zip([0, *ends], ends)]

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenizes the text."""
        stored = self._tokenized("train", tokenizer)
        batch = self.config.train.batch
        phases = []
        for number, num_steps in enumerate(self.phase_steps):
            component = self._component(stored, "train", number, tokenizer)
            # The last phase has no end, so that rounding the shares never leaves updates without
            # rows.
            is_last = number == len(self.phases) - 1
            phases.append(rows.Phase([component], batch, None if is_last else num_steps))
        return rows.TrainRows(phases, self.config.data.seed)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        """Returns the rows of a split, which have the length and masking of the last phase."""
        stored = self._tokenized(split, tokenizer)
        component = self._component(stored, split, len(self.phases) - 1, tokenizer)
        return rows.EvalRows(component, math.ceil(_MIN_EVAL_ROWS / len(component)))

    def _tokenized(self, split: str, tokenizer):
        text = self.text(split), self.config.data, tokenizer, split
        if self.full_sentences:
            return tokenised(*text, exact=True)
        return tokenised(*text) if self.pairs else texts.tokenised(*text)

    def _component(self, stored, split: str, phase: int, tokenizer):
        """Returns the rows of a tokenized split in a phase.

        The index of the split is part of the key, so that no two splits share random numbers.
        """
        _, length, num_predictions = self.phases[phase]
        mask = self.masking(tokenizer, num_predictions)
        # Evaluations mask 15 % of the tokens, all with equal probability, so that losses of runs
        # that were trained with other shares, or with `rare_words`, can be compared.
        if split == "train":
            mask = dataclasses.replace(mask, selected=self.selected)
            if self.rare_words:
                mask = dataclasses.replace(mask, weights=self._weights(stored, len(mask.special)))
        key = (self.config.data.seed, phase, ("train", "valid", "test").index(split))
        if self.pairs:
            return self._pair_rows(stored, length, mask, key)
        single = FullSentences if self.full_sentences else MaskedWindows
        return single(stored, length, mask, key, (tokenizer.cls_id, tokenizer.sep_id))

    def _weights(self, stored, vocab_size: int) -> np.ndarray:
        """Returns the masking weight of each token of the vocabulary (V,)."""
        counts = texts.count_tokens(stored, self.config.data, vocab_size, "train")
        # A token that the text lacks would have an infinite weight.
        return np.maximum(counts, 1) ** -float(self.rare_words)

    def _pair_rows(
        self, stored, length: int, mask: Masking, key: tuple[int, int, int]
    ) -> SentencePairs:
        return SentencePairs(stored, length, mask, key, self.swaps)

    def masking(self, tokenizer, num_predictions: int) -> Masking:
        """Returns the masking for rows with at most `num_predictions` predictions."""
        return Masking(
            tokenizer.mask_id,
            tokenizer.special,
            tokenizer.continues,
            num_predictions,
            self.whole_words,
            self.ngrams,
        )


def are_weights(values) -> bool:
    """Returns whether `values` is a tuple of finite numbers >= 0 that are not all 0."""
    # Types are compared, because True and False are instances of int.
    if not isinstance(values, tuple) or not {*map(type, values)} <= {int, float}:
        return False
    return all(0 <= value < math.inf for value in values) and sum(values) > 0


def _is_phase(phase, max_length: int) -> bool:
    kinds = [type(value) for value in phase] if isinstance(phase, tuple) else []
    if kinds not in ([int, int, int], [float, int, int]):
        return False
    share, length, num_predictions = phase
    return 8 <= length <= max_length and 0 < share <= 1 and 1 <= num_predictions <= length


# --------------------------------------------------------------------------------------------------
# Rows for replaced-token detection (ELECTRA): masked texts, and random numbers that the generator
# samples its replacements with. With these numbers in the row, sampling needs no key in the step.

# Integers below this bound are exactly representable in float32.
NUM_DRAWS = 2**24
# The share of the generator's predicted tokens that are replaced by [MASK] in its input. The others
# are left unchanged, as in the published code.
_HIDDEN = 0.85


@dataclasses.dataclass(frozen=True)
class ReplacedRows(MaskedRows):
    """Rows of `MaskedRows` with the further key masked_draws (P,), int32 below NUM_DRAWS.

    These random numbers decide which token the generator samples at each position. Because they are
    part of the row, a sample depends only on the row and the parameters, and not on the batch or
    the mesh.
    """

    single = "pairs=false"

    def masking(self, tokenizer, num_predictions: int) -> "_Masking":
        plain = vars(super().masking(tokenizer, num_predictions))
        return _Masking(**plain | {"selected": self.selected, "shares": (_HIDDEN, 0.0)})


class _Masking(Masking):
    """Masking that adds masked_draws to each row."""

    def __call__(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        row = super().__call__(tokens, random)
        draws = random.integers(NUM_DRAWS, size=self.max_predictions, dtype=np.int32)
        return row | {"masked_draws": draws}


# --------------------------------------------------------------------------------------------------
# The pre-training data of UniLM (Dong et al. 2019): rows as in BERT, for four objectives with
# different attention masks. The objectives are mixed within a batch, so the mask must be part of
# each row.

OBJECTIVES = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
_PAIR_OBJECTIVES = OBJECTIVES[:2]


@dataclasses.dataclass(frozen=True)
class _Mixed(Plan):
    objective: str


class MixedPairs(SentencePairs):
    """Rows that each have one of four objectives, which each epoch draws anew.

    A bidirectional row is a pair as in `SentencePairs`. In a sequence-to-sequence row, the second
    text always follows the first. The rows of the other two objectives are one text: [CLS] A [SEP].

    `shares` are the shares of the OBJECTIVES, in their order. `types` maps each objective to the
    token types of its two texts.

    Further keys, int32: ranks (L,), where a token attends to tokens of its own rank and of lower
    ranks; paired (), which is 1 for a bidirectional row.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: Masking,
        key: tuple[int, int, int],
        swaps: bool,
        *,
        shares: tuple[float, ...],
        types: dict[str, tuple[int, int]],
    ):
        super().__init__(stored, length, mask, key, swaps)
        self.shares = np.array(shares) / sum(shares)
        self.types = types

    def _plan(self, number: int, epoch: int) -> _Mixed:
        plan = super()._plan(number, epoch)
        objective = OBJECTIVES[plan.random.choice(len(OBJECTIVES), p=self.shares)]
        mixed = _Mixed(**vars(plan), objective=objective)
        if objective == "bidirectional":
            return mixed
        # Only bidirectional rows have next-sentence labels. The other objectives generate text, so
        # their second segment must continue the first.
        if not plan.follows and self.swaps:
            return dataclasses.replace(mixed, first=plan.second, second=plan.first, follows=True)
        end = self._starts.item(self._spans[number][1])
        return dataclasses.replace(mixed, second=(plan.first[1], end), follows=True)

    def _row(self, plan: _Mixed, first: np.ndarray, second: np.ndarray) -> Row:
        if plan.objective in _PAIR_OBJECTIVES:
            row = super()._row(plan, first, second)
        else:
            text = np.concatenate([first, second])[: self._room(plan.random)]
            row = self._masked([text], plan.random) | {"follows": np.int32(1)}
        is_second, filled = row["token_types"] > 0, row["segment_ids"] > 0
        # The first text may have another type than 0, but padding keeps 0.
        types = np.where(is_second, *reversed(self.types[plan.objective])) * filled
        return row | {
            "token_types": types.astype(np.int32),
            "ranks": padded(ranks(plan.objective, is_second[filled]), self.length),
            "paired": np.int32(plan.objective == "bidirectional"),
        }


def ranks(objective: str, is_second: np.ndarray) -> np.ndarray:
    """Returns the ranks of a row's tokens (N,) (Dong et al. 2019, section 2.3).

    `is_second` (N,) is true for the tokens of the second text. Ranks describe all four attention
    masks in N numbers instead of N x N: equal ranks attend to each other in both directions, and
    different ranks only from the higher to the lower.
    """
    positions = np.arange(len(is_second))
    match objective:
        case "sequence_to_sequence":
            # All of the first text has rank 0, so its tokens attend to each other in both
            # directions.
            return positions * is_second
        case "left_to_right":
            return positions
        case "right_to_left":
            return positions[::-1]
    return np.zeros_like(positions)


@dataclasses.dataclass(frozen=True)
class MixedRows(MaskedRows):
    """Rows of all four objectives. `shares` and `types` are described at `MixedPairs`."""

    single = "name=masked_lm with next_sentence=0"

    shares: tuple[float, ...] = ()
    types: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def _pair_rows(self, stored, length, mask, key) -> MixedPairs:
        own = {"shares": self.shares, "types": self.types}
        return MixedPairs(stored, length, mask, key, self.swaps, **own)
