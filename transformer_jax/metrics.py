"""Streaming metrics: pairs of sums that add over positions, microbatches, updates and devices.

Metrics are a dict {name: (total, count)} of scalars; the mean is total / count. Counts that must
stay exact are int32.
"""

import math
import operator

import jax
import jax.numpy as jnp

Metrics = dict[str, tuple[jax.Array, jax.Array]]


def add(a: Metrics, b: Metrics) -> Metrics:
    """Where both are on the host, the sum is, too."""
    return jax.tree.map(operator.add, a, b)


def zeros_like(metrics: Metrics) -> Metrics:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)


def means(metrics: Metrics) -> dict[str, float]:
    """Plain floats, of metrics fetched to the host; nan where nothing was counted."""
    return {
        name: float(total) / float(count) if count else math.nan
        for name, (total, count) in metrics.items()
    }
