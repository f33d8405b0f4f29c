"""Contacts of proteins by attention (Rao et al. 2020): maps, their regression, and predictions."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.data import arguments
from transformer_jax.distributed import hosts
from transformer_jax.distributed.placement import Placement, gathered, split_rows
from transformer_jax.inference.attention import check_length
from transformer_jax.inference.batching import chunks, padded, rounded_up
from transformer_jax.layers import activations

_LENGTH_MULTIPLE = 32  # few shapes are compiled
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
    captured = activations.capture(
        model, params, [_WEIGHTS], tokens, method="hidden", segment_ids=segment_ids
    )
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
