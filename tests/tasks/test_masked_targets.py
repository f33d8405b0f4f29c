"""Text to text by masks: what a model writes token by token is what it computes at once."""

from functools import partial

import jax
import numpy as np
import pytest
import scipy.special
from ml_collections import ConfigDict

from tests import examples
from tests.conftest import updates
from tests.tasks.conftest import Trained, trained
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.task import Context
from transformer_jax.huggingface import family
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import init_params

MODEL = dict(
    name="bert",
    vocab_size=80,
    d_model=32,
    num_layers=2,
    num_heads=2,
    num_token_types=6,
    max_length=48,
    init_std=0.1,
    dropout=0.0,
    attention_dropout=0.0,
    dtype="float32",
)
STEPS = updates(80)
# Sources of several lengths, one of which is cut.
LINES = [
    "the cat sat on the mat. It is so.",
    "the dog ran on",
    "the cat",
    "",
    "the dog ran on the mat. It is so.",
    "the dog sat on the mat. " * 5,
]


def build(folder, model=None, **task):
    model = MODEL | (model or {})
    config = configs.experiment(
        model={key: value for key, value in model.items() if value is not None},
        task=dict(
            name="masked_targets",
            source_length=24,
            target_length=12,
            label_smoothing=0.0,
            scores=("exact_match",),
            scored_examples=0,
        )
        | task,
        data=dict(tokenizer="wordpiece", cache=str(folder / "cache")),
        decode=dict(beam=1, batch=2, max_length=20),
        train=dict(num_steps=STEPS, batch=16, log_every=STEPS, eval_every=STEPS),
        optimizer=dict(learning_rate=0.01, warmup_steps=20),
        checkpoint=dict(every=STEPS),
    )
    for key, value in examples.write(config, folder / "examples").items():
        configs.set_key(config, key, value)
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked_targets")
    return trained(build(folder), folder)


def log_p(run, source, target, size=None):
    """Returns the log-probabilities of `size` or all tokens after `target`, without a cache."""
    mask_id = run.task.tokenizer.source.mask_id
    row = [*source, *target, mask_id]
    is_second = np.arange(len(row)) >= len(source)
    # Rows of one length, so that one shape is compiled.
    padding = [0] * (run.task.model.max_length - len(row))
    inputs = {
        "ranks": np.cumsum(is_second),
        "token_types": np.where(is_second, 5, 4),
        "segment_ids": np.ones(len(row), int),
    }
    inputs = {name: np.array([[*values, *padding]]) for name, values in inputs.items()}
    logits = _logits(run.task.model, run.params, np.array([[*row, *padding]]), inputs)
    return scipy.special.log_softmax(np.asarray(logits)[0, len(row) - 1, :size])


@partial(jax.jit, static_argnums=0)
def _logits(model, params, tokens, inputs):
    hidden = model.apply({"params": params}, tokens, **inputs, method="hidden")
    return model.apply({"params": params}, hidden, method="logits")


@pytest.mark.full
def test_a_run_learns_and_is_scored(run):
    assert run.scores["valid/accuracy"] > 0.9
    results = run.task.evaluate(run.params, "valid")
    assert results["exact_match"] > 0.9 and results["examples"] == 16
    (attended,) = [run.task.attention(run.params, LINES[0], "the cat sat on the mat")]
    assert attended.weights.shape[-2:] == (len(attended.queries), len(attended.keys))
    np.testing.assert_allclose(np.sum(attended.weights, axis=-1), 1, rtol=1e-4)
    end = attended.keys.index("[SEP]")
    assert not np.any(attended.weights[..., : end + 1, end + 1 :])
    assert family.run_family(run.task.config).architecture == "BertForMaskedLM"


@pytest.fixture(scope="module")
def fresh(run):
    """The run with parameters that make mistakes: outputs of several lengths."""
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + 0.03 * generator.normal(size=x.shape).astype(np.float32), run.params
    )
    return run._replace(params=params)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """A RoBERTa with random parameters. Rows of its table of embeddings belong to no token."""
    model = dict(name="roberta", num_token_types=None, vocab_multiple=64, init_std=0.3)
    config = build(tmp_path_factory.mktemp("roberta"), model)
    task = make_task(config)
    assert family.run_family(config).architecture == "RobertaForMaskedLM"
    return Trained(None, {}, task, init_params(task))


@pytest.mark.full
@pytest.mark.parametrize("family", ["fresh", "roberta"])
def test_greedy_outputs_are_those_of_whole_rows(family, request):
    fresh = request.getfixturevalue(family)
    task = fresh.task
    source, target = task.tokenizer.source, task.tokenizer.target
    outputs = [best.text for (best,) in task.translate(fresh.params, LINES)]
    expected = []
    for line in LINES:
        ids, written = source.framed(source.encode(line)[:22]), []
        while line and len(written) < 20:
            scores = log_p(fresh, ids, written, target.vocab_size)
            scores[list(target.never)] = -np.inf
            if (token := int(scores.argmax())) == source.eos_id:
                break
            written.append(token)
        expected.append(source.decode(written))
    assert outputs == expected and len(set(outputs)) > 3


def test_beams_have_the_probability_of_whole_rows(fresh):
    config = ConfigDict(fresh.task.config)
    for key, value in (("beam", 3), ("alpha", 0.0), ("max_length", 6)):
        configs.set_key(config, f"decode.{key}", value)
    task = make_task(config, fresh.workdir)
    source = task.tokenizer.source
    inputs = [source.framed(source.encode(line)[:22]) for line in LINES[:3]]
    stream = task.stream(fresh.params, 3)
    for number, outputs in stream(task.model.for_decoding(fresh.params), inputs, [6] * len(inputs)):
        ids = inputs[number]
        assert len(set(outputs.scores.tolist())) == 3
        for row, length, score in zip(outputs.ids, outputs.lengths, outputs.scores):
            written = row[:length].tolist()
            total = sum(
                log_p(fresh, ids, written[:n], source.vocab_size)[token]
                for n, token in enumerate(written)
            )
            np.testing.assert_allclose(total, score, rtol=1e-4)


def test_the_loss_of_an_evaluation_is_that_of_whole_rows(fresh):
    """A row holds several pairs, and each has the likelihood that decoding gives it."""
    task = fresh.task
    batch = task.rows().eval["valid"].batch(0, [0, 1], 2)
    total = 0.0
    for row in range(2):
        for segment in range(1, batch["target_segment_ids"][row].max() + 1):
            source, target = (
                batch[key][row][batch[f"{side}_segment_ids"][row] == segment].tolist()
                for side, key in (("source", "source"), ("target", "labels"))
            )
            for n, token in enumerate(target):
                total -= log_p(fresh, source, target[:n])[token]
    loss = jax.jit(lambda batch: task.loss(fresh.params, batch, Context()))(batch)
    np.testing.assert_allclose(loss.terms["loss"], total, rtol=1e-4)


@pytest.mark.full
def test_masks_hide_a_share_of_the_targets(run):
    rows = run.task.rows().train.phases[0].components[0]
    first, again = (rows.rows([(0, epoch)])[0] for epoch in (0, 1))
    assert (first["masked_positions"] != again["masked_positions"]).any()
    hidden = ends = filled = 0
    for row in rows.rows([(n, 0) for n in range(len(rows))]):
        masked = row["masked_weights"] > 0
        positions = row["masked_positions"][masked]
        np.testing.assert_array_equal(row["labels"][positions], row["masked_labels"][masked])
        unmasked = np.delete(np.arange(12), positions)
        np.testing.assert_array_equal(row["target"][unmasked], row["labels"][unmasked])
        hidden += masked.sum()
        ends += (row["masked_labels"][masked] == run.task.tokenizer.source.eos_id).sum()
        filled += (row["target_segment_ids"] > 0).sum()
    assert 0.6 < hidden / filled < 0.8 and ends > 0


@pytest.mark.parametrize(
    "model, task, message",
    [
        (dict(max_length=32), {}, "config.task.target_length of 12 tokens: source and target are"),
        (dict(max_length=40), {}, "config.decode.max_length: outputs of 20 tokens"),
        ({}, dict(mask_share=1.5), "config.task.mask_share=1.5: must be above 0"),
    ],
)
def test_mistakes_are_named(model, task, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_task(build(tmp_path, model, **task))


def test_an_encoder_decoder_is_refused(tmp_path):
    config = build(tmp_path)
    with config.ignore_type():
        config.model = configs.experiment(
            model=dict(name="bart", d_model=16, num_heads=2), task=dict(name="text_to_text")
        ).model
    with pytest.raises(UserError, match="is for models of the kind of bert"):
        make_task(config)
