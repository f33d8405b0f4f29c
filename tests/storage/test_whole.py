"""Files appear whole or not at all, and errors of a disk are one line."""

import pytest

from transformer_jax.config import RunError, UserError
from transformer_jax.storage import buckets


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    buckets.write_whole(path, "old")
    with pytest.raises(ValueError), buckets.appearing(path) as temporary:
        temporary.write_text("half")
        raise ValueError
    assert path.read_text() == "old"
    with buckets.appearing(path) as temporary:
        assert temporary.suffix == path.suffix
        temporary.write_text("new")
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(ValueError), buckets.appearing(path) as temporary:
        temporary.mkdir()
        (temporary / "file").write_text("half")
        raise ValueError
    assert not [*tmp_path.iterdir()]
    with buckets.appearing(path) as temporary:
        temporary.mkdir()
    assert [*tmp_path.iterdir()] == [path]


def test_errors_of_a_disk_are_one_line(tmp_path):
    missing = tmp_path / "missing" / "file"
    with pytest.raises(UserError, match=r"file: can't be read \(No such file or directory\)$"):
        with buckets.reading(missing):
            missing.read_text()
    message = r"^--output: can't be written \(No such file or directory\); nothing is lost$"
    with pytest.raises(RunError, match=message):
        with buckets.writing("--output", RunError, "; nothing is lost"):
            buckets.write_whole(missing, "")
