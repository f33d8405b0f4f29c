"""Denoising: reconstructing a text from a corrupted version of it."""

import dataclasses
from functools import cached_property

from transformer_jax.config import Fraction, UserError
from transformer_jax.data import arguments, tokenizers
from transformer_jax.data.noises import NUM_SENTINELS, Composition, DenoisingRows, Pieces
from transformer_jax.inference.log_probabilities import BlankSource
from transformer_jax.inference.translating import Translator, check_lengths
from transformer_jax.objectives.texts import PairTask


@dataclasses.dataclass
class Denoising(PairTask):
    """The pre-training of BART (Lewis et al. 2019, section 2.2), T5 and MASS.

    The encoder reads a corrupted text, and the decoder generates the original. For span corruption
    (Raffel et al. 2020, section 3.1.4), MASS and prefixes, the target is only the missing part.
    """

    # ((name, its numbers), ...), applied in this order: masking (share), deletion (share),
    # infilling (share, mean words of a span), permutation of sentences, rotation; only by
    # themselves: span_corruption (share, mean tokens of a span), mass (share), prefix (share; 0: of
    # random length)
    noises: tuple = (("permutation",), ("infilling", 0.3))
    label_smoothing: Fraction = 0.0  # probability that the loss spreads over all tokens

    def __post_init__(self):
        super().__post_init__()
        self.noise = Composition.of(self.noises)
        if self.model.source_vocab_size:
            raise UserError(
                f"config.model.source_vocab_size={self.model.source_vocab_size}: source and "
                "target of denoising share a vocabulary; leave it out"
            )

    @property
    def texts(self) -> DenoisingRows:
        return DenoisingRows(self.config, (self.source_length, self.target_length), self.noise)

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        size = self.model.vocab_size
        if self.noise.num_sentinels(self.source_length) and not self._is_read:
            if size <= NUM_SENTINELS:
                raise UserError(
                    f"config.model.vocab_size={size}: must be more than {NUM_SENTINELS}, which "
                    "are the sentinels"
                )
            # The sentinels get the ids after the vocabulary of the tokenizer that is trained now.
            size -= NUM_SENTINELS
        shared = tokenizers.run_tokenizer(
            self.tokenizer_folder, self.config.data, self.texts.training_text, size
        )
        self.texts.check(shared, self.model.vocab_size)
        return tokenizers.Pair(shared, shared)

    @property
    def _is_read(self) -> bool:
        """Whether the tokenizer already exists, so that its size is fixed."""
        return bool(self.tokenizer_folder or self.config.data.tokenizer_files)

    @property
    def scoring(self) -> BlankSource:
        pieces = Pieces.of(self.tokenizer.source)
        has_sentinels = self.noise.num_sentinels(self.source_length) > 0
        sentinel = pieces.size - 1 if has_sentinels else None
        mask = pieces.mask_id if self.noise.masks else None
        return BlankSource.denoising(self.model, self.tokenizer, sentinel, mask)

    @property
    def translator(self) -> Translator:
        """Reconstructs texts. "[MASK]" in a line is read as the mask token."""
        check_lengths(self.model, self.config.decode)
        encode = self._encoded if self.tokenizer.source.mask_id is not None else None
        own = dict(source_length=self.source_length, encode=encode)
        if self.noise.num_sentinels(self.source_length):
            # The sentinels, which structure an output, may be ids after those of the tokenizer.
            own["model"] = self.model
        return dataclasses.replace(super().translator, **own)

    def _encoded(self, lines: list[str]) -> list[list[int]]:
        return [*map(self.tokenizer.source.encode_masked, lines)]

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, perplexity and accuracy of the reconstructed tokens of a split.

        Raises UserError if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        # The share of padding says nothing about the model.
        means.pop("filled")
        return means | self.derived(split, means) | {"rows": len(evaluated)}
