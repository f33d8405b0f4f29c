"""Image tokens: encoding and decoding images with a VQ-VAE, and sampling image tokens from a
language model (Esser et al. 2021).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from transformer_jax.contracts.model import Inputs
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.inference.batching import chunks


@dataclasses.dataclass(frozen=True)
class Coder:
    """Encodes and decodes images with a trained VQ-VAE, `batch` rows at a time.

    The rows of a batch are split over the devices.
    """

    model: Any  # the Linen module
    params: Any
    batch: int
    placement: Placement

    @classmethod
    def of(cls, model: Any, params: Any, config) -> "Coder":
        placement = Placement.of(params, config.mesh)
        return cls(model, params, placement.rows(config.decode.batch), placement)

    def codes(self, images: UInt8[np.ndarray, "R H W C"]) -> Int[np.ndarray, "R N"]:
        """Returns the image tokens: the codebook index of each of the N patches."""
        return self._computed("codes", images)

    def images(self, codes: Int[np.ndarray, "R N"]) -> UInt8[np.ndarray, "R H W C"]:
        """Returns the images that the decoder reconstructs from image tokens."""
        return self._computed("images_of", codes)

    def _computed(self, method: str, rows: np.ndarray) -> np.ndarray:
        parts = []
        for chunk in chunks(rows, self.batch):
            # The last batch is padded to the shape of the others, so that nothing is recompiled.
            padding = [np.zeros_like(chunk[0])] * (self.batch - len(chunk))
            arrays = np.stack([*chunk, *padding])
            computed = hosts.run(_apply, self.model, self.placement, method, self.params, arrays)
            parts.append(np.asarray(jax.device_get(computed))[: len(chunk)])
        return np.concatenate(parts)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _apply(model: Any, placement: Placement, method: str, params, rows) -> jax.Array:
    with placement.use():
        return gathered(model.apply({"params": params}, split_rows(rows), method=method))


@dataclasses.dataclass(frozen=True)
class CodeSampler:
    """Samples image tokens from a causal model, given a class token in front of them."""

    model: Any  # the Linen module
    num_codes: int  # size of the codebook; its indices are the first tokens of the vocabulary
    length: int  # image tokens of an image

    def __call__(
        self,
        params,
        classes: Int[np.ndarray, " R"],
        placement: Placement,
        *,
        seed: int,
        temperature: float,
    ) -> Int[np.ndarray, "R N"]:
        """Returns the image tokens of one image for each of the `classes`, which count from 0."""
        rows = placement.rows(len(classes))
        first = np.zeros(rows, np.int32)
        # Shifted, because the class tokens come after the image tokens in the vocabulary.
        first[: len(classes)] = classes + self.num_codes
        key = jax.random.key(seed)
        # The temperature is traced, so that another one needs no compilation.
        computed = hosts.run(
            CodeSampler._drawn, self, placement, params, first, key, np.float32(temperature)
        )
        return np.asarray(jax.device_get(computed))[: len(classes)]

    @partial(jax.jit, static_argnums=(0, 1))
    def _drawn(  # noqa: PLR0917
        self,
        placement: Placement,
        params,
        first: Int[Array, " R"],
        key: jax.Array,
        temperature: Float[Array, ""],
    ) -> Int[Array, "R N"]:
        variables = {"params": params}
        with placement.use():
            tokens = jnp.zeros((len(first), self.length + 1), jnp.int32).at[:, 0].set(first)

            def step(position, tokens):
                # Rows are short, so each step reads the whole row again instead of keeping a cache.
                inputs = Inputs(tokens[:, :-1])
                hidden = self.model.apply(variables, inputs, method="hidden")
                state = jax.lax.dynamic_index_in_dim(hidden, position, axis=1, keepdims=False)
                logits = self.model.apply(variables, state, method="logits")
                # The rest of the vocabulary is class tokens, which an image does not contain.
                logits = logits[:, : self.num_codes] / temperature
                # The key depends on the position, so that no two tokens share random numbers.
                drawn = jax.random.categorical(jax.random.fold_in(key, position), logits)
                return tokens.at[:, position + 1].set(drawn)

            return gathered(jax.lax.fori_loop(0, self.length, step, split_rows(tokens))[:, 1:])
