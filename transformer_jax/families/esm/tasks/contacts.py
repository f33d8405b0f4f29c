"""Protein contacts: a regression on the attention maps of a trained model (Rao et al. 2020)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax import pictures
from transformer_jax.config import NonNegativeFloat, PositiveInt, UserError
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import proteins
from transformer_jax.families.esm import contacts
from transformer_jax.families.esm.proteins import ProteinTask
from transformer_jax.finetuning.predictions import Prediction

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


@dataclasses.dataclass
class Contacts(ProteinTask):
    """Logistic regression of residue contacts on the corrected attention maps of all heads.

    The model of the run in `config.init_from` is not changed. "precision" is the share of true
    contacts among the N likeliest pairs of a protein of N residues, averaged over proteins.
    """

    min_separation: PositiveInt = 6  # least distance, in the sequence, of residues in contact
    l1: NonNegativeFloat = 0.0  # weight of the sum of the absolute weights of the regression

    takes_model = True
    begins_with_run = True
    written_as = "masked_residues"

    def __post_init__(self):
        super().__post_init__()
        contacts.check_contacts(self.model, self.config.model.name)
        if self.min_separation >= self.length:
            raise UserError(
                f"config.task.min_separation={self.min_separation}: must be at most "
                f"config.task.length - 1 = {self.length - 1}"
            )
        self.coefficients = {"contacts": 1.0} | ({"l1": self.l1} if self.l1 else {})

    def component(self, records):
        seed = self.config.data.seed
        return proteins.ContactMaps(records, self.tokenizer, self.length, seed)

    def batch_spec(self, row_shape: int):
        shape = (self.length - 2, self.length - 2)  # without <cls> and <eos>
        return super().batch_spec(row_shape) | self.int32_spec({"contacts": shape})

    def weights(self, batch):
        num_pairs = self._pairs(batch).sum(dtype=jnp.float32)
        num_rows = (batch["segment_ids"][..., 0] > 0).sum(dtype=jnp.float32)
        return {"contacts": num_pairs, "l1": num_rows} if self.l1 else {"contacts": num_pairs}

    def _pairs(self, batch) -> Bool[Array, "*B P P"]:
        """Returns the pairs of residues, the earlier one first, that may be in contact.

        Residues that are close in the sequence are close in space, too, and would hide the
        precision on the others.
        """
        is_residue = contacts.residues(batch["segment_ids"])
        positions = jnp.arange(is_residue.shape[-1])
        is_far = positions[None] - positions[:, None] >= self.min_separation
        return is_far & is_residue[..., :, None] & is_residue[..., None, :]

    def loss(self, params, batch, context: Context) -> Loss:
        segment_ids, touch = batch["segment_ids"], batch["contacts"]
        logits = contacts.logits(self.model, params, batch["tokens"], segment_ids)
        pairs = self._pairs(batch)
        # The cross-entropy of a sigmoid, without a logarithm of a probability that underflows.
        losses = jax.nn.softplus(logits) - touch * logits
        total = jnp.sum(losses * pairs)
        num_residues = contacts.residues(segment_ids).sum(axis=1)
        rows = (segment_ids[:, 0] > 0).sum(dtype=jnp.int32)
        precisions = precision(_allowed(logits, pairs), touch, num_residues)
        filled = (segment_ids > 0).sum(dtype=jnp.int32)
        metrics = {
            "loss": (total, pairs.sum(dtype=jnp.int32)),
            "precision": (precisions.sum(), rows),
            "filled": (filled, jnp.int32(segment_ids.size)),
        }
        terms = {"contacts": total}
        if self.l1:
            # Loss terms are sums over rows, whose number is the denominator.
            terms["l1"] = rows * jnp.abs(params["contact"]["kernel"]).sum()
        return Loss(terms, metrics)

    def group(self, path):
        return "" if path[0] == "contact" else None

    def flops(self, row_shape: int = 0) -> float:
        # Only the regression is trained, so the model has no backward pass.
        return self.model.flops(self.length, 0)

    def derived(self, name, means):
        return {}

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields the likeliest contacts of each line of residues, as many as it has residues.

        The text is I-J:PROBABILITY, separated by spaces; I and J count from 1. An empty line has an
        empty prediction. Raises UserError for a protein longer than `config.model.max_length`.
        """
        if long not in (None, "refuse"):
            raise UserError(f"long={long!r}: must be refuse")
        for probabilities in self.contacts(params, lines):
            size = len(probabilities)
            pairs = contacts.likeliest(probabilities, size, self.min_separation)
            text = " ".join(f"{i}-{j}:{p:.3f}" for i, j, p in pairs)
            yield Prediction(text, {"contacts": [[i, j, round(p, 6)] for i, j, p in pairs]})

    def result(self, params, texts: Sequence[str]) -> "Figure":
        """Returns a figure of the contacts of a protein, given as a text of residues.

        Without a text, it is the first protein of the validation split, beside its true contacts.
        """
        touch = None
        if not texts:
            records = self.source.records("valid")
            if records is None:
                raise UserError("--text=... is missing: this run has no validation data to draw")
            ((text, pairs),) = proteins.Stored(records).read([0])
            texts = [text[: self.model.window - 2]]
            pairs = pairs[(pairs < len(texts[0])).all(axis=1)]
            touch = proteins.contact_map(pairs, len(texts[0]))
        (probabilities,) = self.contacts(params, texts[:1])
        return pictures.contact_maps(np.asarray(probabilities), touch, f"contacts of {texts[0]}")


def _allowed(logits: Float[Array, "B P P"], pairs: Bool[Array, "B P P"]) -> Float[Array, "B P P"]:
    # The precision counts ranks, which have no gradient. -inf ranks below all pairs that count.
    return jnp.where(pairs, jax.lax.stop_gradient(logits), -jnp.inf)


def precision(
    logits: Float[Array, "B P P"], touch: Int[Array, "B P P"], num_residues: Int[Array, " B"]
) -> Float[Array, " B"]:
    """Returns the share of contacts among the N likeliest pairs of each row of N residues.

    Pairs with the logit -inf are not counted.
    """
    batch, length, _ = logits.shape
    # The number of residues differs from row to row, but shapes are fixed: `length` pairs are taken
    # from each row, of which the first ones count.
    highest, indices = jax.lax.top_k(logits.reshape(batch, -1), length)
    is_true = jnp.take_along_axis(touch.reshape(batch, -1), indices, axis=1)
    counts = (jnp.arange(length) < num_residues[:, None]) & (highest > -jnp.inf)
    # A short protein may have no pair that counts.
    return jnp.sum(is_true * counts, axis=1) / jnp.maximum(counts.sum(axis=1), 1)
