"""Its parts are in transformer_jax.runs."""

from transformer_jax.runs.open import load, mean, open_run
from transformer_jax.runs.record import metrics, read
from transformer_jax.runs.resolve import make_task, resolve
from transformer_jax.runs.train import train

__all__ = ["load", "make_task", "mean", "metrics", "open_run", "read", "resolve", "train"]
