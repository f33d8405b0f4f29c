"""The chunked, fused cross-entropy against the plain one, and its gradients."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax import losses

B, L, M, V = 3, 8, 6, 11
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, M))
TABLE = jax.random.normal(jax.random.key(1), (V, M))
LABELS = jax.random.randint(jax.random.key(2), (B, L), 0, V)
WEIGHTS = (jax.random.uniform(jax.random.key(3), (B, L)) > 0.3).astype(jnp.float32)


def plain(hidden, table, smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)
    return (optax.softmax_cross_entropy(hidden @ table.T, targets) * WEIGHTS).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit, chunks", [(10**9, 1), (B * V * 4, 2), (1, L)])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, smoothing, limit, chunks):
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", limit)
    assert losses.num_chunks(B, L, V) == chunks
    fused = lambda h, t: losses.cross_entropy(h, t, LABELS, WEIGHTS, smoothing)[0]
    np.testing.assert_allclose(fused(HIDDEN, TABLE), plain(HIDDEN, TABLE, smoothing), rtol=1e-6)
    scaled = lambda f: jax.jit(jax.grad(lambda h, t: 3.0 * f(h, t), argnums=(0, 1)))(HIDDEN, TABLE)
    for ours, theirs in zip(scaled(fused), scaled(lambda h, t: plain(h, t, smoothing))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_nll_and_correct():
    _, nll, correct = losses.cross_entropy(HIDDEN, TABLE, LABELS, WEIGHTS, 0.1)
    np.testing.assert_allclose(nll, plain(HIDDEN, TABLE, 0.0), rtol=1e-6)
    assert correct == ((HIDDEN @ TABLE.T).argmax(-1) == LABELS)[WEIGHTS > 0].sum()


def test_no_logits_of_the_whole_length_in_memory(monkeypatch):
    vocab, length = 4096, 64
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", vocab * 8)
    args = (jnp.zeros((1, length, 8)), jnp.zeros((vocab, 8)), jnp.zeros((1, length), int), jnp.ones((1, length)))
    grad = jax.jit(jax.grad(lambda h, t, y, w: losses.cross_entropy(h, t, y, w)[0], argnums=(0, 1)))
    assert grad.lower(*args).compile().memory_analysis().temp_size_in_bytes < length * vocab * 4 / 2
