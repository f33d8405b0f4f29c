"""Denoising objectives: noise functions, and rows of noised texts with their targets."""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import masking, packing, rows, sentences, store
from transformer_jax.data.rows import Row
from transformer_jax.data.texts import MixedTexts

# --------------------------------------------------------------------------------------------------
# A text with its source and its target, and the interface of noise functions. They map arrays of
# ids to arrays of ids, and know no tokenizer, so that pictures can apply them to indices instead of
# ids.

# The number of sentinels added after the pieces of a tokenizer that has none, as many as T5 has.
NUM_SENTINELS = 100


class Text(NamedTuple):
    """The source and the target of a text, without special tokens at their ends.

    Attributes:
      tokens: (N,), the source, which the encoder reads.
      sentences: (N,), the sentence index of each token.
      target: (T,), which the decoder predicts.
      start: the position of the target in the text, or None if the target gets the special tokens
        of a whole text.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    target: np.ndarray
    start: int | None = None


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What noise functions need to know about a vocabulary.

    Attributes:
      begins_word: (V,) bool, whether a piece starts a word.
      mask_id: the id of the mask token, or None if the tokenizer has none.
      num_sentinels: the number of sentinels, either the tokenizer's or those added after its
        pieces.
      size: the number of pieces including sentinels. Sentinel k has the id size - 1 - k.
    """

    begins_word: np.ndarray
    mask_id: int | None
    num_sentinels: int
    size: int

    @classmethod
    def of(cls, tokenizer) -> "Pieces":
        # A special token belongs to no word, so it must not continue the one before it.
        begins_word = ~tokenizer.continues | tokenizer.special
        added = 0 if tokenizer.num_sentinels else NUM_SENTINELS
        num_sentinels = tokenizer.num_sentinels + added
        return cls(begins_word, tokenizer.mask_id, num_sentinels, tokenizer.vocab_size + added)


class Noise:
    """A noise function. Its dataclass fields are the numbers of its entry in `config.task.noises`.

    Attributes:
      masks: whether it needs a mask token in the vocabulary.
      alone: whether it defines the target, so that it can't be combined with other noises.
      frames: whether the target gets the special tokens of a whole text.
      whole_sentences: whether it needs texts of whole sentences.
    """

    masks: bool = False
    alone: bool = False
    frames: bool = True
    whole_sentences: bool = False

    def __call__(self, text: Text, pieces: Pieces, random: np.random.Generator) -> Text:
        raise NotImplementedError

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the maximum lengths of source and target for a text of `num_tokens` tokens."""
        return num_tokens, num_tokens

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of `num_tokens` tokens needs."""
        return 0


# --------------------------------------------------------------------------------------------------
# The noise functions of BART (Lewis et al. 2019, section 2.2), which change only the source.


@dataclasses.dataclass(frozen=True)
class Masking(Noise):
    """Token masking: random tokens are replaced by the mask token."""

    share: float = 0.15
    masks = True

    def __call__(self, text, pieces, random):
        # A copy, because the same array is the target.
        masked = text.tokens.copy()
        masked[_chosen(len(masked), self.share, random)] = pieces.mask_id
        return text._replace(tokens=masked)


@dataclasses.dataclass(frozen=True)
class Deletion(Noise):
    """Token deletion: random tokens are removed, so the model must also infer where they were."""

    share: float = 0.15

    def __call__(self, text, pieces, random):
        deleted = _chosen(len(text.tokens), self.share, random)
        return text._replace(
            tokens=np.delete(text.tokens, deleted), sentences=np.delete(text.sentences, deleted)
        )


@dataclasses.dataclass(frozen=True)
class Infilling(Noise):
    """Text infilling: each span of words is replaced by one mask token.

    The numbers of words in the spans are drawn from a Poisson distribution, and a span of no words
    inserts a mask. As in fairseq, spans are drawn until their lengths sum to the share of the words
    to mask, and the last span is shortened to reach that sum exactly. If there are as many spans as
    words to mask, the last span is lengthened instead, so that no text grows. Spans don't overlap.
    """

    share: float = 0.3
    mean: float = 3.0
    masks = True

    def __call__(self, text, pieces, random):
        is_start = np.ones(len(text.tokens) + 1, bool)
        # The first token begins a word even if its piece continues one, because the text may be cut
        # there.
        is_start[1:-1] = pieces.begins_word[text.tokens[1:]]
        # The index of the first token of each word, with the number of tokens at the end, so that
        # the last word has an end, too.
        bounds = np.flatnonzero(is_start)
        words = self._lengths(_count(len(bounds) - 1, self.share, random), random)
        num_others = len(bounds) - 1 - words.sum()
        # Shuffling the spans among the remaining words places the spans without overlap, and makes
        # all placements equally likely.
        slots = random.permutation(num_others + len(words))[: len(words)]
        slots.sort()
        first_words = slots - np.arange(len(words)) + np.cumsum(words) - words
        starts, ends = bounds[first_words], bounds[first_words + words]
        return _replaced(text, starts, ends - starts, pieces.mask_id)

    def _lengths(self, num_words: int, random: np.random.Generator) -> np.ndarray:
        """Returns the number of words in each span. They sum to `num_words`."""
        if not num_words:
            return np.zeros(0, np.int64)
        lengths = random.poisson(self.mean, num_words)
        sums = np.cumsum(lengths)
        # Spans of no words may leave the sum too small even with one draw for each word.
        last = min(int(np.searchsorted(sums, num_words)), num_words - 1)
        lengths[last] += num_words - sums[last]
        return lengths[: last + 1]


@dataclasses.dataclass(frozen=True)
class Permutation(Noise):
    """Sentence permutation: the sentences of the source are in random order."""

    whole_sentences = True

    def __call__(self, text, pieces, random):
        is_start = text.sentences[1:] != text.sentences[:-1]
        parts = np.cumsum(np.concatenate([[0], is_start]))[: len(text.sentences)]
        ranks = random.permutation(is_start.sum() + 1)[parts]
        # A stable sort keeps the order of the tokens within each sentence.
        order = np.argsort(ranks, kind="stable")
        return text._replace(tokens=text.tokens[order], sentences=text.sentences[order])


@dataclasses.dataclass(frozen=True)
class Rotation(Noise):
    """Document rotation: the source is rotated so that it starts with a random token."""

    def __call__(self, text, pieces, random):
        # The maximum allows for an empty text, from which earlier noises have deleted all tokens.
        shift = -random.integers(max(len(text.tokens), 1))
        return text._replace(
            tokens=np.roll(text.tokens, shift), sentences=np.roll(text.sentences, shift)
        )


def _count(number: int, share: float, random: np.random.Generator) -> int:
    """Returns `number * share`, rounded up or down at random so that its expectation is exact."""
    return int(number * share + random.random())


def _chosen(number: int, share: float, random: np.random.Generator) -> np.ndarray:
    """Returns about `number * share` distinct random integers below `number`."""
    return random.permutation(number)[: _count(number, share, random)]


def _replaced(text: Text, starts: np.ndarray, lengths: np.ndarray, mask_id: int) -> Text:
    """Returns the text with each span of tokens replaced by one mask token."""
    num_tokens = len(text.tokens)
    # Counts instead of a loop over spans: a token is outside all spans where as many have closed as
    # have opened. A span of no tokens opens and closes at once.
    opened = np.bincount(starts, minlength=num_tokens + 1)
    closed = np.bincount(starts + lengths, minlength=num_tokens + 1)
    outside = np.flatnonzero(np.cumsum(opened - closed)[:-1] == 0)
    masks = starts - np.cumsum(lengths) + lengths + np.arange(len(starts))
    is_mask = np.zeros(len(outside) + len(starts), bool)
    is_mask[masks] = True
    # The index of the token that each output token comes from. An inserted mask belongs to the
    # sentence that it precedes.
    origins = np.empty(len(is_mask), np.int64)
    origins[~is_mask] = outside
    origins[is_mask] = np.minimum(starts, num_tokens - 1)
    tokens = text.tokens[origins]
    tokens[is_mask] = mask_id
    return text._replace(tokens=tokens, sentences=text.sentences[origins])


# --------------------------------------------------------------------------------------------------
# Noise functions that also define the target: span corruption, MASS, and prefixes. Because of that,
# no other noise may come before or after them.


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Noise):
    """Span corruption (Raffel et al. 2020, section 3.1.4): sentinels replace random spans.

    The target consists of the spans, each after its sentinel. The numbers of spans and of masked
    tokens are computed as in T5's `random_spans_noise_mask`, and all divisions into spans are
    equally likely. As there, the text starts with an unmasked token and ends with a masked span.
    """

    share: float = 0.15
    mean: float = 3.0
    alone = True

    def __call__(self, text, pieces, random):
        num_tokens = len(text.tokens)
        num_masked, num_spans = self._counts(num_tokens)
        if not num_spans:
            return text._replace(target=text.target[:0])
        unmasked = _divided(num_tokens - num_masked, num_spans, random)
        masked = _divided(num_masked, num_spans, random)
        # Unmasked and masked spans alternate, beginning with an unmasked one, as in T5.
        ends = np.cumsum(np.stack([unmasked, masked], axis=1))
        starts = np.concatenate([[0], ends[:-1]])
        is_masked = np.repeat(np.arange(len(ends)) % 2 == 1, ends - starts)
        ids = pieces.size - 1 - np.arange(num_spans)
        return text._replace(
            tokens=_with_sentinels(text.tokens, is_masked, starts[1::2], ids),
            sentences=text.sentences[:0],
            target=_with_sentinels(text.tokens, ~is_masked, starts[::2], ids),
        )

    def _counts(self, num_tokens: int) -> tuple[int, int]:
        """Returns the number of masked tokens and the number of spans."""
        # At least one token is masked and one is not, as in the published code.
        num_masked = min(max(round(num_tokens * self.share), 1), num_tokens - 1)
        num_spans = max(round(num_masked / self.mean), 1)
        # Each span has at least one token, and at least one unmasked token is before it.
        return num_masked, min(num_spans, num_masked, num_tokens - num_masked)

    def lengths(self, num_tokens):
        num_masked, num_spans = self._counts(num_tokens)
        return num_tokens - num_masked + num_spans, num_masked + num_spans

    def num_sentinels(self, num_tokens):
        return self._counts(num_tokens)[1]


@dataclasses.dataclass(frozen=True)
class MaskedSpan(Noise):
    """Masked sequence to sequence (MASS, Song et al. 2019, section 3.2).

    The encoder reads a mask token for each token of one span, and the decoder predicts only that
    span.
    """

    share: float = 0.5
    masks = True
    alone = True
    frames = False

    def __call__(self, text, pieces, random):
        _, length = self.lengths(len(text.tokens))
        start = int(random.integers(len(text.tokens) - length + 1))
        masked = text.tokens.copy()
        masked[start : start + length] = pieces.mask_id
        target = text.tokens[start : start + length]
        return text._replace(tokens=masked, target=target, start=start)

    def lengths(self, num_tokens):
        return num_tokens, max(round(self.share * num_tokens), 1)


@dataclasses.dataclass(frozen=True)
class Prefix(Noise):
    """Prefix language modeling (Raffel et al. 2020, section 3.2.3): the target follows the source.

    `share` is the share of the source in the text. With 0, the length of the source is drawn
    uniformly.
    """

    share: float = 0.0
    alone = True

    def __call__(self, text, pieces, random):
        num_tokens = len(text.tokens)
        if self.share:
            length = self.lengths(num_tokens)[0]
        else:
            length = random.integers(1, max(num_tokens, 2))
        return Text(text.tokens[:length], text.sentences[:length], text.tokens[length:])

    def lengths(self, num_tokens):
        if not self.share:
            return num_tokens, num_tokens
        length = round(self.share * num_tokens)
        return length, num_tokens - length


def _divided(number: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """Splits a number into `parts` parts of at least 1; all such splits are equally likely."""
    # Distinct inner bounds make all parts at least 1.
    inner = np.sort(random.permutation(number - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], inner, [number]]))


def _with_sentinels(
    tokens: np.ndarray, replaced: np.ndarray, starts: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Returns the tokens with a sentinel instead of each span of replaced ones."""
    tokens = tokens.copy()
    tokens[starts] = ids
    is_kept = ~replaced
    is_kept[starts] = True
    return tokens[is_kept]


# --------------------------------------------------------------------------------------------------
# The sequence of noise functions that a config lists, and its effect on a text, for pictures.
# Noises are applied in the listed order, because they do not commute: a mask may be deleted, but a
# deleted token can't be masked.

KINDS = {
    "masking": Masking,
    "deletion": Deletion,
    "infilling": Infilling,
    "permutation": Permutation,
    "rotation": Rotation,
    "span_corruption": SpanCorruption,
    "mass": MaskedSpan,
    "prefix": Prefix,
}
_FORM = "(name, numbers of its own), as in (('permutation',),('infilling',0.3))"


@dataclasses.dataclass(frozen=True)
class Composition:
    """Noise functions that are applied in order. Without any, the target is the source itself."""

    noises: tuple[Noise, ...]

    @classmethod
    def of(cls, entries: tuple) -> "Composition":
        """Parses `config.task.noises`. Raises UserError for invalid values."""
        noises = tuple(_noise(entry) for entry in entries)
        for entry, noise in zip(entries, noises):
            if noise.alone and len(noises) > 1:
                raise UserError(
                    f"config.task.noises: {entry[0]!r} defines the target and must be alone; "
                    f"here are {len(noises)} noises"
                )
        return cls(noises)

    @property
    def masks(self) -> bool:
        return any(noise.masks for noise in self.noises)

    @property
    def frames(self) -> bool:
        return all(noise.frames for noise in self.noises)

    @property
    def whole_sentences(self) -> bool:
        return any(noise.whole_sentences for noise in self.noises)

    def __call__(self, text: Text, pieces: Pieces, random: np.random.Generator) -> Text:
        for noise in self.noises:
            text = noise(text, pieces, random)
        return text

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the maximum lengths of source and target for a text of `num_tokens` tokens."""
        # The first noise decides, because a noise that changes the length of the target can't be
        # combined with others, and noises that can be combined never lengthen a text.
        return (*self.noises, Noise())[0].lengths(num_tokens)

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of `num_tokens` tokens needs."""
        return sum(noise.num_sentinels(num_tokens) for noise in self.noises)


def _noise(entry: Any) -> Noise:
    """Returns the noise function of one entry of `config.task.noises`."""
    if not isinstance(entry, tuple) or not entry or not isinstance(entry[0], str):
        raise UserError(f"config.task.noises: {entry!r} is not {_FORM}")
    name, *numbers = entry
    if name not in KINDS:
        near = configs.did_you_mean(name, KINDS)
        raise UserError(
            f"config.task.noises: no noise {name!r}{near}; there are: {', '.join(KINDS)}"
        )
    fields = [field.name for field in dataclasses.fields(KINDS[name])]
    if len(numbers) > len(fields) or not {*map(type, numbers)} <= {int, float}:
        takes = ", ".join(fields) or "no numbers"
        raise UserError(f"config.task.noises: {entry!r}: {name} takes {takes}")
    noise = KINDS[name](*numbers)
    for field, number in zip(fields, numbers):
        if field == "share" and not 0 <= number <= 1:
            raise UserError(f"config.task.noises: {entry!r}: the share must be from 0 to 1")
        if field == "mean" and not 1 <= number <= 1000:
            raise UserError(f"config.task.noises: {entry!r}: the mean must be from 1 to 1000")
    return noise


class Piece(NamedTuple):
    """A piece and its index in the text, which is None for a mask or a sentinel."""

    text: str
    position: int | None


def noised_pieces(
    noises: tuple, tokenizer, text: str, *, seed: int = 0, manner: str = "punctuation"
) -> tuple[list[Piece], list[Piece]]:
    """Applies the noises of `config.task.noises` to a text, for pictures.

    Returns the pieces of the source and of the target. `manner` is `config.data.sentences`. Masks
    are written "[MASK]", and sentinels "<0>", "<1>", ...
    """
    encoded = tokenizer.encode(sentences.split(text, manner, exact=True))
    ids = list(itertools.chain.from_iterable(encoded))
    numbers = np.repeat(np.arange(len(encoded)), [len(part) for part in encoded])
    vocabulary = Pieces.of(tokenizer)
    # The noise is applied to the indices of the pieces instead of their ids, so that its output
    # says which piece of the text each piece comes from. The mask and the sentinels are the numbers
    # after the last index.
    indices = np.arange(len(ids))
    mask = len(ids)
    # Sentinels count down from the last number, as in the vocabulary.
    size = mask + 1 + vocabulary.num_sentinels
    index_pieces = Pieces(vocabulary.begins_word[ids], mask, vocabulary.num_sentinels, size)
    noise = Composition.of(noises)
    noised = noise(Text(indices, numbers, indices), index_pieces, np.random.default_rng(seed))
    names = tokenizer.pieces(ids)

    def piece(index: int) -> Piece:
        if index < mask:
            return Piece(names[index], index)
        return Piece("[MASK]" if index == mask else f"<{size - 1 - index}>", None)

    return [*map(piece, noised.tokens.tolist())], [*map(piece, noised.target.tolist())]


# --------------------------------------------------------------------------------------------------
# Rows of noised texts and of the targets that a model reconstructs from them. The noise is drawn
# when a row is read, so that each epoch has other noise and the store has none.


@dataclasses.dataclass(frozen=True)
class Frame:
    """The special tokens before and after a whole text, and the decoder's start token."""

    before: np.ndarray
    after: np.ndarray
    start_id: int

    @classmethod
    def of(cls, tokenizer) -> "Frame":
        *before, end = tokenizer.framed([])
        return cls(np.array(before, np.int64), np.array([end], np.int64), tokenizer.start_id)

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([self.before, ids, self.after])


class Room:
    """Computes how long a text may be so that its source and target fit in a row.

    `lengths` are the lengths of source and target in a row. Raises UserError if not even a text of
    one token fits.
    """

    def __init__(self, lengths: tuple[int, int], noise: Composition, frame: Frame):
        self.lengths = lengths
        # Entry n - 1 of the two lists is the room that a text of n tokens needs on each side. Both
        # grow with n, so `most` finds the longest text by binary search. No text that fits has more
        # tokens than both sides together, because each token is in the source or in the target.
        needs = [noise.lengths(number) for number in range(1, sum(lengths) + 1)]
        self._source = [source + frame.size for source, _ in needs]
        self._target = [target + frame.size * noise.frames for _, target in needs]
        if not self.most(*lengths):
            raise UserError(
                f"config.task.source_length={lengths[0]} and target_length={lengths[1]}: "
                "no room for a text of one token"
            )

    def most(self, source: int, target: int) -> int:
        """Returns the length of the longest text that fits in this room on both sides."""
        return min(
            bisect.bisect_right(self._source, source), bisect.bisect_right(self._target, target)
        )

    def left(self, source: int, target: int, num_tokens: int) -> tuple[int, int]:
        """Returns the room that is left after a text of `num_tokens` tokens."""
        return source - self._source[num_tokens - 1], target - self._target[num_tokens - 1]


class NoisedTexts:
    """Rows of noised texts, which tile the stored text with as many tokens as fit in a row.

    A row is one text. With `by_document`, it has one text for each document that it overlaps, and
    segment ids separate them. Rows consist of whole sentences if the noise needs that. Each epoch
    draws other noise, from `key` (seed, phase, component), the row number and the epoch.

    The keys are the same as in `packing.PackedPairs`.
    """

    def __init__(
        self,
        stored: store.Store,
        room: Room,
        noise: Composition,
        pieces: Pieces,
        frame: Frame,
        *,
        key: tuple[int, int, int],
        by_document: bool,
    ):
        self.store = stored
        self.noise, self.pieces, self.frame = noise, pieces, frame
        self._lengths = room.lengths
        self._key = rows.philox_key(key)
        # The offset of the first token of each sentence, with the number of tokens at the end.
        self._sentences = masking.cumulative(stored.array("sentences"))
        documents = self._sentences[masking.cumulative(stored.array("documents"))]
        # The same for texts and, below, for rows.
        self._texts = documents if by_document else documents[[0, -1]]
        sentences = self._sentences if noise.whole_sentences else None
        ends = _row_ends(self._texts.tolist(), room, sentences)
        self._rows = np.fromiter(itertools.chain([0], ends), self._sentences.dtype)

    def __len__(self) -> int:
        return len(self._rows) - 1

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        spans = [self._rows[number : number + 2] for number, _ in numbers]
        return [
            self._row(tokens.astype(np.int64), span, rows.generator(self._key, number, epoch))
            for tokens, span, (number, epoch) in zip(self.store.read(spans), spans, numbers)
        ]

    def _row(self, tokens: np.ndarray, span: np.ndarray, random: np.random.Generator) -> Row:
        """Returns the row for the tokens of a span of the store."""
        is_start = np.zeros(len(tokens), np.int64)
        is_start[masking.inside(self._sentences, span)] = 1
        sentences = np.cumsum(is_start)
        bounds = [0, *masking.inside(self._texts, span).tolist(), len(tokens)]
        texts = []
        for start, stop in itertools.pairwise(bounds):
            ids = tokens[start:stop]
            text = Text(ids, sentences[start:stop], ids)
            texts.append(self.noise(text, self.pieces, random))
        return self._assembled(texts)

    def _assembled(self, texts: list[Text]) -> Row:
        sources = [self.frame(text.tokens) for text in texts]
        if self.noise.frames:
            targets = [self.frame(text.target) for text in texts]
        else:
            targets = [text.target for text in texts]
        lengths = [[len(ids) for ids in side] for side in (sources, targets)]
        row = packing.assembled(
            (np.concatenate(sources), lengths[0]),
            (np.concatenate(targets), lengths[1]),
            self._lengths,
            self.frame.start_id,
        )
        if not self.noise.frames:
            # A target that is a part of its text keeps the positions that it has in the text, which
            # tell the decoder what part it is to predict.
            starts = [text.start + len(self.frame.before) for text in texts]
            row["target_positions"][: sum(lengths[1])] += np.repeat(starts, lengths[1])
        return row


def _row_ends(texts: list[int], room: Room, sentences: np.ndarray | None) -> Iterator[int]:
    """Yields the end of each row, as an offset into the stored tokens.

    `texts` and `sentences` are the offsets of their first tokens, with the number of tokens at the
    end. With `sentences`, rows consist of whole sentences.
    """
    start, number = 0, 1
    # A loop, because the room of a row depends on how many texts it has, and so does the start of
    # the next row.
    while start < texts[-1]:
        offset, left = start, room.lengths
        # A row takes one text after the other, as long as there is room. Texts are not reordered to
        # fill rows better, because rows tile the stored text: a row is then two offsets, and needs
        # one read.
        while offset < texts[-1] and (most := room.most(*left)):
            end = min(offset + most, texts[number])
            is_cut = end < texts[number]
            if is_cut and sentences is not None:
                whole = sentences.item(bisect.bisect_right(sentences, end) - 1)
                # No sentence fits in what is left of the row, which therefore ends here.
                if whole <= offset and offset > start:
                    break
                # A sentence that is longer than a whole row is split.
                end = whole if whole > offset else end
            left = room.left(*left, end - offset)
            offset = end
            if is_cut:
                break
            number += 1
        start = offset
        yield offset


# --------------------------------------------------------------------------------------------------
# The rows of denoising tasks: the texts of `config.data` with the noise of `config.task.noises`.
# The sizes of rows follow from the noise, whose sources and targets have other lengths than the
# text.


@dataclasses.dataclass(frozen=True)
class DenoisingRows(MixedTexts):
    """Rows with sources and targets of these `lengths`, from one text or a mixture of texts."""

    lengths: tuple[int, int]
    noise: Composition

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenizes the texts."""

        def component(text, name: str, number: int) -> NoisedTexts:
            return self._component(text, tokenizer.source, name, (0, number))

        return self.train_rows(component)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        # Splits count as phases, so that no two of them draw the same noise.
        key = ("train", "valid", "test").index(split), 0
        return rows.EvalRows(self._component(self.text(split), tokenizer.source, split, key))

    def _component(self, text, tokenizer, name: str, key: tuple[int, int]) -> NoisedTexts:
        """Returns the rows of a text. `key` is (phase, component), where splits count as phases."""
        data = self.config.data
        stored = masking.tokenised(text, data, tokenizer, name, exact=True)
        frame = Frame.of(tokenizer)
        return NoisedTexts(
            stored,
            Room(self.lengths, self.noise, frame),
            self.noise,
            Pieces.of(tokenizer),
            frame,
            key=(data.seed, *key),
            by_document=data.mask_documents,
        )

    def check(self, tokenizer, vocab_size: int) -> None:
        """Raises UserError if the noise needs a mask or sentinels that the vocabulary lacks.

        `vocab_size` is the vocabulary size of the model.
        """
        pieces = Pieces.of(tokenizer)
        if self.noise.masks and pieces.mask_id is None:
            raise UserError(
                f"config.data.tokenizer={self.config.data.tokenizer}: this tokenizer has no mask, "
                f"which config.task.noises={self.config.task.noises} writes; wordpiece and "
                "roberta_bpe have one"
            )
        room = Room(self.lengths, self.noise, Frame.of(tokenizer))
        num_needed = self.noise.num_sentinels(room.most(*self.lengths))
        if num_needed > pieces.num_sentinels:
            raise UserError(
                f"config.task.noises={self.config.task.noises}: a row has up to {num_needed} "
                f"spans, and there are {pieces.num_sentinels} sentinels; set a longer mean or a "
                "shorter config.task.source_length"
            )
        if num_needed and pieces.size > vocab_size:
            raise UserError(
                f"config.model.vocab_size={vocab_size}: must be at least {pieces.size}, the "
                f"tokenizer's {tokenizer.vocab_size} pieces and {pieces.num_sentinels} sentinels"
            )
