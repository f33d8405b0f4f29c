"""Scores of mutations by masked marginals (Meier et al. 2021, section 3)."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.config import UserError
from transformer_jax.data.tokenizers.residues import STANDARD
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks, padded, rounded_up

_LENGTH_MULTIPLE = 32  # few shapes are compiled
_MASK_MULTIPLE = 8
_MUTATION = re.compile(rf"([{STANDARD}])(\d+)([{STANDARD}])")


class Mutation(NamedTuple):
    """A residue at a place, from 1, and the one in its stead: A10V."""

    wild: str
    place: int
    mutant: str

    def __str__(self):
        return f"{self.wild}{self.place}{self.mutant}"


class Mutant(NamedTuple):
    """A protein and its mutations."""

    residues: str
    mutations: tuple[Mutation, ...]


def of_line(number: int, line: str) -> Mutant:
    """Returns the mutant of a line, residues, a tab, and mutations such as A10V,K3R.

    Raises UserError for a line of another form, and for a residue that is not at its place.
    """
    residues, *others = line.split("\t")
    residues = "".join(residues.split())
    words = others[0].split(",") if len(others) == 1 else []
    if not words:
        raise UserError(f"line {number}: must hold residues, a tab, and mutations such as A10V,K3R")
    return Mutant(residues, tuple(_mutation(number, residues, word.strip()) for word in words))


def _mutation(number: int, residues: str, word: str) -> Mutation:
    match = _MUTATION.fullmatch(word)
    if not match:
        raise UserError(
            f"line {number}: mutation {word!r}: must be a residue, its place from 1 and another "
            "residue, as in A10V"
        )
    wild, place, mutant = match[1], int(match[2]), match[3]
    if not 1 <= place <= len(residues):
        raise UserError(f"line {number}: mutation {word}: the protein has {len(residues)} residues")
    if residues[place - 1] != wild:
        raise UserError(
            f"line {number}: mutation {word}: the protein has {residues[place - 1]} at this place"
        )
    return Mutation(wild, place, mutant)


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Scores mutants, `batch` at a time. The devices share the rows of a batch."""

    model: Any  # the Linen module
    tokenizer: Any
    batch: int
    placement: Placement

    def __call__(self, params, mutants: Iterable[Mutant]) -> Iterator[Float[np.ndarray, " K"]]:
        """Yields log p(mutant) - log p(wild) of each mutation of each mutant.

        All mutated places of a mutant are masked together. Its score is the sum.
        """
        for chunk in chunks(mutants, self.batch):
            log_probs = self._log_probs(params, chunk)
            for mutant, of_places in zip(chunk, log_probs):
                ids = [self.tokenizer.encode(m.mutant + m.wild) for m in mutant.mutations]
                new, old = np.array(ids).T
                places = np.arange(len(ids))
                yield of_places[places, new] - of_places[places, old]

    def _log_probs(self, params, mutants: Sequence[Mutant]) -> Float[np.ndarray, "B K V"]:
        """Returns the log-probabilities of all residues at the masked places."""
        rows = [self._masked(mutant) for mutant in mutants]
        places = [[mutation.place for mutation in mutant.mutations] for mutant in mutants]
        length = min(rounded_up(max(map(len, rows)), _LENGTH_MULTIPLE), self.model.window)
        count = rounded_up(max(map(len, places)), _MASK_MULTIPLE)
        tokens = padded(rows, length, self.batch)
        segments = padded([[1] * len(row) for row in rows], length, self.batch)
        places = padded(places, count, self.batch)
        computed = hosts.run(Marginals._compute, self, params, tokens, segments, places)
        return np.asarray(jax.device_get(computed))

    def _masked(self, mutant: Mutant) -> list[int]:
        """Returns the tokens of a row: a mutated place is that of the token behind <cls>."""
        tokenizer = self.tokenizer
        row = [tokenizer.cls_id, *tokenizer.encode(mutant.residues), tokenizer.eos_id]
        for mutation in mutant.mutations:
            row[mutation.place] = tokenizer.mask_id
        return row

    @partial(jax.jit, static_argnums=0)
    def _compute(
        self,
        params,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"],
        places: Int[Array, "B K"],
    ) -> Float[Array, "B K V"]:
        variables = {"params": params}
        with self.placement.dividing(length=tokens.shape[1]).use():
            tokens, segments, places = split_rows((tokens, segments, places))
            hidden = self.model.apply(variables, tokens, segment_ids=segments, method="hidden")
            masked = jnp.take_along_axis(hidden, places[..., None], axis=1)
            logits = self.model.apply(variables, masked, method="logits")
            return gathered(jax.nn.log_softmax(logits))
