"""The rows of masked language models: texts of `config.data` with masked tokens, by phase."""

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import masked_texts, masking, rows, sentence_pairs, token_counts, windows
from transformer_jax.data.single_text import SingleText

# The fewest rows of an evaluation. A smaller text is read several times, each time with other pairs
# and masks.
_MIN_EVAL_ROWS = 2_000


@dataclasses.dataclass(frozen=True)
class MaskedRows(SingleText):
    """Pairs of texts, or single texts, with masks that each epoch draws anew.

    Attributes:
      phases: (share of the updates, tokens of a row, most predictions of a row) of each phase.
      pairs: whether rows are pairs of texts, not single ones.
      whole_words: whether all pieces of a word are masked, or none.
      ngrams: the weights of masked spans of 1, 2, 3, ... tokens or words.
      swaps: whether the texts of a pair follow each other, in one order or the other.
      full_sentences: whether single texts are whole sentences, not windows.
      rare_words: in training, the weight of a token that occurs n times in the training text is
        n**-rare_words, and masks fall in proportion to it.
    """

    single: ClassVar[str] = "next_sentence=0"  # of config.task: then rows are single texts

    phases: tuple
    pairs: bool
    whole_words: bool
    ngrams: tuple = (1.0,)
    swaps: bool = False
    full_sentences: bool = False
    rare_words: float = 0.0

    def check(self, model: Any) -> None:
        """Raises UserError for phases of another form, or rows that do not suit the model."""
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
        if abs(sum(share for share, _, _ in self.phases) - 1) > 1e-6:
            raise UserError(
                f"config.task.phases={self.phases}: the shares of the updates must add up to 1"
            )
        if not are_weights(self.ngrams):
            raise UserError(
                f"config.task.ngrams={self.ngrams}: must be the weights of spans of 1, 2, ... "
                "tokens, from 0 and not all 0, as in (0.8,0.1,0.1)"
            )
        if self.rare_words < 0:
            raise UserError(f"config.task.rare_words={self.rare_words}: must be at least 0")
        if self.config.train.first_batch:
            raise UserError(
                f"config.train.first_batch={self.config.train.first_batch}: the batch of masked "
                "language modelling does not grow; set it to 0"
            )

    @property
    def phase_steps(self) -> list[int]:
        """The number of updates of each phase."""
        shares = itertools.accumulate(share for share, _, _ in self.phases)
        ends = [round(share * self.config.train.num_steps) for share in shares]
        return [end - begin for begin, end in zip([0, *ends], ends)]

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenises the text."""
        stored = self._tokenised("train", tokenizer)
        batch = self.config.train.batch
        phases = []
        for number, num_steps in enumerate(self.phase_steps):
            component = self._component(stored, "train", number, tokenizer)
            is_last = number == len(self.phases) - 1
            phases.append(rows.Phase([component], batch, None if is_last else num_steps))
        return rows.TrainRows(phases, self.config.data.seed)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        """Returns the rows of a split, as in the last phase."""
        stored = self._tokenised(split, tokenizer)
        component = self._component(stored, split, len(self.phases) - 1, tokenizer)
        return rows.EvalRows(component, math.ceil(_MIN_EVAL_ROWS / len(component)))

    def _tokenised(self, split: str, tokenizer):
        text = self.text(split), self.config.data, tokenizer, split
        if self.full_sentences:
            return sentence_pairs.tokenised(*text, exact=True)
        return sentence_pairs.tokenised(*text) if self.pairs else windows.tokenised(*text)

    def _component(self, stored, split: str, phase: int, tokenizer):
        """Returns the rows of a tokenised split in a phase.

        Each split has its own random numbers.
        """
        _, length, num_predictions = self.phases[phase]
        mask = self.masking(tokenizer, num_predictions)
        if self.rare_words and split == "train":
            mask = dataclasses.replace(mask, weights=self._weights(stored, len(mask.special)))
        key = (self.config.data.seed, phase, ("train", "valid", "test").index(split))
        if self.pairs:
            return self._pair_rows(stored, length, mask, key)
        single = masked_texts.FullSentences if self.full_sentences else masked_texts.MaskedWindows
        return single(stored, length, mask, key, (tokenizer.cls_id, tokenizer.sep_id))

    def _weights(self, stored, vocab_size: int) -> np.ndarray:
        """Returns the weight of each token of the training text (V,)."""
        counts = token_counts.of_store(stored, self.config.data, vocab_size, "train")
        return np.maximum(counts, 1) ** -float(self.rare_words)

    def _pair_rows(
        self, stored, length: int, mask: masking.Masking, key: tuple[int, int, int]
    ) -> sentence_pairs.SentencePairs:
        return sentence_pairs.SentencePairs(stored, length, mask, key, self.swaps)

    def masking(self, tokenizer, num_predictions: int) -> masking.Masking:
        """Returns the masking of a row with at most so many predictions."""
        return masking.Masking(
            tokenizer.mask_id,
            tokenizer.special,
            tokenizer.continues,
            num_predictions,
            self.whole_words,
            self.ngrams,
        )


def are_weights(values) -> bool:
    """Returns whether these are a tuple of finite numbers from 0, not all 0."""
    if not isinstance(values, tuple) or not {*map(type, values)} <= {int, float}:
        return False
    return all(0 <= value < math.inf for value in values) and sum(values) > 0


def _is_phase(phase, max_length: int) -> bool:
    kinds = [type(value) for value in phase] if isinstance(phase, tuple) else []
    if kinds not in ([int, int, int], [float, int, int]):
        return False
    share, length, num_predictions = phase
    return 8 <= length <= max_length and 0 < share <= 1 and 1 <= num_predictions <= length
