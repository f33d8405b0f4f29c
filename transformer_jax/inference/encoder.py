"""The uses of a trained encoder: filling masks, and reading hidden states."""

import abc
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data import arguments
from transformer_jax.distributed.sharding import Placement
from transformer_jax.inference import attention, batching
from transformer_jax.inference.filling import Filling, Reader
from transformer_jax.pictures.attention_maps import Attended

# --------------------------------------------------------------------------------------------------
# The hidden states of texts, by an encoder alone or in front of a decoder.


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


# --------------------------------------------------------------------------------------------------
# The methods of a task whose model is an encoder. They also fill masks and return attention.


class EncoderUse(StatesUse):
    """The methods of a task whose model is of the kind Encoder."""

    @property
    def text_tokenizer(self):
        return self.tokenizer

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def fill(
        self, params, texts: Iterable[str], top_k: int = 5, *, long: str = "split"
    ) -> Iterator[list[list[Filling]]]:
        """Yields the `top_k` likeliest words for each [MASK] of each text. An empty text has none.

        `long` decides about a text longer than `config.model.max_length`. "split" reads its
        sentences one by one, and a longer sentence in parts; "skip" fills nothing; "refuse" raises
        UserError. A warning at the end names the numbers of these texts. Raises UserError for a
        text without [MASK].
        """
        return self._reader(params).fill(params, arguments.as_texts(texts), top_k, long)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text; with `pieces`, its tokens.

        [CLS], [SEP] and each [MASK] are among them. Raises UserError for a text longer than
        `config.model.max_length`.
        """
        begin, end = batching.text_frame(self.model, self.tokenizer)
        ids = [*begin, *self.tokenizer.encode_masked(text), *end]
        return attention.in_text(
            self.model, params, self.tokenizer, ids, stack="encoder", pieces=pieces
        )
