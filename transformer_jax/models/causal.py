"""Causal models by their memory of the tokens so far: a key/value cache, or a recurrent state."""

import abc

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers.embeddings import row_positions
from transformer_jax.layers.masks import Mask
from transformer_jax.models.model import Causal


class Cached(Causal):
    """A causal model with a key/value cache. It defines `decoded` and the key `max_length`."""

    can = frozenset({"attend", "cache"})

    @abc.abstractmethod
    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        """Returns the states of tokens at `positions`, before the output projection.

        `decode` is the number of slots of the collection "cache"; 0: it is not used.
        """

    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        mask = Mask(causal=True, query_segments=segment_ids, key_segments=segment_ids)
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        return self.decoded(tokens, positions, mask=mask, train=train)

    def cached(
        self, tokens: Int[ArrayLike, "B L"], positions: Int[ArrayLike, "B L"], slots: int
    ) -> Float[Array, "B L M"]:
        """Reads tokens into the slots `positions` of a cache of so many `slots`.

        Returns the states. Raises UserError where the cache has too few or too many slots.
        """
        if not tokens.shape[1] <= slots <= self.max_length:
            raise UserError(
                f"slots={slots}: must be at least the number of tokens in a row, "
                f"{tokens.shape[1]}, and at most config.model.max_length={self.max_length}"
            )
        mask = Mask(causal=True, query_slots=positions)
        return self.decoded(tokens, positions, mask=mask, decode=slots)


class Recurrent(Causal):
    """A causal model that reads a row of any length into a state. It defines what follows.

    `initial_carry(rows)` returns the state before the first token, a tree of arrays (rows, ...).
    `advance(tokens, carry, *, restarts=None, filled=None, train=False)` reads tokens (B, L) and
    returns (states (B, L, M), carry). Where `restarts` (B, L) is 1, a document begins: the state is
    the initial one before that token. Where `filled` (B, L) is 0, the token is padding and leaves
    the state as it is.
    """

    can = frozenset({"carry"})
    max_length = None
    decoding_stacks = ()

    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        restarts = filled = None
        if segment_ids is not None:
            restarts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
            filled = segment_ids > 0
        carry = self.initial_carry(len(tokens))
        return self.advance(tokens, carry, restarts=restarts, filled=filled, train=train)[0]
