"""ELECTRA (Clark et al. 2020): a BERT that detects the tokens that a small generator replaced."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import flops
from transformer_jax.layers.attention import check_heads
from transformer_jax.layers.linear import Linear, compute_dtype
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.outputs import Projection
from transformer_jax.models.bert import BERT

# The parameters that the generator and the discriminator share.
_EMBEDDINGS = ("token_embed", "position_embed", "type_embed", "embed_norm")


class ELECTRA(BERT):
    """Tokens (B, L) int32 -> hidden states (B, L, M) of the discriminator, as in BERT.

    Embeddings have the width E. Where it is not M, a projection takes them to the width of the
    layers. The generator has the same embeddings and depth, and narrower layers (section 3.2). The
    head of masked tokens works in the width E; the generator has one of its own.
    """

    can = frozenset({"token_types", "pool", "fill", "attend", "detect"})
    vocabulary = (*BERT.vocabulary, "generator/mlm_bias/bias")
    heads = ("mlm_transform", "mlm_norm", "mlm_bias", "detector_transform", "detector", "generator")

    d_model: int = 256  # width of the residual stream
    num_heads: int = 4  # attention heads of a layer
    d_embed: int = 128  # width of the embeddings
    # width of the generator's layers as a share of d_model; its heads and MLP shrink likewise; 0:
    # no generator
    generator_size: float = 0.25

    def check(self):
        super().check()
        if not 0 <= self.generator_size <= 1:
            raise UserError(
                f"config.model.generator_size={self.generator_size}: must be from 0 to 1"
            )
        if self.generator_size:
            narrow = self.narrow()
            if not narrow.d_model:
                raise UserError(
                    f"config.model.generator_size={self.generator_size}: of "
                    f"config.model.d_model={self.d_model} leaves the generator no width"
                )
            check_heads(narrow.d_model, narrow.num_heads, narrow.head_dim)

    def setup(self):
        self._set_up_encoder(width=self.d_embed)
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=compute_dtype(self.dtype))
        embed, model = (self.d_embed,), (self.d_model,)
        if self.d_embed != self.d_model:
            self.embed_projection = Linear(embed, model, axes=("embed", None), **linear)
        self.pooler = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.mlm_transform = Linear(model, embed, axes=("embed", None), **linear)
        self.detector_transform = Linear(model, model, axes=("embed", "mlp"), **linear)
        self.detector = Linear(model, (1,), axes=("embed", None), head=True, kernel_init=init)
        if self.generator_size:
            self.generator = self.narrow()

    @nn.nowrap
    def narrow(self) -> "ELECTRA":
        """Returns the generator as a model of its own."""
        share = self.generator_size
        return self.clone(
            parent=None,
            d_model=round(share * self.d_model),
            d_ff=None if self.d_ff is None else round(share * self.d_ff),
            num_heads=max(round(share * self.num_heads), 1),
            generator_size=0.0,
        )

    @nn.nowrap
    def narrow_params(self, params: dict) -> dict:
        """Returns the parameters of `narrow`, from those of the pair."""
        return {name: params[name] for name in _EMBEDDINGS} | params["generator"]

    def __call__(
        self,
        tokens: Int[ArrayLike, "B L"],
        token_types: Int[ArrayLike, "B L"] | None = None,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B L M"], Float[Array, "B L V"]]:
        """Returns the states (B, L, M) and their logits of masked tokens (B, L, V).

        The logits are those of a model that is itself trained on masked tokens.
        """
        hidden = self.hidden(
            tokens,
            positions=positions,
            segment_ids=segment_ids,
            token_types=token_types,
            train=train,
        )
        return hidden, self.logits(hidden)

    def _embed(self, tokens, token_types, positions, *, train):
        """Returns the projected embeddings (B, L, M)."""
        return self.projected(super()._embed(tokens, token_types, positions, train=train))

    def projected(self, x: Float[Array, "B L E"]) -> Float[Array, "B L M"]:
        """Projects embeddings (B, L, E) to the width of the layers (B, L, M)."""
        if self.d_embed == self.d_model:
            return x
        return sharding.constrain(self.embed_projection(x), "batch", "length", None)

    def pooled(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B M"]:
        """Returns one vector for each example (B, M), from the state of its first token.

        The published code has no layer here; this one is that of transformers.
        """
        return self.gelu(self.pooler(hidden[:, 0]))

    def detected(self, hidden: Float[Array, "B L M"]) -> Float[Array, "B L"]:
        """Returns the logits that tokens were replaced (B, L) float32, from the states."""
        x = self.gelu(self.detector_transform(hidden))
        return self.detector(x.astype(jnp.float32))[..., 0]

    def generated(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L N"]:
        """Returns the generator's states of the last layer (B, L, N)."""
        x = super()._embed(tokens, token_types, None, train=train)  # (B, L, E)
        mask = Mask(query_segments=segment_ids, key_segments=segment_ids)
        return self.generator.encoded(x, mask=mask, train=train)

    def encoded(
        self, x: Float[Array, "B L E"], *, mask: Mask, train: bool
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M) of embeddings (B, L, E)."""
        return self.encoder(self.projected(x), mask=mask, train=train)

    def generator_transformed(self, hidden: Float[Array, "*B N"]) -> Float[Array, "*B E"]:
        """Applies the layer in front of the generator's output projection, (..., N) -> (..., E)."""
        return self.generator.transformed(hidden)

    def generator_output(self) -> Projection:
        """Returns the generator's output projection: the shared table (V, E), and a bias (V,)."""
        return Projection(self.token_embed.table(), self.generator.mlm_bias())

    def flops(self, length: int, predictions: int) -> float:
        layer = flops.LayerSizes.of(self).layer(length, length**2)
        projection = flops.dense(length, self.d_embed, self.d_model)
        masked_lm = flops.dense(predictions, self.d_embed, self.d_model + self.vocab_size)
        is_projected = self.d_embed != self.d_model
        return is_projected * projection + self.num_layers * layer + masked_lm

    def detection_flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass of generator and discriminator over one row."""
        detector = flops.dense(length, self.d_model, self.d_model + 1)
        return self.narrow().flops(length, predictions) + self.flops(length, 0) + detector
