import re

import pytest

from transformer_jax.config import UserError, experiment
from transformer_jax.data.sources import pairs as sentence_pairs
from transformer_jax.data.store import Folder
from transformer_jax.storage import buckets


def data(**keys):
    return experiment(
        model={"name": "encoder_decoder"}, task={"name": "translation"}, data=keys
    ).data


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.fixture
def pairs(tmp_path):
    """pairs(source, target) returns the training pairs of two files with this content."""
    return lambda source, target: sentence_pairs.open_pairs(
        data(
            train_source=write(tmp_path / "a.en", source),
            train_target=write(tmp_path / "a.de", target),
        ),
        "train",
    )


@pytest.mark.parametrize(
    "source, target, expected",
    [
        ("one\ntwo\n", "eins\nzwei\n", [("one", "eins"), ("two", "zwei")]),
        ("one\ntwo", "eins\nzwei\n", [("one", "eins"), ("two", "zwei")]),  # no newline at the end
        ("one \r\ntwo\r\r\n", "eins\r\n zwei", [("one ", "eins"), ("two\r", " zwei")]),
        # A byte-order mark counts on the first line only.
        ("\ufeffone\n\ufefftwo\n", "\ufeffeins\nzwei\n", [("one", "eins"), ("\ufefftwo", "zwei")]),
        (
            "a\u2028b\x85c\x0bd\re\n\0two\n",
            "eins\nzwei\n",
            [("a\u2028b\x85c\x0bd\re", "eins"), ("\0two", "zwei")],
        ),
        ("one\n\ntwo\n", "eins\n\nzwei\n", [("one", "eins"), ("", ""), ("two", "zwei")]),
    ],
    ids=["plain", "no last newline", "CRLF", "byte-order mark", "other line ends", "empty line"],
)
def test_lines(pairs, source, target, expected):
    read = pairs(source, target)
    assert list(read) == expected
    assert list(read) == expected  # and again: every pass over the text begins anew


def test_bad_utf8_is_named_by_file_and_line(pairs, tmp_path):
    with pytest.raises(
        UserError,
        match=re.escape(f"{tmp_path}/a.de:3: not UTF-8 (invalid start byte at byte 4 of the line)"),
    ):
        list(pairs("1\n2\n3\n4\n", "eins\nzwölf\n".encode() + b"gr\xc3\xb6\xff\xdfe\nvier\n"))


@pytest.mark.parametrize(
    "source, target, short, count", [("1\n2\n3\n", "1\n2\n", "de", 2), ("1\n", "1\n\n\n", "en", 1)]
)
def test_unequal_line_counts_are_named(pairs, tmp_path, source, target, short, count):
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/a.{short} has {count} lines, ")):
        list(pairs(source, target))


def test_an_empty_file_is_named(pairs, tmp_path):
    with pytest.raises(
        UserError, match=re.escape(f"config.data.train_target={tmp_path}/a.de: the file is empty")
    ):
        pairs("one\n", "")


def test_a_missing_file_is_named(tmp_path):
    existing = write(tmp_path / "a.en", "one\n")
    with pytest.raises(
        UserError, match=re.escape(f"config.data.train_target={tmp_path}/no.de: no such file")
    ):
        sentence_pairs.open_pairs(
            data(train_source=existing, train_target=str(tmp_path / "no.de")), "train"
        )
    with pytest.raises(
        UserError, match=f"config.data.train_source={re.escape(str(tmp_path))}: a folder"
    ):
        # A folder is not a file.
        sentence_pairs.open_pairs(data(train_source=str(tmp_path), train_target=existing), "train")


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("side, other", [("source", "target"), ("target", "source")])
def test_one_file_of_a_pair_is_not_enough(tmp_path, split, side, other):
    file = write(tmp_path / "a", "one\n")
    keys = {"train_source": file, "train_target": file} if split == "valid" else {}
    with pytest.raises(UserError, match=f"config.data.{split}_{other} is missing"):
        sentence_pairs.open_pairs(data(**keys, **{f"{split}_{side}": file}), split)


@pytest.mark.parametrize(
    "keys, named",
    [
        ({}, "none"),
        ({"train_source": "a", "corpus": "grammar"}, "corpus, train_source"),
        ({"train_target": "a", "tfds_name": "x"}, "tfds_name, train_target"),
        ({"tfds_name": "x", "corpus": "grammar"}, "corpus, tfds_name"),
        ({"valid_source": "a", "valid_target": "a"}, "none"),
        ({"train_source": "a", "train_files": "x.tmx"}, "train_source, train_files"),
    ],
)
def test_exactly_one_source_must_be_named(keys, named):
    # The remedy for the commonest case: a config of built-in text, and files of one's own.
    remedy = "; --config.data.corpus= leaves out the built-in text" if "corpus" in named else ""
    with pytest.raises(UserError, match=f"name one source of .*: {named}{remedy}$"):
        sentence_pairs.open_pairs(data(**keys), "valid")


def test_running_text_is_not_silently_left_out(tmp_path):
    file = write(tmp_path / "a.txt", "one\n")
    with pytest.raises(UserError, match="a.txt: not a file with both sides of sentence pairs"):
        sentence_pairs.open_pairs(data(corpus="grammar", valid_files=file), "valid")
    with pytest.raises(UserError, match="now: corpus, train_files"):
        sentence_pairs.open_pairs(data(corpus="grammar", train_files=file), "valid")
    with pytest.raises(UserError, match="config.data.mixture names running text"):
        sentence_pairs.open_pairs(data(corpus="grammar", mixture=((file, 1),)), "valid")
    with pytest.raises(UserError, match="valid_files and valid_source: name one source"):
        named = dict(valid_files=file, valid_source=file)
        sentence_pairs.open_pairs(data(corpus="grammar", **named), "valid")


def test_a_home_that_is_not_there_is_named():
    for read in (
        lambda: buckets.path("~nobody-of-this-name/x"),
        lambda: Folder("~nobody-of-this-name/x"),
    ):
        with pytest.raises(UserError, match="~nobody-of-this-name/x: no such user's home"):
            read()


def test_a_split_without_files_is_none(tmp_path):
    file = write(tmp_path / "a", "one\n")
    assert sentence_pairs.open_pairs(data(train_source=file, train_target=file), "valid") is None


def test_a_fingerprint_depends_on_the_content_and_not_on_the_path(pairs, tmp_path):
    first = pairs("one\n", "eins\n").fingerprint()
    moved = data(
        train_source=write(tmp_path / "b.en", "one\n"),
        train_target=write(tmp_path / "b.de", "eins\n"),
    )
    assert sentence_pairs.open_pairs(moved, "train").fingerprint() == first
    assert pairs("one\n", "eine\n").fingerprint() != first


def test_built_in_grammar_gives_the_asked_number_and_other_sentences_for_validation():
    train, valid = (
        list(sentence_pairs.open_pairs(data(corpus="grammar", corpus_size=50), split))
        for split in ("train", "valid")
    )
    assert len(train) == 50 and all(source and target for source, target in train)
    assert len(valid) == 1000 and not set(train) & set(valid)
