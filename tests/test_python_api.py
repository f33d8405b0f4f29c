"""The Python API is the same for every family: train, open_run, use, evaluate, load."""

import ast
import logging
import pathlib
import re
import subprocess
import sys
import time

import jax
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
    lines = repr(task).splitlines()
    assert 4 <= len(lines) <= 6 and max(map(len, lines)) <= 100
    assert f"task       {config.task.name}" in lines[0] and name in " ".join(lines[3:])
    assert f"{config.model.name}, {task.parameter_counts()['params']:,} parameters" in lines[1]
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


def test_what_the_package_exports_can_be_listed():
    assert {"train", "open_run", "make_step", "from_hf", "to_hf", "config"} <= {
        *dir(transformer_jax)
    }
    assert {*transformer_jax.__all__} == {*transformer_jax._EXPORTS, *transformer_jax._MODULES}
    for name in transformer_jax.__all__:
        assert getattr(transformer_jax, name).__doc__, name
    # An editor reads the imports that are for type checkers alone.
    tree = ast.parse(pathlib.Path(transformer_jax.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        for alias in node.names
    }
    for name, (module, attribute) in transformer_jax._EXPORTS.items():
        assert imported.pop(name) == (f"transformer_jax.{module}", attribute)
    assert {*imported} == {*transformer_jax._MODULES}


def test_it_is_imported_without_jax():
    code = "import sys, transformer_jax; dir(transformer_jax); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_callbacks_are_told_what_a_run_reports(tmp_path, monkeypatch, capsys):
    # As in a notebook that was open for an hour before.
    monkeypatch.setattr(transformer_jax, "STARTED", time.monotonic() - 3600)
    config = build_gpt(tmp_path)
    for key, value in (STEPS | {"train.num_steps": 4, "train.batch": 8}).items():
        configs.set_key(config, key, value)
    told, skipped = [], []

    def on_log(step, metrics):
        told.append(("log", step, metrics["train/loss"]))
        skipped.append(metrics["train/skipped"])

    scores = transformer_jax.train(
        config,
        tmp_path / "run",
        on_log=on_log,
        on_evaluate=lambda step, scores: told.append(("evaluate", step, scores["valid/loss"])),
        on_checkpoint=lambda step, folder: told.append(("checkpoint", step, folder)),
    )
    assert skipped == [0] * 4
    assert float(re.search(r"first step after ([\d.]+) s", capsys.readouterr().err)[1]) < 3600
    kinds = [(kind, step) for kind, step, _ in told]
    assert kinds == [
        *[("log", 1), ("log", 2), ("evaluate", 2), ("checkpoint", 2)],
        *[("log", 3), ("log", 4), ("evaluate", 4), ("checkpoint", 4)],
    ]
    assert all(folder.is_dir() for kind, _, folder in told if kind == "checkpoint")
    assert [value for kind, _, value in told if kind == "evaluate"][-1] == scores["valid/loss"]
    recorded = spec.metrics(tmp_path / "run")
    losses = [row["train/loss"] for row in recorded if "train/loss" in row]
    assert losses == [value for kind, _, value in told if kind == "log"]


def test_a_loop_of_ones_own_makes_the_updates_of_a_run(tmp_path):
    config = build_gpt(tmp_path)
    for key, value in (STEPS | {"train.num_steps": 3, "train.batch": 8}).items():
        configs.set_key(config, key, value)
    state, step, batch_of = transformer_jax.make_step(config)
    means = []
    for number in range(3):
        state = step(state, batch_of(number))
        sums = jax.device_get(state.metrics)
        means.append(float(sums["loss"][0]) / int(sums["loss"][1]))
    assert not (tmp_path / "run").exists()
    transformer_jax.train(config, tmp_path / "run")
    _, params = transformer_jax.open_run(tmp_path / "run", "latest")
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    # The metrics are sums since the start; after the first update they are its own.
    recorded = [row["train/loss"] for row in spec.metrics(tmp_path / "run") if "train/loss" in row]
    assert means[0] == pytest.approx(recorded[0], rel=1e-6)
    # It starts from an earlier run, too.
    configs.set_key(config, "init_from", str(tmp_path / "run"))
    started = transformer_jax.make_step(config).state
    _, best = transformer_jax.open_run(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, started.params, best)
    configs.set_key(config, "init_from", None)
    # A batch depends on its number alone.
    again = transformer_jax.make_step(config).batch_of(2)
    jax.tree.map(np.testing.assert_array_equal, again, batch_of(2))
