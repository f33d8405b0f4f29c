"""Rows of noised texts and of the texts that a model reconstructs from them."""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import packed_pairs, rows, sentence_pairs, store
from transformer_jax.data.noise import Composition, Pieces, Text
from transformer_jax.data.rows import Row


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

    Keys: those of `packed_pairs.PackedPairs`.
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
        self._sentences = sentence_pairs.cumulative(stored.array("sentences"))
        documents = self._sentences[sentence_pairs.cumulative(stored.array("documents"))]
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
        begins[sentence_pairs.inside(self._sentences, span)] = 1
        sentences = np.cumsum(begins)
        bounds = [0, *sentence_pairs.inside(self._texts, span).tolist(), len(tokens)]
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
        row = packed_pairs.assembled(
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
