"""A text with its source and its target, and the interface of noises."""

import dataclasses
from typing import NamedTuple

import numpy as np

# Sentinels of a tokenizer that declares none. They follow its pieces. T5 has as many.
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
