"""Denoising: the noises of a text, and rows of noised texts with what a model reconstructs."""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.configuration import coercion
from transformer_jax.data import masking, packing, rows, sentences, store
from transformer_jax.data.rows import Row
from transformer_jax.data.texts import MixedTexts

# --------------------------------------------------------------------------------------------------
# A text with its source and its target, and the interface of noises.

# The number of sentinels of a tokenizer that declares none, as many as T5 has. They follow its
# pieces.
NUM_SENTINELS = 100


class Text(NamedTuple):
    """The two sides of a text, without the tokens that frame it.

    Attributes:
      tokens: (N,), which the encoder reads.
      sentences: (N,) the number of each token's sentence.
      target: (T,), which the decoder writes.
      start: the place of the target in the text; None: the target is framed as a whole text is.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    target: np.ndarray
    start: int | None = None


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a vocabulary, as noises need them.

    Attributes:
      begins_word: (V,) bool.
      mask_id: None where the tokenizer has no mask.
      num_sentinels: of the tokenizer, or beyond its pieces.
      size: the number of pieces, with sentinels. Sentinel k has the id size - 1 - k.
    """

    begins_word: np.ndarray
    mask_id: int | None
    num_sentinels: int
    size: int

    @classmethod
    def of(cls, tokenizer) -> "Pieces":
        begins_word = ~tokenizer.continues | tokenizer.special
        added = 0 if tokenizer.num_sentinels else NUM_SENTINELS
        num_sentinels = tokenizer.num_sentinels + added
        return cls(begins_word, tokenizer.mask_id, num_sentinels, tokenizer.vocab_size + added)


class Noise:
    """A noise. Its fields are its numbers in `config.task.noises`.

    Attributes:
      masks: whether it needs a mask in the vocabulary.
      alone: whether it decides the target, and no noise stands beside it.
      frames: whether the target is framed, as a whole text is.
      whole_sentences: whether it needs texts of whole sentences.
    """

    masks: bool = False
    alone: bool = False
    frames: bool = True
    whole_sentences: bool = False

    def __call__(self, text: Text, pieces: Pieces, random: np.random.Generator) -> Text:
        raise NotImplementedError

    def lengths(self, num_tokens: int) -> tuple[int, int]:
        """Returns the most tokens of both sides, for a text of so many tokens."""
        return num_tokens, num_tokens

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of so many tokens needs."""
        return 0


# --------------------------------------------------------------------------------------------------
# The noises of BART (Lewis et al. 2019, section 2.2): they change the source alone.


@dataclasses.dataclass(frozen=True)
class Masking(Noise):
    """Token masking: random tokens become masks."""

    share: float = 0.15
    masks = True

    def __call__(self, text, pieces, random):
        masked = text.tokens.copy()
        masked[_chosen(len(masked), self.share, random)] = pieces.mask_id
        return text._replace(tokens=masked)


@dataclasses.dataclass(frozen=True)
class Deletion(Noise):
    """Token deletion: the model must find the places of the tokens that are missing."""

    share: float = 0.15

    def __call__(self, text, pieces, random):
        deleted = _chosen(len(text.tokens), self.share, random)
        return text._replace(
            tokens=np.delete(text.tokens, deleted), sentences=np.delete(text.sentences, deleted)
        )


@dataclasses.dataclass(frozen=True)
class Infilling(Noise):
    """Text infilling: each span of words becomes one mask. A span of no word inserts a mask.

    The numbers of words are from a Poisson distribution. As in fairseq, they are drawn until their
    sum reaches the share of the words, and the last one is cut to that sum. The last one is longer
    instead where there are as many spans as words to mask, so that no text grows. Spans do not
    overlap.
    """

    share: float = 0.3
    mean: float = 3.0
    masks = True

    def __call__(self, text, pieces, random):
        begins = np.ones(len(text.tokens) + 1, bool)
        begins[1:-1] = pieces.begins_word[text.tokens[1:]]
        # The first token of each word, then the number of tokens.
        bounds = np.flatnonzero(begins)
        words = self._lengths(_count(len(bounds) - 1, self.share, random), random)
        num_others = len(bounds) - 1 - words.sum()
        # The other words and the spans are in random order.
        slots = random.permutation(num_others + len(words))[: len(words)]
        slots.sort()
        first_words = slots - np.arange(len(words)) + np.cumsum(words) - words
        starts, ends = bounds[first_words], bounds[first_words + words]
        return _replaced(text, starts, ends - starts, pieces.mask_id)

    def _lengths(self, num_words: int, random: np.random.Generator) -> np.ndarray:
        """Returns the number of words of each span, `num_words` in all."""
        if not num_words:
            return np.zeros(0, np.int64)
        lengths = random.poisson(self.mean, num_words)
        sums = np.cumsum(lengths)
        last = min(int(np.searchsorted(sums, num_words)), num_words - 1)
        lengths[last] += num_words - sums[last]
        return lengths[: last + 1]


@dataclasses.dataclass(frozen=True)
class Permutation(Noise):
    """Sentence permutation: the sentences are in random order."""

    whole_sentences = True

    def __call__(self, text, pieces, random):
        begins = text.sentences[1:] != text.sentences[:-1]
        parts = np.cumsum(np.concatenate([[0], begins]))[: len(text.sentences)]
        places = random.permutation(begins.sum() + 1)[parts]
        order = np.argsort(places, kind="stable")
        return text._replace(tokens=text.tokens[order], sentences=text.sentences[order])


@dataclasses.dataclass(frozen=True)
class Rotation(Noise):
    """Document rotation: the text begins with a random token, and its beginning follows the end."""

    def __call__(self, text, pieces, random):
        shift = -random.integers(max(len(text.tokens), 1))
        return text._replace(
            tokens=np.roll(text.tokens, shift), sentences=np.roll(text.sentences, shift)
        )


def _count(number: int, share: float, random: np.random.Generator) -> int:
    """Returns the share of a number, rounded at random so that its mean is exact."""
    return int(number * share + random.random())


def _chosen(number: int, share: float, random: np.random.Generator) -> np.ndarray:
    """Returns random numbers below `number`, each at most once."""
    return random.permutation(number)[: _count(number, share, random)]


def _replaced(text: Text, starts: np.ndarray, lengths: np.ndarray, mask_id: int) -> Text:
    """Returns the text with a mask in place of each span of tokens."""
    num_tokens = len(text.tokens)
    opened = np.bincount(starts, minlength=num_tokens + 1)
    closed = np.bincount(starts + lengths, minlength=num_tokens + 1)
    outside = np.flatnonzero(np.cumsum(opened - closed)[:-1] == 0)
    masks = starts - np.cumsum(lengths) + lengths + np.arange(len(starts))
    is_mask = np.zeros(len(outside) + len(starts), bool)
    is_mask[masks] = True
    # The token that each one comes from; an insertion belongs to the sentence that it precedes.
    origins = np.empty(len(is_mask), np.int64)
    origins[~is_mask] = outside
    origins[is_mask] = np.minimum(starts, num_tokens - 1)
    tokens = text.tokens[origins]
    tokens[is_mask] = mask_id
    return text._replace(tokens=tokens, sentences=text.sentences[origins])


# --------------------------------------------------------------------------------------------------
# Noises that also decide the target: span corruption, the span of MASS, and the prefix.


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Noise):
    """Span corruption (Raffel et al. 2020, section 3.1.4): each span becomes a sentinel.

    The target is the spans, each after its sentinel. The numbers of spans and of their tokens are
    those of T5's code, `random_spans_noise_mask`; all divisions into spans are equally likely. The
    text begins with a token that stays and ends with a span.
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
        # The bounds of unmasked and masked spans in turn.
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
        """Returns the numbers of masked tokens and of spans."""
        num_masked = min(max(round(num_tokens * self.share), 1), num_tokens - 1)
        num_spans = max(round(num_masked / self.mean), 1)
        return num_masked, min(num_spans, num_masked, num_tokens - num_masked)

    def lengths(self, num_tokens):
        num_masked, num_spans = self._counts(num_tokens)
        return num_tokens - num_masked + num_spans, num_masked + num_spans

    def num_sentinels(self, num_tokens):
        return self._counts(num_tokens)[1]


@dataclasses.dataclass(frozen=True)
class MaskedSpan(Noise):
    """The masked span of MASS (Song et al. 2019, section 3.2): the decoder writes the span alone.

    The encoder reads a mask for each of its tokens.
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
    """Prefix language modelling (Raffel et al. 2020, section 3.2.3): the target follows the source.

    `share` is that of the source. 0 draws its length, all lengths equally likely.
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
    """Returns the sizes of `parts` parts of a number, at least 1 each; all are equally likely."""
    inner = np.sort(random.permutation(number - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], inner, [number]]))


def _with_sentinels(
    tokens: np.ndarray, replaced: np.ndarray, starts: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """Returns the tokens with a sentinel in place of each span of replaced ones."""
    tokens = tokens.copy()
    tokens[starts] = ids
    stays = ~replaced
    stays[starts] = True
    return tokens[stays]


# --------------------------------------------------------------------------------------------------
# The noises that a config lists, one after the other, and the pieces of a noised text.

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
    """Noises one after the other. Without noises, the target is a copy of the source."""

    noises: tuple[Noise, ...]

    @classmethod
    def of(cls, entries: tuple) -> "Composition":
        """Returns the noises of `config.task.noises`. Raises UserError for other values."""
        noises = tuple(_noise(entry) for entry in entries)
        for entry, noise in zip(entries, noises):
            if noise.alone and len(noises) > 1:
                raise UserError(
                    f"config.task.noises: {entry[0]!r} decides the target and stands alone; "
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
        """Returns the most tokens of both sides, for a text of so many tokens."""
        return (*self.noises, Noise())[0].lengths(num_tokens)

    def num_sentinels(self, num_tokens: int) -> int:
        """Returns the number of sentinels that a text of so many tokens needs."""
        return sum(noise.num_sentinels(num_tokens) for noise in self.noises)


def _noise(entry: Any) -> Noise:
    """Returns the noise of an entry of `config.task.noises`."""
    if not isinstance(entry, tuple) or not entry or not isinstance(entry[0], str):
        raise UserError(f"config.task.noises: {entry!r} is not {_FORM}")
    name, *numbers = entry
    if name not in KINDS:
        near = coercion.near(name, KINDS)
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
    """A piece, and its place in the text; None for a mask or a sentinel."""

    text: str
    place: int | None


def noised_pieces(
    noises: tuple, tokenizer, text: str, *, seed: int = 0, manner: str = "punctuation"
) -> tuple[list[Piece], list[Piece]]:
    """Returns the source and the target of a text with the noises of `config.task.noises`, piece by
    piece, for pictures.

    `manner` is `config.data.sentences`. Masks are written "[MASK]", sentinels "<0>", "<1>", ...
    """
    encoded = tokenizer.encode(sentences.split(text, manner, exact=True))
    ids = list(itertools.chain.from_iterable(encoded))
    numbers = np.repeat(np.arange(len(encoded)), [len(part) for part in encoded])
    of_tokenizer = Pieces.of(tokenizer)
    # The noise reads places, which tell where each piece comes from.
    places = np.arange(len(ids))
    mask = len(ids)
    size = mask + 1 + of_tokenizer.num_sentinels
    of_places = Pieces(of_tokenizer.begins_word[ids], mask, of_tokenizer.num_sentinels, size)
    noise = Composition.of(noises)
    noised = noise(Text(places, numbers, places), of_places, np.random.default_rng(seed))
    names = tokenizer.pieces(ids)

    def piece(place: int) -> Piece:
        if place < mask:
            return Piece(names[place], place)
        return Piece("[MASK]" if place == mask else f"<{size - 1 - place}>", None)

    return [*map(piece, noised.tokens.tolist())], [*map(piece, noised.target.tolist())]


# --------------------------------------------------------------------------------------------------
# Rows of noised texts and of the texts that a model reconstructs from them.


@dataclasses.dataclass(frozen=True)
class Frame:
    """The ids around a whole text, and the id that a decoder reads first."""

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
    """The tokens of a text that a row has room for. `lengths` are those of a row's two sides."""

    def __init__(self, lengths: tuple[int, int], noise: Composition, frame: Frame):
        self.lengths = lengths
        needs = [noise.lengths(number) for number in range(1, sum(lengths) + 1)]
        self._source = [source + frame.size for source, _ in needs]
        self._target = [target + frame.size * noise.frames for _, target in needs]
        if not self.most(*lengths):
            raise UserError(
                f"config.task.source_length={lengths[0]} and target_length={lengths[1]}: "
                "no room for a text of one token"
            )

    def most(self, source: int, target: int) -> int:
        """Returns the most tokens of a text that both sides have room for."""
        return min(
            bisect.bisect_right(self._source, source), bisect.bisect_right(self._target, target)
        )

    def left(self, source: int, target: int, num_tokens: int) -> tuple[int, int]:
        """Returns the room that a text of so many tokens leaves."""
        return source - self._source[num_tokens - 1], target - self._target[num_tokens - 1]


class NoisedTexts:
    """Rows of noised texts. They tile the text with as many tokens as both sides have room for.

    A row is one text. With `by_document`, it holds a text of each document that it has a part of,
    told apart by segment ids. It has whole sentences where the noise needs them. Each epoch draws
    its noise anew, from `key` (seed, phase, component), the row's number and the epoch.

    Keys: those of `packing.PackedPairs`.
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
        # The first token of each sentence, then the number of tokens.
        self._sentences = masking.cumulative(stored.array("sentences"))
        documents = self._sentences[masking.cumulative(stored.array("documents"))]
        # The first token of each text, then the number of tokens.
        self._texts = documents if by_document else documents[[0, -1]]
        sentences = self._sentences if noise.whole_sentences else None
        ends = _row_ends(self._texts.tolist(), room, sentences)
        # The first token of each row, then the number of tokens.
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
        """Returns the row of the tokens of a span of the store."""
        begins = np.zeros(len(tokens), np.int64)
        begins[masking.inside(self._sentences, span)] = 1
        sentences = np.cumsum(begins)
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
            starts = [text.start + len(self.frame.before) for text in texts]
            row["target_positions"][: sum(lengths[1])] += np.repeat(starts, lengths[1])
        return row


def _row_ends(texts: list[int], room: Room, sentences: np.ndarray | None) -> Iterator[int]:
    """Yields the end of each row in the tokens.

    `texts` and `sentences` are the first tokens of each, and the number of tokens. With
    `sentences`, rows hold whole sentences.
    """
    begin, number = 0, 1
    while begin < texts[-1]:
        place, left = begin, room.lengths
        while place < texts[-1] and (most := room.most(*left)):
            end = min(place + most, texts[number])
            is_cut = end < texts[number]
            if is_cut and sentences is not None:
                whole = sentences.item(bisect.bisect_right(sentences, end) - 1)
                if whole <= place and place > begin:
                    break
                # A sentence that is longer than a row is divided.
                end = whole if whole > place else end
            left = room.left(*left, end - place)
            place = end
            if is_cut:
                break
            number += 1
        begin = place
        yield place


# --------------------------------------------------------------------------------------------------
# The rows of denoising: the texts of `config.data` with the noise of `config.task.noises`.


@dataclasses.dataclass(frozen=True)
class DenoisingRows(MixedTexts):
    """Rows of `lengths`, source and target tokens, from a text or a mixture of training texts."""

    lengths: tuple[int, int]
    noise: Composition

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenises the texts."""

        def component(text, name: str, number: int) -> NoisedTexts:
            return self._component(text, tokenizer.source, name, (0, number))

        return self.train_rows(component)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        place = ("train", "valid", "test").index(split), 0
        return rows.EvalRows(self._component(self.text(split), tokenizer.source, split, place))

    def _component(self, text, tokenizer, name: str, place: tuple[int, int]) -> NoisedTexts:
        """Returns the rows of a text. `place` distinguishes its random numbers, as a phase does."""
        data = self.config.data
        stored = masking.tokenised(text, data, tokenizer, name, exact=True)
        frame = Frame.of(tokenizer)
        return NoisedTexts(
            stored,
            Room(self.lengths, self.noise, frame),
            self.noise,
            Pieces.of(tokenizer),
            frame,
            key=(data.seed, *place),
            by_document=data.mask_documents,
        )

    def check(self, tokenizer, vocab_size: int) -> None:
        """Raises UserError for a tokenizer without the mask or the sentinels that the noise needs.

        `vocab_size` is that of the model.
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
