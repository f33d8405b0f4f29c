"""The rows of denoising: the texts of `config.data` with the noise of `config.task.noises`."""

import dataclasses

from transformer_jax.config import UserError
from transformer_jax.data import rows, sentence_pairs
from transformer_jax.data.mixed_texts import MixedTexts
from transformer_jax.data.noise import Composition, Pieces
from transformer_jax.data.noised_texts import Frame, NoisedTexts, Room


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
        stored = sentence_pairs.tokenised(text, data, tokenizer, name, exact=True)
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
