"""GPT-BERT: one stack that reads some rows from left to right and fills masks in the others."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import Range, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments, rows, texts, tokenizers
from transformer_jax.data.masking import Masking
from transformer_jax.data.rows import Row
from transformer_jax.inference.encoder import EncoderStates
from transformer_jax.inference.log_probabilities import Query, Scoring, TextScores, at
from transformer_jax.objectives.texts import TextTask, check_row_length, states

_OBJECTIVES = ("causal", "masked")
# A smaller split is evaluated several times, with other masks.
_MIN_EVAL_ROWS = 2_000


@dataclasses.dataclass
class HybridLM(TextScores, EncoderStates, TextTask):
    """Causal and masked language modeling in one model (Charpentier & Samuel 2024).

    Both objectives predict a token from the hidden state at the position before it. A causal row is
    read from left to right and predicts all of its tokens. In a masked row, all tokens attend to
    each other, and the masked ones are predicted (masked next-token prediction, section 2). Each
    objective has a mean loss, and its weight is its share of the rows, as in the published code,
    where a share of the devices trains each of them.

    "loss" and "accuracy" are those of the causal rows, because only their scores are probabilities
    of texts. A text is scored from left to right.
    """

    length: int = 128  # tokens of a row, [CLS] included
    # share of the rows that are causal
    causal_share: Annotated[float, Range(above=0, below=1)] = 0.5
    # share of the tokens of a masked row that are predicted
    selected: Annotated[float, Range(above=0, below=1)] = 0.15

    def __post_init__(self):
        self.model = build_model(self.config)
        if "write" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: takes no attention masks by ranks; "
                "take a model that does, such as bert"
            )
        check_row_length("length", self.length, self.model, least=8)
        if self.config.data.mask_documents:
            raise UserError(
                "config.data.mask_documents=true: rows of config.task.name='hybrid_lm' go on over "
                "the ends of documents; leave it out"
            )
        self.coefficients = {"causal": self.causal_share, "masked": 1 - self.causal_share}

    @property
    def texts(self) -> "HybridRows":
        return HybridRows(self.config, self.length, self.causal_share, self.selected)

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "mask", user="causal and masked language modeling")
        return tokenizer

    @property
    def scoring(self) -> "CausalRanks":
        return CausalRanks(self.model, self.tokenizer)

    def batch_spec(self, row_shape: int = 0):
        keys = ("tokens", "ranks", "labels", "weights", "segment_ids")
        return self.int32_spec(dict.fromkeys(keys, (self.length,)) | {"causal": ()})

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def weights(self, batch):
        return {
            name: weights.sum().astype(jnp.float32) for name, weights in _weights(batch).items()
        }

    def loss(self, params, batch, context: Context) -> Loss:
        inputs = Inputs(batch["tokens"], segment_ids=batch["segment_ids"], ranks=batch["ranks"])
        hidden = states(self.model, params, inputs, context)
        hidden = self.model.apply({"params": params}, hidden, method="transformed")
        output = self.model.apply({"params": params}, method="scaled_output")
        terms, metrics = {}, {}
        for name, weights in _weights(batch).items():
            loss, _, correct = output.cross_entropy(
                hidden, batch["labels"], weights.astype(jnp.float32)
            )
            count = weights.sum(dtype=jnp.int32)
            terms[name] = loss
            prefix = "" if name == "causal" else "masked_"
            metrics |= {f"{prefix}loss": (loss, count), f"{prefix}accuracy": (correct, count)}
        filled = batch["segment_ids"] > 0
        metrics["filled"] = (filled.sum(dtype=jnp.int32), jnp.int32(filled.size))
        return Loss(terms, metrics)

    def group(self, path):
        # There is no next-sentence loss. Frozen, its layers do not shrink by weight decay.
        return None if path[0] in ("pooler", "nsp") else super().group(path)

    def flops(self, row_shape: int = 0) -> float:
        # Logits are computed at all positions of all rows. The factor 3, because a backward pass
        # costs two forward passes.
        return 3 * self.model.flops(self.length, self.length)

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def evaluate(self, params, split: str) -> dict:
        """Returns the losses and accuracies of both objectives on a split.

        A split of fewer than 2,000 rows is read several times, with other masks. Raises UserError
        if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        means = self.mean_metrics(params, evaluated)
        means.pop("filled")
        return means | self.derived(split, means) | {"rows": len(evaluated)}


def _weights(batch) -> dict[str, jax.Array]:
    """Returns the weights (B, L) of the labels of each objective."""
    is_causal = batch["causal"][..., None] > 0
    return {name: batch["weights"] * (is_causal == (name == "causal")) for name in _OBJECTIVES}


# --------------------------------------------------------------------------------------------------
# Rows: windows of a text after [CLS], of which each epoch draws the objective and the masks anew.


@dataclasses.dataclass(frozen=True)
class HybridWindows:
    """Rows of [CLS] and L - 1 tokens of a text.

    Keys, int32: tokens, labels (the token that each position predicts), weights (1 where it does),
    ranks and segment_ids (L,), and causal (), which is 1 for a causal row.
    """

    windows: texts.Windows  # of L - 1 tokens
    mask: Masking
    causal_share: float
    cls_id: int

    def __len__(self) -> int:
        return len(self.windows)

    def rows(self, numbers: Sequence[tuple[int, int]]) -> list[Row]:
        key = rows.philox_key(self.windows.key)
        return [
            self._row(window["tokens"], rows.generator(key, number, epoch))
            for (number, epoch), window in zip(numbers, self.windows.rows(numbers))
        ]

    def _row(self, text: np.ndarray, random: np.random.Generator) -> Row:
        text = np.concatenate([[self.cls_id], text]).astype(np.int32)
        labels, weights = np.zeros(len(text), np.int32), np.zeros(len(text), np.int32)
        labels[:-1] = text[1:]
        is_causal = random.random() < self.causal_share
        if is_causal:
            weights[:-1] = 1
            tokens, ranks = text, np.arange(len(text))
        else:
            masked = self.mask(text, random)
            chosen = masked["masked_positions"][masked["masked_weights"] > 0]
            weights[chosen - 1] = 1
            tokens, ranks = masked["tokens"], np.zeros(len(text))
        arrays = dict(tokens=tokens, ranks=ranks, labels=labels, weights=weights)
        arrays["segment_ids"] = np.ones(len(text))
        row = {name: values.astype(np.int32) for name, values in arrays.items()}
        return row | {"causal": np.int32(is_causal)}


@dataclasses.dataclass(frozen=True)
class HybridRows(texts.MixedTexts):
    """Rows of `length` tokens from the splits of a text, or from a mixture of training texts."""

    length: int
    causal_share: float
    selected: float

    def train(self, tokenizer) -> rows.TrainRows:
        """Returns the training rows. The first call tokenizes the texts."""

        def component(text, name: str, number: int) -> HybridWindows:
            return self._component(text, tokenizer, name, (0, number))

        return self.train_rows(component)

    def evaluation(self, tokenizer, split: str) -> rows.EvalRows:
        # Splits count as phases, so that no two of them draw the same numbers.
        key = ("train", "valid", "test").index(split), 0
        component = self._component(self.text(split), tokenizer, split, key)
        return rows.EvalRows(component, math.ceil(_MIN_EVAL_ROWS / len(component)))

    def _component(self, text, tokenizer, name: str, key: tuple[int, int]) -> HybridWindows:
        stored = texts.tokenised(text, self.config.data, tokenizer, name)
        key = (self.config.data.seed, *key)
        mask = Masking(
            tokenizer.mask_id,
            tokenizer.special,
            tokenizer.continues,
            self.length,
            selected=self.selected,
        )
        windows = texts.Windows(stored, self.length - 1, False, key)
        return HybridWindows(windows, mask, self.causal_share, tokenizer.cls_id)


# --------------------------------------------------------------------------------------------------
# Scores of texts.


@dataclasses.dataclass(frozen=True)
class CausalRanks(Scoring):
    """The chain rule, by an encoder whose tokens attend to those before them, after [CLS]."""

    def length(self, context, text):
        return len(context) + len(text)

    def query(self, context, text, index):
        ids = [self.tokenizer.cls_id, *context, *text][:-1]
        return Query({"tokens": ids}, range(len(context), len(ids)), text, 0)

    def states(self, params, row, positions):
        tokens = row["tokens"]
        # Padding has the highest ranks, and is seen by no token of the text.
        ranks = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return at(self._hidden(params, Inputs(tokens, ranks=ranks)), positions)
