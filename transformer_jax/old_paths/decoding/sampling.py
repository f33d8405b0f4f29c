"""Its place is transformer_jax.inference.sampling."""

from transformer_jax.inference.sampling import *  # noqa: F403
