"""Translation: rows of packed sentence pairs, and the label-smoothed cross-entropy."""

import dataclasses
import itertools
from functools import cached_property, partial

from transformer_jax.config import NonNegativeInt
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.packing import PairRows
from transformer_jax.inference.translating import ScoredOutputs, SplitOutputs, check_lengths
from transformer_jax.objectives.texts import PairTask
from transformer_jax.scores import predictions, texts


@dataclasses.dataclass
class Translation(ScoredOutputs, PairTask):
    """The cross-entropy of a translation given its source (Vaswani et al. 2017, section 5)."""

    bleu_lines: NonNegativeInt = 200  # validation sentences translated at each evaluation; 0: none

    def __post_init__(self):
        super().__post_init__()
        check_lengths(self.model, self.config.decode)

    @property
    def texts(self) -> PairRows:
        return PairRows(self.config, self.source_length, self.target_length)

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
    def measures(self):
        """BLEU in the language of the targets, which the test set or the validation set names."""
        splits = (self.texts.text(split) for split in ("test", "valid"))
        named = (split.target_language for split in splits if split is not None)
        return (texts.Bleu(next(filter(None, named), None)),)

    def rows(self):
        valid = self.texts.text("valid")
        if valid is not None and self.bleu_lines:
            # A missing tokenizer of BLEU is an error now, and not at the first evaluation.
            scored = itertools.islice(valid, self.bleu_lines)
            texts.Bleu(valid.target_language).check([target for _, target in scored])
        return super().rows()

    def evaluations(self):
        valid = self.texts.text("valid")
        if valid is None or not self.bleu_lines:
            return {}
        return {"valid": partial(self._score, valid, self.bleu_lines)}

    def evaluation_programs(self, params):
        return self.search_programs(params) if self.bleu_lines else {}

    def evaluate(self, params, split: str) -> dict:
        """Returns BLEU, chrF and the measure of the paper for a split, with their signatures.

        "intervals" holds the confidence interval of BLEU. Raises UserError if the run has no such
        split.
        """
        pairs = arguments.held_out(self.texts.text, split, "source", "target")
        language = pairs.target_language
        bleu = texts.Bleu(language)
        bleu.check([target for _, target in pairs])  # before everything is translated
        outputs, references = self.translated_pairs(params, pairs)
        intervals = predictions.intervals(bleu, bleu.statistics(outputs, references))
        scores = texts.scores(outputs, references, language)
        return scores | texts.signatures(outputs, references, language) | {"intervals": intervals}

    def split_outputs(self, params, split):
        pairs = arguments.held_out(self.texts.text, split, "source", "target")
        sources = [source for source, _ in pairs]
        outputs, references = self.translated_pairs(params, pairs)
        return SplitOutputs(sources, references, outputs)

    def _score(self, pairs, count, params) -> dict[str, float]:
        translated, references = self.translated_pairs(params, pairs, count)
        return texts.scores(translated, references, pairs.target_language)
