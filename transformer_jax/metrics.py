"""Streaming metrics: sums that are added over positions, microbatches, updates and devices.

Metrics are a dict {name: (total, count)} of scalars, and the mean is total / count. Counts that
must be exact are int32, because float32 is exact only up to 2**24.
"""

import math
import operator

import jax
import jax.numpy as jnp

Metrics = dict[str, tuple[jax.Array, jax.Array]]


def add(a: Metrics, b: Metrics) -> Metrics:
    """Returns the sums of both. The sum of two arrays on the host stays on the host."""
    return jax.tree.map(operator.add, a, b)


def zeros_like(metrics: Metrics) -> Metrics:
    """Returns zeros with the names, shapes and dtypes of `metrics`."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)


def means(metrics: Metrics) -> dict[str, float]:
    """Returns the means of metrics on the host, as floats. The mean of no terms is nan."""
    return {
        name: float(total) / float(count) if count else math.nan
        for name, (total, count) in metrics.items()
    }
