"""The uses of a trained encoder-decoder: translation, and outputs compared with references."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import Renamed, UserError, renamed_in
from transformer_jax.data import arguments
from transformer_jax.data.arguments import LongLines
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.distributed.sharding import Placement
from transformer_jax.inference import attention
from transformer_jax.inference.batching import chunks, in_order, longest_first
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.inference.encoder import StatesUse
from transformer_jax.inference.log_probabilities import BlankSource, Scoring, TextScores
from transformer_jax.inference.stream import Stream
from transformer_jax.inference.token_constraints import end_ids
from transformer_jax.pictures.attention_maps import Attended
from transformer_jax.pictures.progress import say, track
from transformer_jax.scores import predictions
from transformer_jax.scores.predictions import Measure

# --------------------------------------------------------- translating lines of text by beam search

WAYS = ("split", "truncate", "skip", "refuse")  # to treat a line that is too long

# Batches of lines that are read ahead and sorted by length together: sorting saves padding, and
# reading ahead only so far bounds the memory and the wait for the first line.
_SORTED_BATCHES = 32


class Hypothesis(NamedTuple):
    text: str
    # log-probability divided by the length penalty; for a line in parts, the sum over its parts
    score: float


@dataclasses.dataclass(frozen=True)
class Translator:
    """Translates lines with a SequenceToSequence model. See SequenceToSequenceUse.translate."""

    model: Any  # the Linen module
    tokenizers: Any  # source and target
    decode: Any  # config.decode
    mesh: Any  # config.mesh
    source_length: int = 2**30  # maximum length of a source in training, end token included
    encode: Callable[[list[str]], list[list[int]]] | None = None  # None: the tokenizer's

    @property
    def _ends(self) -> tuple[int, ...]:
        return end_ids(self.decode, self.tokenizers.target)

    @property
    def _room(self) -> int:
        """The maximum length of a source, end token included, that leaves room for the output."""
        # With decode.max_length the output's limit is fixed. Otherwise it is max_extra tokens more
        # than the source's length, and must fit in the window, too.
        return self.model.window - (0 if self.decode.max_length else self.decode.max_extra)

    @property
    def max_source(self) -> int:
        """The maximum length of a source that is translated at once, without special tokens."""
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
        # The message names the limit that binds, because only raising that one helps.
        key = f"config.task.source_length={self.source_length} less the end"
        if self._room <= self.source_length:
            ends = "the end" if self.decode.max_length else "config.decode.max_extra and the end"
            key = f"config.model.max_length={self.model.max_length} less {ends}"
        limit = f"the {self.max_source} tokens that can be translated at once ({key})"
        return self._translations(params, lines, n_best, LongLines(long, WAYS, limit))

    def stream(self, params, n_best: int) -> Stream:
        """Returns the beam search of `config.decode`, on the devices of `params`.

        Its inputs are source ids with their end token.
        """
        target = self.tokenizers.target
        first = self.decode.force_start
        constraints = dict(
            first=_first(target) if first is None else tuple(first), never=tuple(target.never)
        )
        search = BeamSearch.of(self.decode, self._ends, n_best, **constraints)
        placement = Placement.of(params, self.mesh).decoding()
        num_rows = placement.rows(self.decode.batch)
        return Stream(self.model, search, num_rows, target.start_id, placement)

    def _translations(self, params, lines, n_best, treatment) -> Iterator[list[Hypothesis]]:
        stream = self.stream(params, n_best)
        # Once and not for each chunk, because it converts all parameters.
        params = self.model.for_decoding(params)
        with treatment:
            for chunk in chunks(enumerate(lines, 1), _SORTED_BATCHES * self.decode.batch):
                parts_of_lines = list(self._parts(chunk, treatment))
                parts = list(itertools.chain.from_iterable(parts_of_lines))
                translations = in_order(self._translated(params, stream, parts))
                for parts_of_line in parts_of_lines:
                    yield _joined(list(itertools.islice(translations, len(parts_of_line))), n_best)

    def _parts(self, chunk, treatment: LongLines) -> Iterator[list[list[int]]]:
        """Yields, for each numbered line, the ids of the parts that are translated separately.

        An empty line has no parts, a long line has several, and any other line has one.
        """
        encode = self.encode or self.tokenizers.source.encode
        for (number, line), ids in zip(chunk, encode([line for _, line in chunk])):
            if len(ids) <= self.max_source:
                yield [ids] if ids else []
                continue
            treatment.add(number)
            match treatment.way:
                case "split":
                    yield arguments.split(line, encode, self.max_source)
                case "truncate":
                    yield [ids[: self.max_source]]
                case "skip":
                    yield []

    def _translated(
        self, params, stream: Stream, parts: list[list[int]]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yields (index of a part, its hypotheses) as they are done, the longest parts first."""
        order = longest_first([len(ids) for ids in parts])
        inputs = [self.tokenizers.source.framed(parts[number]) for number in order]
        limits = [most_tokens(self.decode, len(ids)) for ids in inputs]
        target = self.tokenizers.target
        # Cut off, because the special tokens that the search forces at the start of an output are
        # no part of its text.
        start = len(_first(target)) if self.decode.force_start is None else 0
        for index, outputs in stream(params, inputs, limits):
            ids = [row[start:] for row in outputs.tokens(self._ends)]
            texts = target.decode(ids)
            yield order[index], list(map(Hypothesis, texts, map(float, outputs.scores)))


def check_lengths(model: Any, decode: Any) -> None:
    """Raises UserError for lengths in config.decode that do not fit in the model's window."""
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
    """Returns the maximum length of an output, for an input of `length`.

    Both lengths include the end token.
    """
    return decode.max_length or length + decode.max_extra


def _first(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Returns the special tokens in front of each text."""
    return tuple(tokenizer.framed([])[:-1])


def _joined(parts: list[list[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Returns the hypotheses of a line, the n-th of which joins the n-th ones of its parts."""
    if not parts:
        return [Hypothesis("", 0.0)] * n_best
    joined = []
    for nth in zip(*parts):
        text = " ".join(part.text for part in nth if part.text)
        joined.append(Hypothesis(text, sum(part.score for part in nth)))
    return joined


# --------------------------------------------- the uses of a task whose model is an encoder-decoder


class SequenceToSequenceUse(TextScores, StatesUse):
    """The methods of a task whose model is of the kind SequenceToSequence.

    The tokenizer of such a task is a pair with the attributes `source` and `target`.
    """

    @property
    def scoring(self) -> Scoring:
        return BlankSource(self.model, self.tokenizer)

    @property
    def text_tokenizer(self):
        return self.tokenizer.source

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def translate(
        self, params, lines: Iterable[str], n_best: int = 1, *, long: str | None = None
    ) -> Iterator[list[Hypothesis]]:
        """Yields the `n_best` translations of each line, in order. An empty line stays empty.

        `config.decode` has the options of the beam search; a beam of 1 is greedy search. Lines are
        read as they are needed, so `lines` may be a stream of any length.

        `long` decides what happens to a line that is longer than `config.model.max_length` allows.
        "split", the default, translates it sentence by sentence, and a sentence that is still too
        long in parts that end at a space; it joins their n-th translations and adds their scores.
        "truncate" cuts the line, "skip" leaves its translation empty, and "refuse" raises
        UserError. A warning at the end lists the numbers of these lines.

        Raises UserError if `n_best` exceeds the number of beams.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/translation")
          >>> [best] = task.translate(params, ["the house is small"], n_best=2)
          >>> isinstance(best[0].text, str), best[0].score >= best[1].score
          (True, True)
        """
        return self.translator(params, arguments.as_texts(lines), n_best, long or "split")

    def translated_pairs(
        self, params, pairs: Iterable[tuple[str, str]], count: int | None = None
    ) -> tuple[list[str], list[str]]:
        """Returns (translations, references) of the first `count` pairs, or of all if it is None.

        A sentence that is too long has an empty translation.
        """
        inputs, references = map(list, zip(*itertools.islice(pairs, count)))
        max_tokens = self.translator.max_source
        is_long = [len(ids) > max_tokens for ids in self.tokenizer.source.encode(inputs)]
        if any(is_long):
            say(
                f"{sum(is_long)} sentences are longer than the {max_tokens} tokens that can be "
                "translated: their translations count as empty"
            )
            # Kept as an empty line, so that translations and references stay pairs.
            inputs = ["" if long else line for line, long in zip(inputs, is_long)]
        tracked = track(inputs, "translating", len(inputs))
        return [best[0].text for best in self.translate(params, tracked)], references

    def stream(self, params, n_best: int) -> Stream:
        """Returns the beam search of `config.decode`, on the devices of `params`.

        Its inputs are source ids with their end token.
        """
        return self.translator.stream(params, n_best)

    @property
    def translator(self) -> Translator:
        model = self.model.limited_to(self.tokenizer.target, self.config.data)
        return Translator(model, self.tokenizer, self.config.decode, self.config.mesh)

    def attention(
        self,
        params,
        source: str,
        target: str | None = None,
        kind: str = "cross",
        *,
        pieces: bool = False,
    ) -> Attended:
        """Returns the attention weights between the words of a translation.

        With `pieces`, they are between its tokens. `target` is the model's own translation by
        default. `kind` is "cross" (the translation attends to the source), "decoder" (the
        translation attends to itself) or "encoder" (the source attends to itself). End tokens are
        included. A query of the decoder is labeled with the word that it predicts, and a key with
        the word that the decoder has read there. Raises UserError for a text longer than
        `config.model.max_length`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/translation")
          >>> found = task.attention(params, "the house is small", "das ist", kind="cross")
          >>> found.keys, found.weights.shape[-2:]
          (['the', 'house', 'is', 'small', '</s>'], (3, 5))
        """
        if target is None:
            target = ""
            # The encoder does not see a translation, so none is computed for its attention.
            if kind != "encoder":
                target = next(self.translate(params, [source], long="refuse"))[0].text
        return attention.in_translation(
            self.model, params, self.tokenizer, (source, target), kind=kind, pieces=pieces
        )


# --------------------------------------- scoring outputs against references, and comparing two runs


class SplitOutputs(NamedTuple):
    """The sources and references of a data set, and a run's outputs."""

    sources: list[str]
    references: list[str]
    outputs: list[str]


class ScoredOutputs(abc.ABC):
    """A task whose outputs are scored text by text, so that two runs can be compared in pairs."""

    @property
    @abc.abstractmethod
    def measures(self) -> Sequence[Measure]:
        """The measures by which outputs are scored."""

    @abc.abstractmethod
    def split_outputs(self, params, split: str) -> SplitOutputs:
        """Returns the outputs for a split. Raises UserError if the run has no such split."""

    answers = Renamed("answers", "split_outputs")

    def text_statistics(self, params, split: str) -> list[tuple[Measure, np.ndarray]]:
        """Returns each measure with the statistics (N, S) of the N texts of a split."""
        texts = self.split_outputs(params, split)
        return [
            (measure, measure.statistics(texts.outputs, texts.references))
            for measure in self.measures
        ]

    def scored(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Returns the scores of the outputs by all measures."""
        scores = {}
        for measure in self.measures:
            scores |= predictions.scores(measure, measure.statistics(outputs, references))
        return scores

    def intervals(
        self, outputs: Sequence[str], references: Sequence[str]
    ) -> dict[str, tuple[float, float]]:
        """Returns the 95% confidence interval of each score, by the bootstrap."""
        intervals = {}
        for measure in self.measures:
            intervals |= predictions.intervals(measure, measure.statistics(outputs, references))
        return intervals


def comparison(
    measures: Sequence[Measure], own: SplitOutputs, others: SplitOutputs
) -> dict[str, dict]:
    """Compares each score of two runs by the paired bootstrap; see `predictions.comparison`.

    Raises UserError if the sources or the references of the two runs differ.
    """
    for noun, first, second in (
        ("sources", own.sources, others.sources),
        ("references", own.references, others.references),
    ):
        if first != second:
            raise UserError(
                f"--against: the {noun} of the two runs differ; give both the same set, by "
                "--config.data.test_files and the like"
            )
    compared = {}
    for measure in measures:
        first, second = (
            measure.statistics(each.outputs, each.references) for each in (own, others)
        )
        compared |= predictions.comparison(measure, first, second)
    return compared


__getattr__ = renamed_in(__name__, {"Answers": "SplitOutputs", "Answering": "ScoredOutputs"})
