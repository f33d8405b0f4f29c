"""Running text from files, JSON lines and the standard library."""

import json

import pytest

from transformer_jax.config import UserError, experiment, validate
from transformer_jax.corpora import python_library
from transformer_jax.data import texts
from transformer_jax.runs.spec import make_task


def data(**keys):
    return experiment(model={"name": "gpt"}, task={"name": "causal_lm"}, data=keys).data


TEXT = "one\ntwo\n\n\n three  \n \t\nfour\r\nfive"


@pytest.mark.parametrize(
    "split_on, expected",
    [
        ("blank_line", ["one\ntwo", " three  ", "four\nfive"]),
        ("line", ["one", "two", " three  ", "four", "five"]),
        ("file", [TEXT]),
    ],
)
def test_what_ends_a_document(tmp_path, split_on, expected):
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    assert (
        list(
            texts.open_documents(
                data(train_files=str(tmp_path / "a.txt"), split_on=split_on), "train"
            )
        )
        == expected
    )


def test_paths_and_patterns_and_json_lines(tmp_path):
    for name in ("b1.txt", "b2.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"body": "six\n\nseven"})
        + "\n\n"
        + json.dumps({"body": ""})
        + "\n"
        + json.dumps({"body": "eight"})
        + "\n"
    )
    named = data(
        train_files=f"{tmp_path}/b*.txt,{tmp_path}/a.txt, {tmp_path}/c.jsonl", text_field="body"
    )
    assert list(texts.open_documents(named, "train")) == [
        "b1.txt",
        "b2.txt",
        "a.txt",
        "six\n\nseven",
        "eight",
    ]
    assert texts.open_documents(named, "valid") is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON"),
        ('{"text": "\\ud83d"}', "half a character"),
        *(
            (line, "config.data.text_field")
            for line in ('{"other": "x"}', '{"text": 3}', '["text"]', "3")
        ),
    ],
)
def test_a_bad_json_line_is_named(tmp_path, line, message):
    (tmp_path / "c.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=rf"c.jsonl:2: .*{message}"):
        list(texts.open_documents(data(train_files=str(tmp_path / "c.jsonl")), "train"))


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(), "name one source of text"),
        (dict(corpus="python", train_files="x"), "now: corpus, train_files"),
        (dict(corpus="grammar"), "has no running text; must be one of python, pydoc"),
        (
            dict(train_files="a.txt", train_source="a", train_target="b"),
            "config.data.train_source names sentence pairs",
        ),
        (dict(train_files="nowhere.txt"), "config.data.train_files=nowhere.txt: no such file"),
        (dict(train_files="nowhere*"), "no such file"),
    ],
)
def test_bad_sources_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        texts.open_documents(data(**keys), "train")


def test_an_empty_file_and_a_broken_encoding_are_named(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match="empty.txt: the file is empty"):
        texts.open_documents(data(train_files=str(tmp_path / "empty.txt")), "train")
    (tmp_path / "latin.txt").write_bytes("fine\nd\xe9j\xe0\n".encode("latin-1"))
    with pytest.raises(UserError, match="latin.txt:2: not UTF-8"):
        list(texts.open_documents(data(train_files=str(tmp_path / "latin.txt")), "train"))


@pytest.mark.full
def test_the_standard_library_is_split_by_file():
    splits = {split: python_library.PythonSources(split) for split in ("train", "valid", "test")}
    texts = {split: list(source) for split, source in splits.items()}
    sizes = {split: sum(map(len, split_texts)) for split, split_texts in texts.items()}
    assert sizes["train"] > 3_000_000 and sizes["valid"] > 50_000 and sizes["test"] > 50_000
    assert not set(texts["train"]) & set(texts["valid"])
    assert any("def " in text for text in texts["valid"])
    prints = [source.fingerprint() for source in splits.values()]
    assert prints[0] == splits["train"].fingerprint() and len({json.dumps(p) for p in prints}) == 3


@pytest.mark.full
def test_the_documentation_of_the_standard_library_is_split_by_file():
    splits = {
        split: texts.open_documents(data(corpus="pydoc"), split)
        for split in ("train", "valid", "test")
    }
    texts_of = {split: list(source) for split, source in splits.items()}
    words = {
        split: sum(len(text.split()) for text in split_texts)
        for split, split_texts in texts_of.items()
    }
    assert words["train"] > 250_000 and words["valid"] > 5_000 and words["test"] > 5_000
    assert all(
        text.count("\n") >= 1 and all(map(str.strip, text.split("\n")))
        for split_texts in texts_of.values()
        for text in split_texts
    )
    assert not set(texts_of["train"]) & {*texts_of["valid"], *texts_of["test"]}
    # help("objects")
    assert any(
        "Everything in Python is an object." in text or "Python’s abstraction for data." in text
        for text in texts_of["train"]
    )
    assert (
        len(
            {json.dumps(source.fingerprint()) for source in splits.values()}
            | {json.dumps(python_library.PythonSources("valid").fingerprint())}
        )
        == 4
    )


MODULE = '''#!/usr/bin/python
# A comment of
# two lines.  And more.
"""First line.

A paragraph that goes on
over lines.  Its code::

    x = 1  # Not this.

    y = 2.

Options
-------
- The first
  of them.
* The second.
a table, no sentence

    >>> print("no.")
    no.
Code: x = "\\d"
"""
class A:
    def f(self):
        # Between docstrings.
        x = 1  # Behind code.
        def g():
            """Deep (inside)?"""
    async def h():
        "Last!"
'''


TOPICS = r"""topics = {
    'a': 'Title\n***\n\nOf a.  More.\n\n   code()\n',
    'b': 'Of b. More.',
    'c': 'Short.',
}"""


def test_documentation_is_running_text(tmp_path, monkeypatch):
    files = {
        **{f"module{i}.py": MODULE for i in range(100)},
        "broken.py": "# A comment. Two.\n(",
        "one.py": '"""One sentence."""',
        "pydoc_data/topics.py": TOPICS,
        "test/module.py": MODULE,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(python_library.sysconfig, "get_path", lambda _: str(tmp_path))
    python_library._documentation.cache_clear()
    read = {
        split: list(python_library.PythonDocstrings(split)) for split in ("train", "valid", "test")
    }
    python_library._documentation.cache_clear()
    module = [
        "A comment of two lines.",
        "And more.",
        "First line.",
        "A paragraph that goes on over lines.",
        "The first of them.",
        "Between docstrings.",
        "Deep (inside)?",
        "Last!",
    ]
    assert read["valid"] and read["test"] and sum(map(len, read.values())) == 102
    assert set().union(*read.values()) == {"\n".join(module), "Of a.\nMore.", "Of b.\nMore."}


def test_a_mixture_names_files_and_weights(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    parts = texts.mixture(data(mixture=((f"{tmp_path}/a.txt", 3), (f"{tmp_path}/b.txt", 1))))
    assert [(list(text), weight) for text, weight in parts] == [(["a"], 3), (["b"], 1)]
    for bad in ((f"{tmp_path}/a.txt", 0), (f"{tmp_path}/a.txt", 1.5), ("a",), "a"):
        with pytest.raises(UserError, match="config.data.mixture"):
            texts.mixture(data(mixture=(bad,)))
    with pytest.raises(UserError, match="weights are shares.*their sum is 3,000,000,000"):
        texts.mixture(data(mixture=((f"{tmp_path}/a.txt", 3 * 10**9),)))
    with pytest.raises(UserError, match="name one source"):
        texts.mixture(data(mixture=((f"{tmp_path}/a.txt", 1),), corpus="python"))


def test_a_mixture_in_turn_belongs_to_the_length_of_its_run(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 400)
    parts = ((f"{tmp_path}/a.txt", 3), (f"{tmp_path}/b.txt", 1))
    keys = dict(cache=str(tmp_path / "cache"), tokenizer="characters", mixture_order="in_turn")

    def task(num_steps, mixture=parts, **files):
        return make_task(
            experiment(
                model=dict(name="gpt"),
                task=dict(name="causal_lm", length=8),
                train=dict(batch=4, num_steps=num_steps),
                data=keys | files | dict(mixture=mixture),
            )
        )

    first = task(20)
    read = [
        first.tokenizer.decode(first.rows().train.batch(n, [0])["tokens"][0].tolist())
        for n in range(20)
    ]
    assert [("a" in text, "b" in text) for text in read] == [(True, False)] * 15 + [
        (False, True)
    ] * 5
    words = [first.words_read(step) for step in (0, 15, 20)]
    assert words[1] / (words[2] - words[1]) == pytest.approx(3)
    assert first.fingerprint() != task(21).fingerprint()
    with pytest.raises(UserError, match="mixture_order='in_turn': needs config.data.mixture"):
        validate(task(20, (), train_files=parts[0][0]).config)
