"""The chunked, fused cross-entropy and its gradients, against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from transformer_jax import config as configs
from transformer_jax import losses
from transformer_jax.distributed import sharding
from transformer_jax.layers.embeddings import Projection, token_log_probs

B, L, M, V = 3, 7, 6, 11  # a prime length, which few chunks divide
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, M))
TABLE = jax.random.normal(jax.random.key(1), (V, M))
LABELS = jax.random.randint(jax.random.key(2), (B, L), 0, V)
WEIGHTS = (jax.random.uniform(jax.random.key(3), (B, L)) > 0.3).astype(jnp.float32)
BIAS = jax.random.normal(jax.random.key(4), (V,))


def plain_loss(hidden, table, bias, smoothing):
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), smoothing)
    logits = hidden @ table.T + (0 if bias is None else bias)
    return (optax.softmax_cross_entropy(logits, targets) * WEIGHTS).sum()


def fused_loss(hidden, table, bias, smoothing):
    return losses.cross_entropy(hidden, table, bias, LABELS, WEIGHTS, label_smoothing=smoothing)[0]


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit, chunks", [(10**9, 1), (B * V * 4, 2), (1, L), (B * V * 3, 3)])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, bias, smoothing, limit, chunks):
    monkeypatch.setitem(losses.CHUNK_BYTES, "cpu", 4 * limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)
    assert losses.num_chunks(B, L, V) == chunks

    def scaled_gradients(loss, output):
        """Returns the loss, and the gradients of three times the loss."""
        value = loss(*output, smoothing)
        return value, jax.grad(lambda output: 3.0 * loss(*output, smoothing))(output)

    @jax.jit
    def both(output):
        return scaled_gradients(fused_loss, output), scaled_gradients(plain_loss, output)

    results = jax.device_get(both((HIDDEN, TABLE, bias)))
    (value, *gradients), (plain_value, *plain_gradients) = map(jax.tree.leaves, results)
    np.testing.assert_allclose(value, plain_value, rtol=1e-6)
    for fused, plain in zip(gradients, plain_gradients):
        assert np.linalg.norm(fused - plain) <= 1e-6 * np.linalg.norm(plain)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_pass_over_the_logits_gives_the_same(monkeypatch, smoothing):
    """A GPU finds the largest logit and the sum of the exponentials together."""

    def results(table):
        def loss(hidden, table):
            sums = losses.cross_entropy(
                hidden, table, BIAS, LABELS, WEIGHTS, label_smoothing=smoothing
            )
            return sums[0], sums[1:]

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(HIDDEN, table)

    # The second table has logits whose exponentials are not finite.
    tables = TABLE, 200 * TABLE
    expected = [*map(jax.jit(results), tables)]
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    # A function of its own, because JAX has cached the program of the other for a CPU.
    in_one_pass = jax.jit(lambda table: results(table))
    assert str(jax.make_jaxpr(in_one_pass)(TABLE)).count("reduce[") == 1
    for one_pass, plain in zip(map(in_one_pass, tables), expected):
        for x, y in zip(*map(jax.tree.leaves, (one_pass, plain))):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_logits_of_half_the_bytes():
    """In bfloat16, the rounding of the logits is small beside that of the hidden states."""

    @jax.jit
    def results(hidden):
        def loss(hidden, table):
            return losses.cross_entropy(hidden, table, None, LABELS, WEIGHTS)[0]

        return loss(hidden, TABLE), *jax.value_and_grad(loss, (0, 1))(hidden, TABLE)

    rounded = HIDDEN.astype(jnp.bfloat16)
    alone, loss, (d_hidden, d_table) = results(rounded)
    exact, _, exact_gradients = results(rounded.astype(jnp.float32))
    # A loss alone has logits in float32, of the rounded table.
    np.testing.assert_allclose(alone, exact, rtol=3e-3)
    np.testing.assert_allclose(loss, alone, rtol=2e-3)
    assert loss != alone
    for x, y in zip((d_hidden, d_table), exact_gradients):
        assert np.linalg.norm(x.astype(jnp.float32) - y) < 1e-2 * np.linalg.norm(y)
    assert d_hidden.dtype == jnp.bfloat16 and d_table.dtype == jnp.float32


def test_chunks_divide_the_length(monkeypatch):
    """GPT-2's 32 rows of 1,024 tokens: 6.6 GB of logits, of which a GPU holds 1 GB at a time."""
    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    assert losses.num_chunks(32, 1024, 50_304) == 8
    assert losses.num_chunks(32, 1024, 50_304, jnp.bfloat16) == 4
    # No number of chunks up to 11 divides a length of 1,021, so the last one is padded.
    assert losses.num_chunks(32, 1021, 50_304) == 7


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("limit", [10**9, B * V * 3], ids=["one chunk", "three chunks"])
def test_label_log_probs_and_their_gradients_are_those_of_the_formula(monkeypatch, bias, limit):
    monkeypatch.setitem(losses.CHUNK_BYTES, "cpu", 4 * limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)

    def plain(hidden, table, bias):
        logits = hidden @ table.T + (0 if bias is None else bias)
        return jnp.take_along_axis(jax.nn.log_softmax(logits), LABELS[..., None], axis=-1)[..., 0]

    def fused(hidden, table, bias):
        return Projection(table, bias).label_log_probs(hidden, LABELS)

    def of_rows(log_probs, arrays):
        """A function of the sums of rows, as the losses of preferences are."""

        def value(arrays):
            rows = jnp.sum(log_probs(*arrays) * WEIGHTS, axis=1)
            return jnp.sum(jnp.square(rows)), log_probs(*arrays)

        return jax.value_and_grad(value, has_aux=True)(arrays)

    both = jax.jit(lambda arrays: (of_rows(fused, arrays), of_rows(plain, arrays)))
    for ours, expected in zip(*map(jax.tree.leaves, both((HIDDEN, TABLE, bias)))):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


# A vocabulary of SIZE tokens, padded to V, and its labels.
SIZE = V - 2
PADDED_LABELS = LABELS % SIZE
INPUTS = (HIDDEN, TABLE, BIAS, WEIGHTS * 0.5)


def fused_sums(hidden, table, bias, weights, smoothing, size=V):
    padded = jnp.where(jnp.arange(V) < size, bias, losses.NO_TOKEN)
    return losses.cross_entropy(
        hidden, table, padded, PADDED_LABELS, weights, label_smoothing=smoothing
    )


def plain_sums(hidden, table, bias, weights, smoothing, size=V):
    """Returns (loss, nll, correct) by the formulas."""
    log_p = jax.nn.log_softmax((hidden @ table.T + bias)[..., :size])
    nll = -jnp.take_along_axis(log_p, PADDED_LABELS[..., None], axis=-1)[..., 0]
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(axis=-1)
    correct = log_p.argmax(axis=-1) == PADDED_LABELS
    return [(x * weights).sum() for x in (loss, nll, correct)]


def gradients(sums, cotangents, inputs, *settings):
    """Returns the gradients of sums times cotangents by hidden, table, bias and weights."""

    def total(inputs):
        return sum(c * x for c, x in zip(cotangents, sums(*inputs, *settings)) if c)

    return jax.grad(total)(inputs)


def assert_near(arrays, expected):
    for x, y in zip(*jax.device_get((arrays, expected))):
        assert np.linalg.norm(x - y) <= 1e-5 * np.linalg.norm(y) + 1e-6


@pytest.mark.parametrize("size", [V, SIZE], ids=["full", "padded"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit", [10**9, B * V * 3])
def test_gradients_of_every_sum(monkeypatch, size, smoothing, limit):
    monkeypatch.setitem(losses.CHUNK_BYTES, "cpu", 4 * limit)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 1)

    def results(sums, inputs):
        """Returns the sums, and their gradients for some cotangents."""
        cotangents = (0.7, -1.3, 2.0), (0, 1.0, 0), (0, 0, 1.0)
        of_each = [gradients(sums, each, inputs, smoothing, size) for each in cotangents]
        return sums(*inputs, smoothing, size), *of_each

    both = jax.jit(lambda inputs: (results(fused_sums, inputs), results(plain_sums, inputs)))
    for fused, plain in zip(*both(INPUTS)):
        assert_near(fused, plain)


def test_gradients_of_every_sum_on_a_mesh(monkeypatch):
    """The mesh splits rows and vocabulary. The last chunk has padding."""
    monkeypatch.setitem(losses.CHUNK_BYTES, "cpu", 1)
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 4)
    mesh_config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh={"data": 2, "tensor": 4}
    ).mesh
    mesh = sharding.make_mesh(mesh_config)
    rules = sharding.rules(mesh_config)

    def split_sums(*inputs):
        with sharding.use(mesh, rules):
            assert losses.num_chunks(B, L, V) == 3
            return fused_sums(*inputs)

    def of(sums):
        return jax.jit(lambda inputs: gradients(sums, (0.7, -1.3, 2.0), inputs, 0.1, SIZE))(INPUTS)

    assert_near(of(split_sums), of(plain_sums))


def test_selected_positions_on_a_mesh(monkeypatch):
    """Each device has rows of its own, with another number of selected positions."""
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 3)
    mesh_config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh={"data": 2, "tensor": 2}
    ).mesh
    mesh = sharding.make_mesh(mesh_config, jax.devices()[:4])
    rules = sharding.rules(mesh_config)
    selected = jnp.arange(L) < jnp.array([[7], [1]])
    labels, weights = LABELS[:2], WEIGHTS[:2]

    def selected_loss(output):
        return losses.selected_cross_entropy(*output, labels, weights, selected=selected)

    def plain(output):
        hidden, table, bias = output
        log_probs = jax.nn.log_softmax(hidden @ table.T + bias)
        of_labels = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
        is_correct = (log_probs.argmax(axis=-1) == labels) & selected
        return -(of_labels * weights * selected).sum(), is_correct.astype(jnp.float32)

    def results(loss):
        return jax.jit(jax.value_and_grad(loss, has_aux=True))((HIDDEN[:2], TABLE, BIAS))

    with sharding.use(mesh, rules):
        split = results(selected_loss)
    jax.tree.map(
        lambda *x: np.testing.assert_allclose(*x, rtol=1e-5, atol=1e-6), split, results(plain)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_of_the_loss_alone_takes_three_products(smoothing):
    def sums(output):
        return losses.cross_entropy(*output, LABELS, WEIGHTS, label_smoothing=smoothing)

    def loss_with_metrics(output):
        loss, nll, correct = sums(output)
        return loss, (nll, correct)

    def total(output):
        return sum(sums(output))

    def num_products(gradient):
        return jax.jit(gradient).lower((HIDDEN, TABLE, BIAS)).as_text().count("dot_general")

    assert num_products(jax.grad(loss_with_metrics, has_aux=True)) == 3
    assert num_products(jax.grad(total)) == (6 if smoothing else 3)


def test_token_log_probs():
    logits = np.asarray(HIDDEN) @ np.asarray(TABLE).T + np.asarray(BIAS)
    labels = np.asarray(LABELS)
    expected = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], -1)[..., 0]
    compute = jax.jit(lambda: token_log_probs(HIDDEN, Projection(TABLE, BIAS), LABELS))
    log_probs, likeliest = compute()
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(likeliest, logits.argmax(-1) == labels)


def test_nll_and_correct():
    @jax.jit
    def compute(hidden, table):
        _, nll, correct = losses.cross_entropy(
            hidden, table, None, LABELS, WEIGHTS, label_smoothing=0.1
        )
        return nll, correct, plain_loss(hidden, table, None, 0.0)

    nll, correct, expected = compute(HIDDEN, TABLE)
    np.testing.assert_allclose(nll, expected, rtol=1e-6)
    likeliest = (np.asarray(HIDDEN) @ np.asarray(TABLE).T).argmax(-1)
    assert correct == (likeliest == np.asarray(LABELS))[np.asarray(WEIGHTS) > 0].sum()


def test_memory_is_a_quarter_of_the_plain_losss_at_gpt2s_size():
    batch, length, width, vocab_size = 8, 1024, 64, 50_257
    arguments = (
        jax.ShapeDtypeStruct((batch, length, width), jnp.float32),
        jax.ShapeDtypeStruct((vocab_size, width), jnp.float32),
        jax.ShapeDtypeStruct((batch, length), jnp.int32),
        jax.ShapeDtypeStruct((batch, length), jnp.float32),
    )

    def plain(hidden, table, labels, weights):
        nll = optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, labels)
        return (nll * weights).sum()

    def fused(hidden, table, labels, weights):
        return losses.cross_entropy(hidden, table, None, labels, weights)[0]

    def temporary_bytes(loss):
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(fused) < temporary_bytes(plain) / 4
