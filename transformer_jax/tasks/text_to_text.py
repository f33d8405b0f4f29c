"""Text to text: summaries, replies and labels as text (Raffel et al. 2020; Lewis et al. 2019)."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from functools import cached_property, partial

from transformer_jax.config import NonNegativeInt, UserError
from transformer_jax.data import arguments, sentences, tokenizers
from transformer_jax.data.packing import ColumnRows
from transformer_jax.inference.log_probabilities import BlankSource, Scoring
from transformer_jax.inference.translating import (
    Hypothesis,
    ScoredOutputs,
    SplitOutputs,
    Translator,
    check_lengths,
)
from transformer_jax.objectives.texts import PairTask
from transformer_jax.pictures.progress import track
from transformer_jax.scores.predictions import Measure
from transformer_jax.scores.texts import Bleu, ExactMatch, Rouge

_MEASURES = {
    "rouge": partial(Rouge, partial(sentences.split, manner="punctuation")),
    "bleu": Bleu,
    "exact_match": ExactMatch,
}


@dataclasses.dataclass
class TextToText(ScoredOutputs, PairTask):
    """The target of each source, as a text of one line.

    A column is a name in a table's header, a key of JSON lines, or a TFDS feature. In a table
    without a header, it is a number from 1. A source that is longer than a row is cut.
    """

    takes_model = True

    source: str = "1"  # column of the sources
    target: str = "2"  # column of the targets
    prefix: str = ""  # text before each source, e.g. "summarize: "
    # scores of the outputs: rouge, bleu, exact_match (the share of equal texts)
    scores: tuple = ("rouge",)
    # validation examples for which outputs are generated at each evaluation; 0: none
    scored_examples: NonNegativeInt = 200
    # first sentences of a source that are the baseline for its summary
    lead_sentences: NonNegativeInt = 3

    def __post_init__(self):
        super().__post_init__()
        check_lengths(self.model, self.config.decode)
        for name in self.scores:
            if name not in _MEASURES:
                raise UserError(
                    f"config.task.scores: {name!r} must be one of {', '.join(_MEASURES)}"
                )

    @property
    def texts(self) -> ColumnRows:
        return ColumnRows(
            self.config,
            self.source_length,
            self.target_length,
            (self.source, self.target),
            self.prefix,
            self.lead_sentences,
        )

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        return tokenizers.pair_of_run(
            self.tokenizer_folder,
            self.config.data,
            self.texts.training_text,
            self.model.source_vocab_size,
            self.model.vocab_size,
        )

    @property
    def scoring(self) -> Scoring:
        """As in the pre-training of the model: a sentinel or a mask stands for the whole text."""
        tokenizer = self.tokenizer.source
        # The first sentinel is the last piece.
        sentinel = tokenizer.vocab_size - 1 if tokenizer.num_sentinels else None
        return BlankSource.denoising(self.model, self.tokenizer, sentinel, tokenizer.mask_id)

    @cached_property
    def measures(self) -> list[Measure]:
        # A column of parallel texts may have the code of its language as its name, such as "zh".
        measures = _MEASURES | {"bleu": partial(Bleu, self.target)}
        return [measures[name]() for name in self.scores]

    def rows(self):
        if self.scored_examples:
            valid = self.texts.text("valid") or ()
            self._check_measures(itertools.islice(valid, self.scored_examples))
        return super().rows()

    def _check_measures(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Raises UserError for a missing library, before anything is trained or generated."""
        for measure in self.measures:
            if isinstance(measure, Bleu):
                measure.check([target for _, target in pairs])

    def evaluations(self):
        valid = self.texts.text("valid")
        if valid is None or not self.scored_examples or not self.scores:
            return {}
        return {"valid": partial(self._score, valid)}

    def _score(self, valid, params) -> dict[str, float]:
        generated = self._generated(params, itertools.islice(valid, self.scored_examples))
        return self.scored(generated.outputs, generated.references)

    def evaluation_programs(self, params):
        return self.search_programs(params) if self.scored_examples and self.scores else {}

    @property
    def translator(self) -> Translator:
        return dataclasses.replace(super().translator, source_length=self.source_length)

    def translate(
        self, params, lines: Iterable[str], n_best: int = 1, *, long: str | None = None
    ) -> Iterator[list[Hypothesis]]:
        """Yields the `n_best` outputs for each line, as in `SequenceToSequenceUse`.

        The prefix is prepended to each line. By default, a line that is longer than
        `config.task.source_length` is cut, as in training.
        """
        lines = arguments.as_texts(lines)
        # An empty line stays empty, because the prefix alone would be taken for a text.
        prefixed = (self.prefix + line if line.strip() else "" for line in lines)
        return super().translate(params, prefixed, n_best, long=long or "truncate")

    def split_outputs(self, params, split):
        return self._generated(params, arguments.held_out(self.texts.text, split, "files"))

    def _generated(self, params, pairs: Iterable[tuple[str, str]]) -> SplitOutputs:
        sources, references = map(list, zip(*pairs))
        best = self.translate(params, track(sources, "generating", len(sources)))
        return SplitOutputs(sources, references, [hypotheses[0].text for hypotheses in best])

    def evaluate(self, params, split: str) -> dict:
        """Returns the scores of a split, their intervals, and the scores of the lead baseline.

        "data" describes the examples, and "bleu_signature" names the tokenizer of BLEU. Raises
        UserError if the run has no such split.
        """
        pairs = arguments.held_out(self.texts.text, split, "files")
        self._check_measures(pairs)
        _, references, outputs = self._generated(params, pairs)
        results = self.scored(outputs, references)
        for measure in self.measures:
            if isinstance(measure, Bleu):
                results["bleu_signature"] = measure.signature(references)
        results["intervals"] = self.intervals(outputs, references)
        if self.lead_sentences:
            leads = [pairs.lead(source) for source, _ in pairs]
            results["lead"] = self.scored(leads, references)
        return results | {"examples": len(references), "data": pairs.fingerprint()}
