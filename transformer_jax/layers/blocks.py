"""A Transformer layer, and a stack of them."""
import itertools
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax import sharding
from transformer_jax.layers.linear import Dropout
from transformer_jax.layers.masks import Mask

# What the backward pass keeps of a layer; the rest it computes again.
REMAT = {
    "none": None,  # keep all
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep the matrix products
    "full": jax.checkpoint_policies.nothing_saveable,  # keep each layer's input alone
}
Remat = Literal["none", "dots", "full"]

_NO_WINDOW = 2**30  # beyond any length: one compiled layer serves dense and local attention


class Block(nn.Module):
    """Self-attention, cross-attention where there is one, and MLP, each in a residual branch: (B, L, M) -> (B, L, M).

    post-LN: x <- norm(x + dropout(f(x))) (Vaswani et al. 2017); pre-LN: x <- x + dropout(f(norm(x))) (Xiong et al. 2020).
    """

    attention: Callable[..., nn.Module]  # constructors; the model binds their options
    mlp: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    cross_attention: Callable[..., nn.Module] | None = None
    norm_position: Literal["post", "pre"] = "post"
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, *, mask: Mask, cross_mask: Mask | None = None,
                 train: bool = False, decode: int = 0, layer: jax.Array | None = None) -> jax.Array:
        def residual(x, sublayer, name):
            norm = self.norm(name=f"{name}_norm")
            y = sublayer(norm(x) if self.norm_position == "pre" else x)
            x = x + Dropout(self.dropout)(y, train=train)
            x = norm(x) if self.norm_position == "post" else x
            return sharding.constrain(x, "batch", "length", None)

        attention = self.attention(name="attention")
        x = residual(x, lambda y: attention(y, mask=mask, train=train, decode=decode, layer=layer), "attention")
        if self.cross_attention is not None:
            cross = self.cross_attention(name="cross_attention")
            x = residual(x, lambda y: cross(y, memory, mask=cross_mask, train=train, decode=decode, layer=layer), "cross_attention")
        mlp = self.mlp(name="mlp")
        return residual(x, lambda y: mlp(y, train=train), "mlp")


class Stack(nn.Module):
    """`num_layers` blocks in turn, by nn.scan: one compiled layer, parameters stacked on a leading "layers" axis.

    `unroll` layers are compiled in line per iteration; the parameter tree does not depend on it. `windows`, in turn over the
    layers, bound how far back each attends (None: not at all).
    """

    block: Callable[..., Block]
    num_layers: int
    unroll: int = 1
    remat: Remat = "none"
    windows: tuple[int | None, ...] = (None,)

    @nn.compact
    def __call__(self, x: jax.Array, *args, mask: Mask, train: bool = False, decode: int = 0, every_layer: bool = False, **kwargs) -> jax.Array:
        """The last layer's output (B, L, M), or that of every layer (layers, B, L, M)."""
        def layer(block, x, number_and_window):
            number, window = number_and_window
            x = block(x, *args, mask=mask.replace(window=window), train=train, decode=decode, layer=number, **kwargs)
            return x, x if every_layer else None

        if self.remat != "none":
            layer = nn.remat(layer, policy=REMAT[self.remat], prevent_cse=False)
        # what decoding keeps is stacked by the first call and handed through whole by the others: taking it apart would copy it at each token
        going_on = decode and self.has_variable("cache", "layers")
        stacked = {"params": 0, "intermediates": 0}
        kept = dict(variable_axes=stacked, variable_carry="cache", variable_broadcast="memory") if going_on else dict(variable_axes=stacked | {"cache": 0, "memory": 0})
        scan = nn.scan(layer, length=self.num_layers, unroll=self.unroll, split_rngs={"params": True, "dropout": True},
                       metadata_params={nn.PARTITION_NAME: "layers"}, **kept)
        local = [_NO_WINDOW if w is None else w for w in itertools.islice(itertools.cycle(self.windows), self.num_layers)]
        windows = None if set(local) == {_NO_WINDOW} else jnp.array(local, jnp.int32)
        last, every = scan(self.block(name="layers"), x, (jnp.arange(self.num_layers) if going_on else None, windows))
        return every if every_layer else last
