"""Uses of protein language models: contact prediction, and scores of mutations."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import arguments
from transformer_jax.data.tokenizers.words import STANDARD
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.attention import check_length
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.layers import activations

# ------------------------------------- contacts by a regression on attention maps (Rao et al. 2020)

# Lengths are padded to multiples of this, so that few shapes are compiled.
_LENGTH_MULTIPLE = 32
_WEIGHTS = "encoder/layer*/attention/weights"


def corrected(
    weights: Float[Array, "N B H L L"], segment_ids: Int[Array, "B L"]
) -> Float[Array, "B P P NH"]:
    """Returns the attention maps between the P = L - 2 residue positions as features.

    A row is <cls> residues <eos> and padding; only attention between residues is kept. A map is
    symmetrized. Then the product of its row and column sums, divided by the total sum, is
    subtracted (average product correction; Dunn et al. 2008).
    """
    is_residue = residues(segment_ids)
    pairs = is_residue[:, None, :, None] & is_residue[:, None, None, :]  # (B, 1, P, P)
    # float32, because sums over all pairs and a difference of similar numbers follow.
    maps = jnp.where(pairs, weights.astype(jnp.float32)[..., 1:-1, 1:-1], 0)
    # Symmetrized, because contacts are symmetric and attention is not.
    maps = maps + jnp.swapaxes(maps, -1, -2)
    rows = maps.sum(axis=-1, keepdims=True)
    columns = maps.sum(axis=-2, keepdims=True)
    total = rows.sum(axis=-2, keepdims=True)
    # A row of padding has the total 0, and 0 / 0 would be NaN.
    maps = maps - rows * columns / jnp.maximum(total, 1e-9)
    layers, batch, heads, size, _ = maps.shape
    return jnp.moveaxis(maps, (0, 2), (3, 4)).reshape(batch, size, size, layers * heads)


def residues(segment_ids: Int[Array, "*B L"]) -> Bool[Array, "*B P"]:
    """Returns which of the P = L - 2 positions after <cls> are residues."""
    # A token after <cls> is a residue if another token follows it, at the latest <eos>. Hence the
    # segment ids of the next positions.
    return segment_ids[..., 2:] > 0


def logits(
    model: Any, params, tokens: Int[Array, "B L"], segment_ids: Int[Array, "B L"]
) -> Float[Array, "B P P"]:
    """Returns the logits of contacts between the residues of rows <cls> residues <eos>."""
    inputs = Inputs(tokens, segment_ids=segment_ids)
    captured = activations.capture(model, params, [_WEIGHTS], inputs, method="hidden")
    (weights,) = captured.values()
    # Only the regression is trained, not the attention below it.
    maps = jax.lax.stop_gradient(corrected(weights, segment_ids))
    return model.apply({"params": params}, maps, method="contact_logits")


class ContactsUse:
    """The methods of a task whose model predicts contacts."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    def contacts(self, params, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields, for each protein of N residues, the contact probabilities (N, N) float32.

        Raises UserError for a protein that is longer than `config.model.max_length`.
        """
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        for chunk in chunks(arguments.as_texts(texts), batch):
            encoded = [self.tokenizer.encode(text) for text in chunk]
            rows = [[self.tokenizer.cls_id, *ids, self.tokenizer.eos_id] for ids in encoded]
            longest = max(map(len, rows))
            check_length(longest, self.model.window)
            length = min(rounded_up(longest, _LENGTH_MULTIPLE), self.model.window)
            tokens = padded(rows, length, batch)
            segments = padded([[1] * len(row) for row in rows], length, batch)
            computed = hosts.run(_probabilities, self.model, placement, params, tokens, segments)
            for ids, values in zip(encoded, np.asarray(jax.device_get(computed))):
                yield values[: len(ids), : len(ids)]


@partial(jax.jit, static_argnums=(0, 1))
def _probabilities(
    model: Any, placement: Placement, params, tokens: Int[Array, "B L"], segments: Int[Array, "B L"]
) -> Float[Array, "B P P"]:
    with placement.dividing(length=tokens.shape[1]).use():
        tokens, segments = split_rows((tokens, segments))
        return gathered(jax.nn.sigmoid(logits(model, params, tokens, segments)))


def likeliest(
    probabilities: Float[np.ndarray, "N N"], count: int, min_separation: int
) -> list[tuple[int, int, float]]:
    """Returns the `count` likeliest contacts (i, j, probability), the likeliest first.

    The positions i and j count from 1, and j is at least i + `min_separation`.
    """
    size = len(probabilities)
    first, second = np.triu_indices(size, min_separation)
    # Stable, so that equally likely contacts are listed in the order of their positions.
    order = np.argsort(-probabilities[first, second], kind="stable")[:count]
    pairs = zip(first[order] + 1, second[order] + 1, probabilities[first, second][order])
    return [(int(i), int(j), float(p)) for i, j, p in pairs]


def check_contacts(model: Any, name: str) -> None:
    """Raises UserError for a model that does not predict contacts."""
    if "contact" not in model.can:
        raise UserError(
            f"config.model.name={name!r}: does not predict contacts; use a model that does, such "
            "as esm"
        )


# --------------------------- scores of mutations by masked marginals (Meier et al. 2021, section 3)

# Lengths, and the numbers of masked positions, are padded to multiples of these, so that few
# shapes are compiled.
_MULTIPLE = 32
_MASK_MULTIPLE = 8
_MUTATION = re.compile(rf"([{STANDARD}])(\d+)([{STANDARD}])")


class Mutation(NamedTuple):
    """A substitution, such as A10V: a residue, its position from 1, and the new residue."""

    wild: str
    position: int
    mutant: str

    def __str__(self):
        return f"{self.wild}{self.position}{self.mutant}"


class Mutant(NamedTuple):
    """A protein and its mutations."""

    residues: str
    mutations: tuple[Mutation, ...]


def read_mutant(number: int, line: str) -> Mutant:
    """Parses a line of residues, a tab, and mutations such as A10V,K3R.

    Raises UserError for a line of another form, and for a mutation whose first residue is not at
    its position in the protein.
    """
    residues, *others = line.split("\t")
    residues = "".join(residues.split()).upper()
    words = others[0].split(",") if len(others) == 1 else []
    if not words:
        raise UserError(f"line {number}: must hold residues, a tab, and mutations such as A10V,K3R")
    return Mutant(residues, tuple(_mutation(number, residues, word.strip()) for word in words))


def _mutation(number: int, residues: str, word: str) -> Mutation:
    match = _MUTATION.fullmatch(word)
    if not match:
        raise UserError(
            f"line {number}: mutation {word!r}: must be a residue, its position from 1 and another "
            "residue, as in A10V"
        )
    wild, position, mutant = match[1], int(match[2]), match[3]
    if not 1 <= position <= len(residues):
        raise UserError(f"line {number}: mutation {word}: the protein has {len(residues)} residues")
    if residues[position - 1] != wild:
        raise UserError(
            f"line {number}: mutation {word}: the protein has {residues[position - 1]} at this "
            "position"
        )
    return Mutation(wild, position, mutant)


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Scores mutants, `batch` at a time. The rows of a batch are split over the devices."""

    model: Any  # the Linen module
    tokenizer: Any
    batch: int
    placement: Placement

    def __call__(self, params, mutants: Iterable[Mutant]) -> Iterator[Float[np.ndarray, " K"]]:
        """Yields log p(mutant) - log p(wild) of each mutation of each mutant.

        All mutated positions of a mutant are masked together. The score of the mutant is the sum.
        """
        for chunk in chunks(mutants, self.batch):
            log_probs = self._log_probs(params, chunk)
            for mutant, mutant_log_probs in zip(chunk, log_probs):
                ids = [self.tokenizer.encode(m.mutant + m.wild) for m in mutant.mutations]
                new, old = np.array(ids).T
                indices = np.arange(len(ids))
                yield mutant_log_probs[indices, new] - mutant_log_probs[indices, old]

    def _log_probs(self, params, mutants: Sequence[Mutant]) -> Float[np.ndarray, "B K V"]:
        """Returns the log-probabilities of all residues at the masked positions."""
        rows = [self._masked(mutant) for mutant in mutants]
        positions = [[mutation.position for mutation in mutant.mutations] for mutant in mutants]
        length = min(rounded_up(max(map(len, rows)), _MULTIPLE), self.model.window)
        count = rounded_up(max(map(len, positions)), _MASK_MULTIPLE)
        tokens = padded(rows, length, self.batch)
        segments = padded([[1] * len(row) for row in rows], length, self.batch)
        positions = padded(positions, count, self.batch)
        computed = hosts.run(Marginals._compute, self, params, tokens, segments, positions)
        return np.asarray(jax.device_get(computed))

    def _masked(self, mutant: Mutant) -> list[int]:
        """Returns the tokens of a row, in which the mutated positions are masked."""
        # <cls> has index 0, so the position of a residue, from 1, is its index in the row.
        tokenizer = self.tokenizer
        row = [tokenizer.cls_id, *tokenizer.encode(mutant.residues), tokenizer.eos_id]
        for mutation in mutant.mutations:
            row[mutation.position] = tokenizer.mask_id
        return row

    @partial(jax.jit, static_argnums=0)
    def _compute(
        self,
        params,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"],
        positions: Int[Array, "B K"],
    ) -> Float[Array, "B K V"]:
        variables = {"params": params}
        with self.placement.dividing(length=tokens.shape[1]).use():
            tokens, segments, positions = split_rows((tokens, segments, positions))
            inputs = Inputs(tokens, segment_ids=segments)
            hidden = self.model.apply(variables, inputs, method="hidden")
            # The head is applied to the masked positions alone, because they are few of a row.
            masked = jnp.take_along_axis(hidden, positions[..., None], axis=1)
            logits = self.model.apply(variables, masked, method="logits")
            return gathered(jax.nn.log_softmax(logits))
