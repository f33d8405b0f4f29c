"""The Python API is the same for every family: train, open_run, use, evaluate, load."""

import logging

import numpy as np
import pytest
from ml_collections import ConfigDict

import transformer_jax
from tests.conftest import build_bert, build_config, build_gpt
from tests.few_devices import few_devices  # noqa: F401
from tests.finetuning import examples
from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax.runs import spec

FILE = """
import pathlib
from tests.test_python_api import build

def get_config():
    return build({family!r}, pathlib.Path({folder!r}))
"""
STEPS = {
    "train.num_steps": 2,
    "train.log_every": 1,
    "train.eval_every": 2,
    "checkpoint.every": 2,
    "train.batch": 32,
    "decode.batch": 8,
}


def build(family, folder):
    if family == "fine-tuned":
        return examples.build(folder, "classification", examples.pretrained(folder, "bert"))
    return {"encoder_decoder": build_config, "gpt": build_gpt, "bert": build_bert}[family](folder)


def translates(task, params):
    (one,), (other,) = task.translate(params, ["a dog runs", "the cat sleeps"])
    assert isinstance(one.text, str) and one.score < 0 and other.score < 0


def generates(task, params):
    one, other = task.generate(params, ["the cat", "a dog"], max_tokens=3)
    assert isinstance(one.text, str)
    assert 1 <= one.tokens <= 3
    assert other.finished in ("end", "length")


def fills(task, params):
    (mask,), masks = task.fill(params, ["the [MASK] sat", "a [MASK] [MASK]"], top_k=2)
    assert len(mask) == 2
    assert len(masks) == 2
    assert mask[0].probability >= mask[1].probability > 0
    assert isinstance(mask[0].word, str)


def predicts(task, params):
    one, other = task.predict(params, ["the cat sat", "the dog ran"])
    assert one.text in ("cat", "dog")
    assert other.details["label"] == other.text
    assert sum(one.details["probabilities"].values()) == pytest.approx(1)


USES = {
    "encoder_decoder": (translates, "translate"),
    "gpt": (generates, "generate"),
    "bert": (fills, "fill"),
    "fine-tuned": (predicts, "predict"),
}


@pytest.mark.full
@pytest.mark.parametrize("family", USES)
def test_every_family_has_the_same_interface(family, tmp_path, caplog):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(family=family, folder=str(tmp_path / "data")))
    overrides = STEPS | ({"model.dropout": 0.1} if family == "fine-tuned" else {})
    scores = transformer_jax.train(file, tmp_path / "run", overrides=overrides)
    config = spec.read(tmp_path / "run").config
    assert all(configs.get(config, key) == value for key, value in overrides.items())
    assert scores["valid/loss"] > 0 and all(isinstance(value, float) for value in scores.values())

    task, params = transformer_jax.open_run(tmp_path / "run", overrides={"decode.beam": 1})
    assert task.config.decode.beam == 1
    use, name = USES[family]
    use(task, params)
    with pytest.raises(TypeError, match="list of texts"):  # not as many texts as it has characters
        list(getattr(task, name)(params, "the cat [MASK]"))
    scores = task.evaluate(params, "valid").values()
    assert all(np.isfinite(value) for value in scores if not isinstance(value, (str, dict)))
    with pytest.raises(configs.UserError, match="split 'train': only 'valid' and 'test'"):
        task.evaluate(params, "train")
    assert task.attention(params, "the cat sat").weights.ndim == 4

    model, params, tokenizer = transformer_jax.load(tmp_path / "run")
    apply, tokens = jitted(model.apply), np.array([[5, 6, 7]])
    vocabulary = config.model.vocab_size
    if family == "encoder_decoder":
        assert apply({"params": params}, tokens, tokens[:, :2]).shape == (1, 2, vocabulary)
        assert tokenizer.target.eos_id == 3
    elif family == "gpt":
        assert apply({"params": params}, tokens).shape == (1, 3, vocabulary)
    elif family == "bert":
        assert [x.shape for x in apply({"params": params}, tokens)] == [
            (1, 3, 32),
            (1, 3, vocabulary),
            (1, 2),
        ]
    else:
        assert apply({"params": params}, tokens, method="hidden").shape == (1, 3, 32)
        assert tokenizer.cls_id >= 0
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record for record in warnings if record.name == "absl"], "Orbax's own"


@pytest.mark.parametrize(
    "wrong, type_name",
    [
        ({"model": {"name": "gpt"}}, "dict"),
        (None, "NoneType"),
        (7, "int"),
        (b"x.py", "bytes"),
        (ConfigDict({"model": {}}), "ConfigDict"),
    ],
)
def test_train_refuses_other_types(wrong, type_name, tmp_path):
    with pytest.raises(configs.UserError, match=f"path of a config file.* not this {type_name}"):
        transformer_jax.train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_config_file_and_its_overrides_are_checked(tmp_path):
    path, run = "configs/gpt/quickstart.py", tmp_path / "run"
    for file, overrides, message in (
        ("nowhere.py", {}, "no such file nowhere.py"),
        (f"{path}:large", {}, "takes no argument"),
        (path, {"train.num_stps": 7}, "did you mean train.num_steps"),
        (path, {"model.num_heads": 7}, "config.model.num_heads=7 does not divide"),
    ):
        with pytest.raises(configs.UserError, match=message):
            transformer_jax.train(file, run, overrides=overrides)
    config = build("gpt", tmp_path / "data")
    with pytest.raises(configs.UserError, match="config.train.batch=0"):
        transformer_jax.train(config, run, overrides={"train.batch": 0})
    assert config.train.batch == 8 and not run.exists()


def test_overrides_are_a_mapping_or_pairs():
    loaded = [
        configs.load("configs/gpt/quickstart.py", overrides)
        for overrides in (
            {"train.num_steps": 7, "train.batch": "4"},
            [("train.num_steps", "7"), ("train.batch", "4")],
        )
    ]
    assert loaded[0].to_dict() == loaded[1].to_dict() and loaded[0].train.num_steps == 7
    with pytest.raises(configs.UserError, match="did you mean train.num_steps"):
        configs.load("configs/gpt/quickstart.py", {"train.num_stps": 7})
