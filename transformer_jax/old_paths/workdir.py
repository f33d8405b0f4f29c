"""Its place is transformer_jax.runs.workdir."""

from transformer_jax.runs.workdir import *  # noqa: F403
