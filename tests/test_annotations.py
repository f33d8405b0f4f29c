"""With --full the tests check the annotations of arrays; the package itself never does."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from transformer_jax.families.gpt import GPT
from transformer_jax.layers.blocks import LayerNorm
from transformer_jax.losses import cross_entropy


@pytest.mark.full
def test_a_wrong_shape_or_dtype_is_refused():
    hidden, table = jnp.ones((2, 3, 4)), jnp.ones((7, 4))
    labels, weights = jnp.ones((2, 3), int), jnp.ones((2, 3))
    checked = jax.jit(cross_entropy)
    checked(hidden, table, None, labels, weights)
    for arguments in (
        (hidden, table.T, None, labels, weights),
        (hidden, table, jnp.ones(4), labels, weights),
        (hidden, table, None, labels[:, :1], weights),
        (hidden, table, None, labels, labels),
    ):
        with pytest.raises(TypeCheckError, match="cross_entropy"):
            checked(*arguments)


@pytest.mark.full
def test_the_methods_of_a_module_are_checked():
    with pytest.raises(TypeCheckError, match=r"LayerNorm.__call__"):
        LayerNorm().init({}, jnp.ones((2, 3), int))
    model = GPT(vocab_size=5, d_model=4, num_layers=1, num_heads=1, max_length=4)
    with pytest.raises(TypeCheckError, match="tokens"):
        model.init({}, jnp.ones((2, 4)))
    with pytest.raises(TypeCheckError, match="segment_ids"):
        model.init({}, jnp.ones((2, 4), int), segment_ids=jnp.ones((2, 3), int))


@pytest.mark.full
def test_the_package_runs_without_beartype():
    program = """
import sys
sys.modules["beartype"] = None  # importing it fails
from transformer_jax import config
from transformer_jax.tasks import causal_lm, masked_lm, translation
"""
    subprocess.run([sys.executable, "-c", program], check=True)
