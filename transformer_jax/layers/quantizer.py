"""A product quantizer that is learned through the Gumbel softmax (Jang et al. 2016)."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.layers.parameters import Linear, declared


class Quantized(NamedTuple):
    """The result of `Quantizer`.

    Attributes:
      vectors: the selected entries of all codebooks, concatenated (B, P, D).
      entries: the indices of the selected entries (B, P, G).
      probabilities: the softmax of the logits without noise (B, P, G, V); outside of training, 1
        for the selected entries.
    """

    vectors: Float[Array, "B P D"]
    entries: Int[Array, "B P G"]
    probabilities: Float[Array, "B P G V"]


class Quantizer(nn.Module):
    """Selects an entry of each codebook (Baevski et al. 2020, section 2): (B, P, C) -> Quantized.

    In training, Gumbel noise (PRNG key "gumbel") is added to the logits, and gradients use the
    straight-through estimator with the softmax at a temperature. Everything is in float32.
    """

    codebooks: int
    entries: int
    width: int  # of all codebooks together

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B P C"],
        temperature: Float[Array, ""] | float = 1.0,
        *,
        train: bool = False,
    ) -> Quantized:
        shape = (self.codebooks, self.entries)
        logits = Linear(
            (x.shape[-1],),
            shape,
            axes=("embed", None, None),
            head=True,
            kernel_init=nn.initializers.normal(1.0),
            name="logits",
        )(x.astype(jnp.float32))
        # Both initializers are as in the published code of wav2vec 2.0, so that training starts
        # from the same distribution of entries.
        part = self.width // self.codebooks
        init = declared(nn.initializers.uniform(1.0), (None, None))
        table = self.param("table", init, (self.codebooks * self.entries, part))
        noisy = logits
        if train:
            # The argmax of logits with Gumbel noise is a sample of their softmax, so that training
            # explores entries that are not the best ones.
            noisy = logits + jax.random.gumbel(self.make_rng("gumbel"), logits.shape)
        entries = noisy.argmax(axis=-1)
        chosen = jax.nn.one_hot(entries, self.entries)
        probabilities = chosen
        if train:
            soft = jax.nn.softmax(noisy / temperature)
            # Straight-through estimator. In this order of the sum the difference is exactly 0, so
            # that the vectors are exactly rows of the table.
            chosen = chosen + (soft - jax.lax.stop_gradient(soft))
            # The probabilities are without noise and temperature, because the diversity loss is
            # defined on them (Baevski et al. 2020, section 3.2).
            probabilities = jax.nn.softmax(logits)
        vectors = jnp.einsum("bpgv,gvd->bpgd", chosen, table.reshape(*shape, part))
        return Quantized(vectors.reshape(*x.shape[:2], self.width), entries, probabilities)
