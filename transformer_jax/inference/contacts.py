"""Uses of protein models: contacts by attention, and scores of mutations."""

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

# --------------------------------------------------------------------------------------------------
# Contacts of proteins by attention (Rao et al. 2020): maps, their regression, and predictions.

# Lengths are padded to multiples of it, so that few shapes are compiled.
_LENGTH_MULTIPLE = 32
_WEIGHTS = "encoder/layer*/attention/weights"


def corrected(
    weights: Float[Array, "N B H L L"], segment_ids: Int[Array, "B L"]
) -> Float[Array, "B P P NH"]:
    """Returns the attention maps of the P = L - 2 places of residues, as features of contacts.

    Rows are <cls> residues <eos> and padding. The attention to and from anything else is left out.
    A map is made symmetric, and the product of its row and column sums over the whole sum is
    subtracted (average product correction; Dunn et al. 2008).
    """
    is_residue = residues(segment_ids)
    pairs = is_residue[:, None, :, None] & is_residue[:, None, None, :]  # (B, 1, P, P)
    maps = jnp.where(pairs, weights.astype(jnp.float32)[..., 1:-1, 1:-1], 0)
    maps = maps + jnp.swapaxes(maps, -1, -2)
    rows = maps.sum(axis=-1, keepdims=True)
    columns = maps.sum(axis=-2, keepdims=True)
    total = rows.sum(axis=-2, keepdims=True)
    maps = maps - rows * columns / jnp.maximum(total, 1e-9)
    layers, batch, heads, places, _ = maps.shape
    return jnp.moveaxis(maps, (0, 2), (3, 4)).reshape(batch, places, places, layers * heads)


def residues(segment_ids: Int[Array, "*B L"]) -> Bool[Array, "*B P"]:
    """Returns which of the P = L - 2 places behind <cls> are residues."""
    return segment_ids[..., 2:] > 0


def logits(
    model: Any, params, tokens: Int[Array, "B L"], segment_ids: Int[Array, "B L"]
) -> Float[Array, "B P P"]:
    """Returns the logits that residues touch, of rows <cls> residues <eos>."""
    inputs = Inputs(tokens, segment_ids=segment_ids)
    captured = activations.capture(model, params, [_WEIGHTS], inputs, method="hidden")
    (weights,) = captured.values()
    # The attention is not trained.
    maps = jax.lax.stop_gradient(corrected(weights, segment_ids))
    return model.apply({"params": params}, maps, method="contact_logits")


class ContactsUse:
    """The use of a task whose model predicts contacts."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    def contacts(self, params, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the probabilities (N, N) float32 that the N residues of each protein touch.

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

    i and j count from 1, and j is at least i + `min_separation`.
    """
    size = len(probabilities)
    first, second = np.triu_indices(size, min_separation)
    order = np.argsort(-probabilities[first, second], kind="stable")[:count]
    pairs = zip(first[order] + 1, second[order] + 1, probabilities[first, second][order])
    return [(int(i), int(j), float(p)) for i, j, p in pairs]


def check_contacts(model: Any, name: str) -> None:
    """Raises UserError for a model that predicts no contacts."""
    if "contact" not in model.can:
        raise UserError(
            f"config.model.name={name!r}: predicts no contacts; take a model that does, such as esm"
        )


# --------------------------------------------------------------------------------------------------
# Scores of mutations by masked marginals (Meier et al. 2021, section 3).

# Lengths, and the numbers of masked places, are padded to multiples of these, so that few shapes
# are compiled.
_MULTIPLE = 32
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


def read_mutant(number: int, line: str) -> Mutant:
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
        length = min(rounded_up(max(map(len, rows)), _MULTIPLE), self.model.window)
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
            inputs = Inputs(tokens, segment_ids=segments)
            hidden = self.model.apply(variables, inputs, method="hidden")
            masked = jnp.take_along_axis(hidden, places[..., None], axis=1)
            logits = self.model.apply(variables, masked, method="logits")
            return gathered(jax.nn.log_softmax(logits))
