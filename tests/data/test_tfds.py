import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.data import texts
from transformer_jax.data.sources import pairs, text_files

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
    """Builders of two sets: one without configurations, and one with two, like the WMT sets."""
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

    return Plain, Configured


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
        data={"tfds_name": name, "tfds_dir": str(folder), **keys},
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
    data={{"tfds_name": "plain", "tfds_dir": {str(tmp_path)!r}}},
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
        data={"tfds_name": "plain", "tfds_dir": str(tmp_path), "text_field": "de"},
    )
    assert sorted(texts.open_documents(config.data, "train")) == sorted(
        german for _, german in SPLITS["train"]
    )
    assert texts.open_documents(config.data, "test") is None
    config.data.text_field = "text"
    with pytest.raises(UserError, match="no feature 'text', only .*config.data.text_field"):
        list(texts.open_documents(config.data, "valid"))
