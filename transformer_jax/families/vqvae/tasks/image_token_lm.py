"""Class-conditional image generation by a language model of image tokens (Esser et al. 2021)."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import pictures
from transformer_jax.config import UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import rows, store
from transformer_jax.data.images import LabelledRows, View, known_labels
from transformer_jax.distributed.sharding import Placement
from transformer_jax.families.vqvae.image_tokens import Coder, CodeSampler
from transformer_jax.families.vqvae.tasks.vqvae import check_codes
from transformer_jax.objectives.texts import SourceTask, perplexity, states

if TYPE_CHECKING:  # slow to import, and a program may draw nothing
    from matplotlib.figure import Figure

_SHOWN = 8  # samples per class in a figure


@dataclasses.dataclass
class CodeLM(SourceTask):
    """Predicts the next token of an image, given its class and the tokens before (section 3.2).

    The autoencoder that tokenizes the images is frozen, and its parameters are the subtree
    "autoencoder". The vocabulary of the model is the autoencoder's codes, followed by one token for
    each class.
    """

    autoencoder: str = ""  # a run of vqvae, which tokenizes the images
    # keys of the autoencoder's config.model, ((key, value), ...); the run in
    # config.task.autoencoder gives its own
    autoencoder_model: tuple = ()

    other_runs = ("autoencoder",)
    coefficients = {"loss": 1.0}

    def __post_init__(self):
        self.model = build_model(self.config)
        if not self.autoencoder_model:
            raise UserError("config.task.autoencoder is missing: the workdir of a run of vqvae")
        self._coder = build_model(ConfigDict({"model": dict(self.autoencoder_model)}))
        check_codes(self._coder, f"config.task.autoencoder={self.autoencoder}")
        if self.model.kind != "causal":
            raise UserError(
                f"config.model.name={self.config.model.name!r}: is not a language model; take one, "
                "such as gpt"
            )
        if self.length > self.model.window:
            raise UserError(
                f"config.model.max_length={self.model.max_length}: must be at least "
                f"{self.length}, the codes of an image"
            )
        if self._num_classes < 1:
            raise UserError(
                f"config.model.vocab_size={self.model.vocab_size}: must be more than the "
                f"{self._coder.num_codes} codes, by the number of classes"
            )

    @property
    def length(self) -> int:
        """The number of tokens of an image."""
        return self._coder.num_patches

    @property
    def _num_classes(self) -> int:
        return self.model.vocab_size - self._coder.num_codes

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The classes of the training images; one class without a name if they have no labels."""
        names = self.source.label_names("train") or ("",)
        if len(names) > self._num_classes:
            raise UserError(
                f"config.model.vocab_size={self.model.vocab_size}: must be at least "
                f"{self._coder.num_codes + len(names)}, for {self._coder.num_codes} codes and "
                f"{len(names)} classes"
            )
        return tuple(map(str, names))

    def component(self, records: store.Records) -> rows.Component:
        side = self._coder.image_size
        view = View(side, self._coder.channels, self.source.max_pixels, side)
        labels = np.zeros(len(records), np.int64)
        if self.source.label_names("train"):
            labels = known_labels(records)
        if labels.max() >= len(self.names):
            raise UserError("config.data: images of a class that the training images do not have")
        return LabelledRows(records, view, rows.philox_key((self.config.data.seed, 0, 0)), labels)

    def batch_spec(self, row_shape: int):
        batch, side = self.config.train.batch, self._coder.image_size
        images = jax.ShapeDtypeStruct((batch, side, side, self._coder.channels), jnp.uint8)
        shares = jax.ShapeDtypeStruct((batch, 1), jnp.float32)
        return {"images": images, "shares": shares} | self.int32_spec({"labels": (1,)})

    def init(self, rng):
        key, other_key = jax.random.split(rng)
        side = self._coder.image_size
        blank = jnp.zeros((1, side, side, self._coder.channels), jnp.uint8)
        params = self.model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]
        return {**params, "autoencoder": self._coder.init(other_key, blank)["params"]}

    def group(self, path):
        return None if path[0] == "autoencoder" else super().group(path)

    def weights(self, batch):
        # The share of a row that only pads the batch is 0, so that the mean leaves it out.
        return {"loss": self.length * batch["shares"].sum()}

    def loss(self, params, batch, context: Context) -> Loss:
        # The training step asks for no gradient of frozen parameters; any other caller gets zeros.
        coder = jax.lax.stop_gradient(params["autoencoder"])
        codes = self._coder.apply({"params": coder}, batch["images"], method="codes")
        # The class takes the role of a start token: it predicts the first token of the image.
        tokens = jnp.concatenate([self._coder.num_codes + batch["labels"], codes[:, :-1]], axis=1)
        variables = {"params": params}
        hidden = states(self.model, params, Inputs(tokens), context)
        weights = jnp.broadcast_to(batch["shares"], codes.shape)
        output = self.model.apply(variables, method="scaled_output")
        loss, _, correct = output.cross_entropy(hidden, codes, weights)
        count = weights.sum()
        metrics = {
            "loss": (loss, count),
            "accuracy": (correct, count),
            "filled": (count, jnp.float32(codes.size)),
        }
        return Loss({"loss": loss}, metrics)

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes. The frozen autoencoder has
        # none.
        return 3 * self.model.flops(self.length) + self._coder.flops(self.length)

    def positions(self, row_shape: int = 0) -> int:
        return self.length

    def derived(self, name, means):
        return {"perplexity": perplexity(means["loss"])}

    def samples(
        self, params, classes: Sequence[str], *, temperature: float = 1.0, seed: int = 0
    ) -> np.ndarray:
        """Returns images uint8 (N, S, S, C), one sample for each of N class names.

        Raises UserError for a name that is not a class.
        """
        for name in classes:
            if name not in self.names:
                known = ", ".join(self.names[:20])
                raise UserError(f"{name!r} is not a class of the run's images; there are: {known}")
        if temperature <= 0:
            raise UserError(f"temperature={temperature}: must be above 0")
        placement = Placement.of(params, self.config.mesh).decoding()
        draw = CodeSampler(self.model, self._coder.num_codes, self.length)
        numbers = np.array([self.names.index(name) for name in classes])
        codes = draw(params, numbers, placement, seed=seed, temperature=temperature)
        return Coder.of(self._coder, params["autoencoder"], self.config).images(codes)

    def result(self, params, texts: Sequence[str]) -> "Figure":
        """Returns a figure of samples of the classes that `texts` names, by default of all."""
        names = [*texts] or [*self.names]
        drawn = self.samples(params, [name for name in names for _ in range(_SHOWN)])
        images = drawn.reshape(len(names), _SHOWN, *drawn.shape[1:])
        return pictures.images(dict(zip(names, images)), "samples by class")
