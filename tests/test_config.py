"""Configuration: mistakes are refused with a suggestion, before anything is compiled."""

import json
import math
import pathlib
import typing

import pytest
from ml_collections import ConfigDict

from transformer_jax import config as configs
from transformer_jax.config import UserError

ROOT = pathlib.Path(__file__).parent.parent


def load(*overrides, file="configs/wmt/multi30k.py"):
    return configs.load(str(ROOT / file), list(overrides))


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("train.num_stps", "5", ["config.train.num_stps", "did you mean train.num_steps"]),
        ("num_steps", "5", ["config.num_steps", "did you mean train.num_steps"]),
        ("model.dmodel", "5", ["config.model.dmodel", "did you mean model.d_model"]),
        ("task.label_smoothin", "0", ["did you mean task.label_smoothing"]),
        ("train.num_steps", "many", ["config.train.num_steps='many'", "whole number"]),
        ("train.num_steps", "1.5", ["whole number"]),
        ("train.num_steps", "True", ["whole number"]),
        ("data.rebuild", "5", ["true or false"]),
        ("optimizer.schedule", "cosin", ["one of", "did you mean cosine"]),
        ("optimizer.learning_rate", "fast", ["a number"]),
        (
            "model.num_heads",
            "3",
            ["config.model.num_heads=3", "does not divide config.model.d_model"],
        ),
        (
            "train.accumulation",
            "5",
            ["config.train.accumulation=5", "does not divide config.train.batch"],
        ),
        ("train.batch", "0", ["config.train.batch=0", "at least 1"]),
        ("data.seed", "-1", ["config.data.seed=-1", "be at least 0"]),
        ("train.grace", "0", ["config.train.grace=0.0", "from 1 to 1,000,000"]),
        ("model.dropout", "1.0", ["config.model.dropout", "below 1"]),
        ("optimizer.weight_decay", "0.1", ["adamw"]),
        ("model.name", "gpt", ["set it in the config file"]),
        (
            "optimizer.learning_rate",
            "-1",
            ["config.optimizer.learning_rate=-1.0", "be at least 0"],
        ),
        ("optimizer.learning_rate", "1e999", ["a number"]),
        ("optimizer.b1", "0.99999999999", ["config.optimizer.b1", "below 1"]),  # 1 in float32
        (
            "optimizer.decay_steps",
            "3",
            ["config.optimizer.decay_steps=3", "more than config.optimizer.warmup_steps"],
        ),
        ("optimizer.name", "adamm", ["is not one of", "did you mean adam?"]),
        (
            "optimizer.momentum",
            "0.5",
            ["config.optimizer.momentum=0.5", "name=adam does not use it", "sgd"],
        ),
        (
            "optimizer.power",
            "3",
            ["config.optimizer.power=3.0", "does not use it", "polynomial"],
        ),
        ("optimizer.ratio", "0.5", ["config.optimizer.ratio=0.5", "at least 1"]),
        ("optimizer.groups", "('head',)", ["config.optimizer.groups", "'head' is no group"]),
        (
            "optimizer.groups",
            "(('head', (('lerning_rate', 1),)),)",
            ["'head'", "no key 'lerning_rate'", "did you mean learning_rate?"],
        ),
        (
            "optimizer.groups",
            "(('head', (('learning_rate', -1.0),)),)",
            ["config.optimizer.groups, 'head': config.optimizer.learning_rate=-1.0"],
        ),
        (
            "optimizer.groups",
            "(('head', (('name', 'sgd'), ('momentum', 'much'))),)",
            ["config.optimizer.groups, head: momentum='much' is not a number"],
        ),
        ("optimizer.begin", "0.5", ["config.optimizer.begin=0.5: is a key of a group"]),
        (
            "optimizer.groups",
            "(('head', (('begin', 1000000),)),)",
            ["'head': config.optimizer.begin=1000000: must be below config.train.num_steps="],
        ),
        ("data.cache", "", ["config.data.cache is empty"]),
        ("data.corpus_size", "-5", ["config.data.corpus_size=-5", "at least 1"]),
        ("model.vocab_size", "1e12", ["config.model.vocab_size=1000000000000", "2^31"]),
        ("train.seed", "9" * 20, ["a whole number"]),
        ("train.num_steps", "1e10", ["config.train.num_steps=10000000000", "2^31"]),
        ("train.batch", "{[]:1}", ["a whole number"]),
    ],
)
def test_a_wrong_override_is_refused_by_name(key, value, words):
    with pytest.raises(UserError) as error:
        load((key, value))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("train.num_steps", "1e5", 100_000),
        ("train.num_steps", "7", 7),
        ("optimizer.learning_rate", "1e-3", 1e-3),
        ("optimizer.learning_rate", "1", 1.0),
        ("data.rebuild", "true", True),
        ("data.train_source", "a.txt", "a.txt"),
        ("data.train_source", "none", None),
        ("model.head_dim", "64", 64),
        ("model.head_dim", "None", None),
        ("mesh.rules", "(('embed', ('fsdp', 'tensor')),)", (("embed", ("fsdp", "tensor")),)),
    ],
)
def test_an_override_takes_the_keys_type(key, value, expected):
    config = configs.experiment(model={"name": "encoder_decoder"}, task={"name": "translation"})
    configs.set_key(config, key, value)
    converted = configs.get(config, key)
    assert converted == expected and type(converted) is type(expected)


def experiment_file(arguments):
    """Returns the text of a config file."""
    return (
        "from transformer_jax.config import experiment\n\n\n"
        f"def get_config():\n    return experiment({arguments})\n"
    )


def config_file(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "body, words",
    [
        ("def get_config():\n    return 1 / 0\n", ["mine.py:2", "ZeroDivisionError"]),
        ("def get_config(:\n", ["mine.py:1", "SyntaxError"]),
        ("x = 1\n", ["mine.py", "get_config"]),
        (
            experiment_file("model=dict(name='encoder_decodr'), task=dict(name='translation')"),
            ["encoder_decodr", "did you mean encoder_decoder"],
        ),
        (
            experiment_file(
                "model=dict(name='encoder_decoder'), task=dict(name='translation'), trian={}"
            ),
            ["'trian'", "did you mean train"],
        ),
        (
            experiment_file(
                "model=dict(name='encoder_decoder', d_modl=3), task=dict(name='translation')"
            ),
            ["model.d_modl", "did you mean model.d_model"],
        ),
        (experiment_file("task=dict(name='translation')"), ["config.model.name is missing"]),
        ("def get_config():\n    return None\n", ["mine.py", "experiment"]),
    ],
)
def test_a_wrong_config_file_is_named_with_its_line(tmp_path, body, words):
    with pytest.raises(UserError) as error:
        configs.load(config_file(tmp_path, body))
    for word in words:
        assert word in str(error.value)


def test_a_missing_file_and_an_unknown_argument_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        configs.load(str(tmp_path / "none.py"))
    with pytest.raises(UserError, match="takes no argument"):
        configs.load(str(ROOT / "configs/wmt/multi30k.py") + ":x")
    with pytest.raises(UserError, match="no 'en-xx'.*; there are: en-de, en-fr"):
        configs.load(str(ROOT / "configs/wmt/base.py") + ":en-xx")


def test_json_round_trip_and_differences():
    config = load(("mesh.rules", "(('embed', ('tensor',)),)"))
    again = configs.from_record(json.loads(json.dumps(config.to_dict())), "there")
    assert again.to_dict() == config.to_dict()
    for key, value in (
        ("train.num_steps", 9),
        ("mesh.data", 2),
        ("checkpoint.keep", 9),
        ("data.train_source", "moved"),
        ("decode.batch", 9),
    ):
        configs.set_key(again, key, value)
    assert configs.differences(config, again) == []
    configs.set_key(again, "train.batch", 64)
    assert configs.differences(config, again) == ["train.batch: 32 -> 64"]


def classes_with_ranges():
    """Yields (section, class) for each class whose fields are keys of a config."""
    yield from configs.SECTIONS.items()
    for section in configs.NAMED_SECTIONS:
        for name in configs.class_names(section):
            yield section, configs.named_class(section, name)


def test_a_value_next_to_a_range_is_refused_by_its_key():
    """For all keys of all models, tasks and sources: the bounds of their annotations hold."""
    count = 0
    for section, cls in classes_with_ranges():
        types = typing.get_type_hints(cls, include_extras=True)
        for key in configs.class_options(cls):
            for each in configs.ranges(types[key]):
                inside = each.least if each.least is not None else each.above + 0.5
                outside = [each.above] if each.least is None else [each.least - 1]
                outside += [] if each.most is None else [each.most + 1]
                outside += [] if each.below is None else [each.below, math.nextafter(each.below, 0)]
                outside += [2**31] if each.counts else []
                configs.check_ranges(cls, {key: inside}, section)
                configs.check_ranges(cls, {key: None}, section)
                for value in outside:
                    with pytest.raises(UserError, match=rf"^config.{section}.{key}="):
                        configs.check_ranges(cls, {key: value}, section)
                    count += 1
    assert count > 300


@pytest.mark.parametrize(
    "bounds, text",
    [
        (dict(least=2), "at least 2"),
        (dict(least=1, most=50_000), "from 1 to 50,000"),
        (dict(above=0, most=1), "above 0 and at most 1"),
        (dict(least=0, below=0.5), "at least 0 and below 0.5"),
        (dict(least=1, or_fraction=True), "at least 1, or a fraction of the run between 0 and 1"),
    ],
)
def test_a_range_in_words(bounds, text):
    assert str(configs.Range(**bounds)) == text


def test_old_names_are_read_in_files_records_and_commands():
    for section, names in configs.OLD_NAMES.items():
        for old, new in names.items():
            assert new in configs.class_names(section)
            assert configs.current_name(section, {"name": old}) == {"name": new}
    wav2vec2 = dict(model=dict(name="wav2vec2", stable=True), task=dict(name="ctc", silent=0.1))
    config = configs.experiment(**wav2vec2)
    assert config.model.norm_position == "pre" and config.task.feature_mask == 0.1
    assert configs.from_record(wav2vec2, "config.json") == config
    configs.set_key(config, "model.stable", "false")
    configs.set_key(config, "task.silent_span", "8")
    assert config.model.norm_position == "post" and config.task.feature_mask_span == 8
    esm = dict(model=dict(name="esm", zero_masks=False), task=dict(name="masked_residues"))
    assert configs.experiment(**esm).model.token_dropout is False
    vit = dict(model=dict(name="vit"), task=dict(name="masked_patches", normalise_pixels=False))
    assert configs.experiment(**vit).task.normalize_pixels is False
    # The keys of another run's model, as a task records them.
    keys = dict(name="vq_autoencoder", image_size=8, patch_size=2)
    assert configs.build_model(ConfigDict({"model": keys})).num_patches == 16


def test_a_new_model_file_needs_no_registry(tmp_path, monkeypatch):
    import transformer_jax.families as families

    source = (pathlib.Path(families.__file__).parent / "encoder_decoder.py").read_text()
    variant = source.replace("num_heads: PositiveInt = 8", "num_heads: PositiveInt = 4")
    (tmp_path / "variant.py").write_text(variant)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    config = configs.experiment(model={"name": "variant"}, task={"name": "translation"})
    assert configs.build_model(config).num_heads == 4


def test_what_is_no_name_and_no_path_is_shown_shortly():
    """Neither a list of texts nor a class fills the screen or ends in a traceback."""
    sections = dict(model=dict(name="gpt"), task=dict(name="causal_lm"))
    with pytest.raises(UserError, match="is not a string; separate paths by commas, or give") as e:
        configs.experiment(**sections, data=dict(train_files=["a text " * 2000, "another"]))
    assert len(str(e.value)) < 300 and "characters)" in str(e.value)
    with pytest.raises(UserError, match="config.model.name=<class 'object'>: must be a name, or"):
        configs.experiment(**sections | dict(model=dict(name=object)))


@pytest.mark.parametrize("section", ["model", "task", "source"])
def test_a_class_in_place_of_a_name_is_refused(section):
    keys = {"model": {"name": "gpt"}, "task": {"name": "causal_lm"}} | {section: {"name": int}}
    with pytest.raises(configs.UserError, match=rf"config\.{section}\.name=.*: must be a name"):
        configs.experiment(**keys)
