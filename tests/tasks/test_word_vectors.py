"""Skip-gram and CBOW: rows, the loss against its definition, descent in turns, and training."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import build_bert
from tests.jitted import jitted
from tests.training.test_loop import lines, resumed_bit_equal
from tests.training.test_step import losses
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.families.word_vectors.word_contexts import NoiseWords, keep_probabilities
from transformer_jax.families.word_vectors.words import negative_sampling
from transformer_jax.runs.spec import make_task
from transformer_jax.training.trainer import Program

STEPS = 3


def build(folder, objective="skip_gram", **mesh):
    config = configs.experiment(
        model=dict(name="word_vectors", vocab_size=80, d_model=8),
        task=dict(
            name="word_vectors",
            objective=objective,
            window=3,
            negatives=4,
            sample=0.02,
            length=32,
            block=8,
            shared_noise=6,
        ),
        optimizer=dict(name="sgd", momentum=0.0, schedule="linear", learning_rate=0.05),
        train=dict(num_steps=STEPS, log_every=1, batch=8),
        checkpoint=dict(every=1),
        mesh=mesh,
    )
    config.data = build_bert(folder).data
    for key, value in (("tokenizer", "words"), ("min_count", 1), ("valid_files", None)):
        configs.set_key(config, f"data.{key}", value)
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("word_vectors")


def softplus(x):
    return np.logaddexp(0, x)


def pairs_of(task, batch, block):
    """Yields (words that are read, target, noise words other than it) of each pair of a block."""
    for row in range(len(batch["tokens"])):
        tokens, texts = batch["tokens"][row], batch["texts"][row]
        noise = batch["noise"][row, block]
        for position in range(block * task.block, (block + 1) * task.block):
            size = batch["windows"][row, position]
            span = range(max(position - size, 0), min(position + size + 1, task.length))
            near = [i for i in span if i != position and texts[i] == texts[position]]
            if task.objective == "skip_gram":
                pairs = [([tokens[position]], tokens[other]) for other in near]
            else:
                pairs = [(tokens[near], tokens[position])] if near else []
            for read, target in pairs:
                yield read, target, noise[noise != target]


def of_block(task, batch, block, tables):
    """Returns the loss of a block and the gradients of both tables, in float64, pair by pair."""
    v, u = tables
    loss, dv, du = 0.0, np.zeros_like(v), np.zeros_like(u)
    share = task.negatives / task.shared_noise
    for read, target, noise in pairs_of(task, batch, block):
        x = v[read].mean(axis=0)
        signs = [(target, -1, 1.0), *((word, 1, share) for word in noise)]
        for word, sign, weight in signs:
            logit = sign * (x @ u[word])
            loss += weight * softplus(logit)
            slope = sign * weight / (1 + np.exp(-logit))
            du[word] += slope * x
            np.add.at(dv, read, slope * u[word] / len(read))
    return loss, (dv, du)


def zeros_like(params):
    return jax.tree.map(np.zeros_like, params)


def of_task(folder, objective):
    task = make_task(build(folder, objective))
    batch = task.rows().train.batch(0, range(2))
    random = np.random.default_rng(0)
    v, u = random.normal(size=(2, 80, 8)) / 2
    params = {"token_embed": {"embedding": v}, "output_embed": {"embedding": u}}
    return task, batch, jax.tree.map(np.float32, params), (v, u)


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_the_loss_is_that_of_the_pairs_one_by_one(objective, folder):
    task, batch, params, tables = of_task(folder, objective)
    blocks = range(task.length // task.block)
    expected = sum(of_block(task, batch, block, tables)[0] for block in blocks)
    loss = jitted(task.loss)(params, batch, Context())
    np.testing.assert_allclose(loss.terms["loss"], expected, rtol=1e-5)
    pairs = sum(1 for block in blocks for _ in pairs_of(task, batch, block))
    assert loss.metrics["loss"][1] == pairs > 50


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_an_update_is_that_of_blocks_one_after_the_other(objective, folder):
    task, batch, params, tables = of_task(folder, objective)
    rate = 0.05

    def objective_of(params, rate):
        return task.loss(params, batch, Context(rate=rate, train=True)).terms["loss"]

    differentiated = jax.jit(jax.value_and_grad(objective_of))
    loss, grads = differentiated(params, rate)
    total = 0.0
    for block in range(task.length // task.block):
        of_this, gradients = of_block(task, batch, block, tables)
        total += of_this
        tables = [table - rate * gradient for table, gradient in zip(tables, gradients)]
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    for name, table in zip(("token_embed", "output_embed"), tables):
        after = params[name]["embedding"] - rate * grads[name]["embedding"]
        np.testing.assert_allclose(after, table, atol=2e-6)
    # A schedule that has ended leaves the tables as they are.
    jax.tree.map(np.testing.assert_array_equal, differentiated(params, 0.0)[1], zeros_like(params))


def test_shared_noise_has_the_expectation_of_noise_of_each_pair():
    # Counts whose powers 3/4 are 1, 8 and 27: the noise holds each word in this proportion.
    counts = np.array([1, 16, 81])
    noise_of = NoiseWords.of(counts)
    random = np.random.default_rng(0)
    x, u = random.normal(size=4), random.normal(size=(3, 4))
    noise = np.repeat([0, 1, 2], [1, 8, 27])
    for target in range(3):
        pairs = np.ones((1, 1, 1), np.float32)
        repeats = np.float32(noise == target)[None, None]
        loss = negative_sampling(
            *(jnp.float32(a) for a in (x[None, None], u[None, [target]], u[None, noise])),
            pairs,
            repeats,
            negatives=5,
        )
        share = np.array([1, 8, 27]) / 36
        expected = softplus(-x @ u[target])
        expected += 5 * sum(
            share[word] * softplus(x @ u[word]) for word in range(3) if word != target
        )
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    drawn = np.bincount(noise_of.draw(random, (36_000,)), minlength=3) / 1000
    np.testing.assert_allclose(drawn, [1, 8, 27], atol=0.6)


def test_a_frequent_word_stays_as_in_the_published_code():
    counts = np.array([0, 100, 9900])
    probabilities = keep_probabilities(counts, 1e-3)
    expected = [(np.sqrt(f / 1e-3) + 1) * 1e-3 / f for f in (0.01, 0.99)]
    np.testing.assert_allclose(probabilities, [0, *expected])
    np.testing.assert_array_equal(keep_probabilities(counts, 0), [0, 1, 1])


def test_rows_hold_known_words_with_windows_and_the_number_of_their_document(folder):
    task = make_task(build(folder))
    component = task.rows().train.phases[0].components[0]
    numbers = [(number, epoch) for epoch in range(20) for number in range(len(component))]
    rows = component.rows(numbers)
    again = component.rows(numbers[3:4])[0]
    for name, values in again.items():
        np.testing.assert_array_equal(values, rows[3][name])
    assert not np.array_equal(rows[0]["windows"], rows[len(component)]["windows"])
    filled = np.concatenate([row["texts"] > 0 for row in rows])
    tokens = np.concatenate([row["tokens"] for row in rows])
    sizes = np.concatenate([row["windows"] for row in rows])
    assert not task.tokenizer.special[tokens[filled]].any()
    assert not tokens[~filled].any() and not sizes[~filled].any()
    shares = np.bincount(sizes[filled]) / filled.sum()
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.03)
    of_rows = [row["texts"][row["texts"] > 0] for row in rows]
    assert all((np.diff(texts) >= 0).all() for texts in of_rows)
    assert max(texts.max(initial=0) for texts in of_rows) > 1
    noise = np.bincount(np.concatenate([row["noise"].ravel() for row in rows]), minlength=80)
    assert not noise[: len(task.tokenizer.special)][task.tokenizer.special].any()


def test_a_held_out_text_is_read_as_the_training_text_is(folder):
    """The words that a row reads do not depend on the size of its text."""
    config = build(folder)
    text = pathlib.Path(config.data.train_files)
    longer = folder / "longer.txt"
    longer.write_text("\n\n".join([text.read_text()] * 8))
    configs.set_key(config, "data.valid_files", str(longer))
    task = make_task(config)
    spans = [task.texts.component(name, task.tokenizer).span for name in ("train", "valid")]
    assert spans[0] == spans[1]


@pytest.mark.full
def test_a_resumed_run_is_bit_equal_and_a_mesh_has_its_losses(folder, tmp_path):
    config = build(folder)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    straight = resumed_bit_equal(config, task, program, tmp_path, [STEPS - 1])

    one = [line["train/loss"] for line in lines(tmp_path / "straight") if "train/loss" in line]
    many, state = losses(build(folder, tensor=2), STEPS, devices=2)
    np.testing.assert_allclose(many, one, atol=1e-5, rtol=0)
    of_mesh = jax.device_get(state.params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), of_mesh, straight.params)


@pytest.mark.parametrize(
    "key, value, error",
    [
        ("optimizer.name", "adam", r"config.optimizer.name='adam': .* set it to 'sgd'"),
        ("optimizer.momentum", 0.9, r"config.optimizer.momentum=0.9: .* set it to 0.0"),
        ("train.freeze_vectors", True, r"config.train.freeze_vectors=True: .* set it to False"),
        ("train.accumulation", 2, r"config.train.accumulation=2: .* set it to 1"),
        ("task.length", 30, r"config.task.length=30: must be a multiple of config.task.block=8"),
        ("task.window", 0, r"config.task.window=0: must be at least 1"),
        ("model", "recurrent", r"config.model.name='recurrent': has no table .* take word_vectors"),
    ],
)
def test_wrong_keys_are_one_line(key, value, error, folder):
    config = build(folder)
    if key == "model":
        config.model = configs.experiment(
            model=dict(name=value, vocab_size=80), task=dict(name="causal_lm")
        ).model
    else:
        configs.set_key(config, key, value)
    with pytest.raises(UserError, match=error):
        make_task(config)
