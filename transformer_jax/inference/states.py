"""The hidden states of texts, by an encoder alone or in front of a decoder."""

import abc
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data import arguments
from transformer_jax.distributed.placement import Placement
from transformer_jax.inference.filling import Reader


class StatesUse(abc.ABC):
    """A use of an Encoder and of a SequenceToSequence model."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    @property
    @abc.abstractmethod
    def text_tokenizer(self):
        """The tokenizer of the texts that the encoder reads."""

    def features(
        self,
        params,
        texts: Iterable[str],
        layers: tuple[int, ...] = (-1,),
        *,
        long: str = "truncate",
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yields the N pieces of each text, and their hidden states (layers, N, M) float32.

        Layer 0 is the embeddings, -1 the last layer; an encoder-decoder has these two. The pieces
        include the tokens around the text, such as [CLS] and [SEP]; an empty text has only these.
        `long` decides about a text longer than `config.model.max_length`. "truncate" cuts it,
        "skip" gives no pieces (N = 0), "refuse" raises UserError. A warning at the end names the
        numbers of these texts. Raises UserError for a layer that does not exist, and for layers of
        several widths.
        """
        return self._reader(params).features(params, arguments.as_texts(texts), layers, long)

    def _reader(self, params, model=None) -> Reader:
        """Returns the reader of the run's model, or of another one with these parameters."""
        model = model or self.model
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        return Reader(model, model.reader(self.text_tokenizer), batch, placement)
