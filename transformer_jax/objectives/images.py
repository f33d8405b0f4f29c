"""Shared by the tasks on images: how an image is cropped, resized and augmented."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import NonNegativeInt, PositiveInt, UserError, build_model
from transformer_jax.contracts.task import Params
from transformer_jax.data import rows, store
from transformer_jax.data.images import FileRows, Fit, ImageRows, Resample, View
from transformer_jax.layers.attention import weights_in
from transformer_jax.objectives import rollouts
from transformer_jax.objectives.texts import SourceTask

_MOST_MAGNITUDE = 10  # the scale of RandAugment
_SHOWN = 8  # images in a figure


@dataclasses.dataclass
class ImageTask(SourceTask):
    """A task on images uint8 (B, S, S, C). Its model has the keys `image_size` and `channels`.

    Only training images are augmented.
    """

    modality = "images"

    # the part of a training image that is read: the square in its center, or a random crop
    crop: Literal["centre", "random"] = "centre"
    # smallest and largest area of a random crop, as a share of the area of the image
    crop_area: tuple = (0.08, 1.0)
    flip: bool = False  # mirror half of the training images
    shift: NonNegativeInt = 0  # most pixels by which a training image is moved, in each direction
    # (number of random operations on a training image, their magnitude from 0 to 10), as in
    # RandAugment; (): none
    rand_augment: tuple = ()
    # side to which an evaluated image is resized before its center is read; None: the model's
    # image_size
    resize: PositiveInt | None = None
    # how an evaluated image is resized to config.task.resize: its shorter side, and its center is
    # read in the same interpolation (center); both sides (stretch); its shorter side, the longer
    # one in whole pixels (shorter); not at all (none)
    fit: Fit = "center"
    # interpolation of resized images
    resample: Resample = "bilinear"

    coefficients = {"loss": 1.0}

    def __post_init__(self):
        self.model = build_model(self.config)
        self._check_augmentation()
        side = self.model.image_size
        if self.fit == "center" and self.resize is not None and self.resize < side:
            raise UserError(
                f"config.task.resize={self.resize}: must be at least config.model.image_size={side}"
            )
        if self.config.mesh.sequence != 1:
            raise UserError(
                f"config.mesh.sequence={self.config.mesh.sequence}: the patches of an image are "
                "not divided over devices; set it to 1"
            )

    def _check_augmentation(self) -> None:
        area, augment = tuple(self.crop_area), tuple(self.rand_augment)
        if len(area) != 2 or not 0 < area[0] <= area[1] <= 1:
            raise UserError(
                f"config.task.crop_area={area}: must hold two shares of the area of an image, such "
                "as (0.08, 1.0)"
            )
        if self.shift >= self.model.image_size:
            raise UserError(
                f"config.task.shift={self.shift}: must be below "
                f"config.model.image_size={self.model.image_size}"
            )
        fits = len(augment) == 2 and isinstance(augment[0], int) and augment[0] > 0
        if augment and not (fits and 0 <= augment[1] <= _MOST_MAGNITUDE):
            raise UserError(
                f"config.task.rand_augment={augment}: must be () or the number of operations and "
                f"their magnitude from 0 to {_MOST_MAGNITUDE}, such as (2, 9)"
            )

    @cached_property
    def view(self) -> View:
        """How an image is cropped and resized, without augmentation."""
        side = self.model.image_size
        max_pixels = self.source.max_pixels
        return View(
            side,
            self.model.channels,
            max_pixels,
            self.resize or side,
            fit=self.fit,
            resample=self.resample,
        )

    def view_of(self, split: str) -> View:
        """Returns the view of a split's images, which includes augmentation for training."""
        if split != "train":
            return self.view
        return dataclasses.replace(
            self.view,
            augments=True,
            random_crop=tuple(self.crop_area) if self.crop == "random" else None,
            flip=self.flip,
            shift=self.shift,
            rand_augment=tuple(self.rand_augment) or None,
        )

    @property
    def philox_key(self) -> np.ndarray:
        """The key of the random choices in a row, such as crops."""
        # Derived from the seed of the data alone, so that runs that differ in their model draw
        # alike.
        return rows.philox_key((self.config.data.seed, 0, 0))

    def split_rows(self, split: str) -> rows.Component | None:
        records = self.source.records(split)
        return None if records is None else self.images_of(split, records)

    def images_of(self, split: str, records: store.Records) -> rows.Component:
        """Returns the rows of a split's records."""
        return ImageRows(records, self.view_of(split), self.philox_key)

    def component(self, records: store.Records) -> rows.Component:
        # These records belong to no split, and only training images are augmented.
        return self.images_of("valid", records)

    def image_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shape of the images of a training batch."""
        shape = (self.config.train.batch, *self.view_shape)
        return {"images": jax.ShapeDtypeStruct(shape, jnp.uint8)}

    @property
    def view_shape(self) -> tuple[int, int, int]:
        side = self.model.image_size
        return side, side, self.model.channels

    def init_model(self, rng: jax.Array) -> Params:
        """Returns the initial parameters of the model."""
        return self.model.init(rng, jnp.zeros((1, *self.view_shape), jnp.uint8))["params"]

    def derived(self, name, means):
        return {}

    def model_params(self, params: Params) -> Params:
        """Returns the parameters of the model, without the heads that the task adds."""
        return {name: tree for name, tree in params.items() if name not in self.heads}

    def shown(self, paths: Sequence[str]) -> np.ndarray:
        """Returns images uint8 (N, S, S, C) from files, by default the first held-out images.

        Without held-out images, they are the first training images.
        """
        if paths:
            component = FileRows(paths, self.view, self.source.max_bytes)
        else:
            records = self.source.records("valid") or self.source.records("train")
            component = ImageRows(records, self.view, self.philox_key)
        count = len(paths) or min(len(component), _SHOWN)
        return np.stack([row["images"] for row in component.rows([(n, 0) for n in range(count)])])

    def rollout(self, params: Params, images: np.ndarray) -> np.ndarray:
        """Returns the attention rollout of images uint8 (N, S, S, C): maps float32 (N, G, G).

        A map holds the share of each patch in the final hidden state that a head reads: the class
        token's, or the mean over the patches. The shares of an image sum to 1. Raises UserError for
        a model whose layers have no attention weights.
        """
        if "encoder" not in self.model.attentions:
            raise UserError(f"config.model.name={self.config.model.name!r} has no attention")
        own = self.model_params(params)
        # One image at a time, because the attention weights of all layers and heads are
        # materialized.
        weights = [weights_in(self.model, own, "encoder", image[None]) for image in images]
        pools_class = self.model.pool == "class"
        return np.stack([rollouts.patch_shares(each, pools_class) for each in weights])
