"""Longformer (Beltagy et al. 2020): RoBERTa with attention that grows linearly with the length."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import flops
from transformer_jax.layers.longformer_attention import LongformerAttention
from transformer_jax.layers.masks import Mask
from transformer_jax.models.roberta import RoBERTa


class Longformer(RoBERTa):
    """Tokens (B, L) int32 -> hidden states (B, L, M).

    A token sees the tokens within a window around it, and global tokens. These see the whole row.
    A run may begin with one of RoBERTa: its positions are repeated, and the projections of global
    tokens begin as those of the others (section 5).

    `hidden` and `layers` have one more argument: `global_positions` (B, N), -1 for none.
    """

    can = RoBERTa.can - {"attend", "write"} | {"global"}
    begins_with = {"roberta": {"": {}}}

    max_length: int = 4096  # number of learned positions
    # tokens that a token sees around it, half of them on each side, in turn over the layers
    attention_window: tuple[int, ...] = (512,)

    @classmethod
    def origin(cls, name: str) -> str:
        return name.replace("attention/global_", "attention/")

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        if name != "position_embed/embedding":
            return super().origins_of_rows(name, stored, wanted)
        offset = cls.position_offset
        positions = [offset + place % (stored - offset) for place in range(wanted - offset)]
        return [*range(offset), *positions]

    def check(self):
        super().check()
        if not self.attention_window:
            raise UserError("config.model.attention_window=(): must be one number or several")
        for window in self.attention_window:
            if window < 2 or window % 2:
                raise UserError(
                    f"config.model.attention_window={self.attention_window}: must be even, and at "
                    "least 2"
                )

    def setup(self):
        # The distance to the last token on each side is half of the window.
        reaches = tuple(window // 2 + 1 for window in self.attention_window)
        self._set_up_encoder(self.d_model, attention=LongformerAttention, windows=reaches)
        self._set_up_heads()

    def _encoded(
        self,
        x: Float[Array, "B L M"],
        mask: Mask,
        *,
        global_positions: Int[ArrayLike, "B N"] | None = None,
        **options,
    ) -> Float[Array, "*layers B L M"]:
        """As in BERT. `global_positions` are those of global tokens; -1 stands for none."""
        if global_positions is not None:
            global_positions = jnp.asarray(global_positions)
        return self.encoder(x, mask=mask, global_positions=global_positions, **options)

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row, without global tokens."""
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        sizes = flops.LayerSizes.of(self)
        layers = 0.0
        for number in range(self.num_layers):
            window = self.attention_window[number % len(self.attention_window)]
            num_keys = min(window + 1, length)
            layers += sizes.layer(length, length * num_keys)
        return layers + masked_lm
