"""The decoder of a masked autoencoder (He et al. 2021, section 3)."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.distributed import sharding
from transformer_jax.layers import flops, patches
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import Block, Stack
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.mlp import MLP
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.parameters import declared


class PatchDecoder(nn.Module):
    """States of visible patches (B, 1 + K, M) -> pixels of all patches (B, N, features) float32.

    A learned vector stands in the place of each hidden patch. All have sinusoidal positions.
    """

    features: int  # numbers of a patch
    d_model: int
    num_layers: int
    num_heads: int
    norm_epsilon: float = 1e-6
    init_std: float = 0.02
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        states: Float[Array, "B L M"],
        order: Int[ArrayLike, "B N"],
        *,
        train: bool = False,
    ) -> Float[Array, "B N F"]:
        """Returns the pixels of all patches. `order` has the visible ones first, as the states."""
        init = nn.initializers.truncated_normal(self.init_std)
        linear = dict(kernel_init=init, dtype=self.dtype)
        axes = ("embed", None)
        embed = Linear(states.shape[-1:], (self.d_model,), axes=axes, name="embed", **linear)
        mask_init = declared(init, (None, None), decays=True)
        hidden_patch = self.param("hidden_patch", mask_init, (1, self.d_model))
        x = embed(states)
        token, visible = x[:, :1], x[:, 1:]
        batch, count = order.shape
        num_hidden = count - visible.shape[1]
        hidden = jnp.broadcast_to(hidden_patch.astype(x.dtype), (batch, num_hidden, self.d_model))
        shuffled = jnp.concatenate([visible, hidden], axis=1)
        x = patches.taken(shuffled, jnp.argsort(order, axis=1))  # in the order of the image
        x = x + patches.grid_sinusoids(round(count**0.5), self.d_model).astype(x.dtype)
        x = sharding.constrain(jnp.concatenate([token, x], axis=1), "batch", "length", None)
        norm = partial(LayerNorm, self.norm_epsilon)
        head_dim = self.d_model // self.num_heads
        attention = partial(Attention, num_heads=self.num_heads, head_dim=head_dim, **linear)
        gelu = partial(jax.nn.gelu, approximate=False)
        mlp = partial(MLP, d_ff=4 * self.d_model, activation=gelu, **linear)
        block = partial(Block, attention=attention, mlp=mlp, norm=norm, norm_position="pre")
        x = Stack((block,), self.num_layers, name="layers")(x, mask=Mask(), train=train)
        x = norm(name="norm")(x[:, 1:]).astype(jnp.float32)
        output = Linear(
            (self.d_model,),
            (self.features,),
            axes=("embed", None),
            head=True,
            kernel_init=init,
            name="pixels",
        )
        return output(x)

    def flops(self, visible: int, count: int, width: int) -> float:
        """Returns the FLOPs of a forward pass over a row of `count` patches.

        The states have this width.
        """
        sizes = flops.LayerSizes(self.d_model, self.d_model, 4 * self.d_model)
        layer = sizes.layer(1 + count, (1 + count) ** 2)
        ends = flops.dense(1 + visible, width, self.d_model)
        ends += flops.dense(count, self.d_model, self.features)
        return self.num_layers * layer + ends
