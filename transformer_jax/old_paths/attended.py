"""Its place is transformer_jax.pictures.attended."""

from transformer_jax.pictures.attended import *  # noqa: F403
