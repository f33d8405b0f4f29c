"""Translating lines of text by beam search, long lines in parts."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from transformer_jax.config import UserError
from transformer_jax.data import long_lines
from transformer_jax.data.long_lines import LongLines
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.distributed.placement import Placement
from transformer_jax.inference.batching import chunks, in_order, longest_first
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.inference.stream import Stream

WAYS = ("split", "truncate", "skip", "refuse")  # to treat a line that is too long

# Batches of lines that are held at a time and sorted by length together.
_SORTED_BATCHES = 32


class Hypothesis(NamedTuple):
    text: str
    # log-probability over the length penalty; for a line in parts, the sum over its parts
    score: float


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates lines with a SequenceToSequence model. See SequenceToSequenceUse.translate."""

    model: Any  # the Linen module
    tokenizers: Any  # source and target
    decode: Any  # config.decode
    mesh: Any  # config.mesh
    source_length: int = 2**30  # most tokens of a source with its end, as in training
    encode: Callable[[list[str]], list[list[int]]] | None = None  # None: the tokenizer's

    @property
    def _room(self) -> int:
        """The positions of a source, its end included, that leave room for the output."""
        return self.model.window - (0 if self.decode.max_length else self.decode.max_extra)

    @property
    def max_source(self) -> int:
        """The number of source tokens that can be translated at once."""
        frame = len(self.tokenizers.source.framed([]))
        return min(self._room, self.source_length) - frame

    def __call__(
        self, params, lines: Iterable[str], n_best: int, long: str
    ) -> Iterator[list[Hypothesis]]:
        if n_best > self.decode.beam:
            raise UserError(
                f"config.decode.beam={self.decode.beam}: must be at least {n_best}, "
                "the number of translations of each line"
            )
        key = f"config.task.source_length={self.source_length} less the end"
        if self._room <= self.source_length:
            ends = "the end" if self.decode.max_length else "config.decode.max_extra and the end"
            key = f"config.model.max_length={self.model.max_length} less {ends}"
        limit = f"the {self.max_source} tokens that can be translated at once ({key})"
        return self._translations(params, lines, n_best, LongLines(long, WAYS, limit))

    def stream(self, params, n_best: int) -> Stream:
        """Returns the beam search of `config.decode`; its inputs are source ids with their end.

        It runs on the devices of `params`.
        """
        target = self.tokenizers.target
        marks = dict(first=_first(target), never=tuple(target.never))
        search = BeamSearch.of(self.decode, target.eos_id, n_best, **marks)
        placement = Placement.of(params, self.mesh).decoding()
        places = placement.rows(self.decode.batch)
        return Stream(self.model, search, places, target.start_id, placement)

    def _translations(self, params, lines, n_best, treatment) -> Iterator[list[Hypothesis]]:
        stream = self.stream(params, n_best)
        params = self.model.for_decoding(params)
        with treatment:
            for chunk in chunks(enumerate(lines, 1), _SORTED_BATCHES * self.decode.batch):
                parts_of_lines = list(self._parts(chunk, treatment))
                parts = list(itertools.chain.from_iterable(parts_of_lines))
                translations = in_order(self._translated(params, stream, parts))
                for parts_of_line in parts_of_lines:
                    yield _joined(list(itertools.islice(translations, len(parts_of_line))), n_best)

    def _parts(self, chunk, treatment: LongLines) -> Iterator[list[list[int]]]:
        """Yields the ids of each numbered line in parts that are translated one by one.

        An empty line has no part, a long line several, and any other line one.
        """
        encode = self.encode or self.tokenizers.source.encode
        for (number, line), ids in zip(chunk, encode([line for _, line in chunk])):
            if len(ids) <= self.max_source:
                yield [ids] if ids else []
                continue
            treatment.add(number)
            match treatment.way:
                case "split":
                    yield long_lines.split(line, encode, self.max_source)
                case "truncate":
                    yield [ids[: self.max_source]]
                case "skip":
                    yield []

    def _translated(
        self, params, stream: Stream, parts: list[list[int]]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yields (number of a part, its hypotheses) as they are done, the longest parts first."""
        order = longest_first([len(ids) for ids in parts])
        inputs = [self.tokenizers.source.framed(parts[number]) for number in order]
        limits = [most_tokens(self.decode, len(ids)) for ids in inputs]
        target = self.tokenizers.target
        for place, outputs in stream(params, inputs, limits):
            ids = [row[len(_first(target)) :] for row in outputs.tokens(target.eos_id)]
            texts = target.decode(ids)
            yield order[place], list(map(Hypothesis, texts, map(float, outputs.scores)))


def check_lengths(model: Any, decode: Any) -> None:
    """Raises UserError for lengths of config.decode that no position of the model has room for."""
    if decode.max_length > model.window:
        raise UserError(
            f"config.decode.max_length={decode.max_length}: must be at most "
            f"config.model.max_length={model.max_length}"
        )
    if not decode.max_length and model.window - decode.max_extra < 2:
        raise UserError(
            f"config.decode.max_extra={decode.max_extra}: must be at most "
            f"config.model.max_length - 2 = {model.max_length - 2}"
        )


def most_tokens(decode: Any, length: int) -> int:
    """Returns the most tokens of an output, for an input of `length`, both with their ends."""
    return decode.max_length or length + decode.max_extra


def _first(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the tokens that each whole text begins with."""
    return tuple(tokenizer.framed([])[:-1])


def _joined(parts: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Returns the hypotheses of a line: the n-th joins the n-th hypotheses of its parts."""
    if not parts:
        return [Hypothesis("", 0.0)] * n_best
    joined = []
    for nth in zip(*parts):
        text = " ".join(part.text for part in nth if part.text)
        joined.append(Hypothesis(text, sum(part.score for part in nth)))
    return joined
