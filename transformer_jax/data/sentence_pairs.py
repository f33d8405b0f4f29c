"""Rows of masked language models that are pairs of texts, and the token store of sentences."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import masking, sentences, store, windows
from transformer_jax.data.rows import Row, generator, padded, philox_key
from transformer_jax.pictures.progress import say

# The share of shorter rows: short_seq_prob of the published create_pretraining_data.py.
_SHORT_ROWS = 0.1
# Sums from here on do not fit 4 bytes, with some more for the length of a row.
_FOUR_BYTES = 2**32 - 2**20


@dataclasses.dataclass(frozen=True)
class Plan:
    """The two segments of a row as spans of tokens, and the generator for all later draws."""

    first: tuple[int, int]
    second: tuple[int, int]
    follows: bool  # the second segment follows the first
    random: np.random.Generator


class SentencePairs:
    """Rows [CLS] A [SEP] B [SEP] with masked tokens.

    A and B are segments of whole sentences. B follows A in half of the rows and comes from another
    document in the others. With `swaps`, A follows B in the others (Lan et al. 2019). One row in
    ten is shorter. The segments come from fixed spans of sentences; each epoch draws everything
    else anew. The randomness of a row depends on `key` (seed, phase, component), its number and the
    epoch.

    Keys, int32: tokens, token_types, segment_ids (L,), masked_positions, masked_labels,
    masked_weights (P,), follows (): 1 where B follows A.
    """

    def __init__(
        self,
        stored: store.Store,
        length: int,
        mask: masking.Masking,
        key: tuple[int, int, int],
        swaps: bool = False,
    ):
        self.store = stored
        self.length = length
        self.mask = mask
        self.swaps = swaps
        self.meta = stored.meta
        self._philox_key = philox_key(key)
        # The first token of each sentence, then the number of tokens.
        self._starts = cumulative(stored.array("sentences"))
        # The first sentence of each document, then the number of sentences.
        self._documents = cumulative(stored.array("documents"))
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
        plans = [self._plan(number, epoch) for number, epoch in numbers]
        spans = [span for plan in plans for span in (plan.first, plan.second)]
        segments = iter(self.store.read(spans))
        return [self._row(plan, next(segments), next(segments)) for plan in plans]

    def _plan(self, number: int, epoch: int) -> Plan:
        random = generator(self._philox_key, number, epoch)
        # Python's integers are faster than NumPy's, one by one.
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
        """Returns the tokens from a random sentence of a random other document on."""
        other = random.integers(len(self._documents) - 2)
        other += other >= document
        next_document = self._documents.item(other + 1)
        sentence = random.integers(self._documents.item(other), next_document)
        start = self._starts.item(sentence)
        end_of_document = self._starts.item(next_document)
        return start, min(start + self.length, end_of_document)

    def _row(self, plan: Plan, first: np.ndarray, second: np.ndarray) -> Row:
        first_part, second_part = masking.truncated_pair(
            len(first), len(second), self._room(plan.random), plan.random
        )
        row = self._masked([first[first_part], second[second_part]], plan.random)
        return row | {"follows": np.int32(plan.follows)}

    def _room(self, random: np.random.Generator) -> int:
        """Returns the most tokens of a row without the special ones."""
        max_tokens = self.length - 3
        return random.integers(2, max_tokens + 1) if random.random() < _SHORT_ROWS else max_tokens

    def _masked(self, texts: list[np.ndarray], random: np.random.Generator) -> Row:
        """Returns the row of one text or two, with masked tokens."""
        sep = [self.meta["sep_id"]]
        framed = [part for text in texts for part in (text, sep)]
        tokens = np.concatenate([[self.meta["cls_id"]], *framed]).astype(np.int64)
        row = self.mask(tokens, random)
        token_types = np.arange(len(tokens)) >= len(texts[0]) + 2
        return row | {
            "tokens": padded(row["tokens"], self.length),
            "token_types": padded(token_types, self.length),
            "segment_ids": padded(np.ones(len(tokens)), self.length),
        }


def cumulative(lengths: np.ndarray) -> np.ndarray:
    """Returns 0 and the cumulative sums of the lengths, of 4 bytes each up to four billion."""
    is_large = np.sum(lengths, dtype=np.int64) >= _FOUR_BYTES
    sums = np.zeros(len(lengths) + 1, np.int64 if is_large else np.uint32)
    np.cumsum(lengths, out=sums[1:])
    return sums


def inside(starts: np.ndarray, span: np.ndarray) -> np.ndarray:
    """Returns the starts after the first token of a span, counted from it."""
    first, last = np.searchsorted(starts, span, "right")
    within = starts[first:last]
    return (within[within < span[1]] - span[0]).astype(np.int64)


def _spans(starts: np.ndarray, documents: np.ndarray, max_tokens: int) -> np.ndarray:
    """Returns (first sentence, sentence after the last, document) of each span, uint32 (N, 3).

    A span has at least two sentences and ends with the sentence that reaches `max_tokens` tokens. A
    single sentence that remains at the end of its document joins the span before it. A document of
    one sentence has no span.
    """

    def numbers() -> Iterator[int]:
        for document, (begin, end) in enumerate(itertools.pairwise(documents.tolist())):
            bounds = []
            first = begin
            while end - first >= 2:
                last = max(int(np.searchsorted(starts, starts[first] + max_tokens)), first + 2)
                first = min(last, end)
                bounds.append(first)
            if bounds:
                bounds[-1] = end
            for span in zip([begin, *bounds], bounds):
                yield from (*span, document)

    return np.fromiter(numbers(), np.uint32).reshape(-1, 3)


def tokenised(text, data, tokenizer, name: str, *, exact: bool = False) -> store.Store:
    """Returns the token store of a text's sentences; builds the parts of it that do not exist.

    `text` has parts, iterables of documents, and a fingerprint. The store's arrays hold the number
    of tokens of each sentence and of sentences of each document. With `exact`, each sentence keeps
    the white space before it.
    """
    key = {
        "text": text.fingerprint(),
        "tokenizer": tokenizer.fingerprint(),
        "sentences": data.sentences,
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
        title=f"tokenising {name}",
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
    """Writes the sentences of a part, and returns its counts."""
    counts = {"documents": 0, "sentences": 0}
    for name in counts:
        writer.array(name, np.zeros(0, np.uint32))
    for block in windows.blocks(texts):
        documents = _encoded_documents(block, tokenizer, split)
        encoded = list(itertools.chain.from_iterable(documents))
        writer.append(np.fromiter(itertools.chain.from_iterable(encoded), np.uint32))
        writer.array("sentences", [len(ids) for ids in encoded])
        writer.array("documents", [len(document) for document in documents])
        counts["documents"] += len(documents)
        counts["sentences"] += len(encoded)
    return counts


def _whole(parts: list[dict], name: str, ids: dict[str, int]) -> dict[str, int]:
    """Returns the metadata of a store. Raises UserError for a text without documents."""
    counts = windows.sums(parts, ("documents", "sentences", "tokens"))
    if not counts["documents"]:
        raise UserError(f"config.data: the {name} text has no document that is not empty")
    return counts | ids


def _encoded_documents(texts: list[str], tokenizer, split: Callable) -> list[list[list[int]]]:
    """Returns the ids of each sentence of each document, without empty ones."""
    parts = [*map(split, texts)]
    encoded = iter(tokenizer.encode(list(itertools.chain.from_iterable(parts))))
    documents = [[ids for ids in itertools.islice(encoded, len(part)) if ids] for part in parts]
    return [document for document in documents if document]
