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


BIAS = jax.random.normal(jax.random.key(4), (V,))


def plain(hidden, table, bias, smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)
    return (optax.softmax_cross_entropy(hidden @ table.T + (0 if bias is None else bias), targets) * WEIGHTS).sum()


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit, chunks", [(10**9, 1), (B * V * 4, 2), (1, L), (B * V * 3, 3)])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, bias, smoothing, limit, chunks):
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)
    assert losses.num_chunks(B, L, V) == chunks
    fused = lambda *output: losses.cross_entropy(*output, LABELS, WEIGHTS, smoothing)[0]
    np.testing.assert_allclose(fused(HIDDEN, TABLE, bias), plain(HIDDEN, TABLE, bias, smoothing), rtol=1e-6)
    scaled = lambda f: jax.jit(jax.grad(lambda output: 3.0 * f(*output)))((HIDDEN, TABLE, bias))
    for ours, theirs in zip(jax.tree.leaves(scaled(fused)), jax.tree.leaves(scaled(lambda *output: plain(*output, smoothing)))):
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


def test_token_log_probs():
    logits = HIDDEN @ TABLE.T + BIAS
    found, likeliest = losses.token_log_probs(HIDDEN, TABLE, BIAS, LABELS)
    np.testing.assert_allclose(found, jnp.take_along_axis(jax.nn.log_softmax(logits), LABELS[..., None], -1)[..., 0], rtol=1e-5, atol=1e-6)
    assert (likeliest == (logits.argmax(-1) == LABELS)).all()


def test_nll_and_correct():
    _, nll, correct = losses.cross_entropy(HIDDEN, TABLE, None, LABELS, WEIGHTS, 0.1)
    np.testing.assert_allclose(nll, plain(HIDDEN, TABLE, None, 0.0), rtol=1e-6)
    assert correct == ((HIDDEN @ TABLE.T).argmax(-1) == LABELS)[WEIGHTS > 0].sum()


def test_a_quarter_of_the_plain_losss_memory_at_gpt2s_size():
    batch, length, width, vocab = 8, 1024, 64, 50_257
    f32, i32 = jnp.float32, jnp.int32
    args = [jax.ShapeDtypeStruct(*x) for x in [((batch, length, width), f32), ((vocab, width), f32), ((batch, length), i32), ((batch, length), f32)]]

    def plain(hidden, table, labels, weights):
        return (optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, labels) * weights).sum()

    fused = lambda h, t, y, w: losses.cross_entropy(h, t, None, y, w)[0]
    temporaries = lambda loss: jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*args).compile().memory_analysis().temp_size_in_bytes
    assert temporaries(fused) < temporaries(plain) / 4
