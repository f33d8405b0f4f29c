"""A pre-trained model as an encoder of one text or of two texts.

The rows are those of BERT (Devlin et al. 2018, figure 4) and GPT (Radford et al. 2018, figure 1).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, padded
from transformer_jax.inference.attention import check_attends, check_length
from transformer_jax.layers.attention import weights_in
from transformer_jax.losses import cross_entropy
from transformer_jax.pictures.attended import Attended, Side, between


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Rows, hidden states and summaries of an Encoder or a Causal model.

    An Encoder's row is [CLS] A [SEP] B [SEP]; its summary is the state of [CLS], pooled where the
    model can. A Causal model's row is start A delimiter B extract; its summary is the state of
    extract. These three tokens are the last ids of the model's vocabulary, which grows by them.
    """

    model: Any  # the Linen module

    @property
    def bidirectional(self) -> bool:
        return self.model.kind == "encoder"

    @property
    def _pools(self) -> bool:
        return "pool" in self.model.can

    def marks(self, tokenizer) -> tuple[int, int, int]:
        """Returns the ids that begin a row, separate its texts, and end it.

        Raises UserError where the tokenizer does not have them.
        """
        if not self.bidirectional:
            if tokenizer.vocab_size > self.model.vocab_size - 3:
                raise UserError(
                    f"config.model.vocab_size={self.model.vocab_size}: must be at least "
                    f"{tokenizer.vocab_size + 3}, the {tokenizer.vocab_size} tokens of the "
                    "tokenizer and start, delimiter and extract"
                )
            return tuple(range(self.model.vocab_size - 3, self.model.vocab_size))
        user = f"config.model.name={self.model.__class__.__name__.lower()!r}"
        begin, separator = tokenizer.required("cls", "sep", user=user)
        return begin, separator, separator

    def row(
        self, tokenizer, first: list[int], second: list[int] | None = None, *, length: int
    ) -> Row:
        """Returns tokens, token_types and segment_ids (length,) int32 of texts that fit.

        The first text begins at position 1, the second at len(first) + 2.
        """
        begin, separator, end = self.marks(tokenizer)
        ids = [begin, *first, end]
        types = np.zeros(len(ids))
        if second is not None:
            ids = [begin, *first, separator, *second, end]
            types = np.arange(len(ids)) >= len(first) + 2
        return {
            "tokens": padded(ids, length),
            "token_types": padded(types, length),
            "segment_ids": padded(np.ones(len(ids)), length),
        }

    def init(self, rng, summary: bool, language_model: bool = False) -> dict:
        """Returns the parameters that are used, without other heads of pre-training."""

        def used(model, tokens):
            hidden = model.hidden(tokens)
            if language_model:
                model.output()
            return model.pooled(hidden) if summary and self._pools else hidden

        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32), method=used)["params"]

    def hidden(self, params, batch, rng, train: bool) -> jax.Array:
        """Returns the hidden states (B, L, M)."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            segment_ids=batch["segment_ids"],
            token_types=batch["token_types"],
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )

    def layers(self, params, batch) -> jax.Array:
        """Returns an Encoder's embeddings and states of all layers (layers + 1, B, L, M)."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            segment_ids=batch["segment_ids"],
            token_types=batch["token_types"],
            method="layers",
        )

    def attention(self, params, tokenizer, texts: list[list[int]], pieces: bool) -> Attended:
        """Returns the attention weights between the words of a row of one text or two texts.

        With `pieces` they are between tokens. Raises UserError for a row longer than
        `config.model.max_length`, and for a model without attention.
        """
        check_attends(self.model)
        length = sum(map(len, texts)) + len(texts) + 1
        check_length(length, self.model.window)
        row = self.row(tokenizer, *texts, length=length)
        stack = "encoder" if self.bidirectional else "decoder"
        side = self._labels(tokenizer, texts, pieces)
        weights = weights_in(
            self.model, params, stack, row["tokens"][None], token_types=row["token_types"][None]
        )
        return between(weights, side, side)

    def _labels(self, tokenizer, texts: list[list[int]], pieces: bool) -> Side:
        """Returns the labels of the words, or the pieces, of a row of one text or two texts."""
        begin, separator, end = "[CLS]", "[SEP]", "[SEP]"
        if not self.bidirectional:
            begin, separator, end = "<start>", "<delimiter>", "<extract>"
        side = Side([begin], [0])
        for number, ids in enumerate(texts, 1):
            mark = end if number == len(texts) else separator
            side = side + Side.of(tokenizer, ids, pieces) + Side([mark], [0])
        return side

    def summary(self, params, hidden, batch) -> jax.Array:
        """Returns one vector for each row (B, M)."""
        if self._pools:
            return self.model.apply({"params": params}, hidden, method="pooled")
        if self.bidirectional:
            return hidden[:, 0]
        last = jnp.maximum((batch["segment_ids"] > 0).sum(axis=-1) - 1, 0)
        return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

    def next_tokens(self, params, hidden, batch) -> jax.Array:
        """Returns the language model's loss: the summed cross-entropy of the rows' tokens."""
        table, bias = self.model.apply({"params": params}, method="output")
        return cross_entropy(
            hidden[:, :-1],
            table,
            bias,
            batch["tokens"][:, 1:],
            (batch["segment_ids"][:, 1:] > 0).astype(jnp.float32),
        )[0]

    def flops(self, length: int, language_model: bool) -> float:
        """Returns the FLOPs of a forward pass over one row, with the language model's loss or
        without.
        """
        return self.model.flops(length, length if language_model else 0)


def fitted(first: list[int], second: list[int], max_tokens: int) -> tuple[list[int], list[int]]:
    """Returns two texts cut at their ends to `max_tokens` together. The longer one is cut first."""
    for_second = min(len(second), max(max_tokens // 2, max_tokens - len(first)))
    return first[: max_tokens - for_second], second[:for_second]
