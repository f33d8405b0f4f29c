"""The rows of a causal language model: windows of the texts that `config.data` names."""

import dataclasses

import numpy as np
from jaxtyping import UInt32

from transformer_jax.data import rows, windows
from transformer_jax.data.mixed_texts import MixedTexts
from transformer_jax.data.tokenizers.training import Sample
from transformer_jax.pictures.progress import say


@dataclasses.dataclass(frozen=True)
class TextWindows(MixedTexts):
    """Rows of `length` tokens from the splits of a text, and from a mixture of training texts.

    With `carries`, the rows of an update continue those of the update before, as streams.
    """

    length: int
    carries: bool = False

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenises the texts."""
        data = self.config.data

        def component(text, name: str, number: int) -> windows.Windows:
            tokens = windows.tokenised(text, data, tokenizer, name)
            key = (data.seed, 0, number)
            return windows.Windows(
                tokens, self.length, data.mask_documents, key, restarts=self.carries
            )

        return self.train_rows(component, "stream" if self.carries else "shuffled")

    def counted(self, tokenizer, num_bytes: int) -> UInt32[np.ndarray, " N"]:
        """Returns tokens for n-gram models: the training text, or a `Sample` of so many bytes."""
        sample = Sample(self.training_text(), num_bytes)
        blocks = [windows.encoded(block, tokenizer) for block in windows.blocks(sample)]
        if not sample.is_whole:
            say(f"n-gram models count a sample of {num_bytes:,} bytes, spread over the text")
        return np.concatenate(blocks)

    def evaluation(self, tokenizer, split: str, stride: int | None = None) -> rows.EvalRows:
        """Returns rows that predict each token of a split once, `stride` more tokens a row.

        The default of `stride` is the length of a row. With `carries` it is always that, because
        the carry has read the tokens before.
        """
        data = self.config.data
        tokens = windows.tokenised(self.text(split), data, tokenizer, split)
        sliding = windows.SlidingWindows(
            tokens,
            self.length,
            self.length if self.carries else stride or self.length,
            data.mask_documents,
            restarts=self.carries,
        )
        return rows.EvalRows(sliding, order="stream" if self.carries else "rows")
