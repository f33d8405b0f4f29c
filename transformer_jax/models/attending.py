"""Encoder-decoders whose layers all have attention, and a key/value cache in decoding."""

import abc

from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.masks import Mask
from transformer_jax.models.model import SequenceToSequence


class Attending(SequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    A family defines `encoded` and `decoded`.

    Segment ids start at 1 and separate the examples of a packed row; 0 is padding. Positions count
    from 0 within each example. By default a row is one example.
    """

    can = frozenset({"attend", "cache"})

    @abc.abstractmethod
    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        """Returns the memory of source tokens at `positions`; None: 0, 1, ..."""

    @abc.abstractmethod
    def decoded(
        self,
        target: Int[ArrayLike, "B T"],
        positions: Int[ArrayLike, "B T"] | Int[ArrayLike, "B 1"] | None,
        memory: Float[Array, "B S M"] | None,
        *,
        mask: Mask,
        cross_mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B T M"]:
        """Returns the states of target tokens at `positions`, before the output projection.

        `decode` is the number of slots of the collection "cache"; 0: it is not used.
        """

    def __call__(
        self,
        source: Int[ArrayLike, "B S"],
        target: Int[ArrayLike, "B T"],
        source_positions: Int[ArrayLike, "B S"] | None = None,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        *,
        target_positions: Int[ArrayLike, "B T"] | None = None,
        target_segment_ids: Int[ArrayLike, "B T"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T V"]:
        hidden = self.hidden(
            source,
            target,
            source_positions=source_positions,
            source_segment_ids=source_segment_ids,
            target_positions=target_positions,
            target_segment_ids=target_segment_ids,
            train=train,
        )
        return self.logits(hidden)

    def encode(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        positions: Int[ArrayLike, "B S"] | None = None,
        segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        return self.encoded(source, positions, mask=mask, train=train)

    def decode(
        self,
        target: Int[ArrayLike, "B T"],
        memory: Float[Array, "B S M"],
        *,
        positions: Int[ArrayLike, "B T"] | None = None,
        segment_ids: Int[ArrayLike, "B T"] | None = None,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        mask = Mask(causal=True, query_segments=segment_ids, key_segments=segment_ids)
        cross_mask = Mask(query_segments=segment_ids, key_segments=source_segment_ids)
        return self.decoded(
            target, positions, memory, mask=mask, cross_mask=cross_mask, train=train
        )

    def cached(
        self,
        target: Int[ArrayLike, "N K"],
        positions: Int[ArrayLike, "N K"] | Int[ArrayLike, "N 1"],
        slots: int,
        *,
        memory: Float[Array, "N S M"] | None = None,
        segments: Int[ArrayLike, "N S"],
        slot: Int[ArrayLike, ""],
        ancestors: Int[ArrayLike, "N K P"] | None = None,
    ) -> Float[Array, "N K M"]:
        mask = Mask(causal=ancestors is None, query_slots=slot, ancestors=ancestors)
        cross_mask = Mask(key_segments=segments)
        return self.decoded(
            target, positions, memory, mask=mask, cross_mask=cross_mask, decode=slots
        )

    def layer_sizes(self) -> flops.LayerSizes:
        """Returns the sizes of a layer, for its FLOPs."""
        return flops.LayerSizes.of(self)

    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        `predictions` is the number of predicted positions; None: all of the target's. Causal
        attention counts half its square. Padding is counted; norms, softmax and embedding look-ups
        are not.
        """
        sizes = self.layer_sizes()
        encoder = sizes.layer(source_length, source_length**2)
        cross = sizes.attention(target_length, source_length, target_length * source_length)
        decoder = sizes.layer(target_length, flops.causal_pairs(target_length)) + cross
        if predictions is None:
            predictions = target_length
        output = flops.dense(predictions, self.d_model, self.vocab_size)
        return self.num_encoder_layers * encoder + self.num_decoder_layers * decoder + output
