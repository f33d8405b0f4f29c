"""BERT's pre-training: masked tokens and, unless rows are single texts, next sentences."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import NonNegativeFloat, Range, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments
from transformer_jax.data.masking import MaskedRows
from transformer_jax.finetuning.predictions import Prediction, texts_of_line
from transformer_jax.losses import label_nll
from transformer_jax.objectives.texts import MaskedTextTask, masked_loss, states

# The labels of pairs: those of Devlin et al. 2018, section 3.1, and their counterparts for swapped
# pairs.
_CLASSES = {"next_sentence": ("IsNext", "NotNext"), "sentence_order": ("InOrder", "Swapped")}


@dataclasses.dataclass
class MaskedLM(MaskedTextTask):
    """Masked language modeling and next-sentence prediction (Devlin et al. 2018, section 3.1)."""

    # phases of the run, in order: (share of config.train.num_steps, tokens of a row, most
    # predictions of a row)
    phases: tuple = ((1.0, 128, 20),)
    # weight of the next-sentence loss; 0: rows are single texts, not pairs (Liu et al. 2019)
    next_sentence: NonNegativeFloat = 1.0
    # in half of the pairs, the second text is from another document (next_sentence), or the two
    # consecutive texts are swapped (sentence_order; Lan et al. 2019)
    second_text: Literal["next_sentence", "sentence_order"] = "next_sentence"
    # rows of single texts are consecutive whole sentences, across documents, with a separator
    # between documents (Liu et al. 2019); false: windows of the text
    full_sentences: bool = False
    whole_words: bool = False  # mask all pieces of a word or none
    # weights of masked spans of 1, 2, 3, ... tokens, or of words with whole_words
    ngrams: tuple = (1.0,)
    # in training, the probability that a token is masked is proportional to its count in the
    # training text to the power of minus this number; 0.7 prefers rare tokens, as the published
    # code of DistilBERT does, 0 masks all tokens with equal probability
    rare_words: NonNegativeFloat = 0.0
    # share of the tokens of a row that are predicted in training, if `phases` has as many
    # predictions; evaluations take 0.15, so that their losses can be compared
    selected: Annotated[float, Range(above=0, below=1)] = 0.15

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"mlm": 1.0}
        if self.next_sentence:
            self.coefficients["nsp"] = self.next_sentence
        self.num_row_shapes = len(self.phases)
        if "fill" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: does not fill masks; take a model "
                "that does, such as bert"
            )
        if self.next_sentence and "next_sentence" not in self.model.can:
            raise UserError(
                f"config.task.next_sentence={self.next_sentence}: config.model.name="
                f"{self.config.model.name!r} has no head for it; set it to 0"
            )
        if self.second_text != "next_sentence" and not self.texts.pairs:
            raise UserError(
                f"config.task.second_text={self.second_text}: rows have no second text with "
                "config.task.next_sentence=0; set it to next_sentence, or next_sentence above 0"
            )
        self.texts.check(self.model)
        self._check_selected()

    def _check_selected(self) -> None:
        """Raises UserError if the rows have no room for a share that the config has raised."""
        for phase in self.phases if self.selected > MaskedRows.selected else ():
            _, length, most = phase
            if most < round(self.selected * length):
                raise UserError(
                    f"config.task.selected={self.selected}: of {length} tokens, these are "
                    f"{round(self.selected * length)}, and config.task.phases allows {most} in "
                    f"{phase}; raise its last number"
                )

    @property
    def texts(self) -> MaskedRows:
        return MaskedRows(
            self.config,
            self.phases,
            self.next_sentence > 0,
            self.whole_words,
            self.ngrams,
            self.second_text == "sentence_order",
            self.full_sentences,
            self.rare_words,
            self.selected,
        )

    def init(self, rng):
        # A short row is traced faster, and no parameter depends on the length of the rows.
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def weights(self, batch):
        weights = {"mlm": batch["masked_weights"].sum().astype(jnp.float32)}
        if self.next_sentence:
            weights["nsp"] = self.paired(batch).sum().astype(jnp.float32)
        return weights

    def inputs(self, batch) -> Inputs:
        """Returns the model's inputs for a batch."""
        return Inputs(
            batch["tokens"],
            token_types=batch["token_types"],
            segment_ids=batch["segment_ids"],
            padding_last=True,
        )

    def paired(self, batch) -> jax.Array:
        """Returns which rows predict the next sentence (B,) bool: all rows that are not padding."""
        return batch["segment_ids"].max(axis=-1) > 0

    def loss(self, params, batch, context: Context) -> Loss:
        return self.loss_of_states(params, batch, self.states(self.model, params, batch, context))

    def states(self, model, params, batch, context: Context) -> jax.Array:
        """Returns the hidden states of the rows (B, L, M), of the task's model or another one."""
        return states(model, params, self.inputs(batch), context)

    def loss_of_states(self, params, batch, hidden: jax.Array) -> Loss:
        """Returns the loss of the rows, given their hidden states (B, L, M)."""
        terms, metrics, _ = masked_loss(self.model, params, batch, hidden)
        if self.next_sentence:
            logits = self.model.apply({"params": params}, hidden, method="next_logits")
            is_row = self.paired(batch)
            # Class 0 is "the second text follows the first", as in the published checkpoints.
            label = 1 - batch["follows"]
            nsp = jnp.sum(label_nll(logits, label) * is_row)
            num_rows = is_row.sum(dtype=jnp.int32)
            correct = jnp.sum((logits.argmax(axis=-1) == label) & is_row, dtype=jnp.float32)
            terms["nsp"] = nsp
            metrics |= {"nsp_loss": (nsp, num_rows), "nsp_accuracy": (correct, num_rows)}
        return Loss(terms, metrics)

    def group(self, path):
        # Without a next-sentence loss these layers get no gradient. Frozen, they are not changed by
        # weight decay either, and have no optimizer state.
        is_unused = not self.next_sentence and path[0] in ("pooler", "nsp")
        return None if is_unused else super().group(path)

    def flops(self, row_shape: int = 0) -> float:
        _, length, num_predictions = self.phases[row_shape]
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.flops(length, num_predictions)

    def evaluate(self, params, split: str) -> dict:
        """Returns the losses and accuracies of both objectives on a split.

        The rows have the length of the last phase. A split of fewer than 2,000 rows is read several
        times, with different pairs and masks. "most_frequent" is the accuracy of always predicting
        the most frequent label. Raises UserError if the run has no such split.
        """
        arguments.held_out(self.texts.text, split, "files")
        evaluated = self.texts.evaluation(self.tokenizer, split)
        label_counts = np.zeros(self.model.vocab_size, np.int64)

        def count_labels(batch) -> None:
            labels = batch["masked_labels"][batch["masked_weights"] > 0]
            label_counts[:] += np.bincount(labels, minlength=len(label_counts))

        means = self.mean_metrics(params, evaluated, observe=count_labels)
        means.pop("filled")
        return {
            **means,
            **self.derived(split, means),
            "most_frequent": float(label_counts.max() / label_counts.sum()),
            "rows": len(evaluated),
            "masked": int(label_counts.sum()),
        }

    def next_sentences(
        self, params, pairs: Iterable[tuple[str, str]], *, long: str = "truncate"
    ) -> Iterator[float | None]:
        """Yields the probability that the second text of each pair follows the first, in order.

        In a run with `second_text="sentence_order"`, it is the probability that two consecutive
        texts are in their order. `long` decides what happens to a pair longer than
        `config.model.max_length`: "truncate" cuts the longer text at its end, "skip" gives None,
        and "refuse" raises UserError. A warning at the end lists the numbers of these pairs. A pair
        of empty texts gives None. Raises UserError for a pair with one empty text, and for a run
        that has not learned to predict next sentences.
        """
        if not self.next_sentence:
            raise UserError(
                "config.task.next_sentence=0: this run was trained without pairs of texts, so it "
                "can't tell whether one follows the other"
            )
        return self._reader(params).next_sentences(params, pairs, long)

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields whether the second text of each line follows the first, in order.

        A line is two texts, separated by a tab. The prediction is IsNext or NotNext or, with
        `second_text="sentence_order"`, InOrder or Swapped. An empty line has an empty prediction.
        `long` and errors are those of `next_sentences`.
        """
        numbered = enumerate(arguments.as_texts(lines), 1)
        pairs = (
            texts_of_line(number, line, 2) if line.strip() else ("", "")
            for number, line in numbered
        )
        probabilities = self.next_sentences(params, pairs, long=long or "truncate")
        return (_prediction(_CLASSES[self.second_text], each) for each in probabilities)


def _prediction(names: tuple[str, str], follows: float | None) -> Prediction:
    """Returns the prediction for a pair whose first class has this probability."""
    if follows is None:
        return Prediction("", {"text": "", "label": None, "probabilities": None})
    label = names[0] if follows >= 0.5 else names[1]
    probabilities = dict(zip(names, (follows, 1 - follows)))
    return Prediction(label, {"label": label, "probabilities": probabilities})
