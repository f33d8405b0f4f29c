"""Paths in a bucket behave as pathlib's do; text in a bucket reads as text on a disk."""

import glob

import pytest

from transformer_jax.config import RunError, UserError
from transformer_jax.data.sources import text_files
from transformer_jax.data.texts import TextFiles
from transformer_jax.storage import buckets, key_values
from transformer_jax.storage.buckets import Mirror


def test_a_path_in_a_bucket_behaves_as_one_of_pathlib(gcs):
    folder = buckets.path("gs://bucket/a")
    assert str(folder / "b" / "c.txt") == "gs://bucket/a/b/c.txt"
    assert folder.absolute() == folder.expanduser() == folder
    for name in ("b/c.txt", "b/d/e", "f", "g h/ö"):
        (folder / name).write_text(name)
    gcs.put("a/empty/", b"")
    gcs.put("ab", b"")
    assert [path.name for path in folder.iterdir()] == ["b", "f", "g h"]
    assert (folder / "g h/ö").read_text() == "g h/ö"
    assert (folder / "f").is_file() and not (folder / "f").is_dir()
    assert (folder / "b").is_dir() and not (folder / "b").is_file()
    assert not (folder / "a").exists()

    def names(pattern):
        return [str(path.relative_to(folder)) for path in folder.glob(pattern)]

    assert names("b/*") == ["b/c.txt", "b/d"]
    assert names("?") == ["b", "f"]
    assert names("*/*.txt") == ["b/c.txt"]
    assert names("**/[ce]*") == ["b/c.txt", "b/d/e"]
    assert sorted(map(str, folder.rglob("*"))) == [
        f"gs://bucket/a/{name}" for name in ("b", "b/c.txt", "b/d", "b/d/e", "f", "g h", "g h/ö")
    ]
    with pytest.raises(FileExistsError):
        (folder / "b").mkdir()
    (folder / "b").rename(folder / "moved")
    assert names("moved/**/*") == ["moved/c.txt", "moved/d", "moved/d/e"]
    assert not (folder / "b").exists()
    folder.rmtree()
    assert set(gcs.objects) == {"ab"}


def test_missing_objects_and_other_urls_are_errors(gcs):
    folder = buckets.path("gs://bucket/a")
    for missing in (folder.rmtree, (folder / "f").read_bytes, (folder / "f").open):
        with pytest.raises(FileNotFoundError, match="^gs://bucket/a.*: no such"):
            missing()
    for url in ("gs://", "what://bucket/a"):
        with pytest.raises(UserError, match="neither a path nor gs://BUCKET/NAME"):
            buckets.path(url)


def test_commit_files_are_deleted_first_and_written_last(gcs):
    """A part of a checkpoint never passes for a complete one."""
    for name in ("a", "commit_success.txt", "params/commit_success.txt", "params/z"):
        gcs.put(f"run/4/{name}", b"")
    gcs.writes = 1
    with pytest.raises(PermissionError):
        buckets.path("gs://bucket/run/4").rmtree()
    assert set(gcs.objects) == {"run/4/a", "run/4/params/commit_success.txt", "run/4/params/z"}
    gcs.writes = float("inf")
    gcs.put("run/4/commit_success.txt", b"")
    buckets.path("gs://bucket/run/4").rename("gs://bucket/run/damaged")
    assert gcs.uploads[-1] == "run/damaged/commit_success.txt" and len(gcs.objects) == 4


TEXTS = {
    "one.txt": "",
    "two.txt": "x" * 16,
    "three.txt": "ä line\n\nanother\r\n" * 9,
    "more.jsonl": '{"text": "grüße"}\n',
}


@pytest.fixture
def texts(gcs, tmp_path, monkeypatch):
    """The texts in a bucket, and in a folder on a disk, which it returns."""
    monkeypatch.setattr(key_values, "READ_SIZE", 16)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text, newline="")
        gcs.put(f"text/{name}", text.encode())
    return tmp_path


def test_text_in_a_bucket_reads_as_text_on_a_disk(texts):
    for name in TEXTS:
        local = str(texts / name)
        remote = f"gs://bucket/text/{name}"
        assert list(text_files.text_lines(remote)) == list(text_files.text_lines(local))
        assert text_files.sha256([remote]) == text_files.sha256([local])
    names = "gs://bucket/text/t*.txt, gs://bucket/text/more.jsonl"
    paths = text_files.matching_files("config.data.train_files", names)
    files = TextFiles(tuple(paths), "blank_line", "text")
    expected = ("three.txt", "two.txt", "more.jsonl")
    assert files.files == tuple(f"gs://bucket/text/{name}" for name in expected)
    assert list(files)[0] == "ä line" and list(files)[-1] == "grüße"


FILES = ("a.txt", "b[1].txt", "b1.txt", "q?.txt", ".hidden.txt", "d[2]/c.txt", "d2/c.txt")
DEEP = ("s/x.txt", "s/t/y.txt", "s/.cache/z.txt", "s/t/._y.txt")


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("a.txt", ["a.txt"]),
        ("b[1].txt", ["b[1].txt"]),  # the file, not the pattern, which would be b1.txt
        ("q?.txt", ["q?.txt"]),
        ("d[2]/c.txt", ["d[2]/c.txt"]),
        ("d[[]2]/c.txt", ["d[2]/c.txt"]),
        ("b[0-9].txt", ["b1.txt"]),
        ("*.txt", ["a.txt", "b1.txt", "b[1].txt", "q?.txt"]),
        (".*.txt", [".hidden.txt"]),
        ("s/**/*.txt", ["s/t/y.txt", "s/x.txt"]),
        ("s/*/*.txt", ["s/t/y.txt"]),
        ("s/.cache/*", ["s/.cache/z.txt"]),
        ("s/none*", []),
        ("s", []),
        ("none[1].txt", []),
    ],
)
def test_a_pattern_means_the_same_in_a_bucket_and_on_a_disk(fast, tmp_path, pattern, expected):
    """Both agree with `glob`, unless the pattern is itself the name of a file or folder."""
    for name in FILES + DEEP:
        file = tmp_path / "in[1]" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
        fast.put(f"in[1]/{name}", b"x")
    folder = f"{tmp_path}/in[1]"
    assert buckets.matches(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in expected]
    found = buckets.matches(f"gs://bucket/in[1]/{pattern}")
    assert found == [f"gs://bucket/in[1]/{name}" for name in expected]
    if not any((tmp_path / "in[1]" / part).exists() for part in (pattern, pattern.split("/")[0])):
        names = glob.glob(pattern, root_dir=folder, recursive=True)
        assert sorted(name for name in names if (tmp_path / "in[1]" / name).is_file()) == expected


def test_a_pattern_is_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x[1]").mkdir()
    for name in ("x[1]/a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    assert buckets.matches("**/*.txt") == ["b.txt", "x[1]/a.txt"]
    assert buckets.matches("./x[1]/*") == ["x[1]/a.txt"]
    assert buckets.matches("~/*.txt") == [f"{tmp_path}/b.txt"]


def test_a_change_of_text_in_a_bucket_is_noticed(gcs, texts):
    digest = text_files.sha256(["gs://bucket/text/two.txt"])
    gcs.put("text/two.txt", b"y" * 16)
    assert text_files.sha256(["gs://bucket/text/two.txt"]) != digest
    reading = text_files.text_lines("gs://bucket/text/three.txt")
    next(reading)
    gcs.put("text/three.txt", TEXTS["three.txt"].encode())
    with pytest.raises(OSError, match="gs://bucket/text/three.txt: changed while it was read"):
        list(reading)


@pytest.mark.parametrize(
    "names, message",
    [
        ("gs://bucket/text/none", "gs://bucket/text/none: no such file"),
        ("gs://bucket/text/one.*", "gs://bucket/text/one.txt: the file is empty"),
    ],
)
def test_missing_and_empty_text_in_a_bucket_is_an_error(texts, names, message):
    with pytest.raises(UserError, match=f"config.data.train_files={message}"):
        text_files.matching_files("config.data.train_files", names)


def test_a_mirror_sends_changed_files_and_overwrites_no_other_run(gcs):
    gcs.put("run/metrics.jsonl", b"before\n")
    mirror = Mirror(buckets.path("gs://bucket/run"), "metrics.jsonl", "none")
    (mirror.local / "tensorboard").mkdir()
    (mirror.local / "metrics.jsonl").write_text("before\nnow\n")
    (mirror.local / "tensorboard/events").write_text("1")
    for _ in range(2):
        mirror.send()
    assert gcs.uploads == ["run/metrics.jsonl", "run/tensorboard/events"]
    assert gcs.objects["run/metrics.jsonl"] == b"before\nnow\n"
    gcs.put("run/metrics.jsonl", b"another's\n")
    (mirror.local / "metrics.jsonl").write_text("before\nnow\nlater\n")
    message = "^gs://bucket/run/metrics.jsonl: another run has written this file"
    with pytest.raises(RunError, match=message):
        mirror.send()
    mirror.close()
    assert gcs.objects["run/metrics.jsonl"] == b"another's\n" and not mirror.local.exists()
