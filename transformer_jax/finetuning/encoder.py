"""A pre-trained model as an encoder of one text or of a pair of texts."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data.rows import Row, padded
from transformer_jax.inference import batching
from transformer_jax.inference.attention import check_attends, check_length
from transformer_jax.layers.attention import weights_in
from transformer_jax.layers.embeddings import Head
from transformer_jax.pictures.attention_maps import Attended, Side, between

# --------------------------------------------- the special tokens of a row of one text or two texts


class SpecialTokens(NamedTuple):
    """Special token ids before the first text, between two texts, and after the last text."""

    begin: tuple[int, ...]
    separator: tuple[int, ...]
    end: tuple[int, ...]

    def count(self, num_texts: int) -> int:
        """Returns the number of special tokens in a row of one text or of two."""
        return len(self.begin) + (num_texts - 1) * len(self.separator) + len(self.end)

    def second(self, first: list[int]) -> int:
        """Returns the position at which the second text of a row starts."""
        return len(self.begin) + len(first) + len(self.separator)

    def around(self, first: list[int], second: list[int] | None = None) -> list[int]:
        """Returns the token ids of a row, including the special tokens."""
        ids = [*self.begin, *first]
        return [*ids, *self.end] if second is None else [*ids, *self.separator, *second, *self.end]


# ---------------------------------------------------------- rows, hidden states and summary vectors

# The rows are as in BERT (Devlin et al. 2018, figure 4), GPT (Radford et al. 2018, figure 1) and
# BART (Lewis et al. 2019, sections 3.1 and 3.2).

# Names of the special tokens in a picture of attention. They are written out, because the three
# tokens that a causal model learns are beyond its tokenizer's vocabulary.
_NAMES = {
    "encoder": (["[CLS]"], ["[SEP]"], ["[SEP]"]),
    "causal": (["<start>"], ["<delimiter>"], ["<extract>"]),
    "sequence_to_sequence": (["<s>"], ["</s>"], ["</s>"]),
}
_CLS_LAST = ([], ["[SEP]"], ["[SEP]", "[CLS]"])


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Rows, hidden states and summary vectors of a model. The texts of a row are A and B.

    For an Encoder, a row is [CLS] A [SEP] B [SEP], or A [SEP] B [SEP] [CLS] if the model declares
    `cls_last`. The summary is the hidden state of [CLS], pooled if the model has a pooler.

    For a Causal model, a row is start A delimiter B extract, and the summary is the hidden state of
    extract, the only token that has read the whole row. These three tokens are the last ids of the
    vocabulary, which grows by them. Without `adds_special_tokens`, a row is A B, and the summary is
    the hidden state of its last token.

    For a SequenceToSequence model, a row is <s> A </s></s> B </s>. The encoder and the decoder read
    the same row, the decoder shifted by the tokenizer's `start_id`. The hidden states are the
    decoder's, and the summary is the one of the last </s>. With `source_only`, only the encoder
    reads the row.

    The first `num_global` tokens of [CLS] A have global attention if the model supports it.
    """

    model: Any  # the Linen module
    source_only: bool = False
    num_global: int = 0
    adds_special_tokens: bool = True

    @property
    def bidirectional(self) -> bool:
        """Whether each hidden state depends on the whole row."""
        return self.model.kind != "causal"

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of a row's arrays, int32 each."""
        second = "decoder_tokens" if self._decodes else "token_types"
        arrays = ("tokens", second, "segment_ids")
        return (*arrays, "global_positions") if self._has_global else arrays

    @property
    def _has_global(self) -> bool:
        return self.num_global > 0 and "global" in self.model.can

    def shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a row's arrays, for rows of `length` units."""
        shapes = {
            "tokens": (length, *self.model.unit_shape),
            "global_positions": (self.num_global,),
        }
        return {name: shapes.get(name, (length,)) for name in self.arrays}

    @property
    def stack(self) -> str:
        """The name of the layers whose self-attention `attention` returns."""
        return "encoder" if self.bidirectional else "decoder"

    @property
    def _has_decoder(self) -> bool:
        return self.model.kind == "sequence_to_sequence"

    @property
    def _decodes(self) -> bool:
        return self._has_decoder and not self.source_only

    @property
    def _pools(self) -> bool:
        return "pool" in self.model.can

    def head(self, features: int, dropout: float) -> Head:
        """Returns a head that reads summaries.

        For a decoder's hidden states, it has a pooling layer of its own, as in BART.
        """
        return Head(features, dropout, self.bidirectional, pools=self._decodes)

    def special_tokens(self, tokenizer) -> SpecialTokens:
        """Returns the special tokens of a row.

        Raises UserError if the tokenizer lacks them, or if the vocabulary has no room for them.
        """
        if self.model.kind == "causal":
            if not self.adds_special_tokens:
                return SpecialTokens((), (), ())
            if tokenizer.vocab_size > self.model.vocab_size - 3:
                raise UserError(
                    f"config.model.vocab_size={self.model.vocab_size}: must be at least "
                    f"{tokenizer.vocab_size + 3}, the {tokenizer.vocab_size} tokens of the "
                    "tokenizer and start, delimiter and extract"
                )
            return SpecialTokens(*((self.model.vocab_size - offset,) for offset in (3, 2, 1)))
        begin, end = batching.text_frame(self.model, tokenizer)
        # As many separators as in pre-training: BERT has one [SEP], RoBERTa and BART have two </s>.
        return SpecialTokens(begin, end[:1] * tokenizer.pair_separators, end)

    def row(
        self, tokenizer, first: list[int], second: list[int] | None = None, *, length: int
    ) -> Row:
        """Returns the arrays of a row, with the shapes of `shapes`. The texts must fit."""
        special = self.special_tokens(tokenizer)
        ids = special.around(first, second)
        if self._decodes:
            # The decoder reads the same row shifted by one, as in BART's pre-training.
            other = [tokenizer.start_id, *ids[:-1]]
        else:
            is_second = np.arange(len(ids)) >= special.second(first)
            other = (is_second & (second is not None)).astype(np.int32)
            if self.model.cls_last:
                other[-1] = 2  # XLNet's segment id of [CLS], which belongs to neither text
        arrays = (ids, other, np.ones(len(ids)))
        row = {name: padded(array, length) for name, array in zip(self.arrays, arrays)}
        if self._has_global:
            positions = np.arange(self.num_global, dtype=np.int32)
            is_global = positions < len(special.begin) + len(first)
            # Padded with -1, because a text may have fewer tokens than there are global positions.
            row["global_positions"] = np.where(is_global, positions, np.int32(-1))
        return row

    def init(self, rng, summary: bool, language_model: bool = False) -> dict:
        """Returns the parameters that the task uses, without the heads of pre-training."""

        # Linen makes parameters only for what is called, so the heads of pre-training get none.
        def used(model, inputs):
            hidden = model.hidden(*[inputs] * (2 if self._decodes else 1))
            if language_model:
                model.scaled_output()
            return model.pooled(hidden) if summary and self._pools else hidden

        return self.model.init(rng, self._blank, method=used)["params"]

    @property
    def _blank(self) -> Inputs:
        return Inputs(jnp.zeros((1, 8, *self.model.unit_shape), jnp.int32))

    def init_layers(self, rng) -> tuple[list[jax.Array], dict]:
        """Returns (the states of `layers` for a short row, the parameters that they need)."""
        states, variables = self.model.init_with_output(rng, self._blank, method="layers")
        return list(states), variables["params"]

    def hidden(self, params, batch, rng, train: bool) -> jax.Array:
        """Returns the hidden states (B, L, M)."""
        inputs = [self._inputs(batch)]
        if self._decodes:
            inputs.append(
                Inputs(batch["decoder_tokens"], segment_ids=batch["segment_ids"], padding_last=True)
            )
        return self.model.apply(
            {"params": params},
            *inputs,
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )

    def layers(self, params, batch) -> list[jax.Array]:
        """Returns the embeddings and the states of the encoder's layers, (B, L, width) each."""
        return list(self.model.apply({"params": params}, self._inputs(batch), method="layers"))

    def _inputs(self, batch) -> Inputs:
        """Returns the inputs of the model, or of its encoder, for a batch."""
        return Inputs(
            batch["tokens"],
            segment_ids=batch["segment_ids"],
            token_types=batch.get("token_types"),
            global_positions=batch.get("global_positions"),
            padding_last=True,
        )

    def attention(self, params, tokenizer, texts: list[list[int]], pieces: bool) -> Attended:
        """Returns the attention weights between the words of a row of one text or two texts.

        With `pieces`, they are between tokens. Raises UserError for a row longer than
        `config.model.max_length`, and for a model without attention.
        """
        check_attends(self.model)
        length = sum(map(len, texts)) + self.special_tokens(tokenizer).count(len(texts))
        check_length(length, self.model.window)
        row = self.row(tokenizer, *texts, length=length)
        side = self._labels(tokenizer, texts, pieces)
        types = None if self._has_decoder else row["token_types"][None]
        inputs = Inputs(row["tokens"][None], token_types=types)
        method = "encode" if self._has_decoder else "hidden"
        weights = weights_in(self.model, params, self.stack, inputs, method=method)
        return between(weights, side, side)

    def _labels(self, tokenizer, texts: list[list[int]], pieces: bool) -> Side:
        """Returns the labels of the words, or the pieces, of a row of one text or two texts."""
        all_names = _CLS_LAST if self.model.cls_last else _NAMES[self.model.kind]
        begin, separator, end = (
            Side((names * len(ids))[: len(ids)], list(range(len(ids))))
            for names, ids in zip(all_names, self.special_tokens(tokenizer))
        )
        side = begin + Side.of(tokenizer, texts[0], pieces)
        for ids in texts[1:]:
            side = side + separator + Side.of(tokenizer, ids, pieces)
        return side + end

    def summary(self, params, hidden, batch) -> jax.Array:
        """Returns the summary vector of each row (B, M)."""
        if self.model.kind != "encoder" or self.model.cls_last:
            # Only the last token of a causal model or a decoder has read the whole row, and XLNet's
            # [CLS] is the last token, too. For a row of padding, the index is 0 instead of -1.
            last = jnp.maximum((batch["segment_ids"] > 0).sum(axis=-1) - 1, 0)
            hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
        if self._pools:
            return self.model.apply({"params": params}, hidden, method="pooled")
        return hidden[:, 0]

    def concatenated(self, params, hidden, batch) -> jax.Array:
        """Returns summary, maximum and mean of the states of each row (B, 3 M) float32.

        They are h_c of Howard & Ruder 2018, section 3.3.
        """
        filled = (batch["segment_ids"] > 0)[..., None]  # (B, L, 1)
        # float32, because a mean over many tokens in bfloat16 loses the small ones. Padding is set
        # to 0 instead of multiplied by 0, which would keep a NaN.
        states = jnp.where(filled, hidden.astype(jnp.float32), 0)
        mean = states.sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)
        highest = jnp.where(filled, states, -jnp.inf).max(axis=1)
        # A row may be padding only, and its maximum, -inf, must not reach the head.
        highest = jnp.where(filled.any(axis=1), highest, 0)
        summary = self.summary(params, hidden, batch).astype(jnp.float32)
        return jnp.concatenate([summary, highest, mean], axis=-1)

    def next_tokens(self, params, hidden, batch) -> jax.Array:
        """Returns the language modeling loss: the summed cross-entropy of the rows' next tokens."""
        output = self.model.apply({"params": params}, method="scaled_output")
        return output.cross_entropy(
            hidden[:, :-1],
            batch["tokens"][:, 1:],
            (batch["segment_ids"][:, 1:] > 0).astype(jnp.float32),
        )[0]

    def flops(self, length: int, language_model: bool) -> float:
        """Returns the FLOPs of a forward pass over one row.

        `language_model` says whether the language modeling loss is included.
        """
        predictions = length if language_model else 0
        lengths = (length, length if self._decodes else 0) if self._has_decoder else (length,)
        return self.model.flops(*lengths, predictions)
