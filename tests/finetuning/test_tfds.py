"""The fine-tuning sets as TFDS prepares them: names of splits, class names, questions."""

import numpy as np
import pytest

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data.sources import tables

CONTEXT = "the cat sat on the mat"
QUESTIONS = {
    "train": [("1", "who sat?", ["cat"], [4]), ("2", "who ran?", [], [])],
    "validation": [("3", "where?", ["mat", "the mat"], [19, 15])],
}
PAIRS = {
    "train": [("a cat sat", "a cat ran", 1), ("a dog", "a dog", 0)],
    "validation_matched": [("a", "b", 2)],
    "validation_mismatched": [("c", "d", 0)],
    "partly": [("e", "f", -1), ("g", "h", 1), ("i", "j", -1)],  # as in SNLI
    "test_matched": [("k", "l", -1), ("m", "n", -1)],
}


def glue_features(features):
    names = ["entailment", "neutral", "contradiction"]
    return {
        "premise": features.Text(),
        "hypothesis": features.Text(),
        "label": features.ClassLabel(names=names),
    }


def glue_examples(split):
    for number, (premise, hypothesis, label) in enumerate(PAIRS[split]):
        yield number, {"premise": premise, "hypothesis": hypothesis, "label": label}


def squad_features(features):
    answer = {"text": features.Text(), "answer_start": np.int32}
    return {
        "id": features.Text(),
        "context": features.Text(),
        "question": features.Text(),
        "is_impossible": np.bool_,
        "answers": features.Sequence(answer),
    }


def squad_examples(split):
    for number, question, texts, starts in QUESTIONS[split]:
        example = {
            "id": number,
            "context": CONTEXT,
            "question": question,
            "is_impossible": not texts,
            "answers": {"text": texts, "answer_start": starts},
        }
        yield number, example


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data_dir with sets of the form of glue/mnli and squad/v2.0."""
    import tensorflow_datasets as tfds

    folder, version = tmp_path_factory.mktemp("tfds"), tfds.core.Version("1.0.0")

    class Glue(tfds.core.GeneratorBasedBuilder):
        VERSION, code_path, BUILDER_CONFIGS = version, None, [tfds.core.BuilderConfig(name="mnli")]
        feature_types, examples, splits = glue_features, glue_examples, PAIRS

        def _info(self):
            features = tfds.features.FeaturesDict(type(self).feature_types(tfds.features))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, download):
            return {split: type(self).examples(split) for split in self.splits}

        def _generate_examples(self, split):
            return type(self).examples(split)

    class Squad(Glue):
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="v2.0")]
        feature_types, examples, splits = squad_features, squad_examples, QUESTIONS

    for builder, name in ((Glue, "mnli"), (Squad, "v2.0")):
        prepared_set = builder(data_dir=str(folder), config=name, file_format="array_record")
        prepared_set.download_and_prepare()
    return folder


def loaded(case, folder, **data):
    return configs.load(
        f"configs/finetune/{case}",
        [("data.tfds_dir", str(folder)), *((f"data.{key}", value) for key, value in data.items())],
    )


def test_mnli_and_its_two_held_out_sets(prepared):
    config = loaded("glue.py:mnli,tfds", prepared)
    columns = (config.task.text, config.task.pair, config.task.label)

    def read(config, split):
        return [record.values for record in tables.open_table(config.data, split, columns)]

    assert sorted(read(config, "train")) == [
        ("a cat sat", "a cat ran", "neutral"),
        ("a dog", "a dog", "entailment"),
    ]
    assert read(config, "valid") == [("a", "b", "contradiction")]
    assert read(
        loaded("glue.py:mnli,tfds", prepared, valid_split="validation_mismatched"), "valid"
    ) == [("c", "d", "entailment")]
    assert tables.open_table(config.data, "test", columns) is None
    assert set(config.task.labels) == {"entailment", "neutral", "contradiction"}
    with pytest.raises(
        UserError,
        match="no split 'other'; config.data.valid_split may be one of train, validation_matched",
    ):
        tables.open_table(
            loaded("glue.py:mnli,tfds", prepared, valid_split="other").data, "valid", columns
        )


def test_examples_without_a_label_are_left_out(prepared, capsys):
    """TFDS gives the label -1 where a set has none, which is no class of its own."""
    config = loaded("glue.py:mnli,tfds", prepared, train_split="partly", test_split="test_matched")
    columns = (config.task.text, config.task.pair, config.task.label)
    [record] = tables.open_table(config.data, "train", columns)
    assert record.values == ("g", "h", "neutral")
    assert "partly: left out 2 without a label" in capsys.readouterr().err
    texts = [record.values for record in tables.open_table(config.data, "test", columns[:2])]
    assert sorted(texts) == [("k", "l"), ("m", "n")]
    with pytest.raises(
        UserError, match="of test_matched have no labels .-1 in label.; name another"
    ):
        list(tables.open_table(config.data, "test", columns))


def test_squad(prepared):
    config = loaded("squad.py:2.0,tfds", prepared)
    assert sorted(record.values for record in tables.open_squad(config.data, "train")) == [
        ("1", "who sat?", CONTEXT, (("cat", 4),)),
        ("2", "who ran?", CONTEXT, ()),
    ]
    assert [record.values for record in tables.open_squad(config.data, "valid")] == [
        ("3", "where?", CONTEXT, (("mat", 19), ("the mat", 15)))
    ]
    assert tables.open_squad(config.data, "test") is None and config.task.unanswerable


@pytest.mark.parametrize(
    "case",
    [
        "sentiment.py:imdb-tfds",
        "squad.py:1.1,tfds",
        *(
            f"glue.py:{task},tfds"
            for task in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
        ),
        "glue.py:mrpc,gpt,tfds",
    ],
)
def test_every_config_that_reads_such_a_set_loads(case, tmp_path):
    config = loaded(case, tmp_path)
    assert config.data.tfds_name and config.task.get("text", "") != "4"
    with pytest.raises(UserError, match="no prepared TFDS set here"):
        if config.task.name == "span":
            tables.open_squad(config.data, "train")
        else:
            tables.open_table(config.data, "train", (config.task.text,))
