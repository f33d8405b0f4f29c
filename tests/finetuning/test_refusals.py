"""Wrong examples and wrong values of the config: an error of one line, and no run begins."""

import pytest
from ml_collections import ConfigDict

from tests.finetuning.examples import build
from transformer_jax.config import UserError
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.runs.train import train


def squad(question, answers):
    """Returns a file with one question, from JSON."""
    entry = f'{{"id": "7", "question": {question}, "answers": {answers}}}'
    return f'{{"data": [{{"paragraphs": [{{"context": "the cat", "qas": [{entry}]}}]}}]}}'


# kind of task, a file, its content, changed keys of the config, part of the error
WRONG = [
    (
        "classification",
        "valid.tsv",
        "cow\tthe cat\n",
        {},
        "valid.tsv:1: unknown label 'cow'; the labels are: cat, dog",
    ),
    (
        "classification",
        "train.tsv",
        "cat\tthe cat\nthe cat\n",
        {},
        "train.tsv:2: 1 column, column 2 is needed",
    ),
    ("classification", "train.tsv", "cat\tthe cat\ndog\t \n", {}, "train.tsv:2: an empty text"),
    ("classification", "train.tsv", "cat\tthe cat\ncat\tthe dog\n", {}, "only one label, 'cat'"),
    (
        "classification",
        "train.tsv",
        "label\ttext\ncat\tthe cat\n",
        dict(task__text="words", task__label="label"),
        "train.tsv:1: no column 'words' in the header: label, text",
    ),
    ("classification", "train.tsv", "", {}, "the file is empty"),
    ("classification", "train.tsv", "cat\tx\n\ndog\ty\n", {}, "train.tsv:2: an empty line"),
    (
        "classification",
        "train.tsv",
        "cat\tx\n",
        dict(task__label="0"),
        "columns are numbered from 1",
    ),
    ("regression", "train.csv", "text,score\n", {}, "no example in it"),
    ("regression", "train.csv", "text,score\na,nan\n", {}, "train.csv:2: the label 'nan'"),
    (
        "regression",
        "train.csv",
        'text,score\n"a\nb",1\nc,d,2\n',
        {},
        "train.csv:4: 3 columns, the header has 2",
    ),
    ("regression", "train.csv", 'text,score\n"a,1\n', {}, "train.csv:2: not CSV"),
    ("pairs", "train.jsonl", "\n", {}, "no label in the training examples"),
    (
        "pairs",
        "train.jsonl",
        '{"a": null, "b": "x", "same": 1}\n',
        {},
        "train.jsonl:1: 'a' is null",
    ),
    *(
        (
            "classification",
            f"twice.{ending}",
            content.replace(",", "," if ending == "csv" else "\t"),
            dict(task__text="text", task__label="label", data__train_files=f"{{}}/twice.{ending}"),
            f"twice.{ending}:1: the header has 2 columns {name!r}; rename all but the one",
        )
        for ending in ("csv", "tsv")
        for name, content in (
            ("label", "text,label,label\nx,first,second\n"),
            ("text", "text,label,text\nx,first,y\n"),
        )
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": "x", "b": "y", "same": 1, "same": 0}\n',
        {},
        "train.jsonl:1: not JSON (the key 'same' twice)",
    ),
    *(
        (
            "pairs",
            "train.jsonl",
            f'{{"a": "x", "b": "y", "same": 1}}\n{{"a": "x", "b": "y", "same": {label}}}\n',
            {},
            f"train.jsonl:2: the label {label} is neither a string nor an integer; write the name",
        )
        for label in ("true", "1.0", "null", "NaN", "[1]")
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": "x", "b": "y", "same": 1}\n{"a": "x", "b": "y", "same": "1"}\n',
        {},
        'train.jsonl:2: the label "1": other lines have the same label as an integer; write all',
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": true, "b": "y", "same": 1}\n',
        {},
        "train.jsonl:1: 'a' is true, neither text nor a number",
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": NaN, "b": "y", "same": 1}\n',
        {},
        "train.jsonl:1: 'a' is NaN, neither text nor a number",
    ),
    (
        "regression",
        "train.jsonl",
        '{"text": "x", "score": 1.5}\n{"text": "x", "score": true}\n',
        dict(data__train_files="{}/train.jsonl"),
        "train.jsonl:2: 'score' is true, neither text nor a number",
    ),
    (
        "choice",
        "train.jsonl",
        '{"1": "a", "2": "b", "3": "c", "4": false}\n',
        dict(data__train_files="{}/train.jsonl"),
        "train.jsonl:1: the label false is neither a string nor an integer",
    ),
    ("classification", "train.tsv", "cat\tx\n\ty\n", {}, "train.tsv:2: an empty label"),
    ("tagging", "train.conll", "the x O\ncat O\n", {}, "train.conll:2: 2 columns, 3 before"),
    (
        "tagging",
        None,
        "",
        dict(task__features="last", task__lstm_width=3),
        "config.task.lstm_width=3",
    ),
    ("span", None, "", dict(task__n_best=0), "config.task.n_best=0"),
    ("classification", None, "", dict(task__head_dropout=1.0), "head_dropout=1.0"),
    (
        "span",
        "train.json",
        squad("null", "[]"),
        {},
        "question 7: question, context",
    ),
    ("classification", "train.tsv", "cat\tx\n", dict(task__text="text"), "either all are names"),
    (
        "regression",
        "train.csv",
        "text,score\nthe cat,high\n",
        {},
        "train.csv:2: the label 'high' is not a number",
    ),
    ("pairs", "train.jsonl", '{"a": "x"}\n', {}, "train.jsonl:1: no key 'b'"),
    ("pairs", "train.jsonl", "{\n", {}, "train.jsonl:1: not JSON"),
    (
        "regression",
        "train.csv",
        "text,score\nthe cat,1e39\n",
        {},
        "train.csv:2: the label '1e39' is not a number",
    ),
    ("choice", "train.tsv", "a\tb\tc\t" + "9" * 5000 + "\n", {}, "must be a number from 0 to 1"),
    ("span", "train.json", "\ufeff[]", {}, "not in SQuAD's form"),
    ("tagging", "train.conll", "-DOCSTART- -X- O\n\n", {}, "no example in it"),
    (
        "tagging",
        "train.conll",
        "the\tO\ncat\n",
        {},
        "train.conll:2: expected columns, a word first and its tag last",
    ),
    ("tagging", "valid.conll", "the\tB-COW\n", {}, "valid.conll:1: unknown tag 'B-COW'"),
    ("tagging", "valid.conll", "the\tO\na\tB-COW\n", {}, "valid.conll:2: unknown tag 'B-COW'"),
    (
        "tagging",
        "train.conll",
        "\nthe\tO\n\nCat\tB-PET\nFish\tI-PET\na\tM-PET\ndog\tE-PET\n",
        {},
        "train.conll:6: M-PET: tags of no scheme, or of several: B-PET, I-PET, M-PET; the ",
    ),
    (
        "tagging",
        "train.conll",
        "Cat\tB-PET\nFish\tI-PET\n",
        dict(task__scheme="BILOU", task__labels=("O", "B-PET", "M-PET")),
        "config.task.labels: tags that are not all of the scheme BILOU: B-PET, M-PET",
    ),
    (
        "choice",
        "train.tsv",
        "a\tb\tc\t2\n",
        {},
        "train.tsv:1: label '2': must be a number from 0 to 1",
    ),
    ("choice", "train.tsv", "a\t\tc\t1\n", {}, "train.tsv:1: an empty choice"),
    (
        "span",
        "train.json",
        squad('"who?"', '[{"text": "dog", "answer_start": 4}]'),
        {},
        "question 7: the answer 'dog' is not at character 4",
    ),
    (
        "span",
        "train.json",
        squad('"who?"', "[]"),
        {},
        "question 7: no answer",
    ),
    ("span", "train.json", "[]", {}, "not in SQuAD's form"),
    ("span", None, "", dict(task__stride=100), "config.task.stride=100"),
    ("pairs", None, "", dict(task__lm_weight=0.5), "not a language model"),
    ("classification", None, "", dict(task__length=100), "config.model.max_length=64"),
    ("classification", None, "", dict(task__symmetric=True), "config.task.symmetric needs"),
    ("choice", None, "", dict(task__choices=("2",)), "must name at least two columns"),
    ("choice", "train.tsv", " \tb\tc\t1\n", {}, "train.tsv:1: an empty context"),
    ("choice", "train.tsv", "a\tb\tc\t5\n", dict(task__choices=(2, 3)), "train.tsv:1: label '5'"),
    (
        "tagging",
        "valid.conll",
        "the\t2\n",
        dict(task__labels=(0, 1)),
        "valid.conll:1: unknown tag '2'; the tags are: 0, 1",
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": "x \\ud83d", "b": "y", "same": 1}\n',
        {},
        "train.jsonl:1: half a character",
    ),
    ("span", "train.json", '{"data": "\\ud83d"}', {}, "train.json: half a character"),
    (
        "pairs",
        "list.json",
        '[{"a": "x", "b": "y", "same": 1},\n {"a": "x"}]',
        dict(data__train_files="{}/list.json"),
        "list.json: item 2: no key 'b'",
    ),
    (
        "pairs",
        "lines.json",
        '{"a": "x"}\n',
        dict(data__train_files="{}/lines.json"),
        "lines.json:1: no key 'b'",
    ),
    ("choice", "train.tsv", "a\tb\tc\t5\n", dict(task__context=(1,)), "train.tsv:1: label '5'"),
    ("choice", None, "", dict(task__label="3"), "config.task.label=3: that column is a text"),
    (
        "classification",
        None,
        "",
        dict(task__pair="1"),
        "config.task.label=1: that column is a text",
    ),
    (
        "classification",
        None,
        "",
        dict(task__pair="is it {{1}}, or {{2}}?"),
        "config.task.label=1: that column is a text",
    ),
    (
        "classification",
        "lines.json",
        '{"a": "x", "b": "y", "c": "z"}\n{"a": "x", "b": "y"}\n',
        dict(
            data__train_files="{}/lines.json",
            task__text="a",
            task__pair="{{a}} or {{c}}?",
            task__label="b",
        ),
        "lines.json:2: no key 'c'",
    ),
    ("classification", None, "", dict(model__vocab_size=20), "20"),
]


@pytest.mark.parametrize(
    "kind, file, content, keys, message", WRONG, ids=[message[:40] for *_, message in WRONG]
)
def test_wrong_examples_and_values_are_refused(kind, file, content, keys, message, runs, tmp_path):
    folder = tmp_path / "data"
    for key, value in keys.items():
        if isinstance(value, str):
            keys = keys | {key: value.format(folder)}
    with pytest.raises(UserError) as error:
        config = build(folder, kind, runs["bert"], **keys)
        if file:
            (folder / file).write_text(content)
        train(config, tmp_path / "run")
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pairs", "span", "choice"])
def test_two_texts_need_two_token_types(kind, runs, tmp_path):
    config = ConfigDict(resolve(build(tmp_path, kind, runs["bert"]), tmp_path / "none").config)
    config.model.num_token_types = 1
    with pytest.raises(UserError, match="num_token_types=1: two texts in a row need 2"):
        make_task(config)


@pytest.mark.parametrize(
    "family, features, message",
    [("gpt", "weighted", "gpt is a causal model"), ("bert", "concat-last-four", "has 2 layers")],
)
def test_features_that_the_model_lacks_are_refused(family, features, message, runs, tmp_path):
    config = build(tmp_path, "tagging", runs[family], task__features=features)
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
