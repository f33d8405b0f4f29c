"""Masked language modeling of protein residues, the pre-training of ESM (Rives et al. 2021)."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.config import Range, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments, proteins
from transformer_jax.data.arguments import LongLines
from transformer_jax.distributed.sharding import Placement
from transformer_jax.families.esm import contacts
from transformer_jax.families.esm.proteins import ProteinTask
from transformer_jax.finetuning.predictions import Prediction
from transformer_jax.objectives.texts import MASKED, masked_loss, perplexity, states
from transformer_jax.scores import ngrams

_COUNTED = 2**24  # residues counted for the n-gram baselines, so that a large split takes no longer


@dataclasses.dataclass
class MaskedResidues(ProteinTask):
    """A row is one protein, or a part of a longer one that is drawn anew in each epoch.

    Of the predicted residues, 80 % are masked, 10 % are replaced by another residue, and 10 % are
    unchanged. "ece" is the exponential of the cross-entropy.
    """

    # share of the tokens of a row that are predicted
    mask_share: Annotated[float, Range(above=0, most=1)] = 0.15

    coefficients = {"mlm": 1.0}

    def __post_init__(self):
        super().__post_init__()
        if "fill" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: does not fill masks; take a model "
                "that does, such as esm"
            )

    def component(self, records):
        seed = self.config.data.seed
        return proteins.MaskedProteins(
            records, self.tokenizer, self.length, seed, share=self.mask_share
        )

    def batch_spec(self, row_shape: int):
        predictions = proteins.max_predictions(self.length, self.mask_share)
        masked = self.int32_spec(dict.fromkeys(MASKED, (predictions,)))
        return super().batch_spec(row_shape) | masked

    def weights(self, batch):
        return {"mlm": batch["masked_weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        inputs = Inputs(batch["tokens"], segment_ids=batch["segment_ids"], padding_last=True)
        hidden = states(self.model, params, inputs, context)
        return masked_loss(self.model, params, batch, hidden)

    def group(self, path):
        # This loss gives these heads no gradient. Frozen, they do not shrink by weight decay
        # either.
        return None if path[0] in ("contact", "pooler", "nsp") else super().group(path)

    def flops(self, row_shape: int = 0) -> float:
        predictions = proteins.max_predictions(self.length, self.mask_share)
        # The factor 3, because a backward pass costs two forward passes.
        return 3 * self.model.flops(self.length, predictions)

    def derived(self, name, means):
        return {"ece": perplexity(means["loss"])}

    def evaluate(self, params, split: str) -> dict:
        """Returns loss, accuracy and ECE of a split, and the scores of n-gram baselines.

        The n-gram models are counted on the training split. Raises UserError if the run has no such
        split.
        """
        scores = super().evaluate(params, split)
        counted, evaluated = (
            proteins.Stored(self.source.records(name)).text(self.tokenizer, _COUNTED)
            for name in ("train", split)
        )
        size, end = self.tokenizer.vocab_size, self.tokenizer.eos_id
        return scores | {"ngrams": ngrams.residue_scores(counted, evaluated, size, end)}

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields the score of the mutations of each line, in order.

        A line is residues, a tab, and mutations such as A10V,K3R. The score is the sum of log
        p(mutant) - log p(wild type), with all mutated positions masked. An empty line has an empty
        prediction. `long` says what to do with a protein longer than `config.model.max_length`:
        "skip" leaves its prediction empty, and "refuse", the default, raises UserError. Raises
        UserError for a line of another form.
        """
        room = self.model.window - 2
        limit = f"config.model.max_length={self.model.max_length} tokens, including two around it"
        treatment = LongLines(long or "refuse", ("refuse", "skip"), limit)
        mutants = []
        with treatment:
            for number, line in enumerate(arguments.as_texts(lines), 1):
                mutant = contacts.read_mutant(number, line) if line.strip() else None
                if mutant and len(mutant.residues) > room:
                    treatment.add(number)
                    mutant = None
                mutants.append(mutant)
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        marginals = contacts.Marginals(self.model, self.tokenizer, batch, placement)
        scores = marginals(params, [mutant for mutant in mutants if mutant])
        return (_prediction(mutant, scores) for mutant in mutants)


def _prediction(mutant: contacts.Mutant | None, scores: Iterator) -> Prediction:
    if mutant is None:
        return Prediction("", {"score": None, "mutations": {}})
    values = next(scores).tolist()
    by_name = {str(mutation): value for mutation, value in zip(mutant.mutations, values)}
    # An exact sum, so that the score does not depend on the order of the mutations.
    total = math.fsum(values)
    return Prediction(f"{total:.4f}", {"score": total, "mutations": by_name})
