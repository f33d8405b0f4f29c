"""How models read texts: the units of their inputs, and the states of a source's layers."""

import abc
from typing import Any, ClassVar, Literal

import flax.linen as nn
from jaxtyping import Array, ArrayLike, Float, Int


class Reading:
    """The inputs of a model.

    A unit is the input at one position. It is the id of a token, or an array of numbers.
    """

    modality: ClassVar[Literal["tokens", "images", "sound"]] = "tokens"
    unit_shape: ClassVar[tuple[int, ...]] = ()

    @property
    def num_states(self) -> int:
        """The number of arrays of states that `layers` returns: embeddings, and those of layers."""
        return self.num_layers + 1

    @nn.nowrap
    def reader(self, tokenizer: Any) -> Any:
        """Returns the tokenizer that gives the units of a text; by default that of the ids.

        Raises UserError for a tokenizer of a kind that does not suit the model.
        """
        return tokenizer


class SourceStates(abc.ABC):
    """The states that a SequenceToSequence model has of a source alone."""

    num_states = 2
    # The width of the encoder's states, which come first in the memory; None: that of the memory.
    source_width: ClassVar[int | None] = None

    @abc.abstractmethod
    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S E"]:
        """Returns the embeddings of source tokens, without positions."""

    def layers(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        positions: Int[ArrayLike, "B S"] | None = None,
        segment_ids: Int[ArrayLike, "B S"] | None = None,
        token_types: Int[ArrayLike, "B S"] | None = None,
    ) -> tuple[Float[Array, "B S E"], Float[Array, "B S W"]]:
        """Returns the embeddings of source tokens, and the encoder's last states."""
        memory = self.encode(source, positions=positions, segment_ids=segment_ids)
        return self.embedded(source), memory[..., : self.source_width]
