"""Texts are cut into parts by their bytes; the parts together are the text."""

import itertools
import json
import pickle
import random

import pytest

from transformer_jax.config import UserError
from transformer_jax.corpora import python_library
from transformer_jax.data import texts
from transformer_jax.data.sources import pairs, text_files


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(text_files, "PART_BYTES", 100)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(text_files, "_LOOK_BYTES", 16)
    text_files._aligned.cache_clear()


@pytest.fixture
def put(tmp_path):
    """put(name, content) writes a file, and returns its name."""

    def write(name, content):
        (tmp_path / name).write_bytes(content.encode())
        return str(tmp_path / name)

    return write


def lines(count, seed, ends=("\n", "\n", "\r\n", "\n\n", "\n \u2028\t\n")):
    """Returns lines of 0 to 40 characters; some of the line ends end a document, too."""
    draw = random.Random(seed)
    words = ("ä", "of", "longer", "\u2028", "日本語", "")
    return "".join(
        " ".join(draw.choices(words, k=draw.randrange(9))) + draw.choice(ends) for _ in range(count)
    )


def assert_parts_are(text, least):
    """Asserts that the parts, sent to another process, are the text. Returns them."""
    cut = pickle.loads(pickle.dumps(text.parts()))
    assert list(itertools.chain.from_iterable(cut)) == list(text)
    assert len(cut) >= least
    return cut


@pytest.mark.parametrize("split_on", ["blank_line", "line", "file"])
def test_files_of_documents(put, small_parts, split_on):
    long = put("long.txt", "\ufeff" + lines(60, 0) + "no end")
    small = [put(f"{n}.txt", lines(2, n)) for n in range(6)]
    records = [json.dumps({"text": line}) for line in lines(40, 1, "\n").splitlines()]
    table = put("table.jsonl", "\n".join(records))
    one_line = put("one.txt", "word " * 100)
    files = (long, *small, table, one_line)
    text = texts.TextFiles(files, split_on, "text")
    cut = assert_parts_are(text, 8)
    # Small files share a part, and a file of one line is not cut.
    assert max(len(part.spans) for part in cut) > 1
    assert [span.file for part in cut for span in part.spans].count(one_line) == 1
    num_spans = [span.file for part in cut for span in part.spans].count(long)
    assert num_spans == 1 if split_on == "file" else num_spans > 4


def test_aligned_files(put, small_parts):
    source = lines(80, 2, ("\n", "\r\n")) + "\n\n"
    for target in ("x\n" * 82, "x\n" * 81 + "x", "\n" * 81 + "x" * 500 + "\n"):
        text_files._aligned.cache_clear()
        text = pairs.TextPairs(put("a.en", source), put("a.de", target))
        assert_parts_are(text, 8)
        assert_parts_are(texts.JoinedPairs(text, "<to-de>"), 8)


def test_files_in_a_bucket_are_cut_as_those_on_a_disk(put, gcs, small_parts):
    names = ("a.en", "a.de")
    for number, name in enumerate(names):
        gcs.put(name, lines(12, number, ("\n",)).encode())

    def spans(*files):
        documents_of = texts.TextFiles(files, "line", "text").parts()
        cut = [span for part in documents_of for span in part.spans]
        cut += [span for part in pairs.TextPairs(*files).parts() for span in vars(part).values()]
        return [(span.start, span.stop) for span in cut]

    on_disk = spans(*(put(name, lines(12, number, ("\n",))) for number, name in enumerate(names)))
    assert spans(*(f"gs://bucket/{name}" for name in names)) == on_disk and len(on_disk) > 8


@pytest.mark.parametrize("more, short, count", [("", "de", 80), ("x\n" * 9, "en", 82)])
def test_unequal_lengths_are_named_by_a_scan(put, small_parts, more, short, count):
    text = pairs.TextPairs(put("a.en", "some\n" * 82), put("a.de", "x\n" * 80 + more))
    with pytest.raises(UserError, match=rf"a\.{short} has {count} lines, .* has more"):
        text.parts()


def test_an_error_in_a_part_names_the_line_of_the_file(tmp_path, small_parts):
    contents = {"a.txt": b"one\n\n" * 120, "a.de": b"one\n" * 120, "a.en": b"one\n" * 120}
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text[:400] + b"\xff\n" + text[402:])
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 50 + "{\n" + '{"text": "a"}\n' * 9)
    whole = pairs.TextPairs(f"{tmp_path}/a.en", f"{tmp_path}/a.de")
    faults = {
        "a.txt:161: not UTF-8": texts.TextFiles((f"{tmp_path}/a.txt",), "blank_line", "text"),
        "a.en:101: not UTF-8": whole,
        "a.jsonl:51: not JSON": texts.TextFiles((f"{tmp_path}/a.jsonl",), "line", "text"),
    }
    for message, text in faults.items():
        failed = 0
        for part in text.parts():
            try:
                list(part)
            except UserError as error:
                assert f"{tmp_path}/{message}" in str(error)
                failed += 1
        assert failed == 1


def test_built_in_corpora(small_parts):
    assert_parts_are(pairs.GrammarPairs("train", 23), 20)
    assert len(python_library.PythonSources("valid").parts()) == 1


def test_the_number_of_parts_is_bounded(monkeypatch):
    assert text_files.part_bytes(10) == text_files.PART_BYTES
    assert len(text_files.ranges(10**9, 2**40)) == 1024
    assert text_files.ranges(3, 2**40) == [(0, 1), (1, 2), (2, 3)]
    assert text_files.ranges(7, 100) == [(0, 7)]
