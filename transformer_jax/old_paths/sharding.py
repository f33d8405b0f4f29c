"""Its place is transformer_jax.distributed.sharding."""

from transformer_jax.distributed.sharding import *  # noqa: F403
