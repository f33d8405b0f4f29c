"""Attention whose scores are added to those of the layer below (He et al. 2020, section 3)."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.distributed import sharding
from transformer_jax.layers import activations
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.linear import Dropout
from transformer_jax.layers.masks import Mask

# The states of a layer, and its scores before the mask, float32.
Carried = tuple[Float[Array, "B L M"], Float[Array, "B H L L"]]


class ResidualAttention(Attention):
    """Self-attention: states (B, L, M) and the scores of the layer below -> states and scores.

    The scores are S = q k^T scale + S', with S' those of the layer below. The layer above gets S
    without the mask, which would otherwise add up.
    """

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        *,
        mask: Mask,
        scores: Float[Array, "B H L L"],
        train: bool = False,
    ) -> Carried:
        project = partial(self._project, num_heads=self.num_heads)
        q, k, v = (project(name, x) for name in ("query", "key", "value"))  # (B, L, H, D)
        products = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        scores = products * self.head_dim**-0.5 + scores
        visible = mask.dense(x.shape[1], x.shape[1])
        shown = scores
        if visible is not None:
            shown = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        weights = activations.named(self, "weights", jax.nn.softmax(shown, axis=-1))
        if train and self.dropout:
            weights = self._weight_dropout(len(x))(weights)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
        return self._merged(activations.named(self, "heads", y), x.shape[-1]), scores


class ResidualBlock(nn.Module):
    """Attention and MLP in post-LN: (states, scores) of the layer below -> those of this layer."""

    # Constructors. The model binds their options.
    attention: Callable[..., nn.Module]
    mlp: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    dropout: float = 0.0

    @nn.compact
    def __call__(self, carried: Carried, *, mask: Mask, train: bool = False) -> Carried:
        x, scores = carried

        def residual(x, y, name):
            x = self.norm(name=f"{name}_norm")(x + Dropout(self.dropout)(y, train=train))
            return activations.named(
                self, f"after_{name}", sharding.constrain(x, "batch", "length", None)
            )

        x = activations.named(self, "input", x)
        y, scores = self.attention(name="attention")(x, mask=mask, scores=scores, train=train)
        x = residual(x, y, "attention")
        return residual(x, self.mlp(name="mlp")(x, train=train), "mlp"), scores
