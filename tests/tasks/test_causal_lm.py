"""Training a tiny language model, and measuring it."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests.conftest import build_gpt as build
from tests.jitted import jitted
from tests.training.test_step import losses as first_losses
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.tasks import causal_lm
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.checkpoint import Checkpoints
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

GOLDEN = [5.731131, 5.611036, 5.427125]
SHARDED = dict(model__vocab_multiple=8, model__local_window=8, data__mask_documents=True)


def test_it_learns_and_measures(gpt):
    scores = gpt.scores
    assert scores["valid/loss"] < 2.5
    meta = gpt.task.rows().eval["valid"].component.store.meta
    assert scores["valid/perplexity"] == pytest.approx(math.exp(scores["valid/loss"]))
    assert scores["valid/bits_per_byte"] == pytest.approx(
        scores["valid/loss"] * meta["tokens"] / meta["bytes"] / math.log(2)
    )
    # All characters are ASCII.
    assert scores["valid/bits_per_character"] == scores["valid/bits_per_byte"]


def test_ngram_models_stand_beside_it(gpt, monkeypatch):
    """They predict the same tokens, from counts of the training tokens."""
    ngrams = gpt.task.evaluate(gpt.params, "valid")["ngrams"]
    train = gpt.task.rows().train.phases[0].components[0].store
    valid = gpt.task.rows().eval["valid"].component.store
    (counted,), (tokens,) = (each.read([(0, each.meta["tokens"])]) for each in (train, valid))
    assert ngrams["tokens"] == len(counted)
    added = np.bincount(counted, minlength=gpt.task.tokenizer.vocab_size) + ngrams["unigram"]["k"]
    expected = -np.log(added / added.sum())[tokens].mean()
    assert ngrams["unigram"]["loss"] == pytest.approx(expected)
    assert ngrams["bigram"]["perplexity"] == pytest.approx(math.exp(ngrams["bigram"]["loss"]))
    assert ngrams["trigram"]["loss"] < ngrams["bigram"]["loss"] < ngrams["unigram"]["loss"]

    monkeypatch.setattr(causal_lm, "_COUNTED", 100)
    assert gpt.task.evaluate(gpt.params, "valid")["ngrams"]["tokens"] < ngrams["tokens"]
    gone, _ = open_run(gpt.workdir, overrides={"data.train_files": None})
    assert gone.evaluate(gpt.params, "valid")["ngrams"] is None


def test_an_evaluation_states_its_stride(gpt):
    scores = {}
    for stride in (32, 8):
        task, _ = open_run(gpt.workdir, overrides={"decode.stride": stride})
        scores[stride] = task.evaluate(gpt.params, "valid")
        assert scores[stride]["stride"] == stride
    assert scores[32]["tokens"] == scores[8]["tokens"]
    assert scores[32]["loss"] == pytest.approx(gpt.scores["valid/loss"], rel=1e-5)
    assert scores[8]["loss"] != scores[32]["loss"]
    with pytest.raises(UserError, match="config.data.test_files"):
        gpt.task.evaluate(gpt.params, "test")


def test_with_stride_1_each_token_is_predicted_from_the_32_before_it(gpt):
    task, params = open_run(gpt.workdir, overrides={"decode.stride": 1})
    text = (gpt.workdir.parent / "valid.txt").read_text().split("\n\n")
    end = task.tokenizer.eos_id
    documents = [[*document, end] for document in task.tokenizer.encode(text)]
    ids = [end, *itertools.chain.from_iterable(documents)]
    apply = jax.jit(lambda tokens: jax.nn.log_softmax(task.model.apply({"params": params}, tokens)))
    total = 0.0
    for position in range(1, len(ids)):
        context = ids[max(position - 32, 0) : position]
        log_p = apply(jnp.array([context + [0] * (32 - len(context))]))
        total -= float(log_p[0, len(context) - 1, ids[position]])
    loss = task.evaluate(params, "valid")["loss"]
    assert loss == pytest.approx(total / (len(ids) - 1), rel=1e-5)


def test_masked_documents_have_the_loss_of_documents_alone(tmp_path):
    config = build(
        tmp_path, data__mask_documents=True, model__dropout=0.0, model__attention_dropout=0.0
    )
    task = make_task(config)
    params = states.init_params(task)
    batch = task.rows().train.batch(0, range(2))
    assert batch["segment_ids"].max() > 1 and set(batch) == set(task.batch_spec(0))
    sums = jitted(task.loss)(params, batch, Context()).terms
    expected, apply = 0.0, jitted(task.model.apply)
    for tokens, labels, segments in zip(batch["tokens"], batch["labels"], batch["segment_ids"]):
        for segment in range(1, segments.max() + 1):
            document, labels_of = tokens[segments == segment], labels[segments == segment]
            # The padding behind the document is not seen.
            padded = np.pad(document, (0, len(tokens) - len(document)))
            logits = np.asarray(apply({"params": params}, padded[None]))[0, : len(document)]
            log_p = scipy.special.log_softmax(logits, axis=-1)
            expected -= np.take_along_axis(log_p, labels_of[:, None], -1).sum()
    assert float(sums["loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(task__length=65), "config.task.length=65: must be from 2 to config.model.max_length"),
        (dict(task__sample_tokens=64), "config.task.sample_tokens=64: must be from 0"),
        (dict(decode__stride=33), "config.decode.stride=33: must be from 0"),
        (dict(data__tokenizer="characters", model__vocab_size=10), "model.vocab_size=10"),
    ],
)
def test_wrong_values_are_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        _ = make_task(build(tmp_path, **overrides)).tokenizer


# The promises of the training loop, for this family.


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    config = build(folder, train__accumulation=2, **SHARDED)
    return folder, first_losses(config)[0]


@pytest.mark.full
def test_golden_first_losses(reference):
    """In float32 on a CPU. They change with initialisation, data order, tokenizer or model."""
    np.testing.assert_allclose(reference[1], GOLDEN, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "mesh",
    [
        dict(tensor=2),
        dict(data=4),
        dict(data=2, tensor=2),
        dict(fsdp=4),
        dict(data=2, fsdp=2, tensor=2),
    ],
    ids=str,
)
def test_equal_losses_on_every_mesh(reference, mesh):
    """With dropout, accumulation, masked documents and a local window."""
    folder, expected = reference
    overrides = {f"mesh__{axis}": size for axis, size in mesh.items()}
    config = build(folder, train__accumulation=2, **SHARDED, **overrides)
    losses, *_ = first_losses(config, devices=math.prod(mesh.values()))
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0)


@pytest.mark.full
def test_resuming_equals_running_straight_with_a_growing_batch_and_a_mixture(tmp_path):
    (tmp_path / "b.txt").write_text("\n\n".join(f"numbers {i} {i * i}." for i in range(80)))
    overrides = dict(
        data__train_files=None,
        data__mixture=((f"{tmp_path}/train.txt", 2), (f"{tmp_path}/b.txt", 1)),
        train__first_batch=4,
        train__ramp_steps=6,
        train__log_every=4,
        train__eval_every=4,
        checkpoint__every=4,
        optimizer__schedule="constant",
    )

    def params_after(folder, *stops):
        (tmp_path / folder).mkdir()
        for stop in stops:
            config = build(tmp_path, **overrides, train__num_steps=stop)
            task = make_task(config)
            run(config, task, tmp_path / folder, Program.of(config, task, jax.devices()[:2]))
        folder = tmp_path / folder / "checkpoints"
        checkpoints = Checkpoints(folder, config.checkpoint, read_only=True)
        return checkpoints.restore_params(states.abstract_params(make_task(config)), 8)

    straight, resumed = params_after("straight", 8), params_after("resumed", 5, 8)
    jax.tree.map(np.testing.assert_array_equal, straight, resumed)


@pytest.mark.full
def test_one_batch_can_be_overfitted(tmp_path):
    config = build(tmp_path, model__dropout=0.0, model__attention_dropout=0.0, train__num_steps=150)
    task = make_task(config)
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    for _ in range(150):
        state = state.replace(metrics=states.zeros(program.state.metrics))
        state = program.train_step(state, batch)
    loss, count = state.metrics["loss"]
    assert float(loss) / float(count) < 0.1
