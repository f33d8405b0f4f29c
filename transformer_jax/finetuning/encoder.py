"""A pre-trained model as an encoder of one text or of two: BERT's rows (Devlin et al. 2018, figure
4) and GPT's (Radford et al. 2018, figure 1).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data.rows import Row, padded
from transformer_jax.layers.attention import weights_in
from transformer_jax.losses import cross_entropy
from transformer_jax.pictures.attended import Side


@dataclasses.dataclass(frozen=True)
class Encoder:
    """BERT: [CLS] A [SEP] B [SEP], summed up where [CLS] stands. GPT: start A delimiter B extract,
    summed up where extract stands; these three are the last ids of its vocabulary, which has grown
    by them.
    """

    model: Any  # the Linen module

    @property
    def bidirectional(self) -> bool:
        return hasattr(self.model, "pooled")

    def marks(self, tokenizer) -> tuple[int, int, int]:
        """The ids that begin a row, stand between its texts, and end it. Raises UserError where the
        tokenizer has none such.
        """
        if not self.bidirectional:
            if tokenizer.vocab_size > self.model.vocab_size - 3:
                raise UserError(
                    f"config.model.vocab_size={self.model.vocab_size}: no room for start, delimiter and extract behind the tokenizer's {tokenizer.vocab_size} tokens"
                )
            return tuple(range(self.model.vocab_size - 3, self.model.vocab_size))
        if not hasattr(tokenizer, "cls_id"):
            raise UserError(
                f"config.model.name={self.model.__class__.__name__.lower()!r} needs a WordPiece tokenizer"
            )
        return tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id

    def row(self, tokenizer, first: list[int], second: list[int] | None, length: int) -> Row:
        """tokens, token_types, segment_ids (length,) int32 of texts that fit: A begins at 1, B at
        len(A) + 2.
        """
        begin, between, end = self.marks(tokenizer)
        ids = [begin, *first, end] if second is None else [begin, *first, between, *second, end]
        types = np.arange(len(ids)) >= len(first) + 2 if second is not None else np.zeros(0)
        return {
            "tokens": padded(ids, length),
            "token_types": padded(types, length),
            "segment_ids": padded(np.ones(len(ids)), length),
        }

    def init(self, rng, summary: bool) -> dict:
        """Parameters of what is used: the heads of pre-training are not."""
        tokens = jnp.zeros((1, 8), jnp.int32)
        if summary and self.bidirectional:
            return self.model.init(
                rng, tokens, method=lambda model, tokens: model.pooled(model.hidden(tokens))
            )["params"]
        return self.model.init(rng, tokens, method="hidden")["params"]

    def hidden(self, params, batch, rng, train: bool) -> jax.Array:
        """(B, L, M)."""
        types = (batch["token_types"],) if self.bidirectional else ()
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            *types,
            None,
            batch["segment_ids"],
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )

    def layers(self, params, batch) -> jax.Array:
        """The embeddings and every layer's hidden states (layers + 1, B, L, M), of BERT."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            batch["token_types"],
            None,
            batch["segment_ids"],
            method="layers",
        )

    def attention(self, params, row: Row) -> np.ndarray:
        """The attention weights (layers, H, L, L) float32 in one row."""
        tokens, types = row["tokens"][None], row["token_types"][None]
        return (
            weights_in(self.model, params, "encoder", tokens, types)
            if self.bidirectional
            else weights_in(self.model, params, "decoder", tokens)
        )

    def shown(self, tokenizer, texts: list[list[int]], pieces: bool) -> Side:
        """The labels of a row of one text or two."""
        begin, between, end = (
            ("[CLS]", "[SEP]", "[SEP]")
            if self.bidirectional
            else ("<start>", "<delimiter>", "<extract>")
        )
        found = Side([begin], [0])
        for number, ids in enumerate(texts, 1):
            found = (
                found
                + Side.of(tokenizer, ids, pieces)
                + Side([end if number == len(texts) else between], [0])
            )
        return found

    def summary(self, params, hidden, batch) -> jax.Array:
        """One vector a row (B, M)."""
        if self.bidirectional:
            return self.model.apply({"params": params}, hidden, method="pooled")
        last = jnp.maximum((batch["segment_ids"] > 0).sum(axis=-1) - 1, 0)
        return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]

    def next_tokens(self, params, hidden, batch) -> jax.Array:
        """The summed cross-entropy of each row's tokens, the language model's own objective."""
        table, bias = self.model.apply({"params": params}, method="output")
        return cross_entropy(
            hidden[:, :-1],
            table,
            bias,
            batch["tokens"][:, 1:],
            (batch["segment_ids"][:, 1:] > 0).astype(jnp.float32),
        )[0]

    def flops(self, length: int, language_model: bool) -> float:
        """Of a forward pass over one row, the language model's objective beside or not."""
        return self.model.flops(length, length if language_model else 0)


def fitted(first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
    """Two texts cut at their ends to `most` tokens together: the longer one loses first."""
    for_second = min(len(second), max(most // 2, most - len(first)))
    return first[: most - for_second], second[:for_second]
