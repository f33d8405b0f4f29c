import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import SENTENCES, build_config
from transformer_jax.config import UserError, experiment
from transformer_jax.data import texts
from transformer_jax.data.sources import pairs, text_files, tfds
from transformer_jax.runs.spec import make_task
from transformer_jax.runs.train import train

ROOT = pathlib.Path(__file__).parents[2]
SPLITS = {
    "train": [
        ("one", "eins"),
        ("two\nlines", "zwei\u2028Zeilen"),
        ("grün", "größer"),
        ("", "leer"),
    ],
    "validation": [("four", "vier"), ("five", "fünf")],
}
READ = {
    "train": [("one", "eins"), ("two lines", "zwei Zeilen"), ("grün", "größer"), ("", "leer")],
    "validation": SPLITS["validation"],
}


@pytest.fixture(scope="module")
def builders():
    """Builders of three sets: one without configurations, one with two, like the WMT sets, and one
    with 80 examples for training and none for validation."""
    import tensorflow_datasets as tfds

    class Plain(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        # To find it, TFDS would import importlib_resources, which it does not install.
        code_path = None

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {"en": tfds.features.Text(), "de": tfds.features.Text()}
                ),
            )

        def _split_generators(self, download):
            return {split: self._generate_examples(split) for split in SPLITS}

        def _generate_examples(self, split):
            for number, (en, de) in enumerate(SPLITS[split]):
                yield number, {"en": en, "de": de}

    class Configured(Plain):
        BUILDER_CONFIGS = [
            tfds.core.BuilderConfig(name="de-en"),
            tfds.core.BuilderConfig(name="fr-en"),
        ]

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.Translation(languages=("en", "de"))
            )

    class Sentences(Plain):
        def _split_generators(self, download):
            return {split: self._generate_examples(count) for split, count in COUNTS.items()}

        def _generate_examples(self, count):
            for number in range(count):
                chosen = [SENTENCES[(number + i * i) % 6] for i in range(1 + number % 3)]
                en, de = (" and ".join(sides) for sides in zip(*chosen))
                yield number, {"en": en, "de": de}

    return Plain, Configured, Sentences


COUNTS = {"train": 80, "test": 8}


@pytest.fixture
def prepare(builders, tmp_path):
    def prepare(index, **keys):
        builders[index](
            data_dir=str(tmp_path), file_format="array_record", **keys
        ).download_and_prepare()

    return prepare


def pairs_of(folder, name, split, **keys):
    config = experiment(
        model={"name": "encoder_decoder"},
        task={"name": "translation"},
        data={
            "tfds_name": name,
            "tfds_dir": str(folder),
            "cache": f"{folder}/cache",
            **keys,
        },
    )
    return pairs.open_pairs(config.data, split)


@pytest.mark.parametrize(
    "index, name, keys", [(0, "plain", {}), (1, "configured/de-en", {"config": "de-en"})]
)
def test_splits_of_a_prepared_set(prepare, tmp_path, monkeypatch, index, name, keys):
    monkeypatch.setattr(text_files, "PART_BYTES", 1)
    prepare(index, **keys)
    for split, prepared in (("train", "train"), ("valid", "validation")):
        read = pairs_of(tmp_path, name, split)
        assert sorted(read) == sorted(READ[prepared])  # TFDS shuffles when it prepares
        assert list(read) == list(read)
        # Each example is a part.
        cut = [list(part) for part in read.parts()]
        assert sum(cut, []) == list(read) and len(cut) == len(READ[prepared])
    assert pairs_of(tmp_path, name, "test") is None
    turned = pairs_of(tmp_path, name, "train", source_language="de", target_language="en")
    assert sorted(turned) == sorted((de, en) for en, de in READ["train"])
    assert turned.fingerprint() != pairs_of(tmp_path, name, "train").fingerprint()


def test_the_newest_whole_version_is_read(prepare, tmp_path):
    prepare(0)
    newer = tmp_path / "plain" / "10.0.0"
    shutil.copytree(tmp_path / "plain" / "1.0.0", tmp_path / "plain" / "9.0.0")
    shutil.copytree(tmp_path / "plain" / "1.0.0", newer)
    killed = tmp_path / "plain" / "incomplete.ABC_11.0.0"
    killed.mkdir()
    (killed / "dataset_info.json").write_text("{}")
    assert pairs_of(tmp_path, "plain", "train").folder == str(newer)
    assert pairs_of(tmp_path, "plain/9.0.0", "train").folder == str(tmp_path / "plain" / "9.0.0")


def test_of_several_sets_one_must_be_named(prepare, tmp_path):
    prepare(1, config="de-en")
    prepare(1, config="fr-en")
    with pytest.raises(UserError, match="name one: configured/de-en, configured/fr-en"):
        pairs_of(tmp_path, "configured", "train")


def test_a_language_that_is_not_there_is_named_with_those_that_are(prepare, tmp_path):
    prepare(0)
    with pytest.raises(
        UserError, match="no feature 'fr', only (en, de|de, en); set config.data.source_language"
    ):
        list(pairs_of(tmp_path, "plain", "train", target_language="fr"))


def test_a_set_that_is_not_prepared_says_how_to_prepare_it(tmp_path):
    with pytest.raises(
        UserError, match=re.escape(f"launch/prepare_tfds.sh wmt14_translate/de-en {tmp_path}")
    ):
        pairs_of(tmp_path, "wmt14_translate/de-en", "train")
    with pytest.raises(UserError, match="tfds_name=.*: needs config.data.tfds_dir"):
        pairs_of(tmp_path, "wmt14_translate/de-en", "train", tfds_dir=None)


def test_a_set_in_another_format_is_refused(prepare, tmp_path):
    prepare(0)
    info = tmp_path / "plain" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(
        UserError, match="prepared as tfrecord; prepare it with --file_format=array_record"
    ):
        pairs_of(tmp_path, "plain", "train")


@pytest.mark.full
@pytest.mark.skipif(
    bool(importlib.util.find_spec("tensorflow")),
    reason="TensorFlow is installed, and TFDS uses what there is",
)
def test_reading_needs_no_tensorflow(prepare, tmp_path):
    prepare(0)
    code = f"""
import sys
from transformer_jax.config import experiment
from transformer_jax.data.sources import pairs
config = experiment(
    model={{"name": "encoder_decoder"}},
    task={{"name": "translation"}},
    data={{
        "tfds_name": "plain",
        "tfds_dir": {str(tmp_path)!r},
        "cache": {str(tmp_path / "cache")!r},
    }},
)
assert len(list(pairs.open_pairs(config.data, "train"))) == {len(READ["train"])}
assert "tensorflow_datasets" in sys.modules and "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "arguments", [[], ["wmt14_translate/de-en"], ["--help", "x"], ["a", "b", "c"]]
)
def test_the_script_says_how_it_is_used(arguments):
    done = subprocess.run(
        ["bash", ROOT / "launch" / "prepare_tfds.sh", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("usage: ") and done.stderr.count("\n") == 1


def test_running_text_of_a_prepared_set(prepare, tmp_path):

    prepare(0)
    config = experiment(
        model={"name": "gpt"},
        task={"name": "causal_lm"},
        data={
            "tfds_name": "plain",
            "tfds_dir": str(tmp_path),
            "cache": f"{tmp_path}/cache",
            "text_field": "de",
        },
    )
    assert sorted(texts.open_documents(config.data, "train")) == sorted(
        german for _, german in SPLITS["train"]
    )
    assert texts.open_documents(config.data, "test") is None
    config.data.text_field = "text"
    with pytest.raises(UserError, match="no feature 'text', only .*config.data.text_field"):
        list(texts.open_documents(config.data, "valid"))


# ------------------------------------------------------------------------------------------ slices


def test_slices_of_one_split_share_no_example(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PART_BYTES", 64)
    prepare(2)
    slices = dict(
        train_split="train[:90%]", valid_split="train[90%:]", test_split="test+train[72:]"
    )
    read = {
        split: pairs_of(tmp_path, "sentences", split, **slices)
        for split in ("train", "valid", "test")
    }
    assert [read[split].split for split in read] == [
        "train[0:72]",
        "train[72:80]",
        "test[0:8]+train[72:80]",
    ]
    whole = [*pairs_of(tmp_path, "sentences", "train")]
    assert [*read["train"]] + [*read["valid"]] == whole and len(whole) == 80
    assert [*read["test"]] == [*pairs_of(tmp_path, "sentences", "test"), *read["valid"]]
    for split in read.values():
        assert len(split.parts()) > 2 and sum(map(list, split.parts()), []) == [*split]
    # The same slice in other words has the same store.
    named = pairs_of(tmp_path, "sentences", "train", train_split="train[0:72]")
    assert named.fingerprint() == read["train"].fingerprint()


@pytest.mark.parametrize(
    "keys, split, message",
    [
        (dict(train_split="train[:95"), "train", "not a slice such as .*train .80"),
        (dict(train_split="train[:81]"), "train", "not a slice such as"),
        (dict(train_split="all[:5%]"), "train", "not a slice such as"),
        (dict(valid_split="dev[5:]"), "valid", r"config.data.valid_split=dev\[5:\]: not a slice"),
        (dict(valid_split="test[8:]"), "valid", r"valid_split=test\[8:\]: has no examples"),
        (dict(valid_split="train[95%:]"), "valid", "training examples in it, .*train_split=train;"),
        (
            dict(train_split="train[:96%]", valid_split="train[95%:]"),
            "valid",
            r"valid_split=train\[95%:\]: has training examples in it",
        ),
    ],
)
def test_wrong_slices(keys, split, message, prepare, tmp_path):
    prepare(2)
    with pytest.raises(UserError, match=message):
        pairs_of(tmp_path, "sentences", split, **keys)


# ------------------------------------------------------------------- buckets, and the stores alone

BUCKET = dict(
    data__train_source=None,
    data__train_target=None,
    data__valid_source=None,
    data__valid_target=None,
    data__tfds_name="sentences",
    data__tfds_dir="gs://bucket/tfds",
    data__cache="gs://bucket/cache",
    task__bleu_lines=4,
)


def upload(folder, gcs):
    for file in (folder / "sentences").rglob("*"):
        if file.is_file():
            gcs.put(f"tfds/{file.relative_to(folder).as_posix()}", file.read_bytes())


def remove(gcs):
    for name in [name for name in gcs.objects if name.startswith("tfds/")]:
        gcs.put(name, None)


def test_a_set_in_a_bucket_is_read_as_on_a_disk(prepare, gcs, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PART_BYTES", 64)
    prepare(2)
    upload(tmp_path, gcs)
    tfds._copied.cache_clear()
    on_disk = pairs_of(tmp_path, "sentences", "train", train_split="train[:95%]")
    keys = dict(train_split="train[:95%]", cache=str(tmp_path / "cache"))
    read = pairs_of("gs://bucket/tfds", "sentences", "train", **keys)
    assert [*read] == [*on_disk] and read.fingerprint() == on_disk.fingerprint()
    # All parts share one copy of the only shard.
    for part in read.parts():
        assert [*part]
    assert tfds._copied.cache_info().misses == 1
    shard = next(name for name in gcs.objects if "train.array_record" in name)
    with pytest.raises(UserError, match="no prepared TFDS set here .*prepare_tfds.sh other gs://b"):
        pairs_of("gs://bucket/tfds", "other", "train", **keys)
    with pytest.raises(UserError, match="gs://nowhere/tfds.*(can't be read|no prepared TFDS set)"):
        pairs_of("gs://nowhere/tfds", "sentences", "train", cache=f"{tmp_path}/empty")
    gcs.put(shard, None)
    with pytest.raises(UserError, match="no such file. Without the files of the set"):
        list(read)


def test_the_stores_suffice_without_the_set(prepare, gcs, tmp_path, capsys):
    """Held-out texts that are translated are copied, too."""
    prepare(2)
    upload(tmp_path, gcs)
    slices = dict(data__train_split="train[:95%]", data__valid_split="test[:6]")
    task = make_task(build_config(tmp_path, **BUCKET, **slices))
    rows, fingerprint = task.rows(), task.fingerprint()
    remove(gcs)
    for tfds_dir in ("gs://bucket/tfds", None):
        config = build_config(tmp_path, **BUCKET | slices | {"data__tfds_dir": tfds_dir})
        alone = make_task(config)
        assert alone.fingerprint() == fingerprint
        batches = (each.rows().train.batch(1, [0, 3]) for each in (task, alone))
        assert all(np.array_equal(*arrays) for arrays in zip(*map(dict.values, batches)))
        assert len([*alone.texts.text("valid")]) == 6 and len([*alone.texts.text("test")]) == 8
        assert "training reads its token stores" in capsys.readouterr().err
    config.data.rebuild = True
    with pytest.raises(UserError, match="Without the files of the set, training needs complete"):
        make_task(config).rows()
    assert rows.train


@pytest.mark.full
def test_training_from_a_bucket_and_resuming_from_the_stores(prepare, gcs, tmp_path):
    """The resumed run ends with the losses of one that reads the set on a disk without a stop."""
    prepare(2)
    upload(tmp_path, gcs)
    slices = dict(
        data__train_split="train[:95%]",
        data__valid_split="train[95%:]",
        # A slice of the training split is not copied, so that nothing of it can be translated.
        task__bleu_lines=0,
    )
    on_disk = {"data__tfds_dir": str(tmp_path), "data__cache": str(tmp_path / "cache")}
    config = build_config(tmp_path, **BUCKET | slices | on_disk)
    train(config, tmp_path / "straight")
    config = build_config(tmp_path, **BUCKET | slices, train__num_steps=2)
    train(config, "gs://bucket/run")
    remove(gcs)
    train(build_config(tmp_path, **BUCKET | slices | {"data__tfds_dir": None}), "gs://bucket/run")

    def losses(content):
        lines = map(json.loads, content.splitlines())
        return [line["train/loss"] for line in lines if "train/loss" in line]

    straight = losses((tmp_path / "straight/metrics.jsonl").read_text())
    assert losses(gcs.objects["run/metrics.jsonl"].decode()) == straight and len(straight) == 2


FAKE_PYTHON = """#!/usr/bin/env bash
# An interpreter that seems to have TensorFlow, and whose TFDS has the set of `made.py`.
[[ $* != *"import tensorflow,"* ]] || exit 0
if [[ $1 == - ]]; then
  exec {python} -c 'import sys, made; exec(sys.stdin.read())' "${{@:2}}"
fi
"""


@pytest.mark.full
def test_the_script_prepares_a_set_in_a_bucket(gcs, tmp_path):
    (tmp_path / "made.py").write_text(
        """
import tensorflow_datasets as tfds

class Made(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    code_path = None

    def _info(self):
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"en": text, "de": text})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, download):
        return {"train": ((n, {"en": f"{n}", "de": f"{-n}"}) for n in range(5))}

    def _generate_examples(self):
        pass
"""
    )
    (tmp_path / "python").write_text(FAKE_PYTHON.format(python=sys.executable))
    (tmp_path / "python").chmod(0o755)
    env = {
        **os.environ,
        **gcs.environment,
        "PYTHON": str(tmp_path / "python"),
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "HOME": str(tmp_path / "home"),
    }

    def script(target):
        command = ["bash", ROOT / "launch" / "prepare_tfds.sh", "made", target]
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)

    done = script("gs://bucket/tfds")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "--config.data.tfds_name=made --config.data.tfds_dir=gs://bucket/tfds\n"
    assert gcs.uploads[-1] == "tfds/made/1.0.0/dataset_info.json"
    read = pairs_of("gs://bucket/tfds", "made", "train", cache=str(tmp_path / "cache"))
    assert sorted(read) == sorted((f"{n}", f"{-n}") for n in range(5))
    assert not (tmp_path / "gs:").exists()
    uploads = len(gcs.uploads)
    assert script("gs://bucket/tfds").returncode == 0
    assert [*gcs.uploads[uploads:]] == ["tfds/writable"]  # nothing is copied again
    refused = script("gs://nowhere/tfds")
    assert refused.returncode == 2 and "can't be written" in refused.stderr.splitlines()[-1]
