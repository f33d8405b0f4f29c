"""Images as sequences of patches, and the decoder of masked autoencoders."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Num

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import parameters
from transformer_jax.layers.attention import Attention
from transformer_jax.layers.blocks import MLP, Block, LayerNorm, Stack
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import Linear, declared

# --------------------------------------------------------------------------------------------------
# Images as sequences of square patches, and position embeddings of patches.
#
# Patches rather than pixels are the units, because the cost of attention grows with the square of
# their number (Dosovitskiy et al. 2020, section 2).


def check(model: Any) -> None:
    """Raises UserError for an invalid patch size, number of channels, mean or deviation."""
    if model.patch_size < 1 or model.image_size < 1 or model.image_size % model.patch_size:
        raise UserError(
            f"config.model.patch_size={model.patch_size} does not divide "
            f"config.model.image_size={model.image_size}"
        )
    if model.channels not in (1, 3):
        raise UserError(f"config.model.channels={model.channels}: must be 1 or 3")
    for key, values in (("mean", model.mean), ("std", model.std)):
        if len(values) not in (1, model.channels) or (key == "std" and min(values) <= 0):
            raise UserError(
                f"config.model.{key}={values}: must hold a number, or one for each of "
                f"config.model.channels={model.channels}, which are above 0 in std"
            )


def normalized(
    images: Num[ArrayLike, "B H W C"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Array, "B H W C"]:
    """Returns (images / 255 - mean) / std in float32.

    `mean` and `std` hold one number, or one for each channel.
    """
    values = jnp.asarray(images).astype(jnp.float32) / 255
    return (values - np.array(mean, np.float32)) / np.array(std, np.float32)


def patches(images: Num[ArrayLike, "B H W C"], side: int) -> Num[ArrayLike, "B N P Q C"]:
    """Returns the patches of images in row-major order, P = Q = `side`."""
    batch, height, width, channels = images.shape
    rows, columns = height // side, width // side
    split = jnp.reshape(images, (batch, rows, side, columns, side, channels))
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, side, side, channels)


def joined(patches: Num[ArrayLike, "B N P P C"]) -> Num[ArrayLike, "B H H C"]:
    """Returns the square images with these patches, the inverse of `patches`."""
    batch, number, side, _, channels = patches.shape
    rows = round(number**0.5)
    grid = jnp.reshape(patches, (batch, rows, rows, side, side, channels))
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * side, rows * side, channels)


def taken(x: Num[Array, "B N M"], positions: Int[ArrayLike, "B K"]) -> Num[Array, "B K M"]:
    """Returns the vectors at `positions` of each row."""
    # All positions are valid, so the default mode would check and fill with NaN for nothing.
    return jnp.take_along_axis(x, jnp.asarray(positions)[..., None], axis=1, mode="clip")


def grid_sinusoids(rows: int, features: int) -> Float[np.ndarray, "N M"]:
    """Returns sinusoidal position embeddings of a square grid of rows^2 patches, float32.

    The first half of the features encodes the column of a patch, the second half its row. Each half
    consists of the sines followed by the cosines of p / 10000^(4i/M) (He et al. 2021, section 3,
    and their code).
    """
    # NumPy computes in float64 and the result is rounded once, as in the published code.
    rates = 10_000.0 ** (-np.arange(features // 4) / (features // 4))  # (M / 4,)
    angles = np.arange(rows)[:, None] * rates
    codes = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # (rows, M / 2)
    column_codes = np.tile(codes, (rows, 1))
    row_codes = np.repeat(codes, rows, axis=0)
    return np.concatenate([column_codes, row_codes], axis=1).astype(np.float32)


def side_of_grid(rows: int) -> tuple[int, int]:
    """Returns (side of the grid, number of other rows) of a table with `rows` positions.

    The other row, if there is one, is the first and belongs to a class token.
    """
    for others in (0, 1):
        side = round((rows - others) ** 0.5)
        if side**2 == rows - others:
            return side, others
    raise ValueError(f"a table of {rows} rows has no square grid")


def interpolated(table: Float[ArrayLike, "N M"], rows: int) -> Float[Array, "_ M"]:
    """Returns the position embeddings of a square grid, interpolated to `rows` positions.

    The interpolation is bilinear (Dosovitskiy et al. 2020, section 3.2). The position embedding of
    a class token is unchanged.
    """
    before, others = side_of_grid(len(table))
    after, _ = side_of_grid(rows)
    grid = jnp.reshape(table[others:], (before, before, -1))
    shape = (after, after, grid.shape[-1])
    grid = jax.image.resize(grid, shape, "linear", antialias=False)
    return jnp.concatenate([table[:others], grid.reshape(after**2, -1)])


# --------------------------------------------------------------------------------------------------
# The decoder of a masked autoencoder (He et al. 2021, section 3).
#
# It reads all patches, of which the encoder has read only the visible ones, so that it should be
# far smaller than the encoder.


class PatchDecoder(nn.Module):
    """Encoder output of visible patches (B, 1 + K, M) -> pixels (B, N, features) float32.

    A learned mask token replaces each hidden patch. The position embeddings are sinusoidal.
    """

    features: int  # values of a patch
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
        """Returns the pixels of all patches.

        `order` is a permutation of the patches that starts with the visible ones, in the order of
        `states`.
        """
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
        # The argsort of a permutation is its inverse, which restores the order of the image.
        x = taken(shuffled, jnp.argsort(order, axis=1))
        x = x + grid_sinusoids(round(count**0.5), self.d_model).astype(x.dtype)
        x = sharding.constrain(jnp.concatenate([token, x], axis=1), "batch", "length", None)
        norm = partial(LayerNorm, self.norm_epsilon)
        head_dim = self.d_model // self.num_heads
        attention = partial(Attention, num_heads=self.num_heads, head_dim=head_dim, **linear)
        gelu = partial(jax.nn.gelu, approximate=False)
        mlp = partial(MLP, d_ff=4 * self.d_model, activation=gelu, **linear)
        block = partial(Block, attention=attention, mlp=mlp, norm=norm, norm_position="pre")
        x = Stack((block,), self.num_layers, name="layers")(x, mask=Mask(), train=train)
        # The class token is left out, because it has no pixels to predict.
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
        """Returns the FLOPs for an image of `count` patches, of which `visible` were encoded.

        `width` is the width of the encoder output.
        """
        sizes = parameters.LayerSizes(self.d_model, self.d_model, 4 * self.d_model)
        layer = sizes.layer(1 + count, (1 + count) ** 2)
        ends = parameters.dense(1 + visible, width, self.d_model)
        ends += parameters.dense(count, self.d_model, self.features)
        return self.num_layers * layer + ends
