"""The rows of denoising: the texts of `config.data` with the noise of `config.task.noises`."""

import dataclasses
from functools import cached_property

from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import rows, sentence_pairs
from transformer_jax.data.noise import Composition, Pieces
from transformer_jax.data.noised_texts import Frame, NoisedTexts, Room
from transformer_jax.data.sources import documents


@dataclasses.dataclass(frozen=True)
class DenoisingRows:
    """Rows of `lengths`, source and target tokens, from a text or a mixture of training texts."""

    config: ConfigDict
    lengths: tuple[int, int]
    noise: Composition

    @cached_property
    def mixture(self) -> list:
        """The training texts with their weights."""
        return documents.mixture(self.config.data)

    def training_text(self) -> documents.Concatenation:
        """Returns all training texts, one after the other."""
        return documents.Concatenation(tuple(text for text, _ in self.mixture))

    def text(self, split: str):
        """Returns the documents of a split; None where `config.data` names none."""
        return documents.of_split(self.config.data, split)

    def fingerprint(self) -> dict:
        content = {"train": [text.fingerprint() for text, _ in self.mixture]}
        if len(self.mixture) > 1:
            content["mixture"] = [weight for _, weight in self.mixture]
        return content

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenises the texts."""
        components = []
        for number, (text, _) in enumerate(self.mixture):
            name = "train" if len(self.mixture) == 1 else f"train-{number}"
            components.append(self._component(text, tokenizer.source, name, (0, number)))
        weights = [weight for _, weight in self.mixture]
        return rows.train_rows(components, self.config, weights)

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
