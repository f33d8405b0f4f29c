"""BART as a translator, with another encoder for the source (Lewis et al. 2019, section 3.4)."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.families.bart import BART
from transformer_jax.layers.blocks import LayerNorm, Stack
from transformer_jax.layers.embeddings import Embed
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import compute_dtype

# Beside the new encoder, the first stage trains these parameters of BART (section 3.4). All others
# stay frozen until the second stage.
_POSITIONS = ("position_embed", "decoder_position_embed")
_INPUTS = ("query", "key", "value")


class BARTTranslation(BART):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    A new encoder with its own vocabulary replaces BART's embeddings of the source. Its output plus
    BART's position embeddings passes through BART's embedding norm into BART's encoder, whose first
    layer is a separate module, `first_layer`. All parameters except the new encoder's are
    initialized from a run of BART.

    The group "pretrained" holds the parameters that are trained only in the second stage. Apart
    from the new encoder, the first stage trains BART's positions and the query, key and value
    projections of the first layer.
    """

    begins_with = {
        "bart": {
            "": {},
            # The layers of a stack share one array, which can only be frozen as a whole. The first
            # layer, of which the first stage trains a part, is therefore a module of its own.
            "first_layer": {"part": "encoder", "layers": "0"},
            "encoder": {"part": "encoder", "layers": "1:"},
        }
    }

    source_vocab_size: PositiveInt = 32_000  # number of tokens in the vocabulary of the source
    num_source_layers: PositiveInt = 6  # number of blocks of the new encoder

    def check(self):
        super().check()
        if self.num_encoder_layers < 2:
            raise UserError(
                f"config.model.num_encoder_layers={self.num_encoder_layers}: must be at least 2, "
                "the first layer and others"
            )

    def _set_up_encoder(self, stack: Callable[[int], Stack]):
        init = nn.initializers.normal(self.init_std)
        embed = partial(Embed, features=self.d_model, init=init, dtype=compute_dtype(self.dtype))
        self.source_embed = embed(self.source_vocab_size, key="source_vocab_size")
        # This table is new, so it needs no offset for the rows of published checkpoints.
        self.source_position_embed = embed(self.max_length, axes=(None, "embed"), key="max_length")
        self.source_embed_norm = LayerNorm(1e-5)
        self.source_encoder = stack(self.num_source_layers)
        self.first_layer = stack(1)
        self.encoder = stack(self.num_encoder_layers - 1)

    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S M"]:
        return self.source_embed(source)

    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        x = self.source_embed(source) + self._at(self.source_position_embed, source, positions)
        x = self.embed_dropout(self.source_embed_norm(x), train=train)
        x = self.source_encoder(x, mask=mask, train=train)
        # The output of the new encoder replaces BART's token embeddings. BART's own
        # layers follow unchanged, including its positions and its norm.
        x = x + self._at(self.position_embed, source, positions)
        x = self.embed_dropout(self.embed_norm(x), train=train)
        x = self.first_layer(x, mask=mask, train=train)
        return self.encoder(x, mask=mask, train=train)

    @nn.nowrap
    def group(self, path):
        is_input = path[0] == "first_layer" and "attention" in path and path[-2] in _INPUTS
        is_new = path[0].startswith("source_")
        return "" if is_new or is_input or path[0] in _POSITIONS else "pretrained"

    def flops(self, source_length, target_length, predictions=None):
        new = self.layer_sizes().layer(source_length, source_length**2)
        other = super().flops(source_length, target_length, predictions)
        return other + self.num_source_layers * new
