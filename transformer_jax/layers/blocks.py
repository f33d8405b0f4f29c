"""A Transformer layer, and a stack of layers."""

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

# The activations of a layer that are saved for the backward pass. It recomputes the others.
REMAT = {
    "none": None,  # saves all activations
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # saves matrix products
    "full": jax.checkpoint_policies.nothing_saveable,  # saves the input of each layer only
}
Remat = Literal["none", "dots", "full"]

# A window beyond any length, for layers without one: one compiled layer serves both kinds.
_NO_WINDOW = 2**30


class Block(nn.Module):
    """Self-attention, optional cross-attention, and MLP: (B, L, M) -> (B, L, M).

    Each sublayer f is in a residual branch.
    post-LN: x <- norm(x + dropout(f(x))) (Vaswani et al. 2017, section 3.1)
    pre-LN: x <- x + dropout(f(norm(x))) (Xiong et al. 2020)
    """

    # Constructors. The model binds their options.
    attention: Callable[..., nn.Module]
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
        attend = partial(attention, mask=mask, train=train, decode=decode)
        x = residual(x, attend, "attention")
        if self.cross_attention is not None:
            cross_attention = self.cross_attention(name="cross_attention")
            attend = partial(
                cross_attention, memory=memory, mask=cross_mask, train=train, decode=decode
            )
            x = residual(x, attend, "cross_attention")
        return residual(x, self.mlp(name="mlp"), "mlp")


class Stack(nn.Module):
    """`num_layers` blocks in sequence: (B, L, M) -> (B, L, M).

    nn.scan compiles one layer. The parameters of all layers are stacked on a leading axis "layers".
    `unroll` layers are unrolled in each iteration of the scan; the parameter tree stays the same.
    `windows` limit the attention distance, in turn over the layers; None is no limit.

    Decoding unrolls all layers. Its collections are tuples with one entry for each layer, and so
    are the parameters that `for_decoding` returns.
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
        """Returns the output of the last layer (B, L, M).

        With `every_layer`, returns the outputs of all layers (layers, B, L, M).
        """
        windows = list(itertools.islice(itertools.cycle(self.windows), self.num_layers))
        if decode:
            masks = [mask.replace(window=window) for window in windows]
            return self._decode(x, args, masks, decode=decode, **kwargs)

        scanned_windows = None
        if any(windows):
            windows = [_NO_WINDOW if window is None else window for window in windows]
            mask = mask.replace(windows=tuple(sorted(set(windows))))
            scanned_windows = jnp.array(windows, jnp.int32)

        def layer(block, x, window):
            x = block(x, *args, mask=mask.replace(window=window), train=train, **kwargs)
            return x, x if every_layer else None

        if self.remat != "none":
            # A scan keeps the forward pass and its recomputation apart. In unrolled layers XLA
            # would merge them as common subexpressions. On a CPU it merges them nevertheless.
            unrolled = self.unroll >= self.num_layers
            layer = nn.remat(layer, policy=REMAT[self.remat], prevent_cse=unrolled)
        scan = nn.scan(
            layer,
            length=self.num_layers,
            unroll=self.unroll,
            split_rngs={"params": True, "dropout": True},
            metadata_params={nn.PARTITION_NAME: "layers"},
            variable_axes={"params": 0, "intermediates": 0},
        )
        last_output, outputs = scan(self.block(name="layers"), x, scanned_windows)
        return outputs if every_layer else last_output

    def _decode(self, x: jax.Array, args: tuple, masks: list[Mask], **kwargs) -> jax.Array:
        """Applies the layers in sequence, layer i with masks[i], and updates the collections."""
        variables = {
            name: self.variables[name]["layers"]
            for name in ("params", "cache", "memory")
            if self.has_variable(name, "layers")
        }
        block = self.block(parent=None)
        updates = []
        for number, mask in enumerate(masks):
            layer_variables = _layer_of(variables, number)
            x, update = block.apply(
                layer_variables, x, *args, mask=mask, **kwargs, mutable=["cache", "memory"]
            )
            updates.append(update)
        by_layer = jax.tree.map(lambda *leaves: leaves, *updates)
        for name, layers in by_layer.items():
            self.put_variable(name, "layers", layers)
        return x


def _layer_of(variables: dict, number: int) -> dict:
    """Returns the variables of one layer. Their leaves are stacked arrays, or tuples of layers."""

    def is_leaf(leaf):
        return isinstance(leaf, tuple)

    return jax.tree.map(lambda leaf: leaf[number], variables, is_leaf=is_leaf)


@partial(jax.jit, static_argnums=(1, 2))
def for_decoding(params: dict, dtype: jnp.dtype, stacks: tuple[str, ...]) -> dict:
    """Returns the parameters of a model in the form in which decoding is fastest.

    Matrices are cast to the compute dtype `dtype`. The stacked parameters of these stacks become
    tuples with one entry for each layer. Otherwise a loop over tokens would cast and slice
    them again for each token.
    """

    def prepare(path, leaf):
        if path[-1].key in ("kernel", "embedding"):
            leaf = leaf.astype(dtype)
        if path[0].key in stacks and path[1].key == "layers":
            leaf = tuple(leaf)
        return leaf

    return jax.tree_util.tree_map_with_path(prepare, params)
