"""The chunked, fused cross-entropy against the plain one, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax import config as configs
from transformer_jax import losses
from transformer_jax.distributed import sharding

B, L, M, V = 3, 8, 6, 11
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, M))
TABLE = jax.random.normal(jax.random.key(1), (V, M))
LABELS = jax.random.randint(jax.random.key(2), (B, L), 0, V)
WEIGHTS = (jax.random.uniform(jax.random.key(3), (B, L)) > 0.3).astype(jnp.float32)


BIAS = jax.random.normal(jax.random.key(4), (V,))


def plain(hidden, table, bias, smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)
    return (
        optax.softmax_cross_entropy(hidden @ table.T + (0 if bias is None else bias), targets)
        * WEIGHTS
    ).sum()


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit, chunks", [(10**9, 1), (B * V * 4, 2), (1, L), (B * V * 3, 3)])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, bias, smoothing, limit, chunks):
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)
    assert losses.num_chunks(B, L, V) == chunks
    fused = lambda *output: losses.cross_entropy(*output, LABELS, WEIGHTS, smoothing)[0]
    np.testing.assert_allclose(
        fused(HIDDEN, TABLE, bias), plain(HIDDEN, TABLE, bias, smoothing), rtol=1e-6
    )
    scaled = lambda f: jax.jit(jax.grad(lambda output: 3.0 * f(*output)))((HIDDEN, TABLE, bias))
    for ours, theirs in zip(
        jax.tree.leaves(scaled(fused)),
        jax.tree.leaves(scaled(lambda *output: plain(*output, smoothing))),
    ):
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


SIZE = V - 2  # tokens of a vocabulary that is filled up to V
SOME = LABELS % SIZE
INPUTS = (HIDDEN, TABLE, BIAS, WEIGHTS * 0.5)


def fused_sums(hidden, table, bias, weights, smoothing, size=V):
    padded = jnp.where(jnp.arange(V) < size, bias, losses.NO_TOKEN)
    return losses.cross_entropy(hidden, table, padded, SOME, weights, smoothing)


def plain_sums(hidden, table, bias, weights, smoothing, size=V):
    """(loss, nll, correct) as the formulas stand."""
    log_p = jax.nn.log_softmax((hidden @ table.T + bias)[..., :size])
    nll = -jnp.take_along_axis(log_p, SOME[..., None], axis=-1)[..., 0]
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(axis=-1)
    return [(each * weights).sum() for each in (loss, nll, log_p.argmax(axis=-1) == SOME)]


def gradients(sums, cotangents, *settings):
    """By hidden, table, bias and weights, of the sums times their cotangents."""

    def total(inputs):
        return sum(c * x for c, x in zip(cotangents, sums(*inputs, *settings)) if c)

    return jax.jit(jax.grad(total))(INPUTS)


def assert_near(found, expected):
    for ours, theirs in zip(found, expected):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs) + 1e-6


@pytest.mark.parametrize("size", [V, SIZE], ids=["full", "padded"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit", [10**9, B * V * 3])
def test_every_sum_has_its_gradients(monkeypatch, size, smoothing, limit):
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)
    assert_near(fused_sums(*INPUTS, smoothing, size), plain_sums(*INPUTS, smoothing, size))
    for cotangents in ((0.7, -1.3, 2.0), (0, 1.0, 0), (0, 0, 1.0)):
        found = gradients(fused_sums, cotangents, smoothing, size)
        assert_near(found, gradients(plain_sums, cotangents, smoothing, size))


def test_every_sum_has_its_gradients_on_a_mesh(monkeypatch):
    """Rows and vocabulary are split; the last chunk is filled up."""
    monkeypatch.setitem(losses.CHUNK_LOGITS, "cpu", 1)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 4)
    mesh_config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh={"data": 2, "tensor": 4}
    ).mesh
    mesh, rules = sharding.make_mesh(mesh_config), sharding.rules(mesh_config)

    def split_sums(*inputs):
        with sharding.use(mesh, rules):
            assert losses.num_chunks(B, L, V) == 3
            return fused_sums(*inputs)

    found = gradients(split_sums, (0.7, -1.3, 2.0), 0.1, SIZE)
    assert_near(found, gradients(plain_sums, (0.7, -1.3, 2.0), 0.1, SIZE))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_of_the_loss_alone_takes_three_products(smoothing):
    def trained(output):
        loss, nll, correct = losses.cross_entropy(*output, LABELS, WEIGHTS, smoothing)
        return loss, (nll, correct)

    def everything(output):
        return sum(losses.cross_entropy(*output, LABELS, WEIGHTS, smoothing))

    def products(gradient):
        return jax.jit(gradient).lower((HIDDEN, TABLE, BIAS)).as_text().count("dot_general")

    assert products(jax.grad(trained, has_aux=True)) == 3
    assert products(jax.grad(everything)) == (6 if smoothing else 3)


def test_token_log_probs():
    logits = HIDDEN @ TABLE.T + BIAS
    found, likeliest = losses.token_log_probs(HIDDEN, TABLE, BIAS, LABELS)
    np.testing.assert_allclose(
        found,
        jnp.take_along_axis(jax.nn.log_softmax(logits), LABELS[..., None], -1)[..., 0],
        rtol=1e-5,
        atol=1e-6,
    )
    assert (likeliest == (logits.argmax(-1) == LABELS)).all()


def test_nll_and_correct():
    _, nll, correct = losses.cross_entropy(HIDDEN, TABLE, None, LABELS, WEIGHTS, 0.1)
    np.testing.assert_allclose(nll, plain(HIDDEN, TABLE, None, 0.0), rtol=1e-6)
    assert correct == ((HIDDEN @ TABLE.T).argmax(-1) == LABELS)[WEIGHTS > 0].sum()


def test_a_quarter_of_the_plain_losss_memory_at_gpt2s_size():
    batch, length, width, vocab = 8, 1024, 64, 50_257
    f32, i32 = jnp.float32, jnp.int32
    args = [
        jax.ShapeDtypeStruct(*x)
        for x in [
            ((batch, length, width), f32),
            ((vocab, width), f32),
            ((batch, length), i32),
            ((batch, length), f32),
        ]
    ]

    def plain(hidden, table, labels, weights):
        return (
            optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, labels) * weights
        ).sum()

    fused = lambda h, t, y, w: losses.cross_entropy(h, t, None, y, w)[0]
    temporaries = lambda loss: (
        jax.jit(jax.grad(loss, argnums=(0, 1)))
        .lower(*args)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )
    assert temporaries(fused) < temporaries(plain) / 4
