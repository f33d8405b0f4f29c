"""Train, fine-tune and study Transformers in JAX and Flax."""
import time

STARTED = time.monotonic()  # for the time from command to first step
__version__ = "0.1.0"



def __getattr__(name):
    if name in ("train", "open_run", "load"):  # imported when asked for: the command line must be able to set up JAX first
        from transformer_jax import workdir

        return getattr(workdir, name)
    if name == "run":
        from transformer_jax.training.loop import run

        return run
    raise AttributeError(f"module 'transformer_jax' has no attribute {name!r}")
