"""How models decode: `begin` reads prompts, and `step` a token of each hypothesis."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers.decoding import Ring, Rows, SourceRows


class CausalDecoding:
    """The decoding of a Causal model with "cache" or "carry" in `can`."""

    def begin(
        self, params, prompts: Int[ArrayLike, "B L"], lengths: Int[ArrayLike, " B"], *, slots: int
    ) -> tuple[Float[Array, "B V"], Rows]:
        """Reads prompts. Returns (the logits (B, V) of their next tokens, the state of decoding).

        A row of `prompts` (B, L) begins with `lengths` (B,) tokens; the others are padding. There
        is room for `slots` tokens. The parameters are those of `for_decoding`.
        """
        batch, length = prompts.shape
        if "carry" in self.can:
            filled = jnp.arange(length) < lengths[:, None]
            carry = self.initial_carry(batch)
            hidden, memory = self._applied(params, prompts, carry, filled=filled, method="advance")
            slots = 0
        else:
            positions = jnp.broadcast_to(jnp.arange(length), prompts.shape)
            # Slots behind the end of a prompt are overwritten before they are attended to.
            hidden, memory = self._cached(params, {}, prompts, positions, slots)
        logits = self._applied(params, hidden[jnp.arange(batch), lengths - 1], method="logits")
        return logits, Rows(memory, lengths[:, None], slots)

    def step(
        self, params, state: Rows, tokens: Int[ArrayLike, "B K"]
    ) -> tuple[Float[Array, "B K V"], Rows]:
        """Reads a token of each hypothesis (B, K). Returns (logits (B, K, V), the new state)."""
        rows = tokens.reshape(-1, 1)
        if "carry" in self.can:
            hidden, memory = self._applied(params, rows, state.memory, method="advance")
        else:
            # A text that has filled its slots has no next position.
            positions = jnp.minimum(state.lengths.reshape(-1, 1), state.slots - 1)
            hidden, memory = self._cached(params, state.memory, rows, positions, state.slots)
        logits = self._applied(params, hidden[:, 0], method="logits")
        new = state.replace(memory=memory, lengths=state.lengths + 1)
        return logits.reshape(*tokens.shape, -1), new

    def _cached(self, params, cache: dict, *arguments):
        variables = {"params": params, **cache}
        return self.apply(variables, *arguments, method="cached", mutable=["cache"])

    def _applied(self, params, *arguments, **options):
        return self.apply({"params": params}, *arguments, **options)


class SequenceDecoding:
    """The decoding of a SequenceToSequence model with "cache" in `can`."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        memory: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], Ring]:
        """Reads first target tokens. Returns (logits (N, V), the state of decoding).

        `prompts` are (N, 1), `memory` (N, S, M) is that of sources, and `segments` (N, S) are 1 for
        their tokens and 0 for padding. An input has up to `beams` hypotheses. The parameters are
        those of `for_decoding`.
        """
        where = dict(segments=segments, slot=jnp.int32(0))
        positions = jnp.zeros_like(prompts)
        logits, new = self._cached(params, {}, prompts, positions, beams, memory=memory, **where)
        return logits[:, 0], Ring.begun(new, segments, beams)

    def step(
        self, params, state: Ring, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Ring]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        state = state.opened()
        # An input that is done may have no next position.
        positions = jnp.minimum(state.positions, self.window - 1)[:, None]
        logits, new = self._cached(
            params,
            {"cache": state.cache, "memory": state.memory},
            tokens,
            positions,
            state.beams,
            segments=state.segments,
            slot=state.slot * state.beams,
            ancestors=state.ancestors,
        )
        return logits, state.written(new)

    def _cached(self, params, collections: dict, *arguments, **options):
        hidden, new = self.apply(
            {"params": params, **collections},
            *arguments,
            **options,
            method="cached",
            mutable=["cache", "memory"],
        )
        return self.apply({"params": params}, hidden, method="logits"), new


class RecurrentDecoding:
    """The decoding of a SequenceToSequence model whose decoder has a recurrent state."""

    @abc.abstractmethod
    def begun(
        self, memory: Float[Array, "B S W"], segments: Int[ArrayLike, "B S"]
    ) -> tuple[dict[str, Array], Any]:
        """Returns arrays (B, S, ...) that all steps see, and the state before the first token.

        The state is a tree of arrays (B, S, ...). That of a source stands at each of its positions.
        """

    @abc.abstractmethod
    def advanced(
        self, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Any]:
        """Returns the logits after a token of each hypothesis, and the new state."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        memory: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], SourceRows]:
        """Reads first target tokens, as `SequenceDecoding.begin`."""
        source, state = self.apply({"params": params}, memory, segments, method="begun")
        first = jax.tree.map(lambda x: x[:, 0], state)
        source = source | {"segments": segments}
        rows = SourceRows(memory=first, lengths=jnp.zeros_like(prompts), source=source)
        logits, rows = self.step(params, rows, prompts)
        return logits[:, 0], rows

    def step(
        self, params, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], SourceRows]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        logits, memory = self.apply({"params": params}, state, tokens, method="advanced")
        return logits, state.replace(memory=memory, lengths=state.lengths + 1)
