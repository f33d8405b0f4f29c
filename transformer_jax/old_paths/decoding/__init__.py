"""Its modules are in transformer_jax.inference."""
