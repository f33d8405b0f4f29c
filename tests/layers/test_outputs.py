"""The adaptive softmax: torch's values, all probabilities in NumPy, and the cost of its tails."""

import functools
import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures import make_torch_adaptive_softmax as fixture
from tests.jitted import jitted
from transformer_jax import losses
from transformer_jax.config import UserError
from transformer_jax.layers.adaptive import AdaptiveEmbed, AdaptiveOutput, Clusters
from transformer_jax.layers.embeddings import AdaptiveSoftmax, Cluster, Projection, token_log_probs

B, L, M = 3, 8, 12
HIDDEN = jax.random.normal(jax.random.key(0), (B, L, M))
WEIGHTS = jax.jit(lambda: jax.random.uniform(jax.random.key(1), (B, L)).at[0, :3].set(0))()
CLOSE = dict(rtol=1e-5, atol=1e-5)


class Both(nn.Module):
    """Embeddings and a softmax tied to them."""

    clusters: Clusters
    multiple: int = 1

    def setup(self):
        self.embed = AdaptiveEmbed(self.clusters, 0.5, multiple=self.multiple)
        self.softmax = AdaptiveOutput(0.5)

    def __call__(self, ids):
        return self.embed(ids), self.output()

    def output(self):
        return self.softmax(self.embed.output())


@functools.cache
def build(divisor=1, multiple=1):
    """Returns (a module with 23 tokens in four clusters, its parameters)."""
    module = Both(Clusters(23, M, (5, 9, 16), divisor), multiple)

    @jax.jit
    def init():
        params = nn.unbox(module.init(jax.random.key(2), jnp.zeros((1, 1), jnp.int32)))["params"]
        biases = params["softmax"]
        params["softmax"] = {
            name: x + 0.3 * jnp.sin(jnp.arange(x.size)).reshape(x.shape)
            for name, x in biases.items()
        }
        return params

    return module, init()


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def probabilities(params, hidden, divisor):
    """Returns the log-probabilities (B, L, V) in float64, by the definition of section 4."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    embed, softmax = params["embed"], params["softmax"]
    hidden = np.asarray(hidden, np.float64)
    states, within = [hidden] * 4, []
    if divisor > 1:
        matrices = [embed[f"projection_{number}"] for number in range(4)]
        states = [hidden @ matrix.T for matrix in (softmax["head_projection"], *matrices[1:])]
    sizes = (5, 4, 7, 7)
    for number, size in enumerate(sizes):
        table = embed[f"table_{number}"]["embedding"][:size]
        within.append(states[number] @ table.T + softmax[f"bias_{number}"][:size])
    of_tails = states[0] @ softmax["tail_rows"].T + softmax["tail_bias"]
    head = log_softmax(np.concatenate([within[0], of_tails], axis=-1))
    parts = [head[..., :5]]
    for number in (1, 2, 3):
        parts.append(head[..., 4 + number, None] + log_softmax(within[number]))
    return np.concatenate(parts, axis=-1)


# Labels of all clusters, of one tail alone, and of the head alone.
LABELS = {
    "all": jax.random.randint(jax.random.key(3), (B, L), 0, 23),
    "one tail": jax.random.randint(jax.random.key(4), (B, L), 9, 16),
    "head": jax.random.randint(jax.random.key(5), (B, L), 0, 5),
}


@pytest.mark.sample("2-4")
@pytest.mark.parametrize("divisor, multiple", [(1, 1), (2, 4)])
def test_probabilities_are_those_of_the_definition_and_sum_to_1(divisor, multiple):
    module, params = build(divisor, multiple)
    labels, factors = LABELS["all"], jax.random.normal(jax.random.key(9), (B, L))

    @jax.jit
    def compute(params, hidden):
        output = module.apply({"params": params}, method="output")

        def of_all(hidden):
            log_probs = output.logits(hidden)
            return jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0], log_probs

        def of_the_labels(hidden):
            return output.label_log_probs(hidden, labels)

        _, backward, log_probs = jax.vjp(of_all, hidden, has_aux=True)
        fused, fused_backward = jax.vjp(of_the_labels, hidden)
        of_tokens = token_log_probs(hidden, output, labels)
        return log_probs, backward(factors), *of_tokens, fused, fused_backward(factors)

    log_probs, gradient, scores, likeliest, fused, fused_gradient = compute(params, HIDDEN)
    assert log_probs.shape == (B, L, 23)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-6)
    expected = probabilities(params, HIDDEN, divisor)
    np.testing.assert_allclose(log_probs, expected, **CLOSE)
    of_labels = np.take_along_axis(expected, np.asarray(labels)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(scores, of_labels, **CLOSE)
    np.testing.assert_array_equal(likeliest, expected.argmax(axis=-1) == labels)
    np.testing.assert_allclose(fused, of_labels, **CLOSE)
    np.testing.assert_allclose(fused_gradient, gradient, **CLOSE)


@pytest.mark.sample("2-4-5-all")
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("divisor, multiple, chunk", [(1, 1, 256), (2, 4, 5), (1, 2, 1)])
def test_loss_and_gradients_equal_those_of_all_probabilities(
    monkeypatch, divisor, multiple, chunk, labels
):
    monkeypatch.setattr(losses, "CHUNK_TOKENS", chunk)
    module, params = build(divisor, multiple)
    labels = LABELS[labels]

    def output(params):
        return module.apply({"params": params}, method="output")

    def sparse(inputs):
        params, hidden, weights = inputs
        return output(params).cross_entropy(hidden, labels, weights)[0]

    def dense(inputs):
        params, hidden, weights = inputs
        log_probs = output(params).logits(hidden)
        return -(jnp.take_along_axis(log_probs, labels[..., None], -1)[..., 0] * weights).sum()

    inputs = (params, HIDDEN, WEIGHTS)
    loss, gradients = jax.jit(jax.value_and_grad(sparse))(inputs)
    of_labels = np.take_along_axis(
        probabilities(params, HIDDEN, divisor), np.asarray(labels)[..., None], axis=-1
    )
    expected = -(of_labels[..., 0] * np.asarray(WEIGHTS)).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    expected = jax.jit(jax.grad(dense))(inputs)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **CLOSE), gradients, expected)


def test_correct_labels_are_the_likeliest_of_both_steps():
    module, params = build()

    @jax.jit
    def compute(params):
        output = module.apply({"params": params}, method="output")
        clusters = (output.head, *output.tails)
        likeliest = [cluster.log_probs(HIDDEN).argmax(axis=-1) for cluster in clusters]
        return likeliest, output.cross_entropy(HIDDEN, LABELS["all"], WEIGHTS)[2]

    (head, *tails), actual = jax.device_get(compute(params))
    labels, weights = np.asarray(LABELS["all"]), np.asarray(WEIGHTS)
    expected = 0.0
    for label in range(23):
        step = label if label < 5 else 5 + int(np.searchsorted([9, 16], label, "right"))
        correct = head == step
        if label >= 5:
            first = (5, 9, 16)[step - 5]
            correct &= tails[step - 5] == label - first
        expected += (correct * weights * (labels == label)).sum()
    assert expected > 0
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def of_torch(arrays, prefix=""):
    """Returns the softmax of arrays named as torch does."""
    bounds = [*fixture.CUTOFFS, fixture.VOCABULARY]
    rows = Projection(arrays[f"{prefix}head.weight"], arrays[f"{prefix}head.bias"])
    tails = [
        Cluster(
            Projection(arrays[f"{prefix}tail.{number}.1.weight"]),
            arrays[f"{prefix}tail.{number}.0.weight"],
            last - first,
        )
        for number, (first, last) in enumerate(zip(bounds, bounds[1:]))
    ]
    return AdaptiveSoftmax(Cluster(rows, None, bounds[0]), tuple(tails))


def check_against(arrays):
    def loss(output, hidden):
        weights = jnp.ones(hidden.shape[:2])
        loss = output.cross_entropy(hidden, arrays["labels"], weights)[0]
        return loss, output.logits(hidden)

    output, hidden = of_torch(arrays), jnp.asarray(arrays["hidden"])
    compute = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (value, log_probs), gradients = compute(output, hidden)
    np.testing.assert_allclose(value, arrays["loss"], rtol=1e-5)
    np.testing.assert_allclose(log_probs, arrays["log_probs"], **CLOSE)
    expected = of_torch(arrays, "d "), arrays["d hidden"]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **CLOSE), gradients, expected)


def test_equals_torch():
    check_against(dict(np.load(fixture.PATH)))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_equals_the_installed_torch():
    check_against(fixture.case(seed=1))


def test_a_tail_is_computed_for_its_own_tokens(monkeypatch):
    """Of 300 tokens 7 are in the first tail, 2 in the second and none in the third."""
    monkeypatch.setattr(losses, "CHUNK_TOKENS", 4)
    compute, computed = losses._chunk, []

    def counted(inputs, smoothing, *, gradients):
        size = inputs.table.shape[0]
        jax.debug.callback(lambda: computed.append(size))
        return compute(inputs, smoothing, gradients=gradients)

    monkeypatch.setattr(losses, "_chunk", counted)
    module, params = build()
    output = jitted(module.apply)({"params": params}, method="output")
    labels = np.zeros(300, np.int32)
    labels[np.arange(7) * 40] = 6
    labels[[5, 9]] = 10
    hidden = jnp.ones((2, 150, M))
    loss = jax.jit(lambda labels: output.cross_entropy(hidden, labels, jnp.ones((2, 150)))[0])
    jax.block_until_ready(loss(labels.reshape(2, 150)))
    jax.effects_barrier()
    assert sorted(computed) == [4, 4, 7, 8]


def test_flops_are_those_of_the_expected_tokens():
    clusters = Clusters(267_735, 410, (20_000, 40_000, 200_000))
    full = 2 * 410 * 267_735
    assert 6.0 < full / clusters.flops(1, 1) < 6.5
    # 1 + 1/2 + 1/3 ... of the tails by the definition.
    harmonic = 1 / np.arange(1, 267_736)
    shares = np.add.reduceat(harmonic, [0, 20_000, 40_000, 200_000]) / harmonic.sum()
    expected = 20_003 + (shares * clusters.sizes)[1:].sum()
    np.testing.assert_allclose(clusters.flops(1, 1), 2 * 410 * expected, rtol=1e-4)


@pytest.mark.parametrize("divisor, multiple", [(1, 1), (2, 4)])
def test_embeddings_are_rows_of_the_tables(divisor, multiple):
    module, params = build(divisor, multiple)
    params = jax.device_get(params["embed"])
    ids = np.array([[0, 4, 5, 8, 9], [15, 16, 22, 10, 3]])
    embed = AdaptiveEmbed(module.clusters, multiple=multiple)
    x = np.asarray(jax.jit(embed.apply)({"params": params}, ids))
    for index, number in np.ndenumerate(ids):
        cluster = int(np.searchsorted([5, 9, 16], number, "right"))
        row = params[f"table_{cluster}"]["embedding"][number - (0, 5, 9, 16)[cluster]]
        row = row @ params[f"projection_{cluster}"] if divisor > 1 else row
        np.testing.assert_allclose(x[index], row, **CLOSE)
    with pytest.raises(UserError, match="the id 23 is not from 0 to 22"):
        embed.apply({"params": params}, jnp.array([[23]]))
    if multiple == 1:
        assert np.isnan(jax.jit(embed.apply)({"params": params}, jnp.array([[23]]))).all()


@pytest.mark.parametrize(
    "cutoffs, divisor, message",
    [
        ((9, 5), 1, "adaptive_cutoffs=.* must ascend"),
        ((0, 5), 1, "lie between 0 and config.model.vocab_size=23"),
        ((5, 23), 1, "lie between 0 and config.model.vocab_size=23"),
        ((5, 9), 4, "adaptive_divisor=4: must be at least 1, and leave of"),
    ],
)
def test_clusters_have_tokens_and_numbers(cutoffs, divisor, message):
    with pytest.raises(UserError, match=message):
        Clusters(23, M, cutoffs, divisor).check()


def test_label_smoothing_is_refused():
    module, params = build()
    output = module.apply({"params": params}, method="output")
    with pytest.raises(UserError, match="label_smoothing=0.1: an adaptive softmax has none"):
        output.cross_entropy(HIDDEN, LABELS["all"], WEIGHTS, label_smoothing=0.1)


@pytest.mark.parametrize("size", [20, 16, 12, 9, 4])
def test_the_first_tokens_of_an_adaptive_softmax_are_a_distribution(size):
    """The cut falls into the last tail, between two, into another one, and into the head."""
    module, params = build(2, 4)
    labels = LABELS["all"] % size

    @jax.jit
    def compute(params, hidden):
        output = module.apply({"params": params}, method="output")
        limited = output.limited(size)
        scores, _ = token_log_probs(hidden, limited, labels)
        scores = scores, limited.label_log_probs(hidden, labels)
        return output.logits(hidden), output.first(size).logits(hidden), *scores

    whole, log_probs, *scores = map(np.asarray, compute(params, HIDDEN))
    assert log_probs.shape == (B, L, size)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-5)
    of_labels = np.take_along_axis(log_probs, np.asarray(labels)[..., None], axis=-1)[..., 0]
    for each in scores:
        np.testing.assert_allclose(each, of_labels, **CLOSE)
    # Within the first three tokens, all of the head, the probabilities keep their ratios.
    np.testing.assert_allclose(
        log_probs[..., 0] - log_probs[..., 2], whole[..., 0] - whole[..., 2], atol=1e-4
    )
