"""Denoising with tiny models: it learns, measures and reconstructs; one batch can be overfitted."""

import jax
import numpy as np
import pytest

from tests.conftest import build_bert
from tests.tasks.conftest import trained
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.noises import NUM_SENTINELS
from transformer_jax.runs.spec import make_task
from transformer_jax.training import step as states
from transformer_jax.training import trainer
from transformer_jax.training.step import Program

LAYERS = dict(
    d_model=32, d_ff=48, num_heads=2, num_encoder_layers=2, num_decoder_layers=2, dropout=0.0
)
MODELS = {
    "bart": dict(name="bart", vocab_size=80, max_length=64, **LAYERS),
    "t5": dict(name="t5", vocab_size=180, head_dim=16, **LAYERS),
}


def build(folder, model="bart", **overrides):
    """Returns a tiny config; overrides are written task__source_length=16."""
    other = build_bert(folder)
    config = configs.experiment(
        model=MODELS[model], task=dict(name="denoising", source_length=32, target_length=32)
    )
    for section in ("data", "train", "optimizer", "checkpoint", "decode"):
        config[section] = other[section]
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("denoising")
    noises = (("infilling", 0.2),)
    return trained(build(folder, task__noises=noises, train__num_steps=90), folder)


@pytest.mark.full
def test_it_learns_and_measures(bart):
    assert bart.scores["valid/loss"] < 1.5 and bart.scores["valid/accuracy"] > 0.5
    scores = bart.task.evaluate(bart.params, "valid")
    for name in ("loss", "accuracy", "perplexity"):
        assert scores[name] == pytest.approx(bart.scores[f"valid/{name}"], rel=1e-5)
    assert scores["rows"] == len(bart.task.rows().eval["valid"])
    with pytest.raises(UserError, match="--set=test: this run has no such data"):
        bart.task.evaluate(bart.params, "test")


@pytest.mark.full
def test_batches_are_as_declared(bart):
    batch = bart.task.rows().train.batch(0, range(8))
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in bart.task.batch_spec().items()
    }
    tokenizer = bart.task.tokenizer.source
    framed = tokenizer.framed([])
    for name in ("source", "labels"):
        filled = (batch[name] != tokenizer.pad_id).sum(axis=1)
        ends = np.take_along_axis(batch[name], filled[:, None] - 1, axis=1)[:, 0]
        assert (batch[name][:, 0] == framed[0]).all() and (ends == framed[-1]).all()
    assert (batch["target"][:, 0] == tokenizer.start_id).all()
    assert (batch["source"] == tokenizer.mask_id).any()


@pytest.mark.full
def test_it_reconstructs_a_text_with_masks(bart):
    lines = ["the cat sat on the mat a dog ran", "", "the cat [MASK] on the mat a dog ran"]
    copied, empty, filled = (
        hypotheses[0].text for hypotheses in bart.task.translate(bart.params, lines)
    )
    assert empty == "" and copied and filled
    (ids,) = bart.task.translator.encode(lines[2:])
    assert ids.count(bart.task.tokenizer.source.mask_id) == 1


@pytest.mark.full
def test_one_batch_of_t5_can_be_overfitted(tmp_path):
    config = build(tmp_path, "t5", task__noises=(("span_corruption",),))
    task = make_task(config)
    tokenizer = task.tokenizer.source
    assert tokenizer.vocab_size <= 80
    program = Program.of(config, task, jax.devices()[:1])
    state = states.init(task.config, program)
    batch = next(trainer.stream(task.rows().train.batch, 8, 1, program.batch_sharding, range(1)))
    assert batch["source"].max() == tokenizer.vocab_size + NUM_SENTINELS - 1
    for _ in range(120):
        state = state.replace(metrics=states.zeros(program.state.metrics))
        state = program.train_step(state, batch)
    total, count = state.metrics["loss"]
    assert float(total) / float(count) < 0.5  # 5.5 at first


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            dict(data__tokenizer="byte_bpe", model__vocab_size=300),
            "config.data.tokenizer=byte_bpe: this tokenizer has no mask, .*roberta_bpe have one",
        ),
        (
            dict(task__noises=(("span_corruption",),)),
            "config.model.vocab_size=80: must be more than 100",
        ),
        (
            dict(task__noises=(("span_corruption", 0.5, 1),), task__source_length=512)
            | dict(model__vocab_size=300, model__max_length=512, task__target_length=512),
            "a row has up to 255 spans, and there are 100 sentinels",
        ),
        (
            dict(model__name="encoder_decoder", model__source_vocab_size=80),
            "config.model.source_vocab_size=80: source and target of denoising share",
        ),
        (dict(task__noises=(("mask", 0.3),)), "no noise 'mask'"),
    ],
    ids=["mask", "vocabulary", "sentinels", "source", "name"],
)
def test_wrong_values_are_refused(tmp_path, overrides, message):
    name = overrides.pop("model__name", None)
    config = build(tmp_path, **({} if name else overrides))
    if name:
        config = configs.experiment(
            model=dict(name=name, vocab_size=80, source_vocab_size=80),
            task=config.task.to_dict(),
            data=config.data.to_dict(),
        )
    with pytest.raises(UserError, match=message):
        _ = make_task(config).tokenizer
