"""Encoders that write texts: a mask behind a text is filled, then the next (Dong et al. 2019)."""

import abc

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers.decoding import GrowingRows
from transformer_jax.layers.masks import Mask
from transformer_jax.models.model import Encoder

# The token types of the first and the second text of a row, by objective, as in the published code.
TOKEN_TYPES = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}
_NUM_TOKEN_TYPES = 6


def token_types(objective: str, num_token_types: int) -> tuple[int, int]:
    """Returns the token types of both texts in a model that has so many.

    A model with fewer than six distinguishes no objectives.
    """
    types = (0, 1) if num_token_types < _NUM_TOKEN_TYPES else TOKEN_TYPES[objective]
    first, second = (min(number, num_token_types - 1) for number in types)
    return first, second


class Cloze(Encoder):
    """An encoder that also writes the target of a source (Dong et al. 2019, sections 2.3 and 2.5).

    Both are one row. A token of the source sees the source; a token of the target sees the source
    and the target up to its own place. The state of a mask behind them predicts the next token.
    A family defines `_embed`, the stack `encoder`, and `hidden` with two more arguments (B, L): a
    token sees those of its own rank in `ranks` and of lower ranks, and no other token sees one that
    is `private`.
    """

    can = frozenset({"attend", "fill", "write"})
    decoding_stacks = ("encoder",)

    @abc.abstractmethod
    def _embed(
        self,
        tokens: Int[ArrayLike, "B L"],
        token_types: Int[ArrayLike, "B L"] | None,
        positions: Int[ArrayLike, "B L"] | None,
        *,
        train: bool,
    ) -> Float[Array, "B L M"]:
        """Returns the inputs of the first layer."""

    def encode(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        positions: Int[ArrayLike, "B S"] | None = None,
        segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        """Returns the embeddings of sources. The layers read them in `begin`, with the masks."""
        first, _ = token_types("sequence_to_sequence", self.num_token_types)
        return self._embed(source, jnp.full_like(source, first), positions, train=train)

    @nn.nowrap
    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        memory: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], GrowingRows]:
        """Reads sources. Returns (the logits of the first target tokens, the state of decoding).

        `prompts` are masks, `memory` is that of `encode`, and `segments` are 1 for the tokens of a
        source and 0 for padding behind them. The parameters are those of `for_decoding`. The number
        of `beams` is that of the tokens in `step`.
        """
        lengths = segments.sum(axis=1)
        slots = memory.shape[1] + 1
        logits, cache = self._written(params, {}, prompts, memory, lengths, method="_read")
        state = {"cache": cache["cache"], "masks": prompts}
        return logits, GrowingRows(state, lengths[:, None], slots)

    @nn.nowrap
    def step(
        self, params, state: GrowingRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], GrowingRows]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        memory = state.memory
        cache = {"cache": memory["cache"]}
        read = jnp.concatenate([tokens.reshape(-1, 1), memory["masks"]], axis=1)
        # The next token takes the slot of the mask, so that the cache holds no mask for long.
        places = state.lengths.reshape(-1, 1) + jnp.arange(2)
        # An input that is done may have no next slot.
        places = jnp.minimum(places, state.slots - 1)
        logits, new = self._written(params, cache, read, places, state.slots, method="_append")
        state = state.replace(memory=memory | new, lengths=state.lengths + 1)
        return logits.reshape(*tokens.shape, -1), state

    @nn.nowrap
    def _written(self, params, cache: dict, *arguments, method: str):
        """Returns (the logits of the states that a method returns, the collection "cache")."""
        variables = {"params": params}
        states, new = self.apply(variables | cache, *arguments, method=method, mutable=["cache"])
        return self.apply(variables, states, method="logits"), new

    def _read(
        self, masks: Int[Array, "N 1"], memory: Float[Array, "N S M"], lengths: Int[Array, " N"]
    ) -> Float[Array, "N M"]:
        """Reads embedded sources and the masks behind them. Returns the states of the masks."""
        rows, places = jnp.arange(len(memory)), jnp.arange(memory.shape[1] + 1)
        x = jnp.pad(memory, ((0, 0), (0, 1), (0, 0)))
        x = x.at[rows, lengths].set(self._embedded_target(masks, lengths[:, None])[:, 0])
        slots = jnp.broadcast_to(places, (len(rows), len(places)))
        mask = Mask(causal=True, prefix=lengths, query_slots=slots)
        return self.encoder(x, mask=mask, decode=len(places))[rows, lengths]

    def _append(
        self, tokens: Int[Array, "N Q"], places: Int[Array, "N Q"], slots: int
    ) -> Float[Array, "N M"]:
        """Reads target tokens and a mask at these places. Returns the states of the masks."""
        mask = Mask(causal=True, query_slots=places)
        return self.encoder(self._embedded_target(tokens, places), mask=mask, decode=slots)[:, -1]

    def _embedded_target(
        self, tokens: Int[Array, "N Q"], places: Int[Array, "N Q"]
    ) -> Float[Array, "N Q M"]:
        _, second = token_types("sequence_to_sequence", self.num_token_types)
        positions = jnp.minimum(places, self.max_length - 1)
        return self._embed(tokens, jnp.full_like(tokens, second), positions, train=False)
