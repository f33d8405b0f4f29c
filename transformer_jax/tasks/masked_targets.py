"""Text to text by an encoder that fills masks in its own output (Dong et al. 2019, section 2.5)."""

import dataclasses
from functools import cached_property
from typing import Annotated

import jax
import jax.numpy as jnp

from transformer_jax.config import Range, UserError
from transformer_jax.contracts.model import Inputs, token_types
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import tokenizers
from transformer_jax.data.packing import MaskedColumnRows
from transformer_jax.inference import attention
from transformer_jax.inference.log_probabilities import Unified
from transformer_jax.inference.translating import most_tokens
from transformer_jax.pictures.attention_maps import Attended
from transformer_jax.tasks.text_to_text import TextToText


@dataclasses.dataclass
class MaskedTargets(TextToText):
    """The target of each source, by a model of BERT's kind.

    Source and target are one row, [CLS] source [SEP] target [SEP]. In training, a share of the
    target's tokens, which may include its end, is masked, and the loss is over the masked tokens.
    An evaluation measures the probability of each target token given the whole source and all
    target tokens before it.
    """

    # share of the target's tokens that are masked in training
    mask_share: Annotated[float, Range(above=0, most=1)] = 0.7

    def __post_init__(self):
        super().__post_init__()
        written = most_tokens(self.config.decode, self.source_length)
        key = "decode.max_length" if self.config.decode.max_length else "decode.max_extra"
        longest = (("task.target_length", self.target_length), (f"{key}: outputs", written))
        for name, length in longest:
            if self.source_length + length > self.model.window:
                raise UserError(
                    f"config.{name} of {length} tokens: source and target are one row; with "
                    f"config.task.source_length={self.source_length} they must have at most "
                    f"config.model.max_length={self.model.max_length}"
                )

    def check_model(self) -> None:
        if "write" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: config.task.name="
                f"{self.config.task.name!r} is for models of the kind of bert; text_to_text is for "
                "encoder-decoders"
            )

    @property
    def texts(self) -> MaskedColumnRows:
        return MaskedColumnRows(**vars(super().texts), mask_share=self.mask_share)

    @cached_property
    def tokenizer(self) -> tokenizers.Pair:
        shared = tokenizers.pair_of_run(
            self.tokenizer_folder,
            self.config.data,
            self.texts.training_text,
            None,
            self.model.vocab_size,
        ).source
        shared.required("cls", "sep", "mask", user="a target by masks")
        return tokenizers.ContinuedPair(shared)

    @property
    def scoring(self) -> Unified:
        return Unified(self.model, self.tokenizer.source, "sequence_to_sequence")

    def batch_spec(self, row_shape: int = 0):
        masked = ("masked_positions", "masked_labels", "masked_weights")
        shapes = dict.fromkeys(masked, (self.texts.max_predictions,))
        return super().batch_spec(row_shape) | self.int32_spec(shapes)

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def weights(self, batch):
        return {"loss": batch["masked_weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        if context.train:
            hidden = self._states_of_masked(params, batch, context)
            labels, weights = batch["masked_labels"], batch["masked_weights"]
        else:
            hidden = self._states_of_all(params, batch)
            labels, weights = batch["labels"], batch["target_segment_ids"] > 0
        predicted = {"labels": labels, "weights": weights.astype(jnp.float32)}
        return self.loss_of(params, hidden, batch | predicted, context)

    def _states_of_masked(self, params, batch, context: Context) -> jax.Array:
        """Returns the hidden states (B, P, M) of the masked tokens."""
        hidden = self.model.apply(
            {"params": params},
            _joined(self._source(batch), self._target(batch, batch["target"])),
            train=True,
            method="hidden",
            rngs={"dropout": context.rng},
        )
        indices = self.source_length + batch["masked_positions"]
        return jnp.take_along_axis(hidden, indices[..., None], axis=1)

    def _states_of_all(self, params, batch) -> jax.Array:
        """Returns the hidden states (B, T, M) of a mask at the position of each target token.

        A mask attends to the source and to the target tokens before its position, and no token
        attends to a mask. These are the hidden states that decoding computes one by one, here in
        one forward pass.
        """
        labels = batch["labels"]
        masks = self._target(batch, jnp.full_like(labels, self.tokenizer.source.mask_id))
        # A mask's rank is between the ranks of the token at its position and of the token before.
        masks = masks.replace(ranks=masks.ranks - 1)
        row = _joined(self._source(batch), self._target(batch, labels), masks)
        length = row.tokens.shape[1]
        is_mask = jnp.arange(length) >= length - self.target_length
        row = row.replace(private=jnp.broadcast_to(is_mask, row.tokens.shape))
        hidden = self.model.apply({"params": params}, row, method="hidden")
        return hidden[:, -self.target_length :]

    def _source(self, batch) -> Inputs:
        """Returns the model's inputs for the sources of a batch, arrays (B, S)."""
        tokens = batch["source"]
        return Inputs(
            tokens,
            positions=batch["source_positions"],
            segment_ids=batch["source_segment_ids"],
            token_types=jnp.full_like(tokens, self._types[0]),
            ranks=jnp.zeros_like(tokens),
        )

    def _target(self, batch, tokens: jax.Array) -> Inputs:
        """Returns the model's inputs for `tokens` (B, T) at the positions of the targets."""
        positions, segments = batch["target_positions"], batch["target_segment_ids"]
        # The positions of a target continue its source's positions.
        is_source = segments[:, :, None] == batch["source_segment_ids"][:, None, :]
        return Inputs(
            tokens,
            positions=positions + is_source.sum(axis=-1, dtype=jnp.int32),
            segment_ids=segments,
            token_types=jnp.full_like(tokens, self._types[1]),
            # Sources have rank 0. Odd ranks are left free for the masks of an evaluation.
            ranks=2 * positions + 2,
        )

    @property
    def _types(self) -> tuple[int, int]:
        return token_types("sequence_to_sequence", self.model.num_token_types)

    def group(self, path):
        # This loss gives these heads no gradient. Frozen, they do not shrink by weight decay
        # either.
        return None if path[0] in ("pooler", "nsp") else super().group(path)

    def flops(self, row_shape: int = 0) -> float:
        length = self.source_length + self.target_length
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.flops(length, self.texts.max_predictions)

    def attention(
        self, params, source: str, target: str | None = None, *, pieces: bool = False
    ) -> Attended:
        """Returns the attention weights between the words of source and target, in one row.

        By default, `target` is the model's own output. With `pieces`, the weights are between
        tokens. Raises UserError for a row longer than `config.model.max_length`.
        """
        if target is None:
            target = next(self.translate(params, [source], long="refuse"))[0].text
        tokenizer = self.tokenizer
        first = tokenizer.source.framed(tokenizer.source.encode(self.prefix + source))
        second = tokenizer.target.framed(tokenizer.target.encode(target))
        ranks = [0] * len(first) + [*range(1, len(second) + 1)]
        types = [self._types[0]] * len(first) + [self._types[1]] * len(second)
        return attention.in_text(
            self.model,
            params,
            tokenizer.source,
            Inputs(
                jnp.array([[*first, *second]]),
                token_types=jnp.array([types]),
                ranks=jnp.array([ranks]),
            ),
            stack="encoder",
            pieces=pieces,
        )


def _joined(*parts: Inputs) -> Inputs:
    """Returns inputs whose rows are these parts, concatenated."""
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)
