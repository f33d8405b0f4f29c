"""Rows that a Python program gives: the same rows in any form, resumed, changed, and mistakes."""

import csv
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.conftest import build_config, build_gpt
from transformer_jax import config as configs
from transformer_jax import data, open_run, train
from transformer_jax.config import UserError
from transformer_jax.data import given
from transformer_jax.runs import spec

TEXTS = [f"the cat {n % 5} sat on the mat {n}" for n in range(120)]


class Records:
    """A random-access data source, as Grain's protocol has it."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, number):
        return self._rows[number]


class Frame:
    """What is used of a DataFrame."""

    columns = ["text"]

    def to_dict(self, orient):
        assert orient == "records"
        return [{"text": text} for text in TEXTS]


FORMS = {
    "texts": lambda: TEXTS,
    "mappings": lambda: [{"text": text} for text in TEXTS],
    "array": lambda: np.array(TEXTS, object),
    "records": lambda: Records([{"text": text} for text in TEXTS]),
    "frame": Frame,
}


def build(folder, **keys):
    config = build_gpt(folder)
    values = {
        "data.train_files": "",
        "data.valid_files": "",
        "data.split_on": "line",
        "data.cache": str(folder / "cache"),
        "train.num_steps": 2,
        "train.log_every": 1,
        "train.eval_every": 2,
        "train.batch": 8,
        "checkpoint.every": 2,
    }
    for key, value in (values | keys).items():
        configs.set_key(config, key, value)
    return config


def losses(run):
    return [line["train/loss"] for line in spec.metrics(run) if "train/loss" in line]


def test_every_form_of_the_rows_is_the_same_file(tmp_path):
    config = build(tmp_path)
    named = [given.keys({"train": make()}, config) for make in FORMS.values()]
    assert all(each == named[0] for each in named)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS})
    assert given.keys({"train": frame}, config) == named[0]


def test_a_run_on_rows_has_the_losses_of_one_on_a_file(tmp_path):
    rows = {"train": TEXTS[20:], "valid": TEXTS[:20]}
    train(build(tmp_path), tmp_path / "rows", data=rows)
    files = {}
    for split, texts in rows.items():
        (tmp_path / f"rows_{split}.txt").write_text("\n".join(texts))
        files[f"data.{split}_files"] = str(tmp_path / f"rows_{split}.txt")
    train(build(tmp_path, **files), tmp_path / "files")
    assert losses(tmp_path / "rows") == losses(tmp_path / "files") != []


def test_a_run_resumes_with_the_same_rows_in_another_form_and_with_no_others(tmp_path):
    rows = {"train": TEXTS[20:], "valid": TEXTS[:20]}
    train(build(tmp_path), tmp_path / "rows", data=rows)
    longer = build(tmp_path, **{"train.num_steps": 3})
    again = {split: [{"text": text} for text in texts] for split, texts in rows.items()}
    train(longer, tmp_path / "rows", data=again)
    assert len(losses(tmp_path / "rows")) == 3
    with pytest.raises(UserError, match="not the train this run was trained with"):
        train(longer, tmp_path / "rows", data=rows | {"train": TEXTS[21:]})


def test_pairs_are_the_sides_of_a_translation(tmp_path):
    config = build_config(tmp_path)
    configs.set_key(config, "data.cache", str(tmp_path / "cache"))
    pairs = [("ein Haus", "a house"), ("zwei", "two")]
    named = given.keys({"train": pairs}, config)
    sides = [open(named[f"data.train_{side}"]).read() for side in ("source", "target")]
    assert sides == ["ein Haus\nzwei\n", "a house\ntwo\n"]
    with pytest.raises(UserError, match="must be a text without a line end"):
        given.keys({"train": [("a\nb", "c")]}, config)


@pytest.mark.parametrize(
    "data, message",
    [
        ({"trian": TEXTS}, "data: no split 'trian'; there are train, valid, test"),
        ({"train": iter(TEXTS)}, "data.'train'.: list_iterator has no numbered rows.*data.write"),
        ({"train": "one text"}, "str has no numbered rows"),
        ({"train": []}, "there are no rows"),
        ({"train": [1, 2]}, "a row is int, neither a text nor a mapping"),
        ({"train": [{"text": object()}]}, "a row is no JSON .object is neither"),
    ],
    ids=range(6),
)
def test_other_rows_are_refused_with_the_remedy(data, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(build(tmp_path), tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


def test_an_iterator_is_written_to_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert data.write(path, (text for text in TEXTS)) == len(TEXTS)
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == TEXTS
    with pytest.raises(UserError, match="no rows to write"):
        given.write(tmp_path / "empty.jsonl", iter(()))
    assert not (tmp_path / "empty.jsonl").exists()


MANY = [f'row {n}, "quoted", naïve 😀 {"word " * (n % 9)}the cat {n % 7}' for n in range(10_000)]


def in_file(kind):
    """Returns a function of a folder and texts that gives the keys of a file of this kind."""

    def keys(folder, texts):
        table = [{"number": number, "text": text} for number, text in enumerate(texts)]
        path = folder / f"rows.{kind}"
        if kind == "txt":
            path.write_text("\n".join(texts))
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table))
        elif kind == "csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["number", "text"])
                writer.writeheader()
                writer.writerows(table)
        elif kind == "parquet":
            parquet.write_table(pyarrow.Table.from_pylist(table), path)
        else:
            datasets = pytest.importorskip("datasets")
            datasets.Dataset.from_list(table).save_to_disk(path)
        return {"data.train_files": str(path), "data.valid_files": str(path)}, None

    return keys


def in_memory(make):
    return lambda folder, texts: ({}, dict.fromkeys(("train", "valid"), make(texts)))


def as_frame(texts):
    return pytest.importorskip("pandas").DataFrame({"text": texts})


def as_dataset(texts):
    return pytest.importorskip("datasets").Dataset.from_dict({"text": texts})


EVERYWHERE = {
    **{kind: in_file(kind) for kind in ("txt", "csv", "jsonl", "parquet", "folder")},
    "list": in_memory(list),
    "DataFrame": in_memory(as_frame),
    "Dataset": in_memory(as_dataset),
}


@pytest.fixture(scope="module")
def from_text(tmp_path_factory):
    return trained_on(tmp_path_factory.mktemp("text"), EVERYWHERE["txt"])


def trained_on(folder, make):
    """Returns the stored tokens and the losses of a run on the 10,000 rows."""
    keys, rows = make(folder, MANY)
    train(build(folder, **keys), folder / "run", data=rows)
    task = open_run(folder / "run")[0]
    stored = task.rows().train.phases[0].components[0].store
    return stored.read([(0, stored.meta["tokens"])])[0].tobytes(), losses(folder / "run")


@pytest.mark.full
@pytest.mark.parametrize("name", EVERYWHERE)
def test_ten_thousand_rows_give_the_same_store_and_losses(name, from_text, tmp_path):
    tokens, first_losses = trained_on(tmp_path, EVERYWHERE[name])
    assert len(tokens) > 100_000 and tokens == from_text[0]
    assert first_losses == from_text[1] != []
