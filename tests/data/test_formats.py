"""The same rows as text, CSV, JSON lines, Parquet and Arrow, compressed or not."""

import csv
import gzip
import io
import json

import pyarrow
import pytest
from pyarrow import ipc, parquet

from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.data import texts, tokenizers
from transformer_jax.data.sources import chat
from transformer_jax.data.sources.tables import Table
from transformer_jax.data.sources.text_files import matching_files

ROWS = [
    {"text": f'row {n}, "quoted", naïve 😀 {"word " * (n % 7)}', "label": n % 3, "id": n}
    for n in range(200)
]
LINES = [row["text"] for row in ROWS]
TABLE = pyarrow.Table.from_pylist(ROWS)


def json_lines():
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def comma_separated():
    file = io.StringIO()
    writer = csv.DictWriter(file, ["id", "text", "label"])
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue().encode()


def compressed(content, kind):
    if kind == "gz":
        return gzip.compress(content)
    file = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(file, "zstd") as stream:
        stream.write(content)
    return file.getvalue().to_pybytes()


def parquet_bytes():
    file = io.BytesIO()
    parquet.write_table(TABLE, file, row_group_size=64)
    return file.getvalue()


def arrow_bytes(new):
    file = io.BytesIO()
    with new(file, TABLE.schema) as writer:
        for batch in TABLE.to_batches(max_chunksize=50):
            writer.write_batch(batch)
    return file.getvalue()


FORMATS = {
    "x.jsonl": json_lines,
    "x.jsonl.gz": lambda: compressed(json_lines(), "gz"),
    "x.jsonl.zst": lambda: compressed(json_lines(), "zst"),
    "x.csv": comma_separated,
    "x.csv.gz": lambda: compressed(comma_separated(), "gz"),
    "x.parquet": parquet_bytes,
    "stream.arrow": lambda: arrow_bytes(ipc.new_stream),
    "file.arrow": lambda: arrow_bytes(ipc.new_file),
}
TEXTS = {
    "x.txt": lambda: "\n".join(LINES).encode(),
    "x.txt.gz": lambda: compressed("\n".join(LINES).encode(), "gz"),
    "x.txt.zst": lambda: compressed("\n".join(LINES).encode(), "zst"),
}


def data(folder, names, **keys):
    config = configs.experiment(
        model=dict(name="gpt"),
        task=dict(name="causal_lm"),
        data=dict(train_files=names, split_on="line", cache=str(folder / "cache"), **keys),
    )
    return config.data


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(LINES, "byte_bpe", 300)


@pytest.mark.parametrize("name", FORMATS | TEXTS)
def test_the_same_texts_give_the_same_token_store(name, tokenizer, tmp_path):
    (tmp_path / "expected.txt").write_text("\n".join(LINES))
    (tmp_path / name).write_bytes((FORMATS | TEXTS)[name]())
    stored = []
    for file in ("expected.txt", name):
        settings = data(tmp_path, str(tmp_path / file))
        documents = texts.open_documents(settings, "train")
        assert [*documents] == LINES
        assert [text for part in documents.parts() for text in part] == LINES
        store = texts.tokenised(documents, settings, tokenizer, "train")
        stored.append(store.read([(0, store.meta["tokens"])])[0].tobytes())
    assert stored[0] == stored[1]


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_examples_are_read_from_every_format(name, tmp_path):
    (tmp_path / name).write_bytes(FORMATS[name]())
    records = Table((str(tmp_path / name),), ("text", "label"), classes="label")
    assert [each.values for each in records] == [(row["text"], str(row["label"])) for row in ROWS]
    with pytest.raises(UserError, match=f"{name}.*'length'"):
        list(Table((str(tmp_path / name),), ("length",)))


def test_a_folder_of_datasets_stands_for_its_files(tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    names = [f"data-0000{n}-of-00002.arrow" for n in range(2)]
    for number, name in enumerate(names):
        part = TABLE.slice(100 * number, 100)
        with ipc.new_stream(folder / name, TABLE.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    files = matching_files("config.data.train_files", str(folder))
    assert files == [f"{folder}/{name}" for name in names]
    assert [*texts.open_documents(data(tmp_path, str(folder)), "train")] == LINES


def test_a_folder_of_tables_stands_for_its_files(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "notes.txt").write_text("not a table\n")
    with pytest.raises(UserError):
        matching_files("config.data.train_files", str(folder))
    for number in (1, 0):
        parquet.write_table(TABLE.slice(100 * number, 100), folder / f"{number}.parquet")
    assert [*texts.open_documents(data(tmp_path, f"{folder}/"), "train")] == LINES


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.jsonl.gz", b"no gzip at all", "can't be decompressed"),
        ("x.jsonl.gz", gzip.compress(json_lines())[:300], "can't be decompressed"),
        ("x.parquet", b"PAR1 no table", "can't be read as a table"),
        ("x.parquet", parquet_bytes()[:500], "can't be read as a table"),
        ("x.arrow", b"ARROW1 no table", "can't be read as a table"),
        ("x.csv", b"id,words\n1,a\n", "no column 'text' in the header"),
    ],
    ids=range(6),
)
def test_a_damaged_file_is_one_line_that_names_it(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    documents = texts.open_documents(data(tmp_path, str(tmp_path / name)), "train")
    with pytest.raises(UserError, match=rf"^[^\n]*{name}[^\n]*{message}[^\n]*$"):
        list(documents)


def test_another_column_is_named_by_a_key(tmp_path):
    (tmp_path / "x.csv").write_text('id,words\n1,"one, two\nthree"\n2,four\n')
    settings = data(tmp_path, str(tmp_path / "x.csv"), text_field="words")
    assert [*texts.open_documents(settings, "train")] == ["one, two\nthree", "four"]


TURNS = [{"role": "user", "content": 'say "a,b"\nnow'}, {"role": "assistant", "content": "c"}]
TALKS = [{"messages": TURNS, "prompt": None}, {"messages": None, "prompt": "d", "completion": "e"}]
RANKINGS = [
    {"prompt": "", "chosen": "a", "rejected": "b", "label": 0.75, "completions": None},
    {"prompt": "p\nq", "chosen": None, "completions": ["x", "y", "z"]},
]


def table_bytes(name, rows):
    """Returns a table of rows that do not all have the same columns."""
    columns = dict.fromkeys(key for row in rows for key in row)
    rows = [{key: row.get(key) for key in columns} for row in rows]
    if name.startswith("cells"):  # lists as texts, as in tables that were CSV once
        rows = [
            {key: json.dumps(x) if isinstance(x, list) else x for key, x in row.items()}
            for row in rows
        ]
    file = io.BytesIO()
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif name.endswith(".arrow"):
        table = pyarrow.Table.from_pylist(rows)
        with ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    elif name.endswith(".csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        file.write(text.getvalue().encode())
    else:
        named = ({key: x for key, x in row.items() if x is not None} for row in rows)
        named = [*map(json.dumps, named)]
        is_list = name.startswith("x.json") and "jsonl" not in name
        file.write((f"[{','.join(named)}]" if is_list else "\n".join(named)).encode())
    content = file.getvalue()
    return compressed(content, "gz") if name.endswith(".gz") else content


@pytest.mark.parametrize(
    "name",
    ["x.jsonl", "x.jsonl.gz", "x.json", "x.parquet", "cells.parquet", "x.arrow", "cells.csv"],
)
def test_conversations_and_preferences_are_read_from_every_format(name, tmp_path):
    def opened(read, task, rows):
        path = tmp_path / f"{task}-{name}" if not name.startswith("x.json") else tmp_path / name
        path.write_bytes(table_bytes(name, rows))
        config = configs.experiment(
            model=dict(name="gpt"), task=dict(name=task), data=dict(train_files=str(path))
        )
        return read(config.data, "train")

    conversations = opened(chat.open_conversations, "chat", TALKS)
    short = [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]
    assert [*conversations] == [TURNS, short]
    assert [talk for part in conversations.parts() for talk in part] == [TURNS, short]

    def read_all(read, rows):
        return [*opened(read, "causal_lm", rows)]

    rankings = read_all(chat.open_preferences, RANKINGS)
    assert [(each.prompt, each.completions, each.label) for each in rankings] == [
        ("", ("a", "b"), 0.75),
        ("p\nq", ("x", "y", "z"), 1.0),
    ]
    asked = [{"prompt": "a\nb"}, {"messages": TURNS[:1]}]
    assert read_all(chat.open_prompts, asked) == ["a\nb", TURNS[:1]]
    with pytest.raises(UserError, match="no key 'prompt'|no object with 'messages'"):
        list(opened(chat.open_conversations, "chat", [{"other": "a"}]))
