"""Masks against their definitions, and no leak through attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.layers import attention
from transformer_jax.layers.masks import Mask

LENGTH = 12
SEGMENTS = np.array([[1] * 5 + [2] * 5 + [0] * 2, [1] * 12])
GLOBAL = np.arange(LENGTH)[None] == np.array([[1], [6]])
RANKS = np.array([[*range(0, 12, 2), *range(1, 12, 2)], [*range(12)][::-1]])
PREFIX = np.array([4, 0])
WINDOW = jnp.int32(3)


def on_device(**fields):
    """Returns a mask. The rules below read the same arrays of NumPy, which takes less time."""
    return Mask(**{name: jnp.asarray(x) if np.ndim(x) else x for name, x in fields.items()})


# The mask, and whether query i of row b sees key j.
RULES = {
    "two_sided": (on_device(window=WINDOW), lambda b, i, j: abs(i - j) < 3),
    "local": (on_device(causal=True, window=WINDOW), lambda b, i, j: 0 <= i - j < 3),
    "global": (
        on_device(causal=True, window=WINDOW, global_keys=GLOBAL, global_queries=GLOBAL),
        lambda b, i, j: j <= i and (i - j < 3 or bool(GLOBAL[b, i]) or bool(GLOBAL[b, j])),
    ),
    "global_keys": (
        on_device(window=WINDOW, global_keys=GLOBAL),
        lambda b, i, j: abs(i - j) < 3 or bool(GLOBAL[b, j]),
    ),
    "dilated": (
        on_device(window=WINDOW, dilation=jnp.int32(2), global_keys=GLOBAL),
        lambda b, i, j: bool(GLOBAL[b, j]) or (abs(i - j) < 3 * 2 and (i - j) % 2 == 0),
    ),
    "dilated_local": (
        on_device(causal=True, window=3, dilation=3),
        lambda b, i, j: 0 <= i - j < 3 * 3 and (i - j) % 3 == 0,
    ),
    "prefix": (on_device(causal=True, prefix=PREFIX), lambda b, i, j: j <= i or j < PREFIX[b]),
    "ranks": (
        on_device(query_ranks=RANKS, key_ranks=RANKS),
        lambda b, i, j: RANKS[b, j] <= RANKS[b, i],
    ),
    "earlier_ranks": (
        on_device(query_ranks=RANKS - 1, key_ranks=RANKS),
        lambda b, i, j: RANKS[b, j] < RANKS[b, i],
    ),
    "private": (
        on_device(query_ranks=RANKS, key_ranks=RANKS, private_keys=GLOBAL),
        lambda b, i, j: RANKS[b, j] <= RANKS[b, i] and (i == j or not GLOBAL[b, j]),
    ),
    "packed_prefix": (
        on_device(causal=True, prefix=PREFIX, query_segments=SEGMENTS, key_segments=SEGMENTS),
        lambda b, i, j: (
            (j <= i or j < PREFIX[b]) and SEGMENTS[b, j] > 0 and SEGMENTS[b, i] == SEGMENTS[b, j]
        ),
    ),
}


@pytest.fixture(scope="module")
def expected():
    return {
        name: np.array(
            [
                [[bool(sees(b, i, j)) for j in range(LENGTH)] for i in range(LENGTH)]
                for b in range(2)
            ]
        )
        for name, (_, sees) in RULES.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_a_mask_shows_what_it_says(name, expected):
    mask, _ = RULES[name]
    visible = np.asarray(jax.jit(lambda: mask.dense(LENGTH, LENGTH))())
    np.testing.assert_array_equal(
        np.broadcast_to(visible, (2, 1, LENGTH, LENGTH))[:, 0], expected[name]
    )


@pytest.mark.parametrize("name", RULES)
def test_a_hidden_key_changes_nothing(name, expected):
    """Each key in turn gets another value; only the queries that see it change."""
    mask, _ = RULES[name]
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, LENGTH, 2, 4))

    @jax.jit
    @jax.vmap
    def output(key):
        return attention.dot_product(q, k.at[:, key].add(1.0), v.at[:, key].add(1.0), mask)

    # No key has the number LENGTH: the last output is that of unchanged keys.
    outputs = np.asarray(output(np.arange(LENGTH + 1)))
    original, changed = outputs[-1], outputs[:-1]
    differs = np.abs(changed - original).max(axis=(3, 4)) > 0  # (keys, B, queries)
    seen = expected[name].transpose(2, 0, 1)
    has_key = expected[name].any(axis=2)
    np.testing.assert_array_equal(differs[:, has_key], seen[:, has_key])


@pytest.mark.parametrize("name", ["local", "global"])
def test_a_block_is_a_part_of_the_dense_mask(name):
    mask, _ = RULES[name]
    ranks, segments = jnp.asarray(RANKS), jnp.asarray(SEGMENTS)
    mask = mask.replace(
        query_ranks=ranks, key_ranks=ranks, query_segments=segments, key_segments=segments
    )
    both = jax.jit(lambda: (mask.block(4, 9).dense(5, 9), mask.dense(LENGTH, LENGTH)))
    block, whole = jax.device_get(both())
    np.testing.assert_array_equal(block, whole[:, :, 4:9, :9])


def test_conditions_are_the_fields_that_are_set():
    assert Mask().conditions() == frozenset()
    mask = Mask(causal=True, window=WINDOW, windows=(3,), prefix=jnp.asarray(PREFIX))
    assert mask.conditions() == {"causal", "window", "prefix"}
