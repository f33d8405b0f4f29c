"""A Transformer layer, and a stack of them."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.distributed import sharding
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
    """Self-attention, cross-attention where there is one, and MLP, each in a residual branch: (B,
    L, M) -> (B, L, M).

    post-LN: x <- norm(x + dropout(f(x))) (Vaswani et al. 2017); pre-LN: x <- x +
    dropout(f(norm(x))) (Xiong et al. 2020).
    """

    attention: Callable[..., nn.Module]  # constructors; the model binds their options
    mlp: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    cross_attention: Callable[..., nn.Module] | None = None
    norm_position: Literal["post", "pre"] = "post"
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        memory: jax.Array | None = None,
        *,
        mask: Mask,
        cross_mask: Mask | None = None,
        train: bool = False,
        decode: int = 0,
    ) -> jax.Array:
        def residual(x, sublayer, name):
            norm = self.norm(name=f"{name}_norm")
            y = sublayer(norm(x) if self.norm_position == "pre" else x)
            x = x + Dropout(self.dropout)(y, train=train)
            x = norm(x) if self.norm_position == "post" else x
            return sharding.constrain(x, "batch", "length", None)

        attention = self.attention(name="attention")
        x = residual(x, lambda y: attention(y, mask=mask, train=train, decode=decode), "attention")
        if self.cross_attention is not None:
            cross = self.cross_attention(name="cross_attention")
            x = residual(
                x,
                lambda y: cross(y, memory, mask=cross_mask, train=train, decode=decode),
                "cross_attention",
            )
        return residual(x, self.mlp(name="mlp"), "mlp")


class Stack(nn.Module):
    """`num_layers` blocks in turn, by nn.scan: one compiled layer, parameters stacked on a leading
    "layers" axis.

    `unroll` layers are compiled in line per iteration; the parameter tree does not depend on it.
    `windows`, in turn over the layers, bound how far back each attends (None: not at all). Decoding
    takes the layers in line: its collections, and its parameters where `for_decoding` has prepared
    them, are tuples of what each layer has.
    """

    block: Callable[..., Block]
    num_layers: int
    unroll: int = 1
    remat: Remat = "none"
    windows: tuple[int | None, ...] = (None,)

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        *args,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
        every_layer: bool = False,
        **kwargs,
    ) -> jax.Array:
        """The last layer's output (B, L, M), or that of every layer (layers, B, L, M)."""
        local = list(itertools.islice(itertools.cycle(self.windows), self.num_layers))
        if decode:
            return self._in_line(
                x,
                args,
                [
                    kwargs | dict(mask=mask.replace(window=window), decode=decode)
                    for window in local
                ],
            )

        reach = [_NO_WINDOW if window is None else window for window in local] if any(local) else []
        mask = mask.replace(windows=tuple(sorted(set(reach))))

        def layer(block, x, window):
            x = block(x, *args, mask=mask.replace(window=window), train=train, **kwargs)
            return x, x if every_layer else None

        if self.remat != "none":
            # A loop keeps what is computed twice apart; in line XLA would find it equal and keep
            # the first (on a CPU it does nevertheless).
            layer = nn.remat(
                layer, policy=REMAT[self.remat], prevent_cse=self.unroll >= self.num_layers
            )
        scan = nn.scan(
            layer,
            length=self.num_layers,
            unroll=self.unroll,
            split_rngs={"params": True, "dropout": True},
            metadata_params={nn.PARTITION_NAME: "layers"},
            variable_axes={"params": 0, "intermediates": 0},
        )
        last, every = scan(
            self.block(name="layers"), x, jnp.array(reach, jnp.int32) if reach else None
        )
        return every if every_layer else last

    def _in_line(self, x: jax.Array, args: tuple, each: list[dict]) -> jax.Array:
        """The layers in turn, layer i with the arguments each[i]; what they keep goes to the
        collections.
        """
        kept = {
            name: self.variables[name]["layers"]
            for name in ("params", "cache", "memory")
            if self.has_variable(name, "layers")
        }
        block, found = self.block(parent=None), []
        for number, kwargs in enumerate(each):
            own = jax.tree.map(
                lambda leaf: leaf[number], kept, is_leaf=lambda leaf: isinstance(leaf, tuple)
            )
            x, new = block.apply(own, x, *args, **kwargs, mutable=["cache", "memory"])
            found.append(new)
        for name, layers in jax.tree.map(lambda *leaves: leaves, *found).items():
            self.put_variable(name, "layers", layers)
        return x


@partial(jax.jit, static_argnums=1)
def for_decoding(params: dict, dtype: jnp.dtype) -> dict:
    """The parameters of a model as its decoding is fastest with: matrices in `dtype`, in which it
    computes, and of the stack "decoder" tuples of its layers' own.

    A loop over tokens would cast them and cut them out of the stack anew for each token.
    """

    def cast(path, leaf):
        leaf = leaf.astype(dtype) if path[-1].key in ("kernel", "embedding") else leaf
        return tuple(leaf) if path[0].key == "decoder" and path[1].key == "layers" else leaf

    return jax.tree_util.tree_map_with_path(cast, params)
