"""Digests of raw files: remembered, noticed, shared, and never trusted where they are damaged."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import time
from types import SimpleNamespace

import pytest

from tests.conftest import build_gpt
from transformer_jax.data.sources import text_files
from transformer_jax.distributed import hosts
from transformer_jax.runs.spec import make_task

LARGE = 2**20  # bytes
OLD = 1_700_000_000 * 10**9  # nanoseconds


def start(cache, rebuild=False):
    """Begins as a new process does, which has no digest in its memory."""
    text_files._known = text_files._Digests()
    text_files.remember_in(SimpleNamespace(cache=cache, rebuild=rebuild))


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that were read for their digest, in order."""
    names = []

    def file_digest(file, name):
        names.append(getattr(file, "name", "object"))
        return hashlib.file_digest(file, name)

    monkeypatch.setattr(text_files, "hashlib", SimpleNamespace(file_digest=file_digest))
    yield names
    text_files._known = text_files._Digests()


def write(path, content, time_ns=OLD):
    path.write_bytes(content)
    os.utime(path, ns=(time_ns, time_ns))


def sha256(path):
    [digest] = text_files.sha256([str(path)])
    return digest


def test_a_file_is_read_again_where_it_has_changed(cache, tmp_path, reads):
    text = tmp_path / "text"
    link = tmp_path / "link"
    link.symlink_to(text)
    write(text, b"a" * LARGE)

    def digest_and_reads(path=text):
        start(cache)
        reads.clear()
        assert sha256(path) == sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
        return len(reads)

    assert digest_and_reads() == 1
    assert digest_and_reads() == 0
    assert digest_and_reads(link) == 0
    write(text, b"a" * LARGE, OLD + 1)  # as `touch` does
    assert digest_and_reads() == 1 and digest_and_reads() == 0
    write(text, b"b" * LARGE, OLD + 2)
    assert digest_and_reads() == 1
    write(text, b"b" * LARGE + b"b", OLD + 2)
    assert digest_and_reads() == 1
    write(tmp_path / "other", b"c" * (LARGE + 1), OLD + 2)
    link.unlink()
    link.symlink_to(tmp_path / "other")
    assert digest_and_reads(link) == 1
    start(cache, rebuild=True)
    sha256(text)
    assert len(reads) == 2


def rewritten(path, content):
    """Another content by the same inode, as an editor or `open(path, "r+")` writes it."""
    with path.open("r+b") as file:
        file.write(content)


def replaced(path, content):
    """Another file under the same name, as rsync and `mv` leave it."""
    other = path.with_suffix(".new")
    write(other, content)
    other.replace(path)


@pytest.mark.parametrize("change", [rewritten, replaced])
def test_another_content_of_the_same_size_and_time_is_read(change, tmp_path, reads):
    """In the same process and in the next one, however soon after the last content."""
    text = tmp_path / "text"
    write(text, b"a" * LARGE)
    start(tmp_path)
    for number in range(8):
        content = bytearray(b"a" * LARGE)
        content[number * LARGE // 8] = ord("b")  # a single byte
        change(text, content)
        os.utime(text, ns=(OLD, OLD))
        expected = hashlib.sha256(content).hexdigest()
        reads.clear()
        assert sha256(text) == expected and len(reads) == 1
        start(tmp_path)
        assert sha256(text) == expected and len(reads) == 1


def test_the_store_of_another_content_of_the_same_size_and_time_is_built(tmp_path, reads):
    texts = ["the cat sat on the mat. ", "the dog ran to the cat. "]
    valid = tmp_path / "valid.txt"
    found = []
    for text in (*texts, texts[0]):
        config = build_gpt(tmp_path, data__tokenizer="characters", data__valid_files=None)
        write(tmp_path / "train.txt", (text * 50_000).encode())
        start(tmp_path / "cache")
        task = make_task(config)
        row = task.rows().train.batch(0, [0])["tokens"][0].tolist()
        found.append("dog" in task.tokenizer.decode(row))
    assert found == [False, True, False] and valid.exists()


def test_the_parts_of_parallel_files_of_other_content_are_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PART_BYTES", 8)
    files = tmp_path / "a", tmp_path / "b"
    spans = []
    for lines in (b"aaaaaa\nbb\ncccc\n", b"aa\nbb\ncccccccc\n"):
        for file in files:
            write(file, lines)
        parts = text_files.aligned_parts(*map(str, files))
        assert b"".join(lines[one.start : one.stop] for one, _ in parts) == lines
        assert all(lines[one.stop - 1 : one.stop] == b"\n" for one, _ in parts)
        spans.append([(one.start, one.stop) for one, _ in parts])
    assert spans[0] != spans[1]


def test_digests_without_a_time_of_change_are_not_trusted(tmp_path, reads):
    """Earlier versions knew a file by its size and its time of modification."""
    text = tmp_path / "text"
    write(text, b"a" * LARGE)
    start(tmp_path)
    sha256(text)
    (key,) = text_files._known.digests
    text_files._save({(key[0], key[1][:2]): "0" * 64})
    start(tmp_path)
    assert sha256(text) == hashlib.sha256(b"a" * LARGE).hexdigest() and len(reads) == 1


def test_the_digest_of_a_file_that_has_just_changed_is_not_remembered(tmp_path, reads):
    """The next change may leave size and time as they are."""
    text = tmp_path / "text"
    start(tmp_path)
    for letter in b"a", b"b":
        write(text, letter * LARGE, now := time.time_ns())
        assert sha256(text) == hashlib.sha256(letter * LARGE).hexdigest()
        write(text, b"c" * LARGE, now)
        assert sha256(text) == hashlib.sha256(b"c" * LARGE).hexdigest()


def test_a_damaged_memory_is_built_again(tmp_path, reads):
    text = tmp_path / "text"
    memory = tmp_path / "digests/digests.json"
    write(text, b"a" * LARGE)
    start(tmp_path)
    digest = sha256(text)
    whole = memory.read_bytes()
    flipped = whole.replace(digest.encode(), digest[::-1].encode())
    for damaged in whole[:-20], b"", flipped, whole[:65] + b"[1]":
        memory.write_bytes(damaged)
        for _ in range(2):
            start(tmp_path)
            assert sha256(text) == digest
        assert memory.read_bytes() == whole
    assert len(reads) == 5


def test_without_a_folder_to_write_to_files_are_read(tmp_path, reads):
    write(tmp_path / "text", b"a" * LARGE)
    write(tmp_path / "file", b"")
    for _ in range(2):
        start(tmp_path / "file")
        sha256(tmp_path / "text")
    assert len(reads) == 2


def test_small_files_leave_no_digest(tmp_path, reads):
    write(tmp_path / "text", b"a" * (LARGE - 1))
    start(tmp_path / "cache")
    assert sha256(tmp_path / "text") == sha256(tmp_path / "text")
    assert len(reads) == 1 and not (tmp_path / "cache").exists()


def test_text_in_a_bucket_is_read_once_a_generation(gcs, tmp_path, reads):
    for content, count in (b"a", 1), (b"b", 2):
        gcs.put("text", content)
        for _ in range(2):
            start(tmp_path)
            assert sha256("gs://bucket/text") == hashlib.sha256(content).hexdigest()
        assert len(reads) == count


def test_processes_write_at_the_same_time(tmp_path, reads):
    files = [tmp_path / str(number) for number in range(8)]
    for file in files:
        write(file, file.name.encode() * LARGE)
    start(tmp_path)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(sha256, files))
    start(tmp_path)
    reads.clear()
    text_files.sha256(list(map(str, files)))
    assert not reads


def test_the_other_processes_read_only_copies_of_another_version(tmp_path, reads, monkeypatch):
    same, copy = tmp_path / "same", tmp_path / "copy"
    write(same, b"a")
    write(copy, b"b")
    start(tmp_path / "first")
    text_files.sha256([str(same), str(copy)])
    shared = []
    monkeypatch.setattr(hosts, "share", lambda rows: shared.append(rows) or rows)
    text_files.share()
    start(tmp_path / "second")
    write(copy, b"c", OLD + 1)
    monkeypatch.setattr(hosts, "share", lambda _: json.loads(json.dumps(shared[0])))
    reads.clear()
    text_files.share()
    assert text_files.sha256([str(same), str(copy)]) == [
        hashlib.sha256(content).hexdigest() for content in (b"a", b"c")
    ]
    assert reads == [str(copy)]


def test_a_start_on_100_gb_of_text_reads_none_of_it(tmp_path, reads, monkeypatch):
    config = build_gpt(tmp_path)
    for split in "train", "valid":
        text = tmp_path / f"{split}.txt"
        write(text, text.read_bytes() * (LARGE // text.stat().st_size + 1))
    task = make_task(config)
    fingerprint = task.fingerprint()
    task.rows()
    digest = sha256(tmp_path / "train.txt")
    os.truncate(tmp_path / "train.txt", 10**11)  # sparse
    os.utime(tmp_path / "train.txt", ns=(OLD, OLD))
    text_files._save({text_files._key(tmp_path / "train.txt"): digest})
    text_files._known = text_files._Digests()
    original = pathlib.Path.open

    def open_other(path, *arguments, **settings):
        assert path.suffix != ".txt", f"{path} is read"
        return original(path, *arguments, **settings)

    monkeypatch.setattr(pathlib.Path, "open", open_other)
    task = make_task(config)
    assert task.fingerprint() == fingerprint
    assert {*task.rows().eval} == {"valid"}


def test_the_oldest_digests_are_forgotten(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(text_files, "_MOST", 2)
    files = [str(tmp_path / str(number)) for number in range(3)]
    for file in files:
        write(pathlib.Path(file), b"a" * LARGE)
        start(tmp_path)
        text_files.sha256([file])
    start(tmp_path)
    text_files.sha256(files)
    assert reads == [*files, files[0]]
