"""ESM, the encoder of proteins: ESM-1b (Rives et al. 2021) and ESM-2 (Lin et al. 2023)."""

from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.layers import flops
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block
from transformer_jax.layers.embeddings import row_positions
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.positions import Rotary
from transformer_jax.models.bert import BERT

# The share of masked tokens in training: 80 % of the 15 % that are predicted.
_MASKED = 0.15 * 0.8


class ESM(BERT):
    """Residues (B, L) int32 -> hidden states (B, L, M).

    The layers are pre-LN, with a last norm behind them. There are no token types and no pooler.
    Padding stands behind the residues of a row. The defaults are the sizes of ESM-1b.
    """

    can = frozenset({"attend", "fill", "contact"})
    heads = ("mlm_transform", "mlm_norm", "mlm_bias", "contact")
    position_offset = 2  # as in the published checkpoints: positions begin behind padding, id 1
    num_token_types: ClassVar[int] = 0

    vocab_size: int = 33  # number of tokens of the alphabet
    d_model: int = 1280  # width of the residual stream
    num_layers: int = 33  # number of blocks
    num_heads: int = 20  # attention heads of a layer
    max_length: int = 1024  # most tokens of a row, with those around the protein
    norm_epsilon: float = 1e-5  # added to the variance in layer norms
    dropout: float = 0.0  # on each residual branch
    attention_dropout: float = 0.0  # on the attention weights
    positions: Literal["learned", "rotary"] = "learned"  # rotary: ESM-2
    norm_first: bool = True  # a norm of the embeddings, in front of the layers; false: ESM-2
    # token dropout: zeros in place of the vectors of masks, and the others scaled by the share of
    # other tokens in training over that in the row
    zero_masks: bool = True
    mask_id: int = 32  # id of the mask

    def setup(self):
        rotary = Rotary() if self.positions == "rotary" else None
        attention = partial(Attention, rotary=rotary)
        block = partial(Block, norm_position="pre")
        self._set_up_encoder(width=self.d_model, attention=attention, block=block)
        self._set_up_heads()
        self.encoder_norm = LayerNorm(self.norm_epsilon)
        maps = (self.num_layers * self.num_heads,)
        zeros = nn.initializers.zeros
        self.contact = Linear(maps, (1,), axes=(None, None), head=True, kernel_init=zeros)

    def __call__(
        self,
        tokens: Int[ArrayLike, "B L"],
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"], Float[Array, "B 1 1"]]:
        """Returns states (B, L, M), logits of masked residues (B, L, V), and a contact's logit.

        That logit is of maps without attention. It gives the parameters of `contact_logits`.
        """
        hidden = self.hidden(tokens, segment_ids=segment_ids, train=train)
        no_maps = jnp.zeros((len(hidden), 1, 1, self.num_layers * self.num_heads))
        return hidden, self.logits(hidden), self.contact_logits(no_maps)

    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M). Token types are ignored."""
        x = self._inputs(tokens, positions, segment_ids)
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        return self.encoder_norm(self.encoder(x, mask=mask, train=train))

    def layers(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
    ) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the states of all layers (layers + 1, B, L, M).

        Those of the last layer are normalised, as in `hidden`.
        """
        x = self._inputs(tokens, positions, segment_ids)
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        outputs = self.encoder(x, mask=mask, every_layer=True)  # (layers, B, L, M)
        return jnp.concatenate([x[None], outputs[:-1], self.encoder_norm(outputs[-1:])])

    def _inputs(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | None,
        segment_ids: Int[ArrayLike, "B L"] | None,
    ) -> Float[Array, "B L M"]:
        """Returns the inputs of the first layer; zeros for padding."""
        filled = jnp.ones(jnp.shape(tokens), bool) if segment_ids is None else segment_ids > 0
        if positions is None:
            positions = row_positions(tokens, self.max_length)
        x = self.token_embed(tokens)
        if self.zero_masks:
            is_mask = (tokens == self.mask_id) & filled
            observed = is_mask.sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)  # (B,)
            # A row of masks alone has only zeros.
            scale = (1 - _MASKED) / jnp.maximum(1 - observed, 1e-3)
            x = jnp.where(is_mask[..., None], 0, x * scale[:, None, None]).astype(x.dtype)
        if self.positions == "learned":
            x = x + self.position_embed(positions)
        if self.norm_first:
            x = self.embed_norm(x)
        return jnp.where(filled[..., None], x, 0)

    def contact_logits(self, maps: Float[Array, "B P P N"]) -> Float[Array, "B P P"]:
        """Returns the logits that residues touch, float32 (Rao et al. 2020, section 3).

        `maps` are the corrected attention maps of all layers and heads (inference/contacts.py).
        """
        return self.contact(maps.astype(jnp.float32))[..., 0]

    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions."""
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        masked_lm = flops.dense(predictions, self.d_model, self.d_model + self.vocab_size)
        return self.num_layers * layer + masked_lm
