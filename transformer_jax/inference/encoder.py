"""The uses of a trained encoder: filling masks, and reading hidden states."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data import arguments
from transformer_jax.distributed.placement import Placement
from transformer_jax.inference import attention, framing
from transformer_jax.inference.filling import Filling, Reader
from transformer_jax.pictures.attended import Attended


class EncoderUse:
    """The methods of a task whose model is of the kind Encoder."""

    config: ConfigDict
    model: Any
    tokenizer: Any

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

    def features(
        self,
        params,
        texts: Iterable[str],
        layers: tuple[int, ...] = (-1,),
        *,
        long: str = "truncate",
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yields the N pieces of each text, and their hidden states (layers, N, M) float32.

        Layer 0 is the embeddings, -1 the last layer. The pieces include [CLS] and [SEP]; an empty
        text has only these two. `long` decides about a text longer than `config.model.max_length`.
        "truncate" cuts it, "skip" gives no pieces (N = 0), "refuse" raises UserError. A warning at
        the end names the numbers of these texts. Raises UserError for a layer that does not exist.
        """
        return self._reader(params).features(params, arguments.as_texts(texts), layers, long)

    def _reader(self, params, model=None) -> Reader:
        """Returns the reader of the run's model, or of another one with these parameters."""
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        return Reader(model or self.model, self.tokenizer, batch, placement)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text; with `pieces`, its tokens.

        [CLS], [SEP] and each [MASK] are among them. Raises UserError for a text longer than
        `config.model.max_length`.
        """
        begin, end = framing.of_text(self.model, self.tokenizer)
        ids = [*begin, *self.tokenizer.encode_masked(text), *end]
        return attention.in_text(
            self.model, params, self.tokenizer, ids, stack="encoder", pieces=pieces
        )
