"""ELECTRA's pre-training with a tiny model: the rows, the samples, both losses, and the uses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_bert
from tests.examples import classification
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.data.masking import NUM_DRAWS
from transformer_jax.layers.embeddings import Projection
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.tasks.replaced_tokens import _placed, _sampled
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program, init_params

SIZES = dict(vocab_size=80, d_embed=8, d_model=16, num_layers=2, num_heads=4, max_length=32)


def build(folder, task=(), **model):
    """Returns the config of a tiny ELECTRA."""
    other = build_bert(folder)
    dropout = dict(dropout=0.0, attention_dropout=0.0)
    config = configs.experiment(
        model=dict(name="electra", generator_size=0.5) | SIZES | dropout | model,
        task=dict(name="replaced_tokens", phases=((1.0, 24, 4),)) | dict(task),
        train=dict(num_steps=2, batch=8),
    )
    for section in ("data", "decode"):
        config[section] = other[section]
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns a task, parameters far from their small initial values, and evaluation rows."""
    task = make_task(build(tmp_path_factory.mktemp("replaced")))

    @jax.jit
    def changed(params):
        return jax.tree.map(
            lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params
        )

    params = changed(init_params(task))
    return task, params, task.rows().eval["valid"].batch(0, range(8), 8)


@pytest.mark.full
def test_rows_hide_85_percent_of_the_replaced_tokens(tiny):
    task, _, batch = tiny
    spec = {name: (x.shape, x.dtype) for name, x in task.batch_spec(0).items()}
    assert spec == {name: (x.shape, x.dtype) for name, x in batch.items()}
    assert (0 <= batch["masked_draws"]).all() and (batch["masked_draws"] < NUM_DRAWS).all()
    valid = task.rows().eval["valid"]
    masked = []
    for number in range(40):
        rows = valid.batch(number, range(32), 32)
        read = np.take_along_axis(rows["tokens"], rows["masked_positions"], axis=1)
        is_masked = rows["masked_weights"] > 0
        masked.append((read == task.tokenizer.mask_id)[is_masked])
        assert ((read == task.tokenizer.mask_id) | (read == rows["masked_labels"]))[is_masked].all()
    masked = np.concatenate(masked)
    assert abs(masked.mean() - 0.85) < 4 * np.sqrt(0.85 * 0.15 / len(masked))


def test_samples_have_the_probabilities_of_the_softmax():
    table = np.log(np.array([[0.5], [0.3], [0.2], [1e-9]], np.float32))
    draws = np.arange(NUM_DRAWS // 1000, NUM_DRAWS, NUM_DRAWS // 500).reshape(1, -1)
    states = jnp.ones((1, draws.size, 1))
    sampled = _sampled(states, Projection(jnp.asarray(table)), draws)
    counts = np.bincount(np.asarray(sampled)[0], minlength=4)
    np.testing.assert_allclose(counts / draws.size, [0.5, 0.3, 0.2, 0], atol=0.005)


def test_the_losses_and_accuracies_are_those_of_the_two_models(tiny):
    """The generator alone has the same logits; a sample equal to the original is original."""
    task, params, batch = tiny
    model = task.model.narrow()
    options = dict(token_types=batch["token_types"], segment_ids=batch["segment_ids"])
    _, logits = jax.jit(partial(model.apply, **options))(
        {"params": task.model.narrow_params(params)}, batch["tokens"]
    )
    indices = (np.arange(8)[:, None], batch["masked_positions"])
    log_p = scipy.special.log_softmax(logits, axis=-1)[indices]  # (8, P, V)
    # The samples, by a sum over the whole vocabulary. They are the labels of every other row.
    shares = np.cumsum(np.exp(log_p), axis=-1)
    sampled = (shares <= batch["masked_draws"][..., None] / NUM_DRAWS).sum(axis=-1)
    labels = np.where(np.arange(8)[:, None] % 2, sampled, batch["masked_labels"])
    batch = batch | {"masked_labels": labels.astype(np.int32)}
    loss = jax.jit(lambda params: task.loss(params, batch, Context()))(params)
    of_labels = np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    is_masked = batch["masked_weights"] > 0
    assert float(loss.terms["mlm"]) == pytest.approx(-of_labels[is_masked].sum(), rel=1e-4)

    original, corrupted = batch["tokens"].copy(), batch["tokens"].copy()
    for row, index in np.argwhere(is_masked):
        position = batch["masked_positions"][row, index]
        original[row, position] = labels[row, index]
        corrupted[row, position] = sampled[row, index]
    is_equal = (sampled == labels) & is_masked
    assert is_equal[1::2].any() and not is_equal[::2].all()
    replaced = corrupted != original
    assert replaced.sum() == is_masked.sum() - is_equal.sum()

    apply = partial(task.model.apply, {"params": params})
    hidden = jax.jit(partial(apply, **options, method="hidden"))(corrupted)
    logits = np.asarray(jax.jit(partial(apply, method="detected"))(hidden))
    filled = batch["segment_ids"] > 0
    expected = np.where(replaced, np.logaddexp(0, -logits), np.logaddexp(0, logits))[filled].sum()
    assert float(loss.terms["replaced"]) == pytest.approx(expected, rel=1e-4)
    means = {name: float(total) / float(count) for name, (total, count) in loss.metrics.items()}
    assert means["always_original"] == pytest.approx(1 - replaced[filled].mean(), rel=1e-5)
    accuracy = ((logits > 0) == replaced)[filled].mean()
    assert means["replaced_accuracy"] == pytest.approx(accuracy, rel=1e-5)
    weights = task.weights(batch)
    assert weights == {"mlm": is_masked.sum(), "replaced": filled.sum()}


def test_no_gradient_passes_through_the_samples(tiny):
    """Without the generator's loss, only the embeddings that both share have a gradient."""
    task, params, batch = tiny

    def replaced(params):
        return task.loss(params, batch, Context()).terms["replaced"]

    grads = jax.jit(jax.grad(replaced))(params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads["generator"]))
    assert all(leaf.any() for name in ("token_embed", "detector") for leaf in grads[name].values())


@pytest.mark.full
def test_one_batch_can_be_overfitted(tmp_path):
    """The generator finds the masked tokens, and the discriminator that nothing is replaced."""
    config = build(tmp_path, init_std=0.1)
    for key, value in dict(num_steps=150, warmup_steps=10, learning_rate=1e-2).items():
        section = "train" if key == "num_steps" else "optimizer"
        configs.set_key(config, f"{section}.{key}", value)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    means = []
    for _ in range(150):
        state = state.replace(metrics=states.zeros(program.state.metrics))
        state = program.train_step(state, batch)
        measured = jax.device_get(state.metrics)
        means.append({name: float(total / count) for name, (total, count) in measured.items()})
    first, last = means[0], means[-1]
    assert first["loss"] > 3 and last["loss"] < 0.5 and last["accuracy"] > 0.9
    assert first["always_original"] < 0.9 and last["replaced_loss"] < 0.2
    # Before the generator is good, the discriminator beats "always original".
    assert max(each["replaced_accuracy"] - each["always_original"] for each in means) > 0.05


def test_a_placeholder_of_a_row_places_nothing():
    batch = dict(
        tokens=jnp.array([[7, 8, 9]]),
        masked_positions=jnp.array([[2, 0]]),
        masked_weights=jnp.array([[1, 0]]),
    )
    assert _placed(batch, jnp.array([[5, 6]])).tolist() == [[7, 8, 5]]


def test_uses_of_a_run(tiny, tmp_path):
    """The generator fills masks, and fine-tuning takes the discriminator."""
    task, params, _ = tiny
    spec.create(tmp_path / "run", task, params)
    scores = task.evaluate(params, "valid")
    assert 0.8 < scores["always_original"] < 1 and scores["perplexity"] > 1
    assert scores["rows"] >= 2000 and 0 < scores["replaced_accuracy"] < 1
    ((words,),) = task.fill(params, ["the cat [MASK] on the mat"], top_k=3)
    assert len(words) == 3 and 0 < sum(word.probability for word in words) <= 1

    (tmp_path / "tuned").mkdir()
    tuning = configs.experiment(
        model=dict(name="electra"),
        task=dict(name="classification", labels=("no", "yes"), length=16),
        train=dict(num_steps=1, batch=8),
        init_from=str(tmp_path / "run"),
    )
    for key, value in classification.write(tuning, tmp_path).items():
        configs.set_key(tuning, key, value)
    resolved = resolve(tuning, tmp_path / "tuned")
    tuned = resolved.task()
    program = Program.of(resolved.config, tuned, jax.devices()[:1])
    initial = resolved.origin.params(resolved.config, program, init_params(tuned))
    assert initial.keys() == {*params} - {"generator", "detector", "detector_transform"} | {
        "pooler",
        "head",
    }
    for name in initial.keys() & params.keys():
        jax.tree.map(np.testing.assert_array_equal, initial[name], params[name])


def test_a_discriminator_alone_is_not_trained(tmp_path):
    config = build(tmp_path, generator_size=0.0)
    task = make_task(config)
    params = init_params(task)
    assert "generator" not in params
    for use in (
        lambda: train(config, tmp_path / "run"),
        lambda: task.evaluate(params, "valid"),
        lambda: task.fill(params, ["a [MASK]"]),
    ):
        with pytest.raises(UserError, match="config.model.generator_size=0: no generator"):
            use()


@pytest.mark.parametrize(
    "task, model, message",
    [
        (dict(selected=0.0), {}, "config.task.selected=0.0: must be above 0"),
        (dict(replaced_weight=0.0), {}, "config.task.replaced_weight=0.0: must be above 0"),
        (dict(pairs=True), dict(num_token_types=1), "config.task.pairs=false trains on single"),
        ({}, dict(generator_size=1.5), "config.model.generator_size=1.5: must be from 0 to 1"),
        (
            {},
            dict(generator_size=0.001),
            "config.model.generator_size=0.001: .* a width of at least 1",
        ),
    ],
)
def test_wrong_values_are_refused(tmp_path, task, model, message):
    with pytest.raises(UserError, match=message):
        make_task(build(tmp_path, task=task, **model))


@pytest.mark.parametrize(
    "model, task, message",
    [
        ("bert", "replaced_tokens", "config.model.name='bert': replaced tokens need a model"),
        ("electra", "masked_lm", "config.task.next_sentence=1.0: config.model.name='electra' has"),
    ],
)
def test_a_model_without_the_heads_is_refused(model, task, message):
    config = configs.experiment(model=dict(name=model), task=dict(name=task))
    with pytest.raises(UserError, match=message):
        make_task(config)
