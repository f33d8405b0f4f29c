"""VQ-VAE: an image autoencoder whose bottleneck is a grid of discrete codes.

van den Oord et al. 2017; Esser et al. 2021, section 3.1, without the discriminator.
"""

from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Num, UInt8

from transformer_jax.config import NonNegativeFloat, PositiveInt
from transformer_jax.contracts.model import SignalEncoder
from transformer_jax.layers import parameters, patches
from transformer_jax.layers.blocks import LayerNorm
from transformer_jax.layers.convolutions import GridBlock
from transformer_jax.layers.parameters import Linear, compute_dtype, declared


class Autoencoded(NamedTuple):
    """Images of N patches and their reconstructions from one code per patch."""

    pixels: Float[Array, "B H W C"]  # normalized
    reconstruction: Float[Array, "B H W C"]  # normalized
    encoded: Float[Array, "B N E"]  # encoder output
    vectors: Float[Array, "B N E"]  # entries of the codebook that are nearest to `encoded`


class VQAutoencoder(SignalEncoder):
    """Images (B, S, S, C) of pixels from 0 to 255 -> hidden states (B, N, M) of N patches.

    Encoder and decoder consist of residual blocks with convolutions over the grid of patches. A
    norm brings the encoder output to the scale of the codebook, which is initialized from N(0, 1).
    """

    modality = "images"
    can = frozenset({"codes"})

    image_size: int = 256  # pixels of a side of an image
    patch_size: int = 16  # pixels of a side of a patch, which is represented by one code
    channels: int = 3  # of an image: 1 for grayscale, 3 for red, green and blue
    # subtracted from pixel values between 0 and 1: one number, or one for each channel
    mean: tuple = (0.5,)
    std: tuple = (0.5,)  # divides pixel values after the subtraction of mean
    d_model: PositiveInt = 256  # width of the blocks
    num_layers: PositiveInt = 4  # number of blocks in the encoder, and in the decoder
    num_codes: PositiveInt = 1024  # number of codes
    d_code: PositiveInt = 256  # width of the codebook entries
    norm_epsilon: NonNegativeFloat = 1e-6  # added to the variance in layer norms
    # dtype of the computation; auto: bfloat16 on accelerators, float32 on a CPU
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def check(self):
        patches.check(self)

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def setup(self):
        dtype = compute_dtype(self.dtype)
        init = nn.initializers.lecun_normal()
        norm = partial(LayerNorm, self.norm_epsilon)
        linear = partial(Linear, kernel_init=init, dtype=dtype)
        block = partial(GridBlock, norm=norm, kernel_init=init, dtype=dtype)
        patch = (self.patch_size, self.patch_size, self.channels)
        model, code = (self.d_model,), (self.d_code,)
        self.patch_embed = linear(patch, model, axes=(None, None, None, "embed"))
        self.encoder = [block() for _ in range(self.num_layers)]
        self.to_code = linear(model, code, axes=("embed", None))
        self.code_norm = norm()
        # Not split over devices, because each patch is compared with all codes.
        codes = declared(nn.initializers.normal(1.0), (None, None))
        self.codes_table = self.param("codes", codes, (self.num_codes, self.d_code))
        self.from_code = linear(code, model, axes=(None, "embed"))
        self.decoder = [block() for _ in range(self.num_layers)]
        self.decoder_norm = norm()
        self.to_patch = linear(model, patch, axes=("embed", None, None, None), head=True)

    def __call__(
        self, images: Num[ArrayLike, "B H W C"], *, train: bool = False
    ) -> Float[Array, "B H W C"]:
        """Returns the normalized reconstructions."""
        return self.autoencoded(images).reconstruction

    def hidden(
        self, images: Num[ArrayLike, "B H W C"], *, train: bool = False
    ) -> Float[Array, "B N M"]:
        """Returns the hidden states of the last block of the encoder."""
        return self.layers(images)[-1]

    def layers(self, images: Num[ArrayLike, "B H W C"]) -> Float[Array, "K B N M"]:
        """Returns the patch embeddings and the hidden states of all blocks of the encoder."""
        return self._layers(patches.normalized(images, self.mean, self.std))

    def _layers(self, pixels: Float[Array, "B H W C"]) -> Float[Array, "K B N M"]:
        x = self.patch_embed(patches.patches(pixels, self.patch_size))  # (B, N, M)
        states = [x]
        for block in self.encoder:
            states.append(self._on_grid(block, states[-1]))
        return jnp.stack(states)

    def _on_grid(self, block: nn.Module, x: Float[Array, "B N M"]) -> Float[Array, "B N M"]:
        side = self.image_size // self.patch_size
        return block(x.reshape(len(x), side, side, -1)).reshape(x.shape)

    def autoencoded(self, images: Num[ArrayLike, "B H W C"]) -> Autoencoded:
        """Returns the reconstructions from the nearest codes.

        Gradients use the straight-through estimator: the gradient with respect to a codebook entry
        is passed to the encoder output unchanged.
        """
        pixels = patches.normalized(images, self.mean, self.std)
        encoded = self._encoded(pixels)
        vectors = jnp.take(self.codes_table, self._nearest(encoded), axis=0)
        # The value is `vectors`, but the gradient is passed to `encoded`, because the choice of a
        # code has none.
        straight_through = encoded + jax.lax.stop_gradient(vectors - encoded)
        return Autoencoded(pixels, self._decoded(straight_through), encoded, vectors)

    def codes(self, images: Num[ArrayLike, "B H W C"]) -> Int[Array, "B N"]:
        """Returns the code of each patch, an index into the codebook, in row-major order."""
        return self._nearest(self._encoded(patches.normalized(images, self.mean, self.std)))

    def images_of(self, codes: Int[ArrayLike, "B N"]) -> UInt8[Array, "B H W C"]:
        """Returns the images that the decoder reconstructs from codes."""
        values = self._decoded(jnp.take(self.codes_table, codes, axis=0))
        values = values * jnp.array(self.std) + jnp.array(self.mean)
        # The decoder may leave the range of pixels, and a cast to uint8 would wrap around.
        return jnp.clip(jnp.rint(255 * values), 0, 255).astype(jnp.uint8)

    def _encoded(self, pixels: Float[Array, "B H W C"]) -> Float[Array, "B N E"]:
        # In bfloat16, rounding could change which code is the nearest.
        return self.code_norm(self.to_code(self._layers(pixels)[-1])).astype(jnp.float32)

    def _nearest(self, encoded: Float[Array, "B N E"]) -> Int[Array, "B N"]:
        # |e - c|^2 without |e|^2, which is the same for all codes.
        squares = jnp.sum(jnp.square(self.codes_table), axis=1)
        products = jnp.einsum("bne,ke->bnk", encoded, self.codes_table)
        return jnp.argmin(squares - 2 * products, axis=-1)

    def _decoded(self, vectors: Float[Array, "B N E"]) -> Float[Array, "B H W C"]:
        x = self.from_code(vectors)
        for block in self.decoder:
            x = self._on_grid(block, x)
        return patches.joined(self.to_patch(self.decoder_norm(x)).astype(jnp.float32))

    def flops(self, length: int, predictions: int = 0) -> float:
        """Returns the FLOPs of a forward pass over an image of `length` patches."""
        pixels = self.patch_size**2 * self.channels
        # A block has a convolution over 3 x 3 patches and one more matrix, hence the 10.
        block = parameters.dense(length, 10 * self.d_model, self.d_model)
        ends = parameters.dense(length, self.d_model, 2 * (pixels + self.d_code))
        return (
            2 * self.num_layers * block
            + ends
            + parameters.dense(length, self.d_code, self.num_codes)
        )
