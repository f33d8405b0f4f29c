"""Masked autoencoders: pre-training by predicting the pixels of masked patches (He et al. 2021)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from transformer_jax import pictures
from transformer_jax.config import PositiveInt, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import rows, store
from transformer_jax.data.images import PermutedRows
from transformer_jax.layers import patches
from transformer_jax.layers.parameters import compute_dtype
from transformer_jax.layers.patches import PatchDecoder
from transformer_jax.objectives.images import ImageTask

_EPSILON = 1e-6  # keeps the deviation of a flat patch above 0, as in the published code
_EVALUATION = Context()


class Reconstructions(NamedTuple):
    """Images uint8 (N, S, S, C), from 0 to 255."""

    originals: np.ndarray
    visible: np.ndarray  # the visible patches; masked patches are gray
    reconstructed: np.ndarray  # the visible patches, and the predicted pixels of masked patches


@dataclasses.dataclass
class MaskedPatches(ImageTask):
    """Predicts the pixels of masked patches, given the visible patches.

    The model encodes only the visible patches, and a small decoder over all patches predicts the
    pixels. The loss is the mean squared error on masked patches (section 3). Fine-tuning by
    image_classification drops the decoder.
    """

    mask_ratio: float = 0.75  # share of the patches of an image that are masked
    # predict the pixels of a patch normalized by their mean and standard deviation
    normalize_pixels: bool = True
    decoder_layers: PositiveInt = 8  # layers of the decoder
    decoder_width: PositiveInt = 512  # width of the decoder's residual stream
    decoder_heads: PositiveInt = 16  # attention heads of a layer of the decoder

    heads = ("decoder",)

    def __post_init__(self):
        super().__post_init__()
        count = self.model.num_patches
        if not 0 < self.mask_ratio < 1 or not 0 < self.num_visible < count:
            raise UserError(
                f"config.task.mask_ratio={self.mask_ratio}: must hide some of {count} patches, and "
                "leave some"
            )
        if self.normalize_pixels and self.decoder.features < 2:
            raise UserError(
                "config.task.normalize_pixels=True: a patch of one number has no deviation; set it "
                "to false"
            )
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise UserError(
                f"config.task.decoder_width={self.decoder_width}: must be a multiple of "
                f"config.task.decoder_heads={self.decoder_heads} and of 4"
            )

    @property
    def num_visible(self) -> int:
        # Rounded down, as in the published code.
        return int(self.model.num_patches * (1 - self.mask_ratio))

    def images_of(self, split: str, records: store.Records) -> rows.Component:
        count = self.model.num_patches
        return PermutedRows(records, self.view_of(split), self.philox_key, count)

    def batch_spec(self, row_shape):
        shapes = {"weight": (), "order": (self.model.num_patches,)}
        return self.image_spec() | self.int32_spec(shapes)

    @cached_property
    def decoder(self) -> PatchDecoder:
        model = self.model
        return PatchDecoder(
            model.patch_size**2 * model.channels,
            self.decoder_width,
            self.decoder_layers,
            self.decoder_heads,
            init_std=model.init_std,
            dtype=compute_dtype(model.dtype),
        )

    def init(self, rng):
        model_key, decoder_key = jax.random.split(rng)
        states = jnp.zeros((1, 1 + self.num_visible, self.model.d_model))
        order = jnp.arange(self.model.num_patches)[None]
        decoder = self.decoder.init(decoder_key, states, order)["params"]
        return {**self.init_model(model_key), "decoder": decoder}

    def weights(self, batch):
        return {"loss": batch["weight"].sum().astype(jnp.float32)}

    def predicted(self, params, batch, context: Context = _EVALUATION) -> Float[Array, "B N F"]:
        """Returns the predicted pixels of all patches."""
        # "order" is a random permutation of the patches, of which the first are visible. All images
        # have equally many, so that the arrays have one shape and the step compiles once.
        visible = batch["order"][:, : self.num_visible]
        states = self.model.apply(
            {"params": self.model_params(params)},
            Inputs(images=batch["images"], visible=visible),
            train=context.train,
            rngs={"dropout": context.rng} if context.train else None,
            method="hidden",
        )
        # The decoder needs the whole order: it puts mask tokens where the encoder read nothing.
        return self.decoder.apply({"params": params["decoder"]}, states, batch["order"])

    def targets(self, images: Num[Array, "B H W C"]) -> tuple[Array, Array, Array]:
        """Returns (targets (B, N, F), mean and standard deviation of each patch (B, N, 1)).

        With config.task.normalize_pixels, the targets are normalized by the latter two.
        """
        pixels = patches.normalized(images, self.model.mean, self.model.std)
        flat = patches.patches(pixels, self.model.patch_size)
        flat = flat.reshape(*flat.shape[:2], -1)
        mean = flat.mean(axis=-1, keepdims=True)
        # The variance is the unbiased estimate, as in the published code.
        deviation = jnp.sqrt(flat.var(axis=-1, keepdims=True, ddof=1) + _EPSILON)
        return (flat - mean) / deviation if self.normalize_pixels else flat, mean, deviation

    def loss(self, params, batch, context: Context) -> Loss:
        predicted = self.predicted(params, batch, context)
        targets, _, _ = self.targets(batch["images"])
        errors = jnp.square(predicted - targets).mean(axis=-1)  # (B, N)
        masked = batch["order"][:, self.num_visible :]
        # The loss is on masked patches alone, because predicting the visible ones, too, lowers the
        # accuracy (section 3). `clip` omits a check of indices, which in a permutation are all
        # valid.
        # keeps.
        row_errors = jnp.take_along_axis(errors, masked, axis=1, mode="clip").mean(axis=1)
        loss = jnp.sum(row_errors * batch["weight"])
        count = batch["weight"].sum(dtype=jnp.int32)
        num_masked = masked.shape[1]
        filled = (count * num_masked, jnp.int32(masked.size))
        return Loss({"loss": loss}, {"loss": (loss, count), "filled": filled})

    def flops(self, row_shape: int = 0) -> float:
        count, width = self.model.num_patches, self.model.d_model
        # The encoder does not read the masked patches, which makes this pre-training cheap.
        encoder = self.model.flops(self.num_visible)
        return 3 * (encoder + self.decoder.flops(self.num_visible, count, width))

    def positions(self, row_shape: int = 0) -> int:
        return self.model.num_patches - self.num_visible

    def reconstruct(self, params, images: np.ndarray) -> Reconstructions:
        """Returns images uint8 (N, S, S, C), their visible patches, and their reconstructions.

        An image has the masked patches of the evaluation row with the same index.
        """
        count = self.model.num_patches
        generators = [rows.generator(self.philox_key, n, 0) for n in range(len(images))]
        order = np.stack([generator.permutation(count) for generator in generators])
        batch = {"images": jnp.asarray(images), "order": jnp.asarray(order, jnp.int32)}

        @jax.jit
        def restored(params, batch):
            predicted = self.predicted(params, batch)
            targets, mean, deviation = self.targets(batch["images"])
            if not self.normalize_pixels:
                return targets, predicted
            # Normalized pixels tell neither brightness nor contrast, so both are taken from the
            # original patch, for masked patches, too.
            return targets * deviation + mean, predicted * deviation + mean

        original, predicted = jax.device_get(restored(params, batch))
        is_visible = np.argsort(order, axis=1)[..., None] < self.num_visible
        return Reconstructions(
            np.asarray(images),
            self._pixels(np.where(is_visible, original, 0.0)),
            self._pixels(np.where(is_visible, original, predicted)),
        )

    def result(self, params, texts: Sequence[str]):
        """Returns the figure of images, their visible patches, and their reconstructions.

        `texts` are paths of image files. By default, the first held-out images are shown.
        """
        originals, visible, reconstructed = self.reconstruct(params, self.shown(texts))
        images = {"image": originals, "visible": visible, "reconstructed": reconstructed}
        return pictures.images(images, f"{self.mask_ratio:.0%} of the patches hidden")

    def _pixels(self, flat: Float[np.ndarray, "B N F"]) -> np.ndarray:
        """Returns images uint8 (B, S, S, C) from the values of their patches."""
        side, channels = self.model.patch_size, self.model.channels
        images = patches.joined(flat.reshape(*flat.shape[:2], side, side, channels))
        values = np.asarray(images) * np.array(self.model.std) + np.array(self.model.mean)
        return np.clip(np.rint(255 * values), 0, 255).astype(np.uint8)
