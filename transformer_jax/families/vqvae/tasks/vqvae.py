"""Image tokenizer training: VQ-VAE (van den Oord et al. 2017)."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import pictures
from transformer_jax.config import NonNegativeFloat, UserError
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.families.vqvae.image_tokens import Coder
from transformer_jax.objectives.images import ImageTask

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure


@dataclasses.dataclass
class ImageCodes(ImageTask):
    """The objective of equation 3: reconstruction loss, codebook loss and commitment loss.

    "loss" is the mean squared error of normalized pixels. "perplexity" is the perplexity of the
    image tokens of the held-out images, and "used" the number of different tokens.
    """

    commitment: NonNegativeFloat = 0.25  # weight of the commitment loss

    def __post_init__(self):
        super().__post_init__()
        check_codes(self.model, f"config.model.name={self.config.model.name!r}")
        self.coefficients = {"pixels": 1.0, "codes": 1.0, "commitment": self.commitment}

    def batch_spec(self, row_shape: int):
        return self.image_spec() | self.int32_spec({"weight": ()})

    def init(self, rng):
        return self.init_model(rng)

    def weights(self, batch):
        # Means over numbers, so that the weights of the terms depend neither on the size of the
        # images nor on the width of the codes.
        rows = batch["weight"].sum().astype(jnp.float32)
        numbers = rows * self.model.num_patches * self.model.d_code
        pixels = rows * np.prod(self.view_shape)
        return {"pixels": pixels, "codes": numbers, "commitment": numbers}

    def loss(self, params, batch, context: Context) -> Loss:
        result = self.model.apply({"params": params}, batch["images"], method="autoencoded")
        weight = batch["weight"].astype(jnp.float32)

        def squares(x, y):
            return jnp.sum(jnp.square(x - y).sum(axis=tuple(range(1, x.ndim))) * weight)

        # The codebook loss moves the codes towards the encoder's outputs, and the commitment loss
        # the encoder's outputs towards the codes. The reconstruction loss gives no gradient to the
        # codes, because its gradients use the straight-through estimator (section 3.2).
        stop = jax.lax.stop_gradient
        terms = {
            "pixels": squares(result.pixels, result.reconstruction),
            "codes": squares(stop(result.encoded), result.vectors),
            "commitment": squares(result.encoded, stop(result.vectors)),
        }
        counts = self.weights(batch)
        rows = batch["weight"].sum(dtype=jnp.int32)
        metrics = {
            "loss": (terms["pixels"], counts["pixels"]),
            "distance": (terms["codes"], counts["codes"]),
            "filled": (rows, jnp.int32(len(weight))),
        }
        return Loss(terms, metrics)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.model.num_patches)

    def positions(self, row_shape: int = 0) -> int:
        return self.model.num_patches

    def evaluations(self):
        return {} if self.source.fingerprint("valid") is None else {"codes": self._usage}

    def _usage(self, params) -> dict[str, float]:
        """Returns the perplexity and the number of the tokens that held-out images use."""
        component = self.split_rows("valid")
        numbers = [(number, 0) for number in range(len(component))]
        images = np.stack([row["images"] for row in component.rows(numbers)])
        counts = np.bincount(self.coder(params).codes(images).ravel())
        # Unused codes are left out, because 0 * log(0) would be NaN.
        shares = counts[counts > 0] / counts.sum()
        entropy = -float(np.sum(shares * np.log(shares)))
        return {"perplexity": float(np.exp(entropy)), "used": float(len(shares))}

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean losses of a split, and the usage of codes on the validation split."""
        scores = super().evaluate(params, split)
        usage = {name: measure(params) for name, measure in self.evaluations().items()}
        return scores | usage.get("codes", {})

    def coder(self, params) -> Coder:
        """Returns the encoder of images to image tokens and its decoder, with these parameters."""
        return Coder.of(self.model, params, self.config)

    def result(self, params, texts: Sequence[str]) -> "Figure":
        """Returns a figure of image files, or of held-out images, and their reconstructions."""
        shown = self.shown(texts)
        coder = self.coder(params)
        rows = {"image": shown, "from its codes": coder.images(coder.codes(shown))}
        return pictures.images(rows, f"{self.model.num_patches} codes of {self.model.num_codes}")


def check_codes(model, where: str) -> None:
    """Raises UserError for a model without codes."""
    if "codes" not in model.can:
        raise UserError(f"{where}: has no image tokens; take a model that does: vqvae")
